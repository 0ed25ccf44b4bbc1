"""Every kernel op, built, printed, and run by Triton's interpreter against torch; and proof that a broken print is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from xdsl.ir import Operation

from lamella.dialects.kernel import Kernel
from lamella.lowering import triton_expressions
from tests.numeric.kernel_cases import CASES, Case


@pytest.mark.parametrize("name", CASES)
def test_printed_kernel_computes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    for found, expected in zip(case.run(tmp_path), case.expected, strict=True):
        torch.testing.assert_close(found, expected, rtol=case.tolerance, atol=case.tolerance, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_printed_kernel_computes_on_a_gpu(name: str, tmp_path: Path) -> None:
    """The same text, compiled. The GPU's exp, log, sin and division are off by a few units in the last place."""
    case = CASES[name]
    tolerance = max(case.tolerance, 2e-5)
    for found, expected in zip(case.run(tmp_path, "cuda"), case.expected, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_every_op_of_the_dialect_has_a_case() -> None:
    used: set[type[Operation]] = {type(op) for case in CASES.values() for op in case.func.walk()}
    assert set(Kernel.operations) - used == set()


@pytest.mark.parametrize("op", [*triton_expressions.INFIX, *triton_expressions.CALLS], ids=lambda op: op.name)
def test_a_broken_pattern_is_noticed(op: type[Operation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An op that prints its last operand alone makes a case fail."""
    table = triton_expressions.INFIX if op in triton_expressions.INFIX else triton_expressions.CALLS
    cases = [case for case in CASES.values() if any(isinstance(o, op) for o in case.func.walk())]
    last = table[op].count("{") - 1
    monkeypatch.setitem(table, op, f"{{{last}}}")  # pyright: ignore[reportArgumentType]
    assert not all(_passes(case, tmp_path) for case in cases)


@pytest.mark.parametrize("op", [op for op in Kernel.operations if op in triton_expressions.expression.registry], ids=lambda op: op.name)
def test_a_broken_expression_is_noticed(op: type[Operation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An op that prints a number in place of its expression makes a case fail."""
    cases = [case for case in CASES.values() if any(isinstance(o, op) for o in case.func.walk())]
    right = triton_expressions.expression

    def broken(found: Operation, use: triton_expressions.Use) -> str:
        return "5" if isinstance(found, op) else right(found, use)

    monkeypatch.setattr("lamella.lowering.print_triton.expression", broken)
    assert not all(_passes(case, tmp_path) for case in cases)


def _passes(case: Case, folder: Path) -> bool:
    try:
        return case.holds(folder)
    except Exception:  # a broken kernel may fail in any way
        return False
