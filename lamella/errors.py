"""User mistakes, one class a kind: each prints as one line that says what, where, expected, got and remedy."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from difflib import get_close_matches

MOST_COMPARED = 2000
"""Names that are compared with one that is not known."""
LONGEST = 500
"""Characters of one part of a message: a name in a file may be a megabyte long."""


class LamellaError(Exception):
    """A mistake the user can mend. `str(error)` is one line; the command-line tools print it and exit with 2."""

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        got: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.what, self.where, self.expected, self.got, self.remedy = what, where, expected, got, remedy
        text = f"{where}: {clipped(what)}" if where else clipped(what)
        if expected:
            text += f", expected {clipped(expected)}"
        if got:
            text += f", got {clipped(got)}"
        if remedy:
            text += f" ({remedy})"
        super().__init__(printable(" ".join(text.split())))


def clipped(text: str) -> str:
    """The text, without its middle where it is too long for a line."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 :]}"


def printable(text: str) -> str:
    """The text with characters that would move a terminal's cursor, or that no encoding has, spelled as Python escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class ModelNotFoundError(LamellaError):
    """No such path, or a path that holds no model."""


class ConfigError(LamellaError):
    """A config.json (or GGUF header) that is malformed or contradicts itself."""


class UnknownArchitectureError(LamellaError):
    """An architecture no front end knows."""


class CheckpointError(LamellaError):
    """A tensor file that is truncated, corrupt or not what its name says."""


class TensorError(LamellaError):
    """A tensor that is missing, unexpected or of the wrong shape."""


class DtypeError(LamellaError):
    """An element type that is not supported."""


class PromptError(LamellaError):
    """A prompt that is empty, too long, or holds ids outside the vocabulary; a bad sampling parameter."""


class DeviceError(LamellaError):
    """A device or executor that this machine does not have."""


class OutOfMemoryError(LamellaError):
    """Weights, arena or cache do not fit."""


class OutputError(LamellaError):
    """A folder or file that cannot be written."""


class PassError(LamellaError):
    """An unknown pass, a bad pass option, or a pass whose precondition does not hold."""


class PlanError(LamellaError):
    """A step that needs a larger arena than it may have: the best packing takes `arena` bytes, more than `limit`."""

    def __init__(self, what: str, *, arena: int, limit: int, lower_bound: int, where: str, remedy: str) -> None:
        self.arena, self.limit = arena, limit
        got = f"{arena} bytes in the best packing, {lower_bound} of them live at once"
        super().__init__(what, where=where, expected=f"at most {limit} bytes", got=got, remedy=remedy)


class IRError(LamellaError):
    """IR that does not parse, verify, dominate, or belong to its stage."""


class KernelError(LamellaError):
    """A kernel that does not compile, or a compiler process that stopped."""


class ManifestError(LamellaError):
    """A compiled package that is incomplete or of another format."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A remedy that names the known names nearest to `name`, or all of them when none is near."""
    names = sorted(known)
    if len(names) > MOST_COMPARED:
        # Those that begin alike: a file may list a million names, and comparing takes long.
        at = max(0, min(bisect_left(names, name) - MOST_COMPARED // 2, len(names) - MOST_COMPARED))
        names = names[at : at + MOST_COMPARED]
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    return f"nearest: {', '.join(close)}" if close else f"known: {', '.join(names)}"
