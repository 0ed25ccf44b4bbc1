"""A folder name goes in; a folder with all of its files appears there at once, or nothing does."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lamella.errors import OutputError

OURS = ("manifest.json", "[0-9][0-9]-*.mlir", "kernels", "ledger.json")
"""What a folder that an earlier compilation wrote holds; any other non-empty folder is left alone."""


@contextmanager
def output_folder(path: str | Path, ours: Sequence[str] = OURS) -> Generator[Path]:
    """Yield an empty temporary folder beside `path`; on success it takes the place of `path`, on an error it disappears.

    `ours` are patterns of the files that an earlier run of the same command left and this one may replace. Raises OutputError, before the body runs, where `path` cannot be created, is a file, or is a folder that holds something else.
    """
    target = Path(path).absolute()
    made = _prepare(target, ours)
    try:
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        _remove_empty(made)
        raise OutputError(f"cannot write: {error.strerror}", where=str(target), remedy="choose another folder with -o") from error
    try:
        work.chmod(0o777 & ~_umask())
        yield work
        _exchange(work, target)
    except OSError as error:
        raise OutputError(f"cannot write: {error.strerror}", where=error.filename or str(target)) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        _remove_empty(made)


def _prepare(target: Path, ours: Sequence[str]) -> list[Path]:
    """Make the folders above `target` and return those that were missing, the deepest first. Raises OutputError."""
    if target.is_dir():
        others = sorted(p.name for p in target.iterdir() if not any(p.match(pattern) for pattern in ours))
        if others:
            raise OutputError(f"holds other files ('{others[0]}')", where=str(target), expected="a new, empty or earlier output folder")
        if not os.access(target, os.W_OK):
            raise OutputError("cannot write: Permission denied", where=str(target), remedy="choose another folder with -o")
    elif target.exists():
        raise OutputError("exists and is a file", where=str(target), expected="a folder", remedy="choose another folder with -o")
    missing = [p for p in target.parents if not p.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _remove_empty(missing)
        # mkdir says that a file in place of a parent folder exists, which is not what the user has to know.
        why = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise OutputError(f"cannot write: {why}", where=str(target), remedy="choose another folder with -o") from error
    return missing


def _exchange(work: Path, target: Path) -> None:
    """Rename `work` to `target`; an earlier output steps aside first and comes back should the rename fail."""
    if not target.exists():
        work.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    target.rename(aside)
    try:
        work.rename(target)
    except OSError:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def _umask() -> int:
    """The process's mask of permissions; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
