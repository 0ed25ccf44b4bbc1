"""User mistakes, one class a kind: each prints as one line that says what, where, expected, got and remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


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
        text = f"{where}: {what}" if where else what
        if expected:
            text += f", expected {expected}"
        if got:
            text += f", got {got}"
        if remedy:
            text += f" ({remedy})"
        super().__init__(" ".join(text.split()))


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
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    return f"nearest: {', '.join(close)}" if close else f"known: {', '.join(names)}"
