# pyright: basic
"""A folder of safetensors that somebody quantized enters; a source of its weights, packed as kernels decode them, leaves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lamella.checkpoints.packed import PackedSource, PackedWeight, device_group
from lamella.checkpoints.safetensors import TYPE_BYTES, SafetensorsSource, stored_tensors
from lamella.checkpoints.source import LOADABLE, StoredTensor
from lamella.errors import CheckpointError, DtypeError, TensorError

if TYPE_CHECKING:
    import torch

WORDS = ("I32",)
"""Elements of what is packed in words."""


@dataclass(frozen=True)
class Part:
    """A tensor that a quantized weight is stored as: its shape, and the element types it may have."""

    shape: tuple[int, ...]
    elements: tuple[str, ...] = LOADABLE


class Format(ABC):
    """How checkpoints of one method store a weight. Its shape [rows, columns] is [outputs, inputs]."""

    @property
    @abstractmethod
    def label(self) -> str:
        """For `lamella inspect`: `GPTQ, 4 bits, groups of 128`."""

    @property
    def buffers(self) -> tuple[str, ...]:
        """Ends of names of tensors that are not needed."""
        return ()

    @abstractmethod
    def parts(self, stem: str, stored: Mapping[str, StoredTensor], shape: tuple[int, int]) -> Mapping[str, Part] | None:
        """The tensors `stem.….` of a weight by the ends of their names; None where it is stored as floats. Raises TensorError, DtypeError."""

    @abstractmethod
    def weight(self, source: SafetensorsSource, name: str, shape: tuple[int, int], order: str) -> PackedWeight:
        """The weight `name`, whose parts `source` has under `name.….`; `order` as in `Packing`."""

    def order(self, source: SafetensorsSource, name: str, shape: tuple[int, int]) -> torch.Tensor | None:
        """i32 [columns]: the columns of a weight by their groups; None where they lie so anyway. Raises TensorError, CheckpointError."""
        return None


def open_quantized(
    folder: Path,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    matrices: Mapping[str, tuple[int, int]],
    form: Format,
    *,
    buffers: tuple[str, ...] = (),
    prefix: str = "",
) -> PackedSource:
    """
    The tensors of a folder, of which the headers say which of the `matrices` (canonical name -> [outputs, inputs]) are quantized. The
    rest is as for `SafetensorsSource.open`, whose errors it raises. Of the data only the groups of columns are read, where there are any:
    weights whose columns lie in the same order share its tensor, so that what they multiply is put in order once.
    """
    headers = stored_tensors(folder)
    if prefix and not any(name.startswith(prefix) for name in headers[0]):
        names = {canonical: name.removeprefix(prefix) for canonical, name in names.items()}
    plan = Plan.of(names, shapes, matrices, form, headers[0])
    if not plan.quantized:
        what = "the configuration says that weights are quantized, and none is stored so"
        raise CheckpointError(what, where=str(folder), expected=form.label, remedy="take quantization_config out of config.json")
    source = SafetensorsSource.open(
        folder, plan.names, plan.shapes, buffers=(*buffers, *form.buffers), elements=(*LOADABLE, *TYPE_BYTES), headers=headers
    )
    plan.check(source)
    weights: dict[str, PackedWeight] = {}
    orders: dict[bytes, str] = {}
    for name, shape in plan.quantized.items():
        order = form.order(source, name, shape)
        own = "" if order is None else orders.setdefault(order.numpy().tobytes(), f"{name}.columns")
        weights[name] = form.weight(source, name, shape, own)
    return PackedSource(source, weights, whole=False)


@dataclass(frozen=True)
class Plan:
    """What is read of a folder under which name, where some matrices are stored in parts."""

    names: dict[str, str]
    """Canonical -> stored; parts of a weight are called `NAME.end`."""
    shapes: dict[str, tuple[int, ...]]
    elements: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Element types that parts may have."""
    quantized: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Matrices that are stored in parts, with [outputs, inputs]."""
    biases: list[str] = field(default_factory=list[str])
    """Those that the model does not have, and that say nothing if they are zeros."""

    @staticmethod
    def of(
        names: Mapping[str, str],
        shapes: Mapping[str, tuple[int, ...]],
        matrices: Mapping[str, tuple[int, int]],
        form: Format,
        stored: Mapping[str, StoredTensor],
    ) -> Plan:
        """What the headers `stored` say. Raises TensorError, DtypeError."""
        plan, known_names = Plan(dict(names), dict(shapes)), set(names.values())
        for name, shape in matrices.items():
            stem = names[name].removesuffix(".weight")
            parts = form.parts(stem, stored, shape)
            if parts is None:
                continue
            plan.quantized[name] = shape
            del plan.names[name], plan.shapes[name]
            for end, part in parts.items():
                plan.names[f"{name}.{end}"], plan.shapes[f"{name}.{end}"] = f"{stem}.{end}", part.shape
                plan.elements[f"{name}.{end}"] = part.elements
            # Old versions of AutoGPTQ store a bias of zeros beside every weight.
            if f"{stem}.bias" in stored and f"{stem}.bias" not in known_names:
                plan.biases.append(f"{name}.bias")
                plan.names[f"{name}.bias"], plan.shapes[f"{name}.bias"] = f"{stem}.bias", (shape[0],)
        return plan

    def check(self, source: SafetensorsSource) -> None:
        """Raises DtypeError for a tensor of another element type than it may have, TensorError for a bias that says something."""
        for name, tensor in source.tensors.items():
            allowed = self.elements.get(name, LOADABLE)
            if tensor.dtype not in allowed:
                what = f"tensor {tensor.name} has the wrong element type"
                raise DtypeError(what, where=str(tensor.file), expected=" or ".join(allowed), got=tensor.dtype)
        for name in self.biases:
            if source.stored(name).any():
                tensor = source.tensors[name]
                raise TensorError(f"unexpected tensor {tensor.name}", where=str(tensor.file), expected="no bias, or zeros")


def words_of(count: int, bits: int, what: str) -> int:
    """Words of `count` numbers. Raises TensorError where they are no whole words."""
    if count * bits % 32:
        raise TensorError(f"{what}: {count} numbers of {bits} bits are no whole words", expected=f"a multiple of {32 // bits}")
    return count * bits // 32


def shared_group(columns: int, group: int, what: str) -> int:
    """Columns that share a scale on the device. Raises TensorError where groups do not fit kernels."""
    found = device_group(columns, group)
    if not found:
        raise TensorError(f"{what}: {columns} columns in groups of {group} cannot be divided evenly", expected="multiples of 16")
    return found


def by_groups(groups: torch.Tensor, group: int, tensor: StoredTensor) -> torch.Tensor | None:
    """i32 [columns]: the columns in the order of their `groups` i32 [columns], each of `group` columns, the last perhaps of fewer; None where
    that is their own order. Raises TensorError.
    """
    import torch

    columns = groups.numel()
    count = -(-columns // group)
    # Checked before anything is counted: a file may name a group of any number.
    inside = bool(((groups >= 0) & (groups < count)).all())
    sizes = torch.bincount(groups.long(), minlength=count) if inside else torch.zeros(0)
    expected = torch.full((count,), group)
    expected[-1] = columns - group * (count - 1)
    if sizes.shape != expected.shape or not torch.equal(sizes, expected):
        what = f"tensor {tensor.name} does not divide the columns into groups"
        raise TensorError(what, where=str(tensor.file), expected=f"{count} groups of {group} columns")
    order = groups.sort(stable=True).indices.to(torch.int32)
    return None if torch.equal(order, torch.arange(columns, dtype=torch.int32)) else order
