"""Printed kernels compile for a GPU that is not there, and their resources are read from the result."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from xdsl.dialects.builtin import IntegerAttr, bf16, f32, i64

from lamella.dialects.kernel import FuncOp, PointerType
from lamella.errors import DeviceError, PassError
from lamella.lowering.kernel_builder import KernelBuilder
from lamella.lowering.print_triton import print_kernel
from lamella.tools.cross_compile import cross_compile, table
from tests.numeric.kernel_cases import CASES


def product(name: str, *, num_warps: int) -> FuncOp:
    """A 16 by 32 by 64 matrix product of bf16."""
    b = KernelBuilder(name, {"x_ptr": PointerType(bf16), "w_ptr": PointerType(bf16), "y_ptr": PointerType(f32)}, num_warps=num_warps)
    x_ptr, w_ptr, y_ptr = b.parameters
    rows, cols, k = b.expand(b.arange(16), 1), b.expand(b.arange(32), 0), b.arange(64)
    x = b.load(x_ptr, b.add(b.mul(rows, 64), b.expand(k, 0)))
    w = b.load(w_ptr, b.add(b.mul(cols, 64), b.expand(k, 1)))
    b.store(y_ptr, b.add(b.mul(rows, 32), cols), b.dot(x, w))
    return b.finish()


def test_resources_come_in_the_order_of_the_sources() -> None:
    kernels = [product("narrow", num_warps=1), product("wide", num_warps=8)]
    narrow, wide = cross_compile({func.sym_name.data: print_kernel(func) for func in kernels}, "sm_90")
    assert (narrow.name, wide.name) == ("narrow", "wide")
    assert (narrow.num_warps, wide.num_warps) == (1, 8)
    assert narrow.registers > wide.registers > 0
    assert narrow.shared_memory >= (16 * 64 + 32 * 64) * 2
    assert narrow.spills == wide.spills == 0
    assert [line.split()[0] for line in table([narrow, wide]).splitlines()] == ["kernel", "narrow", "wide"]


def test_a_limit_of_registers_holds() -> None:
    func = product("limited", num_warps=1)
    func.max_registers = IntegerAttr(64, i64)
    free, limited = cross_compile({"free": print_kernel(product("free", num_warps=1)), "limited": print_kernel(func)}, "sm_90")
    assert limited.registers <= 64 < free.registers


@pytest.mark.parametrize("pdl", [False, True])
def test_every_op_compiles(pdl: bool, tmp_path: Path) -> None:
    names = list(CASES) if not pdl else ["dependent_launch"]
    for name in names:
        (tmp_path / f"{name}.py").write_text(print_kernel(CASES[name].func))
    found = cross_compile([tmp_path / f"{name}.py" for name in names], "sm_90", pdl=pdl)
    assert len(found) == len(names)
    assert all(resources.registers > 0 for resources in found)


def test_a_kernel_that_does_not_compile_is_named() -> None:
    text = print_kernel(product("broken", num_warps=4)).replace("tl.dot(", "tl.dots(")
    with pytest.raises(PassError, match=r"broken\.py: the kernel does not compile for sm_90"):
        cross_compile({"broken": text})


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(DeviceError, match="expected sm_90 or another sm_NN, got gfx942"):
        cross_compile({}, "gfx942")


def test_the_interpreter_variable_stays_with_the_caller() -> None:
    before = os.environ.get("TRITON_INTERPRET")
    cross_compile({"one": print_kernel(product("one", num_warps=4))})
    assert os.environ.get("TRITON_INTERPRET") == before
