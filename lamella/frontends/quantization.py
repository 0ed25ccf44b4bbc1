"""The quantization_config of a config.json enters; the format in which the checkpoint stores its weights leaves, or why it cannot be read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from lamella.checkpoints.awq import Awq
from lamella.checkpoints.compressed_tensors import FLOATS, INTEGERS, PACKED, CompressedTensors, Scheme
from lamella.checkpoints.gptq import Gptq
from lamella.checkpoints.own import METHOD, OwnFormat
from lamella.checkpoints.quantized import Format
from lamella.errors import DtypeError
from lamella.frontends.fields import Fields

ELSE = "use the checkpoint it was made from with --quantize int8 or int4, or a GGUF file"
"""What to do about a checkpoint that cannot be read."""
REPEATED, GROUP_REPEATED, MOST_REPEATED = re.compile(r"[*+{]"), re.compile(r"\)[*+{]"), 4
"""Repetitions in a pattern over names of modules, those of a group, and how many there may be."""


def quantization(fields: Fields) -> Format | None:
    """How the weights of a Hugging Face folder are quantized, by its config.json; None where they are not. Raises ConfigError, DtypeError."""
    # The second name is compressed-tensors' own of its first versions.
    given = fields.object("quantization_config" if fields.has("quantization_config") else "compression_config")
    if not given.values:
        return None
    method = given.text("quant_method", "bitsandbytes" if given.has("load_in_4bit") or given.has("load_in_8bit") else "unknown")
    reader = METHODS.get(method)
    if reader is None:
        raise refusal(fields, f"quantization method {method}", f"one of {', '.join(sorted(METHODS.keys() - {'fp8'}))}")
    return reader(fields, given)


def refusal(fields: Fields, got: str, expected: str, remedy: str = ELSE) -> DtypeError:
    """The error of a checkpoint that is quantized in another way than Lamella reads."""
    return DtypeError("a quantized checkpoint cannot be read", where=fields.where, expected=expected, got=got, remedy=remedy)


def own(fields: Fields, given: Fields) -> Format:
    """What `lamella quantize` writes; headers say how weights are packed."""
    return OwnFormat()


def gptq(fields: Fields, given: Fields) -> Format:
    """AutoGPTQ's and GPTQModel's."""
    bits = given.count("bits")
    if bits not in (4, 8):
        raise refusal(fields, f"GPTQ with bits: {bits}", "4 or 8 bits")
    form = given.text("checkpoint_format", "gptq")
    if given.values.get("is_marlin_format") is True:
        form = "marlin"
    if form not in ("gptq", "gptq_v2"):
        raise refusal(fields, f"GPTQ with checkpoint_format: {form}", "gptq or gptq_v2")
    # GPTQModel: `-:` leaves modules alone, which the tensors themselves say too; `+:` quantizes them in other ways.
    dynamic = given.object("dynamic").values
    other = next((key for key in dynamic if not key.startswith("-:")), None)
    if other is not None:
        raise refusal(fields, f"GPTQ with dynamic: {json.dumps(other)}", "all modules quantized alike")
    return Gptq(
        bits,
        group_size(given),
        # Zero points are read unless the configuration says that there are none to read.
        symmetric=given.flag("sym", False),
        offset=1 if form == "gptq" else 0,
        ordered=given.flag("desc_act", False),
    )


def awq(fields: Fields, given: Fields) -> Format:
    """AutoAWQ's."""
    bits, version = given.count("bits", 4), given.text("version", "gemm").lower()
    if bits != 4:
        raise refusal(fields, f"AWQ with bits: {bits}", "4 bits")
    if version != "gemm":
        raise refusal(fields, f"AWQ of version {version}", "version gemm")
    if not given.flag("zero_point", True):
        raise refusal(fields, "AWQ with zero_point: false", "zero points")
    return Awq(group_size(given))


