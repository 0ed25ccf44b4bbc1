# pyright: basic
"""Checkpoints of compressed-tensors (llm-compressor): integers in words or bytes, or floats of eight bits, with scales beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamella.checkpoints.packed import PackedWeight, Packing, all_in_sequence, made_in_bands, repeated, stored_group
from lamella.checkpoints.quantized import WORDS, Format, Part, by_groups, shared_group, words_of
from lamella.checkpoints.safetensors import SafetensorsSource
from lamella.checkpoints.source import StoredTensor, known
from lamella.errors import TensorError

if TYPE_CHECKING:
    import torch

PACKED, INTEGERS, FLOATS = "pack-quantized", "int-quantized", "float-quantized"
"""How weights may be stored: words of integers, a byte each, or float8 (e4m3)."""
INDICES = ("I32", "I64")
BYTES = ("I8",)
FLOAT8 = ("F8_E4M3",)
SINGLE = ((), (1,), (1, 1))
"""Shapes of one number."""


@dataclass(frozen=True)
class Scheme:
    """How the weights of some modules are quantized: one entry of `config_groups`."""

    targets: tuple[str, ...]
    """Names of modules, `re:` and a pattern of them, or the class `Linear`."""
    storage: str
    """`pack-quantized`, `int-quantized` or `float-quantized`."""
    bits: int
    symmetric: bool
    group: int
    """Inputs that share a scale; -1: all of a row; 0: one scale for the whole weight."""

    @property
    def label(self) -> str:
        """For people."""
        what = "float8" if self.storage == FLOATS else f"{self.bits} bits"
        groups = {-1: "whole rows", 0: "whole tensors"}.get(self.group, f"groups of {self.group}")
        return f"{what}, {groups}{'' if self.symmetric else ', zero points'}"

    @property
    def kind(self) -> str:
        """That of `#transformer.packing`."""
        return "fp8" if self.storage == FLOATS else "int4" if self.bits <= 4 else "int8"


@dataclass(frozen=True)
class CompressedTensors(Format):
    """What `quantization_config` says of a checkpoint of compressed-tensors.

    A weight [O,K] is stored as weight_packed [O, K·bits/32], each integer as its distance from the least there is, the first of a word in
    its lowest bits, or as weight [O,K] in int8 or float8; with weight_scale [O,G] and perhaps weight_zero_point and weight_g_idx [K], the
    group of each input. w = scale·(q - z). What is said of activations is not needed: they keep the element type of the model.
    """

    schemes: tuple[Scheme, ...]
    ignored: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"compressed-tensors, {'; '.join(dict.fromkeys(scheme.label for scheme in self.schemes))}"

    @property
    def buffers(self) -> tuple[str, ...]:
        scales = (".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point", ".input_scale_ub")
        return (*scales, ".weight_shape", ".k_scale", ".v_scale", ".q_scale", ".k_zero_point", ".v_zero_point")

    def scheme(self, stem: str) -> Scheme | None:
        """How the module of that name is quantized. Names count more than patterns, and those more than classes."""
        if any(named(stem, target) for target in self.ignored):
            return None
        found = [(int(target != stem), scheme) for scheme in self.schemes for target in scheme.targets if named(stem, target)]
        found += [(2, scheme) for scheme in self.schemes if "Linear" in scheme.targets]
        return min(found, key=lambda pair: pair[0])[1] if found else None

    def parts(self, stem: str, stored: Mapping[str, StoredTensor], shape: tuple[int, int]) -> Mapping[str, Part] | None:
        if f"{stem}.weight_packed" not in stored and f"{stem}.weight_scale" not in stored:
            return None
        scheme = self.scheme(stem)
        if scheme is None:
            tensor = stored.get(f"{stem}.weight_packed") or stored[f"{stem}.weight_scale"]
            what = f"{stem} is quantized, and no entry of config_groups says how"
            raise TensorError(what, where=str(tensor.file), expected="a target that names it, outside of ignore")
        rows, columns = shape
        groups = -(-columns // stored_group(columns, scheme.group))
        scales = (rows, groups)
        at = stored.get(f"{stem}.weight_scale")
        if scheme.group == 0 and at is not None and at.shape in SINGLE:
            scales = at.shape
        found: dict[str, Part] = {}
        if scheme.storage == PACKED:
            found["weight_packed"] = Part((rows, words_of(columns, scheme.bits, f"{stem}.weight_packed")), WORDS)
        else:
            found["weight"] = Part(shape, FLOAT8 if scheme.storage == FLOATS else BYTES)
        found["weight_scale"] = Part(scales)
        if scheme.storage == FLOATS:
            return found
        words_of(columns, int(scheme.kind.removeprefix("int")), stem)
        shared_group(columns, scheme.group, stem)
        if not scheme.symmetric:
            zeros = stored.get(f"{stem}.weight_zero_point")
            in_words = scheme.storage == PACKED and (zeros is None or zeros.dtype not in BYTES)
            found["weight_zero_point"] = Part((-(-rows * scheme.bits // 32), groups), WORDS) if in_words else Part(scales, BYTES)
        if f"{stem}.weight_g_idx" in stored:
            found["weight_g_idx"] = Part((columns,), INDICES)
        return found

    def order(self, source: SafetensorsSource, name: str, shape: tuple[int, int]) -> torch.Tensor | None:
        tensor = source.tensors.get(f"{name}.weight_g_idx")
        if tensor is None:
            return None
        groups = source.stored(f"{name}.weight_g_idx")
        scheme = self.scheme_of(source, name)
        # All -1: made ready for an order, and none was found.
        return None if bool((groups == -1).all()) else by_groups(groups, stored_group(shape[1], scheme.group), tensor)

    def scheme_of(self, source: SafetensorsSource, name: str) -> Scheme:
        """The scheme of a weight that has one."""
        end = "weight_scale"
        scheme = self.scheme(known(source.tensors, f"{name}.{end}").name.removesuffix(f".{end}"))
        assert scheme is not None
        return scheme

    def weight(self, source: SafetensorsSource, name: str, shape: tuple[int, int], order: str) -> PackedWeight:
        scheme = self.scheme_of(source, name)
        scales = known(source.tensors, f"{name}.weight_scale").dtype
        group = shape[1] if scheme.storage == FLOATS else shared_group(shape[1], scheme.group, name)
        packing = Packing(scheme.kind, group, scales, "" if scheme.symmetric else "f32", order)
        return CompressedWeight(packing, shape, source, name, self, scheme)


def named(stem: str, target: str) -> bool:
    """Whether a target names a module: by its name, or by a pattern that its name begins with."""
    return re.match(target.removeprefix("re:"), stem) is not None if target.startswith("re:") else target == stem


@dataclass(frozen=True)
class CompressedWeight(PackedWeight):
    """A weight of a checkpoint of compressed-tensors."""

    source: SafetensorsSource
    name: str
    form: CompressedTensors
    scheme: Scheme

    def stored(self, end: str, device: str) -> torch.Tensor:
        """The tensor `NAME.end`."""
        return self.source.stored(f"{self.name}.{end}").to(device)

    def columns(self) -> torch.Tensor:
        order = self.form.order(self.source, self.name, self.shape)
        assert order is not None
        return order

    def words(self, device: str) -> torch.Tensor:
        if self.scheme.storage == FLOATS:
            return self.stored("weight", device)
        bits = int(self.packing.kind.removeprefix("int"))
        stored = self.source.stored(f"{self.name}.{'weight_packed' if self.scheme.storage == PACKED else 'weight'}")
        order = self.columns().long().to(device) if self.packing.order else None

        def numbers(first: int, last: int) -> torch.Tensor:
            found = stored[first:last].to(device)
            each = all_in_sequence(found, bits) if self.scheme.storage == PACKED else found.int() + (1 << (bits - 1))
            return each if order is None else each[:, order]

        return made_in_bands(self.shape, self.packing, device, numbers)

    def scales(self, device: str) -> torch.Tensor:
        return self.repeated(self.stored("weight_scale", device))

    def mins(self, device: str) -> torch.Tensor:
        import torch

        zeros, middle = self.stored("weight_zero_point", device), 1 << (int(self.packing.kind.removeprefix("int")) - 1)
        # Packed ones are packed along the outputs, each as its distance from the least there is.
        packed = zeros.dtype == torch.int32
        zeros = all_in_sequence(zeros.T, self.scheme.bits).T[: self.shape[0]] if packed else zeros.int() + middle
        # Exact, as is scale·q + min, where scales have at most the 11 bits of a float16.
        return self.repeated(self.stored("weight_scale", device).float() * -zeros.float())

    def repeated(self, values: torch.Tensor) -> torch.Tensor:
        """Values of groups as stored, for the groups in memory."""
        if self.scheme.group == 0:
            return values.reshape(-1, 1).expand(self.groups)
        return repeated(values, self.shape[1], stored_group(self.shape[1], self.scheme.group), self.packing.group)
