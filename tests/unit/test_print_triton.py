"""The printed text and the builder: names, literals, switches, folding, and the mistakes both refuse."""

from __future__ import annotations

import math

import pytest
from xdsl.context import Context
from xdsl.dialects import test as test_dialect
from xdsl.dialects.builtin import Builtin, IntegerAttr, ModuleOp, bf16, f16, f32, i1, i32, i64
from xdsl.ir import SSAValue
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from lamella.dialects.kernel import AddOp, ConstantOp, ForOp, Kernel, PointerType
from lamella.errors import PassError
from lamella.lowering.kernel_builder import KernelBuilder
from lamella.lowering.print_triton import print_kernel, print_module


def builder(name: str = "probe") -> tuple[KernelBuilder, SSAValue, SSAValue]:
    """A kernel of one pointer, with a block of 16 loaded from it."""
    b = KernelBuilder(name, {"x_ptr": PointerType(f32)})
    return b, b.parameters[0], b.named("x", b.load(b.parameters[0], b.named("cols", b.arange(16))))


def body(b: KernelBuilder) -> list[str]:
    """The printed lines after `def`."""
    lines = print_kernel(b.finish()).splitlines()
    return [line.strip() for line in lines[next(i for i, line in enumerate(lines) if line.startswith("def probe")) + 1 :]]


def test_names_are_unique_and_no_keywords() -> None:
    b = KernelBuilder("probe", {"x_ptr": PointerType(f32), "tl": PointerType(f32), "in": i32})
    for hint in ("cols", "cols", "lambda", "a.b", "x_ptr"):
        b.named(hint, b.load(b.parameters[0], b.add(b.parameters[2], len(hint))))
    text = print_kernel(b.finish())
    assert "def probe(x_ptr, tl_1, in_1):" in text
    assert 'SIGNATURE = {"x_ptr": "*fp32", "tl_1": "*fp32", "in_1": "i32"}' in text
    loads = [line.split()[0] for line in text.splitlines() if "tl.load" in line]
    assert loads == ["cols", "cols_1", "lambda_1", "a_b", "x_ptr_1"]


def test_unnamed_values_are_named_after_their_op_or_pointer() -> None:
    b = KernelBuilder("probe", {"weight_ptr": PointerType(f32)})
    b.store(b.parameters[0], 0, b.exp(b.load(b.parameters[0], 0)))
    assert body(b) == ["weight = tl.load(weight_ptr + 0)", "exp = tl.exp(weight)", "tl.store(weight_ptr + 0, exp)"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (1e-5, "1e-05"),
        (-0.0, "-0.0"),
        (3.0, "3.0"),
        (math.inf, 'float("inf")'),
        (-math.inf, 'float("-inf")'),
        (1 / 3, "0.33333334"),
    ],
)
def test_float_literals_are_the_shortest_that_round_back(value: float, text: str) -> None:
    b, x_ptr, x = builder()
    b.store(x_ptr, b.arange(16), b.maximum(x, value))
    assert f"tl.maximum(x, {text}, propagate_nan" in "\n".join(body(b))


def test_integers_wrap_to_their_type() -> None:
    b = KernelBuilder("probe", {"x_ptr": PointerType(i32)})
    b.store(b.parameters[0], 0, b.mul(b.load(b.parameters[0], 0), 0x846CA68B))
    assert "mul = x * -2073254261" in body(b)


def test_a_constant_that_needs_a_type_is_a_variable() -> None:
    b, x_ptr, _ = builder()
    with b.for_(0, 4, init=[b.constant(0, i64), 0.0]) as loop:
        loop.yields(b.add(loop.values[0], 1), b.add(loop.values[1], 2.0))
    b.store(x_ptr, loop.results[0], loop.results[1])
    lines = body(b)
    assert "constant = tl.full((), 0, tl.int64)" in lines
    assert "acc = constant" in lines
    assert "acc_1 = 0.0" in lines
    assert "acc = acc + 1" in lines


