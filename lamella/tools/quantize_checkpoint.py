# pyright: basic
"""A model's float weights enter, one by one; a folder that opens as a model with packed weights leaves, and how far each linear is off."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from lamella.api import LoadedModel, source_names, weight_shapes, written
from lamella.checkpoints.own import ShardWriter
from lamella.checkpoints.packed import FLOATS
from lamella.errors import DtypeError, PassError
from lamella.program import step_body
from lamella.runtime.quantizer import Moments, Quantized, Recipe, quantize, relative_error
from lamella.runtime.walk import walk

GROUPS = (64, 32)
"""Columns that share a scale of int4 unless told otherwise: the first that divides a row."""
SCALES = "f16"
"""Element type of scales and least values: it rounds them less than bfloat16, and no scale of a weight leaves its range."""
MOST_TOKENS = 512
"""Tokens of a text that are run as one sequence."""
MOST_TEXTS = 4
HEAD, EMBED = "lm_head", "embed"
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json"),
    *("added_tokens.json", "chat_template.jinja", "chat_template.json", "generation_config.json"),
)

Progress = Callable[[int, int, str], None]
"""Called as (done, total, weight) before each linear is quantized."""


@dataclass(frozen=True)
class Settings:
    """What to make of a model. `group` 0: whole rows, for int4 the first of GROUPS that divides a row. `head`: the kind of the linear that makes
    the logits, and of the embeddings where these are tied to it; `embed`: of others. `skip`: shell patterns over the locations
    of linears, `layers.0.* *.down`, with blanks between them. `clip`: search ranges, by what the calibration texts say where there are any."""

    kind: str = "int8"
    group: int = 0
    head: str = "int8"
    embed: str = "none"
    skip: str = ""
    clip: bool = True


@dataclass(frozen=True)
class LinearReport:
    """One linear: how it was quantized or why not, its bytes as floats and as stored, and the relative error of its products with what the
    float model feeds it (None: nothing was fed)."""

    weight: str
    kind: str
    group: int
    shape: tuple[int, int]
    float_bytes: int
    bytes: int
    error: float | None = None
    reason: str = ""


@dataclass
class Report:
    """Every linear of a model, in order."""

    settings: Settings
    tokens: int
    """Of the calibration texts."""
    linears: list[LinearReport] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """For --json and --report."""
        return {"settings": asdict(self.settings), "calibration_tokens": self.tokens, "linears": [asdict(each) for each in self.linears]}


def location_of(weight: str) -> str:
    """Where the linear of a weight is, as `lamella explain` and patterns call it: `layers.0.attn.q_proj` → `layers.0.attn.q`."""
    return weight.removesuffix("_proj")


def recipe_for(settings: Settings, weight: str, columns: int, tied: bool = False) -> Recipe:
    """How a weight is quantized: all experts of a layer alike, since they are multiplied as one; `tied`: the embeddings make the logits."""
    own = {HEAD: settings.head, EMBED: settings.head if tied else settings.embed}
    kind = own.get(weight, settings.kind)
    if kind in FLOATS or (weight in own and kind != settings.kind):
        return Recipe(kind, 0, False, settings.clip)
    group = settings.group
    if not group and kind == "int4":
        group = next((group for group in GROUPS if columns % group == 0), GROUPS[-1])
    return Recipe(kind, group, kind == "int4", settings.clip)


def refusal(opened: LoadedModel, settings: Settings, weight: str, shape: tuple[int, int]) -> str:
    """Why a linear keeps its floats; empty where it does not."""
    tied = opened.config.tied
    where, recipe = location_of(weight), recipe_for(settings, weight, shape[1], tied)
    if recipe.kind == "none":
        kept = {HEAD: "the head keeps its weight: --head none", EMBED: "the embeddings, which make the logits, keep theirs: --head none"}
        return kept.get(weight, "--kind none")
    pattern = next((pattern for pattern in settings.skip.split() if fnmatchcase(where, pattern)), "")
    if pattern:
        return f"--skip {pattern}"
    if where.endswith((".router", ".shared_gate")):
        return "it is small and decides which experts count"
    columns, per_word = shape[1], 1 if recipe.kind in FLOATS else 8 if recipe.kind == "int4" else 4
    if columns % (recipe.group or columns) or columns % per_word:
        return f"{columns} columns are no whole groups of {recipe.group or columns} in words of {per_word}"
    return ""


def quantize_checkpoint(
    opened: LoadedModel, folder: Path, settings: Settings, ids: Sequence[int] = (), progress: Progress | None = None
) -> Report:
    """Writes a model with packed weights into an empty folder: config.json, safetensors, tokenizer.

    `ids` are the tokens of calibration text: the float model runs them layer by layer on the CPU, and what its linears multiply decides
    which errors count. One weight at a time is in memory, and what lies between two linears of those texts.
    Raises DtypeError for a model that is quantized already, PassError for settings that say nothing, and what the checkpoint's source raises.
    """
    _check(opened, settings)
    config, source = opened.config, opened.source
    shapes = weight_shapes(config)
    stored = source_names(config)
    tables = (EMBED,) if config.tied or settings.embed != "none" else ()
    matrices = {
        name: config.matrix(name, shape)
        for name, shape in shapes.items()
        if len(shape) == 2 and (name in tables or not name.startswith(EMBED)) and not name.removesuffix(".bias").endswith("norm")
    }
    reasons = {name: refusal(opened, settings, name, shape) for name, shape in matrices.items()}
    chosen = [name for name, reason in reasons.items() if not reason]
    texts = [list(ids[at : at + MOST_TOKENS]) for at in range(0, min(len(ids), MOST_TOKENS * MOST_TEXTS), MOST_TOKENS)]
    report = Report(settings, sum(map(len, texts)))
    announced: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        if name in chosen:
            recipe = recipe_for(settings, name, matrices[name][1], config.tied)
            announced |= _parts(stored[name].removesuffix(".weight"), recipe, matrices[name])
        else:
            announced[stored[name]] = (_element(source.dtype(name)), shape)
    made: dict[str, LinearReport] = {}
    last: list[tuple[torch.Tensor, Moments]] = []

    def floats_of(name: str) -> torch.Tensor:
        weight = source.load(name)
        # A square weight says nothing by its shape.
        return weight.T if config.transposed and name.startswith("layers.") else weight

    def linear(place: str, name: str, x: torch.Tensor | None) -> None:
        if name in made or name not in matrices:
            return
        shape = matrices[name]
        size = shape[0] * shape[1] * (4 if _element(source.dtype(name)) == "f32" else 2)
        if reasons[name]:
            made[name] = LinearReport(name, "", 0, shape, size, size, None, reasons[name])
            return
        if progress is not None:
            progress(sum(not each.reason for each in made.values()), len(chosen), name)
        recipe, weight = recipe_for(settings, name, shape[1], config.tied), floats_of(name)
        if x is not None and not (last and last[0][0] is x):
            last[:] = [(x, Moments(x))]
        quantized = quantize(weight, recipe, last[0][1] if x is not None else None, torch.float16)
        stem = stored[name].removesuffix(".weight")
        for part, tensor in _tensors(quantized).items():
            writer.write(f"{stem}.{part}", tensor)
        error = None if x is None else relative_error(weight, quantized, x)
        made[name] = LinearReport(name, recipe.kind, recipe.group or shape[1], shape, size, quantized.bytes, error)

    with ShardWriter(folder, announced) as writer:
        if texts:
            step = step_body(config)
            cache = (config.kv_heads, config.head_dim)
            walk(step.body, step.inputs, step.weights, step.locations, source=source, cache=cache, texts=texts, linear=linear)
        for name in matrices:
            linear("", name, None)
        for name in shapes:
            if name not in chosen:
                writer.write(stored[name], source.load(name, dtype=_element(source.dtype(name))))
        writer.check()
    report.linears.extend(made[name] for name in matrices)
    _describe(opened, folder)
    return report


def _check(opened: LoadedModel, settings: Settings) -> None:
    """Raises DtypeError, PassError."""
    if opened.config.packed:
        raise DtypeError("the weights are quantized already", where=str(opened.path), expected="a checkpoint of float weights")
    group = settings.group
    if group and (group < 16 or group & (group - 1)):
        raise PassError("bad --group", expected="0, or a power of two of at least 16", got=str(group))
    if group and settings.kind in FLOATS:
        raise PassError(f"{settings.kind} takes no --group", expected="one scale a row", got=str(group))
    if not opened.config.causal:
        raise DtypeError("encoders keep their floats", where=str(opened.path), expected="a decoder")


def _element(dtype: str) -> str:
    """How floats of that type are stored: blocks of a GGUF file as float16, which their scales are."""
    return dtype if dtype in ("f32", "f16", "bf16") else SCALES


def _parts(stem: str, recipe: Recipe, shape: tuple[int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Element types and shapes of the parts of a weight, by their names in the file."""
    rows, columns = shape
    words = ("f8", (rows, columns)) if recipe.kind in FLOATS else ("i32", (rows, columns * (4 if recipe.kind == "int4" else 8) // 32))
    groups = (SCALES, (rows, columns // (recipe.group or columns)))
    parts = {f"{stem}.packed": words, f"{stem}.scales": groups}
    return {**parts, f"{stem}.mins": groups} if recipe.affine else parts


def _tensors(made: Quantized) -> Mapping[str, torch.Tensor]:
    parts = {"packed": made.words, "scales": made.scales}
    return parts if made.mins is None else {**parts, "mins": made.mins}


def _describe(opened: LoadedModel, folder: Path) -> None:
    """Configuration, tokenizer and the makers' sampling settings, beside the weights."""
    config = replace(opened.config, packed={}, eos=opened.generation.eos or opened.config.eos)
    (folder / "config.json").write_text(json.dumps(written(config), indent=2), encoding="utf-8")
    if opened.path.is_dir():
        for name in TOKENIZER_FILES:
            if (opened.path / name).is_file():
                shutil.copy(opened.path / name, folder / name)
    elif opened.tokenizer is not None:
        opened.tokenizer.backend.save_pretrained(str(folder))
