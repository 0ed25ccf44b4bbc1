"""A JSON object enters; its fields, each checked as it is read, leave."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, cast

from lamella.errors import ConfigError, nearest

LARGEST = 2**31 - 1
"""The largest size: indices are 32 bits wide."""
LARGEST_FLOAT = int(sys.float_info.max)
LONGEST_FILE = 16 << 20
"""Bytes of a configuration; no real one has a hundredth of that."""


@dataclass(frozen=True)
class Fields:
    """Typed reading of one JSON object: each accessor raises ConfigError that names file and field."""

    where: str
    values: Mapping[str, Any]
    asked: set[str] = field(default_factory=set[str], compare=False, repr=False)
    """Names that were read or asked for: what is not among them means nothing to whoever reads."""

    def error(self, what: str, expected: str | None = None, got: object = None, remedy: str | None = None) -> ConfigError:
        return ConfigError(what, where=self.where, expected=expected, got=None if got is None else str(got), remedy=remedy)

    def get(self, name: str) -> Any:
        """The raw value, None when absent."""
        self.asked.add(name)
        return self.values.get(name)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.get(name) is not None

    def count(self, name: str, default: int | None = None, *, most: int = LARGEST) -> int:
        """A positive integer, at most `most`: nothing is allocated for a size that no model has."""
        value = self._required(name, default)
        if type(value) is not int or value < 1:
            raise self.error(f"field {name} is not a size", "a positive integer", json.dumps(value))
        if value > most:
            raise self.error(f"field {name} is out of range", f"at most {most}", value)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._required(name, default)
        if not _positive(value):
            raise self.error(f"field {name} is out of range", "a positive number", json.dumps(value))
        return float(value)

    def numbers(self, name: str, length: int) -> list[float]:
        """A list of that many positive finite numbers."""
        value = self._required(name, None)
        found = cast("list[Any]", value) if isinstance(value, list) else []
        if len(found) != length or not all(_positive(v) for v in found):
            got = f"{len(found)} values" if isinstance(value, list) else json.dumps(value)
            raise self.error(f"field {name} is no list of factors", f"{length} positive numbers", got)
        return [float(v) for v in found]

    def flag(self, name: str, default: bool) -> bool:
        value = self._required(name, default)
        if type(value) is not bool:
            raise self.error(f"field {name} is not a truth value", "true or false", json.dumps(value))
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._required(name, default)
        if not isinstance(value, str):
            raise self.error(f"field {name} is not a text", "a string", json.dumps(value))
        return value

    def ids(self, name: str) -> tuple[int, ...]:
        """Token ids: none, one, or a list."""
        value = self.get(name)
        found = cast("list[Any]", value if isinstance(value, list) else [] if value is None else [value])
        if not all(type(i) is int and i >= 0 for i in found):
            raise self.error(f"field {name} holds no token ids", "a non-negative integer or a list of them", json.dumps(value))
        return tuple(found)

    def choices(self, name: str, length: int, allowed: tuple[Any, ...]) -> list[Any] | None:
        """A list of `length` values out of `allowed`; None when absent."""
        value = self.get(name)
        if value is None:
            return None
        found = cast("list[Any]", value) if isinstance(value, list) else []
        if len(found) < length or any(v not in allowed for v in found):
            wrong = next((v for v in found if v not in allowed), f"{len(found)} values")
            expected = f"{length} of {', '.join(map(str, allowed))}"
            raise self.error(f"field {name} does not say what each layer is", expected, wrong)
        return found[:length]

    def object(self, name: str) -> Fields:
        """A nested object, empty when absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(f"field {name} is not an object", "a JSON object", json.dumps(value))
        return Fields(f"{self.where}, {name}", cast("dict[str, Any]", value or {}))

    def _required(self, name: str, default: object) -> Any:
        value = self.get(name)
        if value is None and default is None:
            hint = nearest(name, self.values)
            # Every field of a configuration would not be one clear line.
            raise self.error(f"field {name} is missing", remedy=hint if hint.startswith("nearest") else None)
        return default if value is None else value


def _positive(value: object) -> bool:
    """Whether this is a positive number that a float can hold."""
    if type(value) is int:
        return 0 < value <= LARGEST_FLOAT
    return type(value) is float and isfinite(value) and value > 0


def read_json(path: Path) -> Fields:
    """The object in a JSON file. Raises ConfigError when it is malformed, with line and column, or is not an object."""
    try:
        with path.open("rb") as stream:
            text = stream.read(LONGEST_FILE + 1)
        if len(text) > LONGEST_FILE:
            raise ConfigError("too large for a configuration", where=str(path), expected=f"at most {LONGEST_FILE} bytes")
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"malformed JSON at line {error.lineno}, column {error.colno}: {error.msg}", where=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"malformed JSON: {error}", where=str(path)) from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if not isinstance(values, dict):
        raise ConfigError("malformed configuration", where=str(path), expected="a JSON object", got=type(values).__name__)
    return Fields(str(path), cast("dict[str, Any]", values))
