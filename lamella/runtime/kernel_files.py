# pyright: basic
"""Printed kernels as callables: a manifest and its kernel files (or their text) enter, one Triton function a kernel leaves."""

from __future__ import annotations

import importlib.util
import shutil
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from lamella.errors import ManifestError
from lamella.runtime.manifest import Kernel, Manifest


class KernelFiles:
    """The folder the kernels lie in: the compiled package, or a temporary one that vanishes with this object."""

    def __init__(self, manifest: Manifest, kernels: Mapping[str, str] | str | Path) -> None:
        self.manifest = manifest
        if isinstance(kernels, Mapping):
            # Triton reads a kernel's source from its file, so text has to become one.
            self.folder = Path(mkdtemp(prefix="lamella-kernels-"))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
            for name, kernel in _printed(manifest):
                if name not in kernels:
                    raise ManifestError(f"kernel {name!r} has no source text")
                path = self.folder / (kernel.file or f"kernels/{name}.py")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(kernels[name])
        else:
            self.folder = Path(kernels)

    def functions(self) -> dict[str, Any]:
        """Kernel name -> the `@triton.jit` function of that name in its file. Raises ManifestError for a file that lacks it."""
        return {name: load_function(self.folder / kernel.file, name) for name, kernel in _printed(self.manifest)}


def _printed(manifest: Manifest) -> list[tuple[str, Kernel]]:
    """The kernels that have a text: all but calls of a library."""
    return [(name, kernel) for name, kernel in manifest.kernels.items() if not kernel.library]


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """The attribute `name` of the Python file `path`, executed on its own. Raises ManifestError."""
    spec = importlib.util.spec_from_file_location(f"lamella_kernel_{name}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ManifestError(f"kernel {name!r} has no file", expected=str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ManifestError(f"defines no kernel {name!r}", where=str(path))
    return getattr(module, name)
