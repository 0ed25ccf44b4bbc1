# pyright: basic
"""Tensor descriptors: what a kernel reads through them, and its bound tensors, enter; its arguments leave."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from lamella.errors import ManifestError
from lamella.runtime.manifest import Kernel, Ref

SIGNATURE = re.compile(r"tensordesc<(\w+)\[(\d+), (\d+)\]>")
"""How the printed SIGNATURE of a kernel spells one."""
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8e4nv": torch.float8_e4m3fn, "i8": torch.int8}


def described(kernel: Kernel, refs: Sequence[Ref], args: Sequence[torch.Tensor]) -> list[Any]:
    """The arguments of a launch: a descriptor, made here once, in the place of each tensor that the kernel reads through one.

    `refs` say where the tensors live. A descriptor begins at multiples of 16 bytes; a weight that a checkpoint file mapped into memory may begin
    anywhere there, and is copied. Raises ManifestError for any other tensor that does: a copy of it would stay as it was when it was made.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    out: list[Any] = list(args)
    for descriptor in kernel.descriptors:
        tensor = args[descriptor.argument]
        if tensor.data_ptr() % 16 and refs[descriptor.argument].pool != "weight":
            where, got = f"argument {descriptor.argument}", f"{tensor.data_ptr() % 16} bytes behind one"
            raise ManifestError("no descriptor can be made", where=where, expected="memory from a multiple of 16 bytes on", got=got)
        aligned = tensor.clone() if tensor.data_ptr() % 16 else tensor
        # Of words a kernel reads the bytes.
        aligned = aligned.view(torch.int8) if aligned.dtype == torch.int32 else aligned
        out[descriptor.argument] = TensorDescriptor.from_tensor(aligned, list(descriptor.block))
    return out


def blank(kind: str) -> Any:
    """A descriptor of nothing, for a kernel that is compiled without its tensors; None where `kind`, of a SIGNATURE, is something else."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    found = SIGNATURE.fullmatch(kind)
    if found is None:
        return None
    block = [int(found[2]), int(found[3])]
    return TensorDescriptor.from_tensor(torch.empty(block, dtype=TYPES[found[1]], device="meta"), block)