def test_switches_come_last_and_only_where_they_are_used() -> None:
    def text(type: type, *, pdl: bool) -> str:
        b = KernelBuilder("probe", {"x_ptr": PointerType(type)})
        rows = b.add(b.mul(b.expand(b.arange(16), 1), 16), b.expand(b.arange(16), 0))
        x = b.load(b.parameters[0], rows)
        if pdl:
            b.launch_dependents()
        y = b.named("y", b.dot(x, x, b.named("acc", b.full((16, 16), 0.0))))
        b.store(b.parameters[0], rows, b.cast(y, type))
        return print_kernel(b.finish())

    assert "def probe(x_ptr, DOT: tl.constexpr = tl.bfloat16, PDL: tl.constexpr = False):" in text(bf16, pdl=True)
    assert "y = tl.dot(x.to(DOT), x.to(DOT), acc)" in text(bf16, pdl=False)
    assert "def probe(x_ptr):" in text(f16, pdl=False)
    assert "y = tl.dot(x, x, acc)\n" in text(f16, pdl=False)
    assert 'y = tl.dot(x, x, acc, input_precision="ieee")' in text(f32, pdl=False)


def test_a_file_says_how_it_is_launched() -> None:
    text = print_kernel(KernelBuilder("probe", {"x_ptr": PointerType(bf16), "n": i32}, num_warps=8, num_stages=3).finish())
    constants: dict[str, object] = {}
    exec("\n".join(line for line in text.splitlines() if line.startswith(("SIGNATURE", "NUM_"))), constants)
    assert constants["SIGNATURE"] == {"x_ptr": "*bf16", "n": "i32"}
    assert (constants["NUM_WARPS"], constants["NUM_STAGES"]) == (8, 3)
    assert "MAX_REGISTERS" not in text
    assert text.endswith("def probe(x_ptr, n):\n    pass\n")
    limited = KernelBuilder("probe", {"x_ptr": PointerType(bf16)}).finish()
    limited.max_registers = IntegerAttr(128, i64)
    assert "NUM_STAGES = 1\nMAX_REGISTERS = 128\n" in print_kernel(limited)


def test_sources_are_trailing_comments() -> None:
    b, x_ptr, x = builder()
    with b.source("rms_norm"):
        y = b.mul(x, x)
        with b.source("silu"):
            y = b.sigmoid(y)
        b.store(x_ptr, b.arange(16), y)
    comments = [line.split("  # ")[1] if "  # " in line else "" for line in body(b)]
    assert comments == ["", "", "rms_norm", "silu", "rms_norm"]


def test_loop_options_are_printed() -> None:
    b, x_ptr, _ = builder()
    for options in ({}, {"num_stages": 3}, {"unroll": True}):
        with b.for_(0, 8, 2, **options) as loop:
            b.store(x_ptr, loop.index, 0.0)
    loops = [line for line in body(b) if line.startswith("for")]
    assert loops == ["for i in range(0, 8, 2):", "for i_1 in tl.range(0, 8, 2, num_stages=3):", "for i_2 in tl.static_range(0, 8, 2):"]


def test_loops_that_follow_each_other_share_the_carried_variable() -> None:
    b, x_ptr, _ = builder()
    acc = b.named("acc", b.full((16,), 0.0))
    for _ in range(2):
        with b.for_(0, 8, init=[acc]) as loop:
            loop.yields(b.add(loop.values[0], 1.0))
        acc = loop.results[0]
    b.store(x_ptr, b.arange(16), acc)
    lines = body(b)
    assert lines.count("acc = acc + 1.0") == 2
    assert not any(line.startswith("acc_1") for line in lines)


def test_text_does_not_depend_on_how_the_module_came_to_be() -> None:
    b, x_ptr, x = builder()
    b.store(x_ptr, b.arange(16), b.where(b.lt(x, 0.0), b.custom_reduce(x, 0, KernelBuilder.mul, 1.0), x))
    module = ModuleOp([b.finish()])
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(Kernel)
    again = Parser(context, str(module)).parse_module()
    assert print_module(again, "probe") == print_module(module, "probe")


