"""What `check-coalescing` says of addresses, against the addresses themselves: each kernel's offsets are computed for some programs."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import IntegerAttr, f32, i32
from xdsl.ir import Block, SSAValue
from xdsl.parser import Parser

from lamella import api, registry
from lamella.dialects import kernel
from lamella.dialects.kernel import PointerType
from lamella.dialects.kernel.types import element, shape
from lamella.lowering.kernel_builder import KernelBuilder
from lamella.passes.check_coalescing import FLAGGED, LINE, Access, accesses

ROOT = Path(__file__).resolve().parents[2]
BINARY: Mapping[type, Any] = {
    kernel.AddOp: operator.add,
    kernel.SubOp: operator.sub,
    kernel.MulOp: operator.mul,
    kernel.FloordivOp: operator.floordiv,
    kernel.ModOp: operator.mod,
    kernel.LtOp: operator.lt,
    kernel.LeOp: operator.le,
    kernel.GtOp: operator.gt,
    kernel.GeOp: operator.ge,
    kernel.EqOp: operator.eq,
    kernel.NeOp: operator.ne,
    kernel.AndOp: operator.and_,
    kernel.OrOp: operator.or_,
    kernel.XorOp: operator.xor,
    kernel.ShlOp: operator.lshift,
    kernel.ShrOp: operator.rshift,
    kernel.LshrOp: operator.rshift,
    kernel.MinimumOp: np.minimum,
    kernel.MaximumOp: np.maximum,
}


class Addresses:
    """Runs the integer ops of a kernel for one program: loaded integers are random but the same at the same address, floats are zero."""

    def __init__(self, function: kernel.FuncOp, program: Sequence[int], seed: int) -> None:
        self.program, self.random = program, np.random.default_rng(seed)
        self.values: dict[SSAValue, np.ndarray] = {}
        self.memory: dict[SSAValue, np.ndarray] = {}
        self.seen: list[np.ndarray] = []
        self.block(function.body.block)

    def block(self, block: Block) -> None:
        """One pass over the ops; a loop runs once, from its first index."""
        for op in block.ops:
            if isinstance(op, kernel.LoadOp | kernel.StoreOp | kernel.AtomicAddOp):
                self.seen.append(np.broadcast_to(self.of(op.offsets), shape(op.offsets)))
            if isinstance(op, kernel.ForOp):
                self.values[op.body.block.args[0]] = self.of(op.low)
            for region in op.regions:
                self.block(region.block)
            for result in op.results:
                if result not in self.values and not op.regions:
                    self.values[result] = self.result(op, shape(result), element(result))

    def of(self, value: SSAValue) -> np.ndarray:
        """A value, zero where it has none (floats, and what a loop carries)."""
        return self.values.get(value, np.zeros(shape(value), np.int64))

    def result(self, op: Any, sizes: tuple[int, ...], kind: str) -> np.ndarray:
        """The result of an op."""
        operands = [self.of(value) for value in op.operands]
        if type(op) in BINARY and kind[0] == "i":
            return np.asarray(BINARY[type(op)](*operands))
        match op:
            case kernel.ConstantOp() if isinstance(op.value, IntegerAttr):
                return np.full(sizes, op.value.value.data, np.int64)
            case kernel.ArangeOp():
                return np.arange(op.start.value.data, op.end.value.data)
            case kernel.ProgramIdOp():
                return np.asarray(self.program[op.axis.value.data])
            case kernel.CastOp() if kind[0] == "i":
                return operands[0]
            case kernel.ExpandDimsOp():
                return np.expand_dims(operands[0], op.axis.value.data)
            case kernel.BroadcastToOp():
                return np.broadcast_to(operands[0], sizes)
            case kernel.ReshapeOp():
                return operands[0].reshape(sizes)
            case kernel.TransOp():
                return operands[0].transpose(op.axes())
            case kernel.WhereOp() if kind[0] == "i":
                return np.where(*operands)
            case kernel.LoadOp() if kind[0] == "i":
                table = self.memory.setdefault(op.pointer, self.random.integers(0, 1 << 12, 1 << 12))
                return table[operands[1] % len(table)]
            case _:
                return np.zeros(sizes, np.int64)


def check(found: Access, offsets: np.ndarray, size: int) -> None:
    """The record is true of these addresses: no more distinct bytes, and no shorter pieces, than it says."""
    distinct = np.unique(offsets)
    pieces = 1 + int(np.count_nonzero(np.diff(distinct) != 1))
    assert distinct.size * size <= found.total
    # Pieces from a table may be the same piece; there are never more of them than the record says.
    assert pieces * found.width <= found.total, found
    if found.verdict == "strided":
        lines = np.unique(distinct * size // LINE).size
        assert distinct.size * size < lines * LINE, found


def function_accesses(function: kernel.FuncOp) -> Iterator[tuple[Access, list[np.ndarray], int]]:
    found = accesses(function)
    runs = [Addresses(function, program, seed).seen for seed, program in enumerate([(0, 0, 0), (1, 1, 1), (5, 3, 7)])]
    sizes = {"f32": 4, "i32": 4, "bf16": 2, "f16": 2}
    ops = [op for op in function.walk() if isinstance(op, kernel.LoadOp | kernel.StoreOp | kernel.AtomicAddOp)]
    for index, (record, op) in enumerate(zip(found, ops, strict=True)):
        yield record, [run[index] for run in runs], sizes[element(op.pointer.type.element)]


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The configuration of a model with two layers: all layers share their kernels."""

    def write(config: str) -> Path:
        data = json.loads((ROOT / "benchmarks" / "models" / config).read_text())
        path = tmp_path_factory.mktemp("model") / "config.json"
        path.write_text(json.dumps(data | {"num_hidden_layers": 2}))
        return path

    return write


