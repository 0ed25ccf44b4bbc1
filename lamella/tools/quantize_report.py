"""What became of each linear of a model enters; a table of errors by layer and projection, and of bytes by kind, leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lamella.tools.explain import byte_size
from lamella.tools.text_table import TextTable

if TYPE_CHECKING:
    from lamella.tools.quantize_checkpoint import Report

FLOAT = "float"


def report_text(report: Report) -> str:
    """What the command prints."""
    parts = [str(error_table(report)), str(byte_table(report))] if report.linears else []
    kept = Counter(each.reason for each in report.linears if each.reason)
    parts += [f"{count} weight{'s' * (count > 1)} kept as floats: {reason}" for reason, count in kept.items()]
    return "\n\n".join(parts)


def error_table(report: Report) -> TextTable:
    """The relative errors: a row a layer, a column a projection, of experts the mean. A dash: not quantized, or nothing was measured."""
    placed: dict[str, dict[str, list[float | None]]] = {}
    for each in report.linears:
        head, layer, part = each.weight.split(".", 2) if each.weight.startswith("layers.") else ("", "", each.weight)
        column = part.removesuffix("_proj").rpartition(".")[2]
        # A mixture has hundreds of experts: one column for each of their projections.
        column = f"experts' {column}" if ".experts." in part else column
        placed.setdefault(layer if head else each.weight, {}).setdefault(column, []).append(each.error)
    columns = list(dict.fromkeys(part for row in placed.values() for part in row))
    rows = [[name, *(shown(row.get(part)) for part in columns)] for name, row in placed.items()]
    title = f"Relative error of the products of each linear, on {report.tokens} tokens" if report.tokens else "No text was given: no errors"
    return TextTable(title, ("layer", *columns), rows, frozenset(columns))


def shown(errors: Sequence[float | None] | None) -> str:
    """The mean of those errors that were measured, in percent."""
    found = [error for error in errors or () if error is not None]
    return "" if errors is None else f"{sum(found) / len(found):.2%}" if found else "-"


def byte_table(report: Report) -> TextTable:
    """Linears and bytes by kind."""
    numbers = ("linears", "as floats", "stored", "bits a weight")
    kinds = list(dict.fromkeys(each.kind or FLOAT for each in report.linears))
    rows: list[list[str]] = []
    for kind in kinds:
        found = [each for each in report.linears if (each.kind or FLOAT) == kind]
        stored, weights = sum(each.bytes for each in found), sum(each.shape[0] * each.shape[1] for each in found)
        size = byte_size(sum(each.float_bytes for each in found))
        rows.append([kind, str(len(found)), size, byte_size(stored), f"{8 * stored / weights:.2f}"])
    return TextTable("Weights of linears", ("kind", *numbers), rows, frozenset(numbers))
