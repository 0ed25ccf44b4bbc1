"""What the tests make Triton's interpreter remember and leave out changes nothing that it says."""

import numpy as np
import pytest
import triton.language as tl
from triton.runtime.interpreter import TensorHandle, interpreter_semantic


def block(sizes: tuple[int, ...]) -> tl.tensor:
    """Numbers in order, as a block of these sizes; of none, a scalar."""
    numbers = np.arange(np.prod(sizes, dtype=int), dtype=np.float32).reshape(sizes)
    return tl.tensor(TensorHandle(numbers, tl.float32), tl.block_type(tl.float32, list(sizes)) if sizes else tl.float32)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4, 8), (4, 8)),
        ((4, 1), (4, 8)),
        ((1, 8), (4, 8)),
        ((4, 1), (1, 8)),
        ((1, 1), (2, 4)),
        ((1,), (8,)),
        ((), (4, 2)),
        ((2,), ()),
        ((), ()),
    ],
)
def test_blocks_meet_as_those_of_numpy_do(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    for first, second in ((left, right), (right, left)):
        given = [block(first), block(second)]
        made = interpreter_semantic.broadcast_impl_value(*given)
        for value, before in zip(made, given, strict=True):
            sizes = np.broadcast_shapes(first, second)
            assert np.array_equal(value.handle.data.reshape(sizes), np.broadcast_to(before.handle.data, sizes))
            assert tuple(size.value for size in value.shape) == sizes and value.numel.value == np.prod(sizes, dtype=int)
            assert value.dtype == tl.float32 and (not sizes or value.type == tl.block_type(tl.float32, list(sizes)))


@pytest.mark.parametrize(("left", "right"), [((4, 8), (4, 4)), ((2,), (4,)), ((1, 2), (4, 4))])
def test_blocks_that_do_not_fit_are_refused(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="incompatible dimensions"):
        interpreter_semantic.broadcast_impl_value(block(left), block(right))


def test_blocks_of_one_shape_differ_by_their_element_types() -> None:
    sizes = [4, 8]
    pointers = [tl.block_type(tl.pointer_type(element), sizes) for element in (tl.float32, tl.int32, tl.float32)]
    assert pointers[0] == pointers[2] != pointers[1] and pointers[1].scalar.element_ty == tl.int32
    assert tl.block_type(tl.int32, sizes) != tl.block_type(tl.float32, sizes) != tl.block_type(tl.float32, sizes[::-1])
    assert tl.block_type(tl.float32, sizes).numel == 32
    for _ in range(2):
        with pytest.raises(ValueError, match="power of 2"):
            tl.block_type(tl.float32, [3])


def test_integers_wrap_around_as_they_did() -> None:
    """A sum past the end is what a GPU makes of it: nobody looks, with `debug` off, which is why nothing else is computed for it."""
    most = tl.tensor(TensorHandle(np.array([2**31 - 1, 5], np.int32), tl.int32), tl.block_type(tl.int32, [2]))
    found = interpreter_semantic.add(most, most, True)
    assert found.handle.data.tolist() == [-2, 10] and found.handle.data.dtype == np.int32
