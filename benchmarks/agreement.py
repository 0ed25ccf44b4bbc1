# pyright: basic
"""A checkpoint of few bits and prompts enter; how far greedy text of packed weights is that of the same weights as floats leaves."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.accuracy import LIMIT, MARGIN, rms
from benchmarks.results import Report
from benchmarks.settings import Settings
from lamella import api
from lamella.errors import PromptError
from lamella.frontends import LoadedModel, keep_packed, open_model
from lamella.program import Shape
from lamella.runtime.generate import Session

PROMPTS = Path(__file__).parent / "prompts.json"
"""Ten: sentences, code, numbers."""
LONGEST_CHUNK = 512
"""Tokens of a prompt that run in one launch, at most."""
LEAST_ERROR = 1e-4 / LIMIT
"""Of the logits: what counts as the error of floats that have none, since they are float32 themselves, as in `accuracy`."""
COLUMNS = (
    "name",
    "prompt_tokens",
    "equal",
    "tokens",
    "packed_id",
    "floats_id",
    "float32_margin",
    "margin",
    "near_tie",
    "packed_error",
    "floats_error",
    "repeatable",
    "ok",
)

Prompt = str | list[int]


@dataclass(frozen=True)
class Models:
    """One checkpoint three times, on one device: packed, as floats of the same element type, and as float32 (which may be the second)."""

    packed: api.Model
    floats: api.Model
    exact: api.Model


def read_prompts(file: Path) -> list[Prompt]:
    """A JSON list whose items are texts or lists of token ids. Raises PromptError."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PromptError("no list of prompts", where=str(file), expected="a JSON list of texts", got=str(error)) from error
    if not isinstance(found, list) or not found or not all(_is_prompt(item) for item in found):
        raise PromptError("no list of prompts", where=str(file), expected="a JSON list of texts, or of lists of token ids")
    return found


def agreement(settings: Settings, prompts: Sequence[Prompt], *, tokens: int) -> Report:
    """For each prompt: how many of `tokens` greedy ids are the same with packed weights as with floats and, where two differ first, how far
    both logits are apart in float32 on the same tokens (`float32_margin`), over the error of the floats (`margin`).

    `settings.config` is the path of a checkpoint. The error is the root mean square, over the positions that both share, of what logits are
    off from float32's. A difference is a near-tie where the margin is at most MARGIN: the floats may as well have chosen otherwise. The logits
    are those of the launches that generated, run again; `repeatable` says that they chose the same ids again. Raises LamellaError.
    """
    report = Report("agreement", settings.device, {"config": settings.name, "limit": MARGIN}, settings.output)
    opened = open_model(settings.config)
    ids = [api.encode(opened, prompt) for prompt in prompts]
    models = load_models(opened, settings, max(len(each) for each in ids), tokens)
    manifest = models.packed.executor.manifest
    kept = sorted({f"{packing.kind} {packing.group}" for packing in models.packed.opened.config.packed.values()})
    report.note(
        **settings.facts(opened.config, manifest.dtype, tokens=tokens, max_context=manifest.max_context),
        packed=kept,
        packed_weights=len(models.packed.opened.config.packed),
    )
    for number, (prompt, each) in enumerate(zip(prompts, ids, strict=True), 1):
        found = compared(models, each, tokens)
        short = {key: value for key, value in found.items() if not isinstance(value, list | dict)}
        row = report.add(name=f"prompt {number}", prompt_tokens=len(each), tokens=tokens, **short)
        row |= {**found, "prompt": prompt, "text": text_of(opened, found["packed_ids"])}
        report.save()
    judge(report)
    where = f"{manifest.dtype}, {tokens} tokens, {report.facts['device']}"
    report.table(COLUMNS, f"agreement of packed weights ({', '.join(kept)}) with floats: {settings.name}, {where}")
    return report


