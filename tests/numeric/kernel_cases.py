"""A tiny kernel for every op of the kernel dialect: how to build it, what it reads, and what torch says it writes."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from xdsl.dialects.builtin import bf16, f16, f32, i1, i8, i32, i64
from xdsl.ir import Attribute, SSAValue

from lamella.dialects.kernel import DescriptorType, FuncOp, PointerType
from lamella.lowering.kernel_builder import KernelBuilder
from lamella.lowering.print_triton import print_kernel

N, BLOCK = 37, 64
GUARD = 4096
ELEMENTS: dict[torch.dtype, Attribute] = {
    torch.float32: f32,
    torch.float16: f16,
    torch.bfloat16: bf16,
    torch.int32: i32,
    torch.int64: i64,
    torch.int8: i8,
    torch.bool: i1,
}
FILES = itertools.count()


@dataclass(frozen=True)
class Case:
    """A kernel, what it reads, what it writes (`expected`), and the grid."""

    func: FuncOp
    inputs: tuple[torch.Tensor, ...]
    expected: tuple[torch.Tensor, ...]
    grid: tuple[int, ...] = (1,)
    tolerance: float = 2e-6

    def run(self, folder: Path, device: str = "cpu") -> tuple[torch.Tensor, ...]:
        """The outputs of the printed kernel, which starts with buffers of 7s; on a CPU Triton interprets it."""
        path = folder / f"kernel_{next(FILES)}.py"
        path.write_text(print_kernel(self.func))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel = getattr(module, self.func.sym_name.data)
        interpreted = {"DOT": module.tl.float32, "ASM": False} if device == "cpu" else {}
        switches = {name: value for name, value in interpreted.items() if name in kernel.arg_names}
        inputs = [guarded(x.to(device)) for x in self.inputs]
        outputs = [guarded(torch.full_like(e, 7, device=device)) for e in self.expected]
        with numpy.errstate(all="ignore"):
            kernel[self.grid](*self.described([inside for _, inside in inputs]), *(inside for _, inside in outputs), **switches)
        assert not any(band.any() for around, _ in outputs for band in around), "the kernel writes outside its buffers"
        return tuple(inside.cpu() for _, inside in outputs)

    def described(self, inputs: Sequence[torch.Tensor]) -> list[object]:
        """The inputs, those that the kernel reads through descriptors as such."""
        from triton.tools.tensor_descriptor import TensorDescriptor

        types = [a.type for a in self.func.body.block.args]
        return [
            TensorDescriptor.from_tensor(x, list(type.block)) if isinstance(type, DescriptorType) else x
            for x, type in zip(inputs, types, strict=False)
        ]

    def holds(self, folder: Path) -> bool:
        pairs = zip(self.run(folder), self.expected, strict=True)
        return all(torch.allclose(a, b, rtol=self.tolerance, atol=self.tolerance, equal_nan=True) for a, b in pairs)


def guarded(x: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The zeros around a copy of `x` in the middle of a larger buffer, and the copy: a broken kernel may not harm the process."""
    storage = torch.zeros(2 * GUARD + x.numel(), dtype=x.dtype, device=x.device)
    inside = storage[GUARD : GUARD + x.numel()].view(x.shape)
    inside.copy_(x)
    return [storage[:GUARD], storage[GUARD + x.numel() :]], inside