def test_an_unknown_op_or_kernel_is_refused() -> None:
    b, _, _ = builder()
    b.func.body.block.add_op(test_dialect.TestOp())
    func = b.finish()
    with pytest.raises(PassError, match=r"test\.op: the Triton printer does not know this op"):
        print_kernel(func)
    with pytest.raises(PassError, match="@other: no such kernel in the module, expected probe"):
        print_module(ModuleOp([func]), "other")


def test_operations_that_change_nothing_are_not_built() -> None:
    b, _, x = builder()
    count = len(list(b.func.walk()))
    assert b.mul(x, 1.0) is b.mul(1.0, x) is b.div(x, 1.0) is b.sub(x, 0.0) is x
    assert b.cast(x, f32) is b.broadcast(x, (16,)) is b.reshape(x, (16,)) is x
    cols = b.arange(16)
    assert b.add(cols, 0) is b.add(0, cols) is b.mul(cols, 1) is b.floordiv(cols, 1) is b.shl(cols, 0) is cols
    assert all(isinstance(op, ConstantOp) for op in list(b.func.walk())[count:])
    # -0.0 + 0.0 is 0.0.
    assert isinstance(b.add(x, 0.0).owner, AddOp)


def test_integer_constants_fold() -> None:
    b, _, _ = builder()
    folded = b.maximum(b.add(b.mul(3, 4), b.sub(5, 6)), 2)
    assert isinstance(folded.owner, ConstantOp) and folded.owner.value.value.data == 11
    cast = b.cast(b.constant(7), i64)
    assert isinstance(cast.owner, ConstantOp) and cast.type == i64


def test_identical_pure_ops_are_built_once_where_they_dominate() -> None:
    b, x_ptr, x = builder()
    with b.if_(b.lt(b.program_id(0), 2)):
        inner = b.exp(x)
        assert b.exp(x) is inner
        b.store(x_ptr, b.arange(16), inner)
    assert b.exp(x) is not inner
    assert b.load(x_ptr, 0) is not b.load(x_ptr, 0)
    assert b.arange(16) is b.arange(0, 16)


def test_a_loop_of_one_trip_is_no_loop() -> None:
    b, _, _ = builder()
    with b.for_(0, 64, 64, init=[1.5]) as loop:
        loop.yields(b.add(loop.values[0], b.cast(loop.index, f32)))
    assert not any(isinstance(op, ForOp) for op in b.func.walk())
    assert loop.results[0].type == f32


def test_masks_that_hide_nothing_vanish() -> None:
    b, _, x = builder()
    mask = b.lt(x, 1.0)
    assert b.all_of(None, b.full((16,), True, i1), None) is None
    assert b.all_of(None, mask, b.constant(True)) is mask


def test_mistakes_raise_where_they_are_made() -> None:
    b, x_ptr, x = builder()
    with pytest.raises(VerifyException, match=r"kernel\.add: lhs has elements f32, rhs i32"):
        b.add(x, b.arange(16))
    with pytest.raises(VerifyException, match=r"kernel\.add: shapes \(16,\) and \(8,\) do not broadcast"):
        b.add(b.arange(16), b.arange(8))
    with pytest.raises(VerifyException, match=r"0\.5 is not a whole number"):
        b.add(b.arange(16), 0.5)
    with pytest.raises(VerifyException, match="expected the 1 that it carries"), b.for_(0, 8, init=[x]):
        pass
    with pytest.raises(VerifyException, match="else_ does not follow an if_"), b.else_():
        pass
    with pytest.raises(VerifyException, match=r"kernel\.store: value has type tensor<16xi32>, expected elements f32"):
        b.store(x_ptr, b.arange(16), b.arange(16))