def kernels_of(config: Path, dtype: str, buckets: Sequence[int]) -> list[kernel.FuncOp]:
    program = api.compile(config, random_weights=0, dtype=dtype, buckets=tuple(buckets), max_context=512)
    modules = [Parser(registry.context(), program.ir("kernels", i)).parse_module() for i in range(len(buckets))]
    return [op for module in modules for op in module.ops if isinstance(op, kernel.FuncOp)]


@pytest.mark.parametrize(("config", "dtype"), [("llama-3.2-1b.json", "bfloat16"), ("smollm2-135m.json", "float32")])
def test_records_are_true_of_the_addresses_of_llama_kernels(config: str, dtype: str, shallow: Callable[[str], Path]) -> None:
    checked = 0
    for function in kernels_of(shallow(config), dtype, (1, 13, 64)):
        for record, runs, size in function_accesses(function):
            for offsets in runs:
                check(record, offsets, size)
                checked += 1
    assert checked > 100


@pytest.mark.parametrize("config", ["llama-3.2-1b.json", "llama-3.1-8b.json", "smollm2-135m.json"])
def test_decode_kernels_waste_no_line(config: str, shallow: Callable[[str], Path]) -> None:
    for function in kernels_of(shallow(config), "bfloat16", (1,)):
        wasteful = [access for access in accesses(function) if access.verdict not in ("whole", "small")]
        assert wasteful == [], function.sym_name.data


def a_kernel(stride: int, size: int, divisor: int, factor: int, start: int) -> kernel.FuncOp:
    """Loads at ((start + stride n) // divisor) · factor and ((start + stride n) % divisor) + table[n // divisor] · factor."""
    b = KernelBuilder("k", {"x_ptr": PointerType(f32), "table_ptr": PointerType(i32)})
    x, table = b.parameters
    n = b.add(b.mul(b.arange(size), stride), b.mul(b.program_id(0), start))
    b.load(x, b.mul(b.floordiv(n, divisor), factor))
    number = b.load(table, b.floordiv(n, divisor))
    b.load(x, b.add(b.mul(number, factor), b.mod(n, divisor)))
    b.load(x, b.where(b.lt(n, divisor), b.add(n, factor), b.sub(n, factor)))
    rows, cols = b.expand(b.mod(n, divisor), 1), b.expand(b.arange(16), 0)
    b.load(x, b.add(b.mul(rows, factor), cols))
    return b.finish()


@given(
    stride=st.sampled_from([1, 2, 3, 4, 64]),
    size=st.sampled_from([2, 8, 64, 128]),
    divisor=st.sampled_from([1, 2, 3, 16, 24, 64]),
    factor=st.sampled_from([1, 2, 16, 40, 64]),
    start=st.sampled_from([0, 1, 4, 24, 64]),
)
@settings(max_examples=150, deadline=None)
def test_records_are_true_of_quotients_and_remainders(stride: int, size: int, divisor: int, factor: int, start: int) -> None:
    for record, runs, width in function_accesses(a_kernel(stride, size, divisor, factor, start)):
        for offsets in runs:
            check(record, offsets, width)


def test_a_transposed_weight_is_flagged() -> None:
    b = KernelBuilder("k", {"w_ptr": PointerType(f32)})
    n, k = b.add(b.mul(b.program_id(0), 4), b.arange(4)), b.arange(256)
    b.load(b.parameters[0], b.add(b.mul(b.expand(k, 0), 1024), b.expand(n, 1)))
    (found,) = accesses(b.finish())
    assert (found.verdict, found.stride, found.width, found.total, found.waste) == ("strided", 1, 16, 4096, 88)
    assert found.verdict in FLAGGED