def compressed_tensors(fields: Fields, given: Fields) -> Format:
    """compressed-tensors'."""
    sparse = given.object("sparsity_config")
    if sparse.text("format", "dense") != "dense":
        raise refusal(fields, f"compressed-tensors with sparsity_config: {sparse.text('format')}", "dense weights")
    form = given.text("format", "")
    groups = given.object("config_groups")
    schemes: list[Scheme] = []
    for name in groups.values:
        entry = groups.object(name)
        weights = entry.object("weights")
        if weights.values:
            schemes.append(scheme(fields, entry, weights, entry.text("format", form)))
    if not schemes:
        raise given.error("config_groups quantizes no weights", "an entry with weights")
    return CompressedTensors(tuple(schemes), names(given, "ignore"))


def scheme(fields: Fields, entry: Fields, weights: Fields, form: str) -> Scheme:
    """One entry of `config_groups`."""
    bits, kind, strategy = weights.count("num_bits", 8), weights.text("type", "int"), weights.text("strategy", "")
    if form == "naive-quantized":
        form = INTEGERS if kind == "int" else FLOATS
    if form not in (PACKED, INTEGERS, FLOATS):
        raise refusal(fields, f"compressed-tensors with format: {form}", f"{PACKED}, {INTEGERS} or {FLOATS}")
    if kind != ("float" if form == FLOATS else "int") or bits not in ((8,) if form == FLOATS else (4, 8)):
        raise refusal(fields, f"compressed-tensors with {kind} weights of {bits} bits in {form}", "int of 4 or 8 bits, or float of 8")
    if not strategy:
        strategy = "tensor" if not weights.has("group_size") else "channel" if weights.values["group_size"] == -1 else "group"
    sizes = {"tensor": 0, "channel": -1} | ({} if form == FLOATS else {"group": group_size(weights)})
    if strategy not in sizes:
        raise refusal(fields, f"compressed-tensors with strategy: {strategy} of {kind} weights", ", ".join(sizes))
    symmetric = weights.flag("symmetric", True)
    if not symmetric and (form == FLOATS or strategy == "tensor"):
        raise refusal(fields, f"compressed-tensors with zero points of {form} and strategy: {strategy}", "symmetric: true")
    return Scheme(names(entry, "targets"), form, bits, symmetric, sizes[strategy])


def names(given: Fields, field: str) -> tuple[str, ...]:
    """A list of names and patterns; none where the field is absent. Raises ConfigError."""
    value: Any = given.get(field)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in cast("list[Any]", value)):
        raise given.error(f"field {field} is no list of names", 'such as ["Linear"]', json.dumps(value))
    found = tuple(cast("list[str]", value))
    for pattern in (name.removeprefix("re:") for name in found if name.startswith("re:")):
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise given.error(f"field {field} holds a pattern that does not parse: {error}", got=json.dumps(pattern)) from error
        # A file may ask for a pattern, and not for all the time there is: repetitions of repetitions take it.
        if len(REPEATED.findall(pattern)) > MOST_REPEATED or GROUP_REPEATED.search(pattern):
            expected = f"at most {MOST_REPEATED} repetitions, none of a group"
            raise given.error(f"field {field} holds a pattern that may take long", expected, json.dumps(pattern))
    return found


def fp8(fields: Fields, given: Fields) -> Format:
    """transformers' own: scales for blocks of 128 by 128, where a kernel here has one a row."""
    raise refusal(fields, "quantization method fp8, with scales for blocks", "float8 of compressed-tensors, with a scale a row or a tensor")


def fbgemm(fields: Fields, given: Fields) -> Format:
    """fbgemm's float8: stored as compressed-tensors stores it, with a scale a row."""
    return CompressedTensors((Scheme(("Linear",), FLOATS, 8, True, -1),), ())


def group_size(given: Fields) -> int:
    """Inputs that share a scale; -1: all. Raises ConfigError."""
    # AutoAWQ's own spelling, before transformers knew it.
    name = "group_size" if given.has("group_size") or not given.has("q_group_size") else "q_group_size"
    return -1 if given.values.get(name) == -1 else given.count(name, 128)


METHODS: Mapping[str, Callable[[Fields, Fields], Format]] = {
    METHOD: own,
    "gptq": gptq,
    "awq": awq,
    "compressed-tensors": compressed_tensors,
    "fbgemm_fp8": fbgemm,
    "fp8": fp8,
}
"""How `quantization_config` reads, by its `quant_method`."""
