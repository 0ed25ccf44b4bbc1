# pyright: basic
"""Calls of a library of matrix products: a region of the manifest and its tensors enter, a function that queues the product leaves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from lamella.runtime.manifest import Kernel

Switch = tuple[str, bool | tuple[bool, bool]]


def library_matmul(kernel: Kernel, args: Sequence[torch.Tensor]) -> Callable[[], Any]:
    """The call that a region is, with its tensors bound: out[M,O] = x[M,K] @ weight[O,K]ᵀ, plus a residual [M,O] or a bias [O].

    `args` are the region's inputs, then its one result, all bfloat16 or all float16. Sums are float32 and rounded once; on a GPU the calling
    thread has to be within `exact_sums` for that. A residual may lie where the result goes; one that does not is copied there first.
    """
    places = kernel.library
    x, weight, out = args[places["x"]], args[places["weight"]], args[kernel.inputs]
    residual = args[places["residual"]] if "residual" in places else None
    bias = args[places["bias"]] if "bias" in places else None
    if not out.is_cuda:
        return partial(_on_cpu, x, weight, out, residual if residual is not None else bias)
    if residual is not None:
        return partial(_accumulate, x, weight.t(), out, residual)
    if bias is not None:
        return partial(torch.addmm, bias, x, weight.t(), out=out)
    return partial(torch.mm, x, weight.t(), out=out)


def _accumulate(x: torch.Tensor, transposed: torch.Tensor, out: torch.Tensor, residual: torch.Tensor) -> None:
    if residual.data_ptr() != out.data_ptr():
        out.copy_(residual)
    out.addmm_(x, transposed)


def _on_cpu(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, addend: torch.Tensor | None) -> None:
    """In float32, so that it is the same sum on every machine, rounded to nearest even as it is stored."""
    sums = x.float() @ weight.float().t()
    out.copy_(sums if addend is None else sums + addend.float())


@contextmanager
def exact_sums() -> Generator[None]:
    """Within it, torch lets cuBLAS keep no partial sum in fewer bits than float32; afterwards it may do again what it might before."""
    flags = torch.backends.cuda.matmul
    before = [_reduction(kind) for kind in ("bf16", "fp16")]
    accumulation = flags.allow_fp16_accumulation
    try:
        for name, _ in before:
            setattr(flags, name, False)
        flags.allow_fp16_accumulation = False
        yield
    finally:
        for name, value in before:
            setattr(flags, name, value)
        flags.allow_fp16_accumulation = accumulation


def _reduction(kind: str) -> Switch:
    """The switch for partial sums of one type, and how it stands; newer versions of torch also say whether K may be split."""
    name = f"allow_{kind}_reduced_precision_reduction"
    reduced: bool = getattr(torch.backends.cuda.matmul, name)
    split: bool | None = getattr(torch.backends.cuda.matmul, f"{name}_split_k", None)
    return name, reduced if split is None else (reduced, split)
