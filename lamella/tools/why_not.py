"""An answer about two ops goes in; text leaves: one launch or several, the edges between them, the reason at each, and what a join would save."""

from __future__ import annotations

from collections.abc import Mapping

from lamella.passes.fusion_questions import Answer, Edge
from lamella.tools.text_table import aligned


def answer_text(answer: Answer) -> str:
    """The answer, for people."""
    verdict = "run in one launch" if answer.together else "run in different launches"
    lines = [f"{answer.first} and {answer.second} {verdict}"]
    rows = [["launch", ", ".join(ops)] for ops in answer.regions]
    for edge in answer.edges:
        rows += [["edge", f"{_plain(edge.producer)} into {_plain(edge.consumer)} ({edge.kind})"], ["because", _plain(edge.reason)]]
        rows += _price(edge)
    if not answer.together and not answer.edges:
        rows.append(["because", "neither reads what the other makes"])
    if answer.alone and len(answer.edges) != 1:
        rows.append(["as one", _plain(answer.alone)])
    rows += [["recorded", _entry(entry)] for entry in answer.recorded]
    return "\n".join([*lines, *(f"  {line}" for line in aligned(rows))])


def _price(edge: Edge) -> list[list[str]]:
    if edge.benefit_us is None:
        return []
    verb = "saves" if edge.benefit_us > 0 else "loses"
    return [["if joined", f"{verb} {abs(edge.benefit_us):.2f} us in all, about {edge.registers} registers a thread"]]


def _entry(entry: Mapping[str, object]) -> str:
    """`joined, horizontal: contract at ffn.gate into contract at ffn.up: contractions on one x`."""
    pair = f"{entry.get('producer', '')} into {entry.get('consumer', '')}" if entry.get("producer") else ""
    parts = [f"{entry['verdict']}, {entry.get('kind', '')}", _plain(pair), _plain(str(entry.get("reason", "")))]
    return ": ".join(part for part in parts if part)


def _plain(text: str) -> str:
    return text.replace("tile.", "")
