"""Triton functions that take numbers out of four bytes in a few instructions. Its interpreter knows no assembly, nor how a whole number becomes bf16: each says
the same without."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import Operation

from lamella.dialects import kernel
from lamella.dialects.kernel.types import element

BYTES = kernel.LowerHalfOp | kernel.UpperHalfOp | kernel.WidenOp

TEXTS: Mapping[str, str] = {
    "lower_halves": """
@triton.jit
def lower_halves(numbers, ASM: tl.constexpr):
    if ASM:
        return tl.inline_asm_elementwise("{ .reg .b32 t; shl.b32 t, $1, 4; and.b32 $0, t, 0xf0f0f0f0; }", "=r,r", [numbers], dtype=tl.int8, is_pure=True, pack=4)
    else:
        return numbers << 4
""",
    "upper_halves": """
@triton.jit
def upper_halves(numbers, ASM: tl.constexpr):
    if ASM:
        return tl.inline_asm_elementwise("and.b32 $0, $1, 0xf0f0f0f0;", "=r,r", [numbers], dtype=tl.int8, is_pure=True, pack=4)
    else:
        return numbers & -16
""",
    "whole_to_bf16": """
@triton.jit
def whole_to_bf16(numbers, ASM: tl.constexpr):
    if ASM:
        return tl.inline_asm_elementwise("{ .reg .b32 l, s, a, b, c, d, n; and.b32 l, $2, 0x7f7f7f7f; and.b32 s, $2, 0x80808080; prmt.b32 a, l, 0x43434343, 0x4140; prmt.b32 b, l, 0x43434343, 0x4342; prmt.b32 c, s, 0xc3c3c3c3, 0x4140; prmt.b32 d, s, 0xc3c3c3c3, 0x4342; mov.b32 n, 0x3f803f80; fma.rn.bf16x2 $0, a, n, c; fma.rn.bf16x2 $1, b, n, d; }", "=r,=r,r", [numbers], dtype=tl.bfloat16, is_pure=True, pack=4)
    else:
        return numbers.to(tl.float32).to(tl.bfloat16)
""",
}
"""By name. A byte is longer than the mantissa of bf16: seven bits make 2^7 larger by themselves, and the sign, in the exponent of -2^7, makes that -2^8."""

TEMPLATE = """
@triton.jit
def {name}(numbers, ASM: tl.constexpr):
    if ASM:
        return tl.inline_asm_elementwise("{{ .reg .b32 s, t, a, b, k, n; {bits} prmt.b32 a, t, 0x{top}, 0x4140; prmt.b32 b, t, 0x{top}, 0x4342; mov.b32 k, 0x{least}; mov.b32 n, 0x{one}; fma.rn.{packed} $0, a, n, k; fma.rn.{packed} $1, b, n, k; }}", "=r,=r,r", [numbers], dtype={dtype}, is_pure=True, pack=4)
    else:
        return {numbers}.to(tl.float32).to({dtype})
"""
"""A number without sign, in the lowest bits of the mantissa of 2^7 (bf16) or 2^10 (f16), makes it larger by itself; `least` takes that power off again, and what
made its sign go away."""
RAISED = """
@triton.jit
def {name}(numbers, ASM: tl.constexpr):
    if ASM:
        return tl.inline_asm_elementwise("{{ .reg .b32 s, t; {bits} prmt.b32 $0, t, 0x{top}, 0x4140; prmt.b32 $1, t, 0x{top}, 0x4342; }}", "=r,=r,r", [numbers], dtype={dtype}, is_pure=True, pack=4)
    else:
        return ({numbers}.to(tl.float32) + {least}).to({dtype})
"""
"""The same without taking anything off."""
BITS = {
    "lower": "lop3.b32 t, $2, 0x0f0f0f0f, 0x08080808, 0x6a;",
    "upper": "shr.b32 s, $2, 4; lop3.b32 t, s, 0x0f0f0f0f, 0x08080808, 0x6a;",
    "whole": "xor.b32 t, $2, 0x80808080;",
}
"""The numbers of a part of four bytes without their sign, each in a byte: q + 8, or q + 128."""
NUMBERS = {"lower": "((numbers << 4) >> 4)", "upper": "(numbers >> 4)", "whole": "numbers"}
FORMATS = {"bf16": ("43", "c3", "3f80", "bf16x2", "tl.bfloat16"), "f16": ("64", "e4", "3c00", "f16x2", "tl.float16")}
"""Of a float the upper byte of that power of two and of its negative, the bits of 1.0, and what instructions and Triton call it."""


def function_of(op: kernel.LowerHalfOp | kernel.UpperHalfOp | kernel.WidenOp) -> str:
    """The name of the function that computes `op`."""
    match op:
        case kernel.LowerHalfOp():
            return "lower_halves"
        case kernel.UpperHalfOp():
            return "upper_halves"
        case _:
            return widen_name(op.part.data, element(op.result), op.raised is not None)


def widen_name(part: str, to: str, raised: bool = False) -> str:
    """The name of the function that widens a part of bytes: `lower_to_bf16`, `raised_lower_to_bf16`."""
    return f"{'raised_' if raised else ''}{part}_to_{to}"


def functions(ops: list[Operation]) -> list[str]:
    """The lines of the functions that `ops` call, each function once."""
    called = dict.fromkeys(function_of(op) for op in ops if isinstance(op, BYTES))
    return [line for name in called for line in ("", "", *text_of(name).strip().splitlines())]


def text_of(name: str) -> str:
    """The text of a function."""
    if name in TEXTS:
        return TEXTS[name]
    part, _, to = name.removeprefix("raised_").partition("_to_")
    top, less, one, packed, dtype = FORMATS[to]
    spelled = {"name": name, "bits": BITS[part], "top": top * 4, "dtype": dtype, "numbers": NUMBERS[part]}
    if name.startswith("raised_"):
        return RAISED.format(**spelled, least=kernel.raised_by(part, to))
    least = less + ("80" if part == "whole" else "08")
    return TEMPLATE.format(**spelled, least=least * 2, one=one * 2, packed=packed)


PAIRS = [(part, to) for part in kernel.PARTS for to in kernel.WIDENED]
"""What is widened, and to what."""
NAMES = frozenset({*TEXTS, *(widen_name(*pair) for pair in PAIRS), *(widen_name(*pair, True) for pair in PAIRS if kernel.raised_by(*pair))})
"""Names of functions, which no variable may have."""
