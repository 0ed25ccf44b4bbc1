"""Triton's interpreter, told to remember two things that it works out anew for every call: interpreted kernels then take two thirds of the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Nothing:
    """In the place of a record of what was replaced, where everything already had been."""

    def restore(self) -> None:
        """There is nothing to put back."""


def remember() -> None:
    """From now on, in this process: within a launch the functions of `triton.language` are replaced by interpreted ones once, not for every
    device function that is called; and NumPy's name of a scalar type is looked up once. Versions of Triton that do neither stay as they are.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    known: Any = interpreter
    if not hasattr(known, "_LangPatchScope") or not hasattr(known, "_get_np_dtype"):
        return
    replace: Callable[[Any], Any] = known._patch_lang
    numpy_type: Callable[[Any], Any] = known._get_np_dtype
    replaced: set[tuple[bool, bool]] = set()
    types: dict[str, Any] = {}

    def replace_once(function: Any) -> Any:
        modules = list(map(id, function.__globals__.values()))
        sees = (id(tl) in modules, id(tl.core) in modules)
        if sees in replaced:
            return Nothing()
        replaced.add(sees)
        scope = replace(function)
        put_back = scope.restore

        def restore() -> None:
            # Only a launch does so, when its last program has ended.
            put_back()
            replaced.clear()

        scope.restore = restore
        return scope

    def numpy_type_once(type: Any) -> Any:
        if isinstance(type, tl.pointer_type | tl.block_type):
            return numpy_type(type)
        if type.name not in types:
            types[type.name] = numpy_type(type)
        return types[type.name]

    known._patch_lang, known._get_np_dtype = replace_once, numpy_type_once
