"""A model's path goes in; what its headers say, the memory it will take and the floor of a step leave, as tables or JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from lamella import api
from lamella.errors import PromptError
from lamella.passes.device import Device, device
from lamella.program import DEFAULT_ARCH, Shape
from lamella.runtime.manifest import DTYPE_BYTES, Bucket, Manifest
from lamella.tools.costs import pools
from lamella.tools.explain import byte_size, ranges
from lamella.tools.options import Storage
from lamella.tools.report import weight_bytes
from lamella.tools.roofline import StepWork, microseconds, step_work, triage
from lamella.tools.text_table import TextTable, aligned

TYPE_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Inspection:
    """A survey, and (of a model that Lamella understands) the program of one decode step and of the longest prefill chunk; of an encoder that
    of a step of `batch` texts."""

    survey: api.Survey
    context: int
    batch: int
    target: Device
    manifest: Manifest | None = None
    quantize: str = "none"
    """How weights were to be quantized, when loaded."""

    @property
    def step(self) -> Bucket | None:
        """The decode step; an encoder's step of whole texts."""
        return None if self.manifest is None else self.manifest.buckets[0]

    @property
    def work(self) -> StepWork | None:
        """What that step moves and computes when each cache holds the context."""
        return None if self.manifest is None or self.step is None else step_work(self.manifest, self.step, self.target, self.context)

    @property
    def unit(self) -> str:
        """What each sequence of the step gives: a token, or of an encoder a text."""
        return "text" if self.survey.model is not None and not self.survey.model.config.causal else "token"

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of each pool of the loaded model; empty where it cannot be loaded."""
        if self.manifest is None:
            return {}
        return pools(self.manifest, self.context * self.batch, self.target.graph_bytes, self.target.library_bytes)

    def json(self) -> dict[str, Any]:
        """Everything as JSON; docs/inspect.md names the fields."""
        survey, manifest, work = self.survey, self.manifest, self.work
        out: dict[str, Any] = {
            "path": str(survey.path),
            "architecture": survey.architecture,
            "supported": survey.refusal is None,
            "reason": None if survey.refusal is None else str(survey.refusal),
            "weights": survey.weights,
            "family": None if survey.model is None else survey.model.config.family,
            "dtype": None if survey.model is None else TYPE_NAMES[survey.model.config.dtype],
            "quantization": (survey.model.quantization or None) if survey.model is not None else None,
            "sizes": dict(survey.sizes),
            "features": features(survey),
            "tensors": [
                {"kind": k.kind, "tensors": k.tensors, "parameters": k.parameters, "stored_bytes": dict(k.stored)} for k in survey.kinds
            ],
            "parameters": sum(k.parameters for k in survey.kinds),
            "stored_bytes": sum(sum(k.stored.values()) for k in survey.kinds),
            "memory": None,
            "step": None,
        }
        if manifest is not None and work is not None:
            memory = self.memory
            total = {**memory, "total": sum(memory.values())}
            kinds = {TYPE_NAMES.get(name, name): size for name, size in sorted(weight_bytes(manifest).items())}
            where = {"dtype": TYPE_NAMES[manifest.dtype], "context": self.context, "batch": self.batch}
            out["memory"] = {**where, "bytes": total, "weights": kinds}
            out["step"] = {
                "arch": self.target.arch,
                "bytes": work.cost.bytes,
                "weight_bytes": work.cost.weights,
                "launches": len(work.bucket.launches),
                "floor_us": work.floor,
                f"floor_us_a_{self.unit}": work.floor / self.batch,
                f"{self.unit}s_per_second": self.batch * 1e6 / work.floor,
                "bound": work.time.bound,
            }
        return out

    def text(self) -> str:
        """The inspection as tables."""
        survey, parts = self.survey, list[str]()
        verdict = "runs" if survey.refusal is None else f"does not run: {survey.refusal}"
        if survey.refusal is None and not survey.weights:
            verdict = "understood; there are no weights here (--random-weights SEED makes some up)"
        head = [["architecture", survey.architecture], ["Lamella", verdict]]
        if survey.model is not None:
            head.append(["element type", TYPE_NAMES[survey.model.config.dtype]])
        head += [[name, str(value)] for name, value in survey.sizes.items()]
        if survey.model is not None and survey.model.quantization:
            head.append(["quantization", survey.model.quantization])
        head += [[name, value] for name, value in features(survey).items()]
        parts.append("\n".join([str(survey.path), *(f"  {line}" for line in aligned(head))]))
        if survey.kinds:
            parts.append(str(self.tensor_table()))
        work, manifest = self.work, self.manifest
        if manifest is not None and work is not None:
            memory = self.memory
            rows = [[name, byte_size(size)] for name, size in {**memory, "total": sum(memory.values())}.items()]
            where = f"{self.batch} sequence{'s' * (self.batch != 1)} of {self.context} tokens"
            stored = sorted(weight_bytes(manifest).items())
            if len(stored) > 1:
                sizes = [[TYPE_NAMES.get(name, name), byte_size(size)] for name, size in stored]
                parts.append(str(TextTable("Weights in memory", ("stored as", "size"), sizes, frozenset({"size"}))))
            title = f"Memory in {TYPE_NAMES[manifest.dtype]}, caches for {where}"
            parts.append(str(TextTable(title, ("pool", "size"), rows, frozenset({"size"}))))
            rate = f"{self.batch * 1e6 / work.floor:,.0f} {self.unit}s/s at most"
            kind = "A step" if self.unit == "text" else "A decode step"
            each = f"at least {microseconds(work.floor / self.batch)} a {self.unit} on {self.target.arch}, {rate}"
            parts.append(f"{kind}, {where}: {each}\n  {triage(work)}")
        return "\n\n".join(parts)

    def tensor_table(self) -> TextTable:
        """Tensors, parameters and bytes of each kind."""
        numbers = ("tensors", "parameters", "in the files", "in memory")
        # What `--quantize` makes of each kind, the table of weights in memory says.
        width = None if self.manifest is None or self.quantize != "none" else DTYPE_BYTES[self.manifest.dtype]
        stored: Counter[str] = Counter()
        rows: list[list[str]] = []
        for kind in self.survey.kinds:
            stored.update(kind.stored)
            held = "" if width is None else byte_size(kind.held(width))
            files = byte_size(sum(kind.stored.values())) if kind.stored else ""
            rows.append([kind.kind, f"{kind.tensors:,}", f"{kind.parameters:,}", files, held, ", ".join(kind.stored)])
        total = sum(k.parameters for k in self.survey.kinds)
        held = "" if width is None else byte_size(sum(k.held(width) for k in self.survey.kinds))
        count = f"{sum(k.tensors for k in self.survey.kinds):,}"
        rows.append(["all", count, f"{total:,}", byte_size(sum(stored.values())) if stored else "", held, ""])
        return TextTable("Tensors", ("kind", *numbers, "stored as"), rows, frozenset(numbers))


def features(survey: api.Survey) -> dict[str, str]:
    """What is particular about a model's blocks, by topic; empty for one that no family reads."""
    if survey.model is None:
        return {}
    c = survey.model.config
    layers = [c.layer(number) for number in range(c.layers)]
    kinds = {window: [n for n, kind in enumerate(layers) if kind.window == window] for window in {kind.window for kind in layers}}
    sees = [f"layers {ranges(found)}: the last {window} positions" for window, found in sorted(kinds.items()) if window]
    shared = "" if c.heads == c.kv_heads else f", {c.heads // c.kv_heads} share keys and values"
    capped = [f"scores capped at {c.score_cap:g}"] if c.score_cap else []
    scaling = c.rope_scaling.get("rope_type", "")
    turned = f"RoPE, {c.rotary} of {c.head_dim} dimensions, base {c.rope_theta:g}{f', {scaling}' if scaling else ''}"
    still = [n for n, kind in enumerate(layers) if not kind.rotates]
    mixed = f", {c.experts.count} experts of width {c.experts.width}, {c.experts.chosen} a token" if c.experts is not None else ""
    plain = [n for n, kind in enumerate(layers) if kind.dense]
    mixed += f", none in layers {ranges(plain)}" if plain else ""
    norms = [name for name, on in (("before", c.pre_norm), ("after", c.post_norm), ("after the sum with", c.sum_norm)) if on]
    added = {"learned": "learned", "alibi": f"ALiBi, slopes down to 2^-{c.alibi:g}"}
    return {
        "attention": ", ".join([f"{'causal' if c.causal else 'bidirectional'}, {c.heads} heads of {c.head_dim}{shared}", *capped, *sees]),
        "positions": added.get(c.positions, turned + (f", none in layers {ranges(still)}" if still else "")),
        "norms": f"{'RMSNorm' if c.norm == 'rms' else 'LayerNorm'} {' and '.join(norms)} the blocks{', of q and k' if c.qk_norm else ''}",
        "feed-forward": f"{c.activation}{', gated' if c.gated else ''}{mixed}{', beside attention' if c.parallel else ''}",
        "output head": f"{'none' if not c.causal else 'the embedding table' if c.tied else 'its own'}{f', logits capped at {c.logit_cap:g}' if c.logit_cap else ''}",
    }


