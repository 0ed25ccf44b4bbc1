"""How each elementwise kind and each reduction is computed inside a kernel, on blocks. The only place that knows kinds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects.builtin import f32, i32
from xdsl.ir import SSAValue

from lamella.dialects.tile import CastOp, MapOp, ReduceOp
from lamella.lowering.kernel_builder import KernelBuilder

ScalarRule: TypeAlias = Callable[..., SSAValue]
"""From a builder and operand blocks (f32 or i32) to the result block."""

SCALAR_RULES: dict[str, ScalarRule] = {}
REDUCTION_RULES: dict[str, Reduction] = {}


@dataclass(frozen=True)
class Reduction:
    """An associative, commutative reduction: `combine(b, x, y)`, its identity, and the kernel op's kind where it has one of its own."""

    combine: Callable[[KernelBuilder, SSAValue, SSAValue], SSAValue]
    identity: float
    kind: str | None = None

    def along(self, b: KernelBuilder, x: SSAValue, axis: int, *, keep_dims: bool) -> SSAValue:
        """`x` reduced along `axis`."""
        if self.kind is not None:
            return b.reduce(x, self.kind, axis, keep_dims=keep_dims)
        return b.custom_reduce(x, axis, self.combine, self.identity, keep_dims=keep_dims)


def scalar_rule(kind: str) -> Callable[[ScalarRule], ScalarRule]:
    """Decorator: the function builds the elementwise `kind`."""

    def add(rule: ScalarRule) -> ScalarRule:
        SCALAR_RULES[kind] = rule
        return rule

    return add


def added_squares(op: ReduceOp) -> SSAValue | None:
    """What `op` adds up the squares of, as it is stored."""
    squared = op.input.owner
    if op.kind.data != "sum" or not isinstance(squared, MapOp) or squared.kind.data != "square":
        return None
    (value,) = squared.inputs
    return value.owner.input if isinstance(value.owner, CastOp) else value


scalar_rule("add")(KernelBuilder.add)
scalar_rule("sub")(KernelBuilder.sub)
scalar_rule("mul")(KernelBuilder.mul)
scalar_rule("div")(KernelBuilder.div)
scalar_rule("maximum")(KernelBuilder.maximum)
scalar_rule("minimum")(KernelBuilder.minimum)
scalar_rule("neg")(KernelBuilder.neg)
scalar_rule("exp")(KernelBuilder.exp)
scalar_rule("log")(KernelBuilder.log)
scalar_rule("sqrt")(KernelBuilder.sqrt)
scalar_rule("rsqrt")(KernelBuilder.rsqrt)


@scalar_rule("magnitude")
def magnitude(b: KernelBuilder, x: SSAValue) -> SSAValue:
    """|x|, and infinity where x is no number: without a sign, bits of floats are in order, those of NaN behind infinity."""
    return b.bitcast(b.minimum(b.and_(b.bitcast(x, i32), 0x7FFFFFFF), 0x7F800000), f32)


@scalar_rule("equal")
def equal(b: KernelBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    """1 where x = y, else 0."""
    return b.where(b.eq(x, y), 1.0, 0.0)


@scalar_rule("select")
def select(b: KernelBuilder, condition: SSAValue, x: SSAValue, y: SSAValue) -> SSAValue:
    """x where the condition is not 0, else y."""
    return b.where(b.ne(condition, 0.0), x, y)


@scalar_rule("square")
def square(b: KernelBuilder, x: SSAValue) -> SSAValue:
    """x²."""
    return b.mul(x, x)


@scalar_rule("relu")
def relu(b: KernelBuilder, x: SSAValue) -> SSAValue:
    """max(x, 0)."""
    return b.maximum(x, 0.0)


@scalar_rule("sigmoid")
def sigmoid(b: KernelBuilder, x: SSAValue) -> SSAValue:
    """1 / (1 + exp(-x))."""
    return b.div(1.0, b.add(b.exp(b.neg(x)), 1.0))


@scalar_rule("silu")
def silu(b: KernelBuilder, x: SSAValue) -> SSAValue:
    """x · sigmoid(x) (arXiv 1702.03118)."""
    return b.div(x, b.add(b.exp(b.neg(x)), 1.0))


@scalar_rule("tanh")
def tanh(b: KernelBuilder, x: SSAValue) -> SSAValue:
    """2 · sigmoid(2x) - 1: exact at both ends, where the quotient of exponentials would overflow."""
    return b.sub(b.mul(sigmoid(b, b.mul(x, 2.0)), 2.0), 1.0)


@scalar_rule("gelu")
def gelu(b: KernelBuilder, x: SSAValue) -> SSAValue:
    """x · (1 + erf(x / √2)) / 2 (arXiv 1606.08415)."""
    return b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, math.sqrt(0.5))), 1.0))


@scalar_rule("gelu_tanh")
def gelu_tanh(b: KernelBuilder, x: SSAValue) -> SSAValue:
    """0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) (arXiv 1606.08415)."""
    cubed = b.mul(b.mul(x, x), x)
    inner = b.mul(b.add(x, b.mul(cubed, 0.044715)), math.sqrt(2.0 / math.pi))
    return b.mul(b.mul(x, 0.5), b.add(tanh(b, inner), 1.0))


REDUCTION_RULES["sum"] = Reduction(KernelBuilder.add, 0.0, "sum")
REDUCTION_RULES["max"] = Reduction(KernelBuilder.maximum, -math.inf, "max")
REDUCTION_RULES["min"] = Reduction(KernelBuilder.minimum, math.inf, "min")
