"""A JSON file of rules goes in; what `fuse-regions` must not or must join leaves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from xdsl.ir import Operation

from lamella.dialects.messages import location
from lamella.dialects.tile import MapOp, ReduceOp
from lamella.errors import PassError, nearest

ACTIONS = ("forbid", "force")
FIELDS = ("action", "producer", "consumer")


@dataclass(frozen=True)
class Rule:
    """`forbid` or `force`: ops that match `producer` and ops that match `consumer` in one region.

    A pattern is a shell pattern (`*`, `?`, `[…]`) over an op's name (`tile.contract`), the kind of a map or reduction (`silu`), or its
    location (`layers.*.ffn.gate`).
    """

    action: str
    producer: str
    consumer: str

    def __str__(self) -> str:
        return f"{self.action} {self.producer} -> {self.consumer}"

    def covers(self, producers: Iterable[Operation], consumers: Iterable[Operation]) -> bool:
        """Whether some op of each side matches."""
        return any(matches(op, self.producer) for op in producers) and any(matches(op, self.consumer) for op in consumers)


@dataclass(frozen=True)
class Policy:
    """The rules of a file, in order; the first that covers a pair decides."""

    rules: tuple[Rule, ...] = ()

    @staticmethod
    def read(path: str) -> Policy:
        """The rules of a JSON file, `[{"action": "forbid", "producer": "…", "consumer": "…"}, …]`, or of such a text itself; none for an
        empty path. Raises PassError.
        """
        if not path:
            return Policy()
        text = path if path.startswith("[") else ""
        path = "the policy" if text else path
        try:
            rules: Any = json.loads(text or Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise PassError(f"cannot read the policy: {error.strerror}", where=path) from error
        except ValueError as error:
            raise PassError(f"the policy is no JSON: {error}", where=path) from error
        if not isinstance(rules, list):
            raise PassError("bad policy", where=path, expected="a list of rules", got=type(rules).__name__)
        return Policy(tuple(_rule(rule, f"{path}, rule {i}") for i, rule in enumerate(cast("list[Any]", rules))))

    def between(self, producers: Iterable[Operation], consumers: Iterable[Operation]) -> Rule | None:
        """The rule about joining two groups of ops; a rule that forbids holds in both directions."""
        for rule in self.rules:
            if rule.covers(producers, consumers) or (rule.action == "forbid" and rule.covers(consumers, producers)):
                return rule
        return None


def matches(op: Operation, pattern: str) -> bool:
    """Whether a pattern names an op: by its name, its kind or its location."""
    names = [op.name, location(op)]
    if isinstance(op, MapOp | ReduceOp):
        names.append(op.kind.data)
    return any(name and fnmatchcase(name, pattern) for name in names)


def _rule(given: Any, where: str) -> Rule:
    if not isinstance(given, dict):
        raise PassError("bad rule", where=where, expected=f"an object with {', '.join(FIELDS)}", got=type(given).__name__)
    rule = cast("dict[str, Any]", given)
    for name in rule:
        if name not in FIELDS:
            raise PassError(f"unknown field '{name}'", where=where, remedy=nearest(name, FIELDS))
    for name in FIELDS:
        if not isinstance(rule.get(name), str):
            raise PassError(f"field '{name}' is no text", where=where, got=json.dumps(rule.get(name)))
    if rule["action"] not in ACTIONS:
        raise PassError("unknown action", where=where, expected=" or ".join(ACTIONS), got=rule["action"])
    return Rule(rule["action"], rule["producer"], rule["consumer"])