def inspect(
    model: str,
    *,
    arch: str | None = None,
    dtype: str = "auto",
    context: int | None = None,
    batch: int = 1,
    storage: Storage | None = None,
) -> Inspection:
    """
    Surveys a model and compiles one decode step of `batch` sequences (and the longest prefill chunk, whose arena is the largest), from
    headers alone. `storage`: arguments as for `api.load`. `context` None: the longest one, at most `api.DEFAULT_CONTEXT`. Raises LamellaError for what is no model, for an unknown
    architecture of GPU, and for a context the model was not made for.
    """
    target, stored = device(arch or DEFAULT_ARCH), storage or Storage()
    found = api.survey(model)
    if found.model is None:
        return Inspection(found, context or 0, batch, target)
    longest = found.model.config.max_positions
    if context is not None and context > longest:
        raise PromptError("bad context", where="--context", expected=f"1 to {longest}, the positions of the model", got=str(context))
    tokens = api.context_of(found.model, context)
    if found.model.config.causal:
        shapes = [Shape.decode(batch), *[Shape.prefill(n) for n in api.PREFILL_BUCKETS if n <= tokens][-1:]]
    else:
        # An encoder has no decode step: its steps take whole texts.
        shapes = [Shape(batch * tokens, batch, tokens)]
    program = api.compile(
        found.model,
        arch=arch,
        dtype=dtype,
        **asdict(stored),
        buckets=shapes,
        until="plan",
        max_context=tokens,
        keep_ir=False,
    )
    return Inspection(found, tokens, batch, target, program.manifest, stored.quantize)


def inspection_text(
    model: str, *, arch: str | None, dtype: str, context: int | None, batch: int, as_json: bool, storage: Storage | None = None
) -> str:
    """What the command prints."""
    made = inspect(model, arch=arch, dtype=dtype, context=context, batch=batch, storage=storage)
    return json.dumps(made.json()) if as_json else made.text()
