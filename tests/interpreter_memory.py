"""Triton's interpreter, told to remember what it works out anew for every operation, and to leave out what nobody reads: a third of the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

ROOM = 4096
"""Types that are remembered at once."""


class Nothing:
    """In the place of a record of what was replaced, where everything already had been."""

    def restore(self) -> None:
        """There is nothing to put back."""


def remember() -> None:
    """From now on, in this process, interpreted kernels take less time; versions of Triton without these parts stay as they are."""
    import triton.language as tl
    from triton.runtime import interpreter

    known: Any = interpreter
    if hasattr(known, "_LangPatchScope") and hasattr(known, "_get_np_dtype"):
        replace_once_a_launch(known, tl)
        known._get_np_dtype = numpy_types(known._get_np_dtype, tl)
    builder = known.interpreter_builder
    if hasattr(builder.options, "sanitize_overflow") and not builder.options.debug:
        # Sums of integers are computed twice, once in 64 bits; but the assertion over both exists with `debug` only.
        builder.options = replace(builder.options, sanitize_overflow=False)
    share_shapes(tl.core)
    semantic = type(known.interpreter_semantic)
    semantic.broadcast_impl_value = broadcast_where_shapes_differ(semantic.broadcast_impl_value, tl.block_type)


def replace_once_a_launch(interpreter: Any, tl: Any) -> None:
    """Within a launch the functions of `triton.language` are replaced by interpreted ones once, not for every device function that is called."""
    replace_all: Callable[[Any], Any] = interpreter._patch_lang
    replaced: set[tuple[bool, bool]] = set()

    def replace_once(function: Any) -> Any:
        modules = list(map(id, function.__globals__.values()))
        sees = (id(tl) in modules, id(tl.core) in modules)
        if sees in replaced:
            return Nothing()
        replaced.add(sees)
        scope = replace_all(function)
        put_back = scope.restore

        def restore() -> None:
            # Only a launch does so, when its last program has ended.
            put_back()
            replaced.clear()

        scope.restore = restore
        return scope

    interpreter._patch_lang = replace_once


def numpy_types(look_up: Callable[[Any], Any], tl: Any) -> Callable[[Any], Any]:
    """NumPy's name of each scalar type is looked up once."""
    types: dict[str, Any] = {}

    def numpy_type(type: Any) -> Any:
        if isinstance(type, tl.pointer_type | tl.block_type):
            return look_up(type)
        if type.name not in types:
            types[type.name] = look_up(type)
        return types[type.name]

    return numpy_type


def share_shapes(core: Any) -> None:
    """Blocks of one element type and shape are described once, and so are the shapes of tensors; nothing ever changes either."""
    describe, make = core.block_type.__init__, core.tensor.__init__
    blocks: dict[tuple[Any, ...], tuple[Any, dict[str, Any]]] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        key = (id(element_ty), *shape)
        found = blocks.get(key)
        if found is None:
            describe(self, element_ty, shape)
            if len(blocks) == ROOM:
                blocks.clear()
            # With the element type kept, no other one gets its id.
            blocks[key] = (element_ty, dict(self.__dict__))
        else:
            self.__dict__.update(found[1])

    def tensor(self: Any, handle: Any, type: Any) -> None:
        key = (*type.shape,) if type.is_block() else ()
        found = shapes.get(key)
        if found is None:
            make(self, handle, type)
            assert self.numel.value == prod(key)
            shapes[key] = (self.shape, self.numel)
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = found

    core.block_type.__init__, core.tensor.__init__ = block, tensor


def broadcast_where_shapes_differ(broadcast: Callable[[Any, Any, Any], Any], block_type: Any) -> Callable[[Any, Any, Any], Any]:
    """Two blocks of one shape are as they are, and sizes of 1 grow without a detour over Triton's tuples. Everything else is Triton's."""

    def grown(self: Any, value: Any, sizes: list[int]) -> Any:
        if value.type.shape.values == sizes:
            return value
        return self.make_tensor(self.builder.create_broadcast(value.handle, sizes), block_type(value.type.scalar, sizes))

    def broadcast_impl_value(self: Any, left: Any, right: Any) -> Any:
        a, b = left.type, right.type
        if a.is_block() and b.is_block() and len(a.shape.values) == len(b.shape.values):
            pairs = [*zip(a.shape.values, b.shape.values, strict=True)]
            if all(x == y or 1 in (x, y) for x, y in pairs):
                sizes = [y if x == 1 else x for x, y in pairs]
                return grown(self, left, sizes), grown(self, right, sizes)
        return broadcast(self, left, right)

    return broadcast_impl_value