def builder(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> KernelBuilder:
    named = [*((f"in{i}_ptr", x) for i, x in enumerate(inputs)), *((f"out{i}_ptr", x) for i, x in enumerate(outputs))]
    return KernelBuilder("probe", {name: PointerType(ELEMENTS[x.dtype]) for name, x in named})


def elementwise(
    body: Callable[..., SSAValue], reference: Callable[..., torch.Tensor], *inputs: torch.Tensor, tolerance: float = 2e-6
) -> Case:
    """A kernel over N elements, masked, in one block."""
    expected = reference(*inputs)
    b = builder(inputs, [expected])
    cols = b.named("cols", b.arange(BLOCK))
    mask = b.named("mask", b.lt(cols, N))
    values = [b.load(pointer, cols, mask) for pointer in b.parameters[:-1]]
    b.store(b.parameters[-1], cols, body(b, *values), mask)
    return Case(b.finish(), inputs, (expected,), tolerance=tolerance)


def floats(*, positive: bool = False, n: int = N) -> torch.Tensor:
    values = torch.randn(n, generator=torch.Generator().manual_seed(n + positive)) * 3
    return values.abs() + 0.01 if positive else values


def integers(low: int, high: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.randint(low, high, (N,), generator=torch.Generator().manual_seed(high), dtype=dtype)


X, Y, POSITIVE = floats(), floats(n=N + 1)[:N], floats(positive=True)
WITH_NAN = torch.where(torch.arange(N) % 5 == 0, torch.nan, X)
WORDS, COUNTS, SMALL = integers(-(2**31), 2**31 - 1), integers(0, 10**6), integers(1, 30)
LONG = integers(-(2**60), 2**60, torch.int64)
B = KernelBuilder

UNARY: dict[str, Case] = {
    "neg": elementwise(B.neg, torch.neg, X),
    "neg_int": elementwise(B.neg, torch.neg, WORDS),
    "abs": elementwise(B.abs, torch.abs, X),
    "exp": elementwise(B.exp, torch.exp, X),
    "exp2": elementwise(B.exp2, torch.exp2, X),
    "log": elementwise(B.log, torch.log, POSITIVE),
    "log2": elementwise(B.log2, torch.log2, POSITIVE),
    "sqrt": elementwise(B.sqrt, torch.sqrt, POSITIVE),
    "rsqrt": elementwise(B.rsqrt, torch.rsqrt, POSITIVE),
    "sin": elementwise(B.sin, torch.sin, X),
    "cos": elementwise(B.cos, torch.cos, X),
    "floor": elementwise(B.floor, torch.floor, X),
    "erf": elementwise(B.erf, torch.erf, X),
    "sigmoid": elementwise(B.sigmoid, torch.sigmoid, X),
    "not": elementwise(lambda b, x: b.cast(b.not_(b.lt(x, 0.0)), i32), lambda x: (x >= 0).int(), X),
    "not_bits": elementwise(B.not_, torch.bitwise_not, WORDS),
}

BINARY: dict[str, Case] = {
    "add": elementwise(B.add, torch.add, X, Y),
    "add_half": elementwise(B.add, torch.add, X.half(), Y.half()),
    "add_wraps": elementwise(B.add, torch.add, WORDS, WORDS),
    "sub": elementwise(B.sub, torch.sub, X, Y),
    "mul": elementwise(B.mul, torch.mul, X, Y),
    "mul_wraps": elementwise(lambda b, x: b.mul(x, 0x846CA68B), lambda x: x * (0x846CA68B - 2**32), WORDS),
    "mul_long": elementwise(lambda b, x: b.mul(b.cast(x, i64), 3_000_000_019), lambda x: x.long() * 3_000_000_019, COUNTS),
    "div": elementwise(B.div, torch.div, X, Y),
    "floordiv": elementwise(B.floordiv, torch.floor_divide, COUNTS, SMALL),
    "mod": elementwise(B.mod, torch.remainder, COUNTS, SMALL),
    "minimum": elementwise(B.minimum, torch.minimum, WITH_NAN, Y),
    "maximum": elementwise(B.maximum, torch.maximum, Y, WITH_NAN),
    "maximum_number": elementwise(lambda b, x: b.maximum(x, 0.0), torch.relu, WITH_NAN),
    "minimum_int": elementwise(lambda b, x, y: b.minimum(x, b.maximum(y, 9)), lambda x, y: x.minimum(y.clamp(min=9)), COUNTS, SMALL),
    "and": elementwise(B.and_, torch.bitwise_and, WORDS, COUNTS),
    "or": elementwise(B.or_, torch.bitwise_or, WORDS, COUNTS),
    "xor": elementwise(B.xor, torch.bitwise_xor, WORDS, COUNTS),
    "shl": elementwise(B.shl, torch.bitwise_left_shift, WORDS, SMALL),
    "shr": elementwise(B.shr, torch.bitwise_right_shift, WORDS, SMALL),
    "lshr": elementwise(lambda b, x: b.lshr(x, 16), lambda x: ((x.long() & 0xFFFFFFFF) >> 16).int(), WORDS),
    "lshr_block": elementwise(B.lshr, lambda x, y: ((x.long() & 0xFFFFFFFF) >> y).int(), WORDS, SMALL),
    "lshr_long": elementwise(lambda b, x: b.lshr(x, 4), lambda x: (x >> 4) & (2**60 - 1), LONG),
    **{
        name: elementwise(
            lambda b, x, y, name=name: b.cast(getattr(b, name)(x, y), i32), lambda x, y, t=t: t(x, y).int(), WORDS % 4, COUNTS % 4
        )
        for name, t in {"lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne}.items()
    },
}

TERNARY: dict[str, Case] = {
    "fma": elementwise(B.fma, lambda x, y, z: (x.double() * y.double() + z.double()).float(), X, Y, POSITIVE),
    "fma_number": elementwise(lambda b, x: b.fma(x, 2.0, -1.5), lambda x: 2 * x - 1.5, X),
    "where": elementwise(lambda b, x, y: b.where(b.lt(x, y), x, y), torch.minimum, X, Y),
    "where_numbers": elementwise(lambda b, x: b.where(b.lt(x, 0.0), -1.0, float("inf")), lambda x: torch.where(x < 0, -1.0, torch.inf), X),
    "where_bf16": elementwise(
        lambda b, x, y: b.where(b.lt(b.cast(x, f32), 0.0), x, y), lambda x, y: torch.where(x < 0, x, y), X.bfloat16(), Y.bfloat16()
    ),
}

CASTS: dict[str, Case] = {
    "half_to_float": elementwise(lambda b, x: b.cast(x, f32), lambda x: x.float(), X.half()),
    "float_to_half": elementwise(lambda b, x: b.cast(x, f16), lambda x: x.half(), X),
    "bf16_to_float": elementwise(lambda b, x: b.cast(x, f32), lambda x: x.float(), X.bfloat16()),
    # The interpreter truncates where a GPU rounds: the numbers here need no rounding.
    "float_to_bf16": elementwise(lambda b, x: b.cast(x, bf16), lambda x: x.bfloat16(), X.bfloat16().float()),
    "int_to_float": elementwise(lambda b, x: b.cast(x, f32), lambda x: x.float(), WORDS),
    "float_to_int": elementwise(lambda b, x: b.cast(x, i32), lambda x: x.int(), X),
    "int_to_long": elementwise(lambda b, x: b.cast(x, i64), lambda x: x.long(), WORDS),
    "long_to_int": elementwise(lambda b, x: b.cast(x, i32), lambda x: x.int(), LONG),
    "byte_to_int": elementwise(lambda b, x: b.cast(x, i32), lambda x: x.int(), (WORDS % 256 - 128).to(torch.int8)),
    "bool_to_float": elementwise(lambda b, x: b.cast(b.gt(x, 0.0), f32), lambda x: (x > 0).float(), X),
    "float_bits": elementwise(lambda b, x: b.bitcast(x, i32), lambda x: x.view(torch.int32), X),
    "bits_float": elementwise(lambda b, x: b.bitcast(b.and_(x, 0x3FFFFFFF), f32), lambda x: (x & 0x3FFFFFFF).view(torch.float32), WORDS),
    "scalar": elementwise(lambda b, x: b.mul(x, b.cast(b.add(b.program_id(0), 3), f32)), lambda x: x * 3, X),
}


def hashed(b: KernelBuilder, x: SSAValue) -> SSAValue:
    """A 32-bit mixer, as the sampler's counter-based generator has it."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = b.mul(b.xor(x, b.lshr(x, shift)), factor)
    return b.xor(x, b.lshr(x, 16))


def hashed_reference(x: torch.Tensor) -> torch.Tensor:
    y = x.long() & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        y = ((y ^ (y >> shift)) * factor) & 0xFFFFFFFF
    return (y ^ (y >> 16)).int()


def block_case(shape: Sequence[int], expected: torch.Tensor, body: Callable[[KernelBuilder, SSAValue], SSAValue], x: torch.Tensor) -> Case:
    """A kernel that loads a whole block of `shape` and stores the block that `body` makes of it."""
    b = builder([x], [expected])
    out = body(b, b.load(b.parameters[0], offsets(b, shape)))
    b.store(b.parameters[1], offsets(b, expected.shape), out)
    return Case(b.finish(), (x,), (expected,))


def offsets(b: KernelBuilder, shape: Sequence[int]) -> SSAValue:
    """Row-major offsets of a block, `shape` () being the scalar 0."""
    total: SSAValue | None = None
    stride = 1
    for axis in reversed(range(len(shape))):
        index = b.arange(shape[axis])
        for other in range(len(shape)):
            if other != axis:
                index = b.expand(index, other)
        index = b.mul(index, stride)
        total = index if total is None else b.add(total, index)
        stride *= shape[axis]
    return total if total is not None else b.constant(0)


T = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
PAIRS = torch.randn(4, 8, 2, generator=torch.Generator().manual_seed(4))
CUBE = torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(5))
TIES = torch.tensor([[1.0, 5.0, 5.0, -2.0], [0.0, 0.0, 0.0, 0.0], [-3.0, -3.0, -1.0, -1.0], [9.0, 1.0, 9.0, -9.0]])

SHAPES: dict[str, Case] = {
    "arange": block_case([8], torch.arange(4, 12).int(), lambda b, x: b.arange(4, 12), T[0]),
    "expand_dims": block_case([8], T[0] + T[0][:, None], lambda b, x: b.add(b.expand(x, 0), b.expand(x, 1)), T[0]),
    "broadcast_to": block_case([8], T[0].expand(4, 8).contiguous(), lambda b, x: b.broadcast(b.expand(x, 0), [4, 8]), T[0]),
    "broadcast_scalar": block_case([], T[0, :1].expand(16).contiguous(), lambda b, x: b.broadcast(x, [16]), T[0]),
    "reshape": block_case([4, 8], T.reshape(2, 16), lambda b, x: b.reshape(x, [2, 16]), T),
    "trans": block_case([4, 8], T.T.contiguous(), lambda b, x: b.trans(x), T),
    "trans_cube": block_case([4, 2, 8], CUBE.permute(2, 0, 1).contiguous(), lambda b, x: b.trans(x, [2, 0, 1]), CUBE),
    "split": block_case([4, 8, 2], PAIRS[..., 0] - 2 * PAIRS[..., 1], lambda b, x: b.sub(b.split(x)[0], b.mul(b.split(x)[1], 2.0)), PAIRS),
    "join": block_case([4, 8], torch.stack([T, -T], -1), lambda b, x: b.join(x, b.neg(x)), T),
    "full": block_case([4, 8], T + 0.1, lambda b, x: b.add(x, b.full([4, 8], 0.1)), T),
    "full_bf16": block_case([4, 8], torch.full((4, 8), 1.5).bfloat16(), lambda b, x: b.full([4, 8], 1.5, bf16), T),
    "sum": block_case([4, 8], T.sum(1), lambda b, x: b.reduce(x, "sum", 1), T),
    "sum_keep": block_case([4, 8], T.sum(0, keepdim=True), lambda b, x: b.reduce(x, "sum", 0, keep_dims=True), T),
    "sum_all": block_case([8], T[1].sum().reshape(()), lambda b, x: b.reduce(x, "sum", 0), T[1]),
    "max": block_case([4, 8], T.amax(1), lambda b, x: b.reduce(x, "max", 1), T),
    "min": block_case([4, 8], T.amin(0), lambda b, x: b.reduce(x, "min", 0), T),
    "argmax": block_case([4, 4], torch.tensor([1, 0, 2, 0]).int(), lambda b, x: b.reduce(x, "argmax", 1), TIES),
    "argmin": block_case([4, 4], torch.tensor([3, 0, 0, 3]).int()[:, None], lambda b, x: b.reduce(x, "argmin", 1, keep_dims=True), TIES),
    "product": block_case([4, 8], T.prod(1), lambda b, x: b.custom_reduce(x, 1, B.mul, 1.0), T),
    "two_customs": block_case(
        [4, 8],
        (T.prod(1, keepdim=True) + T.abs().amax(1, keepdim=True)),
        lambda b, x: b.add(
            b.custom_reduce(x, 1, B.mul, 1.0, keep_dims=True),
            b.custom_reduce(x, 1, lambda b, p, q: b.maximum(b.abs(p), b.maximum(b.abs(q), 0.25)), 0.0, keep_dims=True),
        ),
        T,
    ),
    "hash": elementwise(hashed, hashed_reference, WORDS),
}


def dot_case(dtype: torch.dtype, rows: int, *, acc: bool) -> Case:
    a, w = floats(n=rows * 32).reshape(rows, 32).to(dtype), floats(n=32 * 16).reshape(32, 16).to(dtype)
    expected = a.float() @ w.float() + (2.0 if acc else 0.0)
    b = builder([a, w], [expected])
    left, right = b.load(b.parameters[0], offsets(b, (rows, 32))), b.load(b.parameters[1], offsets(b, (32, 16)))
    b.store(b.parameters[2], offsets(b, (rows, 16)), b.dot(left, right, b.full((rows, 16), 2.0) if acc else None))
    return Case(b.finish(), (a, w), (expected,), tolerance=1e-4)


def bytes_dot_case() -> Case:
    """Words, read as bytes, times bytes, added up in 32 bits: the largest products there are."""
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(-(1 << 31), 1 << 31, (16, 16), generator=generator).to(torch.int32)
    x = torch.randint(-128, 128, (64, 8), generator=generator).to(torch.int8)
    words[0], x[:, 0] = -2139062144, -128
    expected = (words.view(torch.int8).double() @ x.double() + 5).int()
    b = builder([words, x], [expected])
    left, right = b.load(b.as_bytes(b.parameters[0]), offsets(b, (16, 64))), b.load(b.parameters[1], offsets(b, (64, 8)))
    b.store(b.parameters[2], offsets(b, (16, 8)), b.dot(left, right, b.full((16, 8), 5)))
    return Case(b.finish(), (words, x), (expected,))


def halves_case() -> Case:
    """All 256 bytes: 16 times the signed number in each half."""
    given = torch.arange(256).to(torch.uint8).view(torch.int8)
    wide = given.int()
    expected = torch.stack([(wide << 28) >> 24, (wide >> 4) << 4]).int()
    b = builder([given], [expected])
    at = b.arange(256)
    held = b.load(b.parameters[0], at)
    b.store(b.parameters[1], at, b.cast(b.lower_half(held), i32))
    b.store(b.parameters[1], b.add(at, 256), b.cast(b.upper_half(held), i32))
    return Case(b.finish(), (given,), (expected,))


def widen_case(part: str, to: torch.dtype, raised: bool) -> Case:
    """All 256 bytes: the signed number in a half of each, or the byte, as a float, perhaps as large as its bits in a mantissa are."""
    given = torch.arange(256).to(torch.int8)
    numbers = {"lower": (given << 4) >> 4, "upper": given >> 4, "whole": given}[part]
    expected = numbers.float()
    if raised:
        expected += {torch.bfloat16: 128, torch.float16: 1024}[to] + (128 if part == "whole" else 8)
    b = builder([given], [expected])
    at = b.arange(256)
    b.store(b.parameters[1], at, b.cast(b.widen(part, b.load(b.parameters[0], at), ELEMENTS[to], raised=raised), f32))
    return Case(b.finish(), (given,), (expected,), tolerance=0)


def grid_case() -> Case:
    """Programs on two axes write what they are; the number of programs shows in the values."""
    expected = torch.tensor([[3 * 100 + y * 10 + x for x in range(2)] for y in range(3)]).int()
    b = builder([], [expected])
    x, y = b.program_id(0), b.program_id(1)
    value = b.add(b.add(b.mul(b.num_programs(1), 100), b.mul(y, 10)), x)
    b.store(b.parameters[0], b.add(b.mul(y, b.num_programs(0)), x), value)
    return Case(b.finish(), (), (expected,), grid=(2, 3))


def atomic_case(*, masked: bool) -> Case:
    """Four additions to one counter, which keep what they found; under the mask only the first two happen."""
    expected = torch.tensor([7 + (3 if masked else 10)]).int()
    found = torch.tensor([7, 8, 10, 10 if masked else 13]).int()
    b = builder([], [expected, found])
    with b.for_(0, 4) as loop:
        i = loop.index
        before = b.atomic_add(b.parameters[0], 0, b.add(i, 1), b.lt(i, 2) if masked else None)
        b.store(b.parameters[1], i, b.where(b.lt(i, 2), before, 10) if masked else before)
    return Case(b.finish(), (), (expected, found))


def last_program_case() -> Case:
    """Programs store a number each and count themselves; whoever is last adds up all and sets the counter back."""
    expected = (torch.zeros(1).int(), torch.arange(4).float() + 1, torch.tensor([10.0]))
    b = builder([], expected)
    counter, parts, total = b.parameters
    b.store(parts, b.program_id(0), b.cast(b.add(b.program_id(0), 1), f32))
    b.barrier()
    with b.if_(b.eq(b.atomic_add(counter, 0, 1), 10)):
        b.store(total, 0, b.reduce(b.load(parts, b.arange(4), cache="cg"), "sum", 0))
        b.store(counter, 0, 0)
    return Case(b.finish(), (), expected, grid=(4, 1))


def atomic_block_case() -> Case:
    expected = 7 + T
    b = builder([T], [expected])
    b.atomic_add(b.parameters[1], offsets(b, (4, 8)), b.load(b.parameters[0], offsets(b, (4, 8))))
    return Case(b.finish(), (T,), (expected,))


def described_case() -> Case:
    """A block in the corner of a matrix, half of it outside: zeros."""
    x = torch.randn(13, 24, generator=torch.Generator().manual_seed(8)).half()
    expected = torch.zeros(8, 16, dtype=torch.float16)
    expected[:5, :8] = x[8:, 16:]
    b = KernelBuilder("probe", {"in0_desc": DescriptorType.of((8, 16), f16), "out0_ptr": PointerType(f16)})
    b.store(b.parameters[1], offsets(b, (8, 16)), b.load_block(b.parameters[0], 8, 16))
    return Case(b.finish(), (x,), (expected,))


def loop_case(*, num_stages: int | None = None, unroll: bool = False) -> Case:
    """Sums N numbers in blocks of 8, masked at the end."""
    expected = X.sum().reshape(1)
    b = builder([X], [expected])
    with b.for_(0, N, 8, init=[b.full([8], 0.0)], num_stages=num_stages, unroll=unroll) as loop:
        cols = b.add(loop.index, b.arange(8))
        loop.yields(b.add(loop.values[0], b.load(b.parameters[0], cols, b.lt(cols, N))))
    b.store(b.parameters[1], b.arange(1), b.reduce(loop.results[0], "sum", 0, keep_dims=True))
    return Case(b.finish(), (X,), (expected,))


def fibonacci_case() -> Case:
    """Carried values that swap, in a loop whose bounds are run-time numbers, and a scalar of each type."""
    steps, expected = torch.tensor([10]).int(), torch.tensor([55, 89, 10])
    b = builder([steps], [expected])
    high = b.load(b.parameters[0], 0)
    with b.for_(0, high, init=[b.constant(0, i64), b.constant(1, i64), b.constant(0, i64)]) as loop:
        low, top, count = loop.values
        loop.yields(top, b.add(low, top), b.add(count, 1))
    for place, value in enumerate(loop.results):
        b.store(b.parameters[1], place, value)
    return Case(b.finish(), (steps,), (expected,))


def swap_case() -> Case:
    """Three values that rotate: no one may be overwritten before it is read."""
    expected = torch.tensor([3, 1, 2]).int()
    b = builder([], [expected])
    with b.for_(0, 4, init=[1, 2, 3]) as loop:
        one, two, three = loop.values
        loop.yields(three, one, two)
    for place, value in enumerate(loop.results):
        b.store(b.parameters[0], place, value)
    return Case(b.finish(), (), (expected,))


def stale_case() -> Case:
    """The old carried value is read after the new one is made: they may not share a variable."""
    expected = torch.tensor([0 + 1 + 2 + 3, 4]).int()
    b = builder([], [expected])
    with b.for_(0, 4, init=[0, 0]) as loop:
        total, count = loop.values
        following = b.add(count, 1)
        loop.yields(b.add(total, count), following)
    b.store(b.parameters[0], 0, loop.results[0])
    b.store(b.parameters[0], 1, loop.results[1])
    return Case(b.finish(), (), (expected,))


def nested_case() -> Case:
    """An inner loop continues the outer one's value; the start of a second inner loop is used again by each outer trip."""
    expected = torch.tensor([3 * (2 * 5) + 3 * (100 + 2), 3.0])
    b = builder([], [expected])
    start = b.add(b.cast(b.program_id(0), f32), 100.0)
    with b.for_(0, 3, init=[0.0, 0.0]) as outer:
        total, trips = outer.values
        with b.for_(0, 2, init=[total]) as inner:
            inner.yields(b.add(inner.values[0], 5.0))
        with b.for_(0, 2, init=[start]) as again:
            again.yields(b.add(again.values[0], 1.0))
        outer.yields(b.add(inner.results[0], again.results[0]), b.add(trips, 1.0))
    b.store(b.parameters[0], 0, outer.results[0])
    b.store(b.parameters[0], 1, outer.results[1])
    return Case(b.finish(), (), (expected,))


def index_case(*, unroll: bool) -> Case:
    """The index of a loop in every place where it is a plain number to the interpreter."""
    expected = torch.tensor([float(i // 2 + i % 2 + max(i, 2) + 2**i) for i in range(5)])
    b = builder([], [expected])
    with b.for_(0, 5, unroll=unroll) as loop:
        i = loop.index
        total = b.add(b.add(b.floordiv(i, 2), b.mod(i, 2)), b.maximum(i, 2))
        b.store(b.parameters[0], i, b.exp2(b.cast(i, f32)), b.lt(i, 5))
        b.store(b.parameters[0], i, b.add(b.cast(b.cast(total, i64), f32), b.load(b.parameters[0], i)))
    return Case(b.finish(), (), (expected,))


def branch_case() -> Case:
    """Programs take one of three branches, one of which does nothing for some."""
    expected = torch.tensor([10, 20, 30, 7]).int()
    b = builder([], [expected])
    pid = b.program_id(0)
    first, second, last = b.eq(pid, 0), b.eq(pid, 1), b.lt(pid, 3)
    with b.if_(first):
        b.store(b.parameters[0], pid, 10)
    with b.else_():
        with b.if_(second):
            b.store(b.parameters[0], pid, 20)
        with b.else_(), b.if_(last):
            b.store(b.parameters[0], pid, 30)
    with b.if_(second):
        pass
    return Case(b.finish(), (), (expected,), grid=(4,))


def dependent_launch_case() -> Case:
    """Both ends of PDL stand in the text, and the portable branch skips them."""
    b = builder([T], [T])
    b.launch_dependents()
    b.wait_prerequisites()
    b.store(b.parameters[1], offsets(b, (4, 8)), b.load(b.parameters[0], offsets(b, (4, 8)), eviction="first"), cache="cs")
    return Case(b.finish(), (T,), (T,))


def named_numbers_case() -> Case:
    """Constants in places where Triton would give a literal another type, so that they are printed as variables."""
    expected = torch.tensor([float(numpy.exp(numpy.float32(2.0))), 2.5, 5.0])
    b = builder([], [expected])
    half = b.add(b.constant(0.5, f16), b.constant(2.0, f16))
    b.store(b.parameters[0], 0, b.exp(b.constant(2.0)))
    b.store(b.parameters[0], 1, b.cast(half, f32))
    b.store(b.parameters[0], 2, b.cast(b.where(b.lt(b.program_id(0), 1), b.constant(5, i64), b.constant(6, i64)), f32))
    return Case(b.finish(), (), (expected,))


CONTROL: dict[str, Case] = {
    "dot": dot_case(torch.float32, 16, acc=True),
    "dot_alone": dot_case(torch.float16, 16, acc=False),
    "dot_bf16": dot_case(torch.bfloat16, 8, acc=True),
    "dot_bytes": bytes_dot_case(),
    "halves": halves_case(),
    **{
        f"widen {part} to {name}{' raised' if raised else ''}": widen_case(part, to, raised)
        for part in ("lower", "upper", "whole")
        for name, to in (("bf16", torch.bfloat16), ("f16", torch.float16))
        for raised in (False, True)
        if not raised or (part, name) != ("whole", "bf16")
    },
    "grid": grid_case(),
    "atomic": atomic_case(masked=False),
    "atomic_masked": atomic_case(masked=True),
    "atomic_block": atomic_block_case(),
    "described": described_case(),
    "last_program": last_program_case(),
    "loop": loop_case(),
    "loop_stages": loop_case(num_stages=3),
    "loop_unrolled": loop_case(unroll=True),
    "fibonacci": fibonacci_case(),
    "swap": swap_case(),
    "stale": stale_case(),
    "nested": nested_case(),
    "index": index_case(unroll=False),
    "index_unrolled": index_case(unroll=True),
    "branch": branch_case(),
    "dependent_launch": dependent_launch_case(),
    "named_numbers": named_numbers_case(),
}

CASES = {**UNARY, **BINARY, **TERNARY, **{f"cast_{name}": case for name, case in CASTS.items()}, **SHAPES, **CONTROL}