def load_models(opened: LoadedModel, settings: Settings, longest: int, tokens: int) -> Models:
    """The checkpoint in all three ways, for prompts of at most `longest` tokens. Raises LamellaError, of weights that are floats DtypeError."""
    packed = keep_packed(opened)
    # Without packings the front end asks the same source for the floats that the packed parts stand for.
    floats = replace(packed, config=replace(packed.config, packed={}))
    chunk = min(LONGEST_CHUNK, -(-longest // 16) * 16, opened.config.max_positions)
    context = max(longest + tokens, chunk)

    def load(model: LoadedModel, dtype: str) -> api.Model:
        buckets = [Shape.decode(), Shape.prefill(chunk)]
        return api.load(model, device=settings.device.type, dtype=dtype, max_context=context, buckets=buckets)

    first, second = load(packed, settings.dtype), load(floats, settings.dtype)
    is_exact = second.executor.manifest.dtype == "f32"
    return Models(first, second, second if is_exact else load(floats, "float32"))


def compared(models: Models, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    """The fields of a prompt's row, without those that depend on the error over all prompts."""
    packed, floats = greedy(models.packed, prompt, tokens), greedy(models.floats, prompt, tokens)
    equal = equal_ids(packed, floats)
    shared = min(equal + 1, tokens)
    own = chosen_logits(models.packed.session, prompt, packed[:shared])
    theirs = chosen_logits(models.floats.session, prompt, floats[:shared])
    exact = theirs if models.exact is models.floats else chosen_logits(models.exact.session, prompt, packed[:shared])
    repeatable = own.argmax(-1).tolist() == packed[:shared] and theirs.argmax(-1).tolist() == floats[:shared]
    row: dict[str, Any] = {
        "equal": equal,
        "packed_error": rms(own - exact),
        "floats_error": rms(theirs - exact),
        "logit_rms": rms(exact),
        "positions": shared,
        "repeatable": repeatable,
        "packed_ids": packed,
    }
    if equal == tokens:
        return row
    a, b = packed[equal], floats[equal]
    logits = {name: [float(x[equal, a]), float(x[equal, b])] for name, x in (("packed", own), ("floats", theirs), ("float32", exact))}
    behind = float(exact[equal].max()) - min(logits["float32"])
    return {**row, "floats_ids": floats, "packed_id": a, "floats_id": b, "logits": logits, "float32_margin": behind}


def judge(report: Report) -> None:
    """Adds to each row of a prompt what its margin is in errors over all prompts, and the row `all`; notes the `error`, and whether all is `ok`."""
    rows = report.rows
    total = sum(row["positions"] for row in rows)
    means = {
        key: math.sqrt(sum(row[key] ** 2 * row["positions"] for row in rows) / total)
        for key in ("packed_error", "floats_error", "logit_rms")
    }
    error = max(means["floats_error"], LEAST_ERROR * means["logit_rms"])
    for row in rows:
        if "float32_margin" in row:
            row["margin"] = row["float32_margin"] / error
            row["near_tie"] = row["margin"] <= MARGIN
        row["ok"] = row["repeatable"] and row.get("near_tie", True)
    ok = all(row["ok"] for row in rows)
    report.note(ok=ok, error=error, same_prompts=sum(row["equal"] == row["tokens"] for row in rows), prompts=len(rows))
    report.add(
        name="all",
        prompt_tokens=sum(row["prompt_tokens"] for row in rows),
        equal=sum(row["equal"] for row in rows),
        tokens=sum(row["tokens"] for row in rows),
        **means,
        margin=max((row["margin"] for row in rows if "margin" in row), default=None),
        repeatable=all(row["repeatable"] for row in rows),
        ok=ok,
    )


def greedy(model: api.Model, prompt: Sequence[int], tokens: int) -> list[int]:
    """As many ids after a prompt, as `generate` makes them, past the end of the text too."""
    return list(model.session.stream(prompt, tokens, ignore_eos=True, steps_per_replay=model.steps_per_replay))


def chosen_logits(session: Session, prompt: Sequence[int], made: Sequence[int]) -> torch.Tensor:
    """The logits after the prompt and after each id of `made` but the last: float32 [len(made), V] on the CPU.

    By the launches of a generation: the prompt in the prefill bucket, then one token a step. So these are the logits that chose.
    """
    blocks = session.allocator.allocate(-(-(len(prompt) + len(made)) // session.manifest.cache.block))
    try:
        given, start, rows = list(prompt), 0, []
        for following in made:
            end = start + len(given)
            found = session.step(given, range(start, end), [0, len(given)], [end], [blocks], [len(given) - 1])
            rows.append(found.logits[0].to("cpu", torch.float32))
            given, start = [following], end
    finally:
        session.allocator.free(blocks)
    return torch.stack(rows)


def equal_ids(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids are the same, up to the first that is not."""
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b), len(first))


def text_of(opened: LoadedModel, ids: Sequence[int]) -> str | None:
    """What ids say; None where the model has no tokenizer."""
    return None if opened.tokenizer is None else opened.tokenizer.decode(ids)


def _is_prompt(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, list) and all(isinstance(i, int) for i in item))
