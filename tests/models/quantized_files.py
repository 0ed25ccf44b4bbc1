"""Tiny checkpoints as other tools quantize them: packed here with numpy, by the formulas that the tools publish, and the floats they stand for."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.models.tiny_families import Case

Arrays = Mapping[str, np.ndarray | torch.Tensor]
Quantize = Callable[[str, np.ndarray], tuple[Arrays, np.ndarray]]
"""From a module's name and its weight [outputs, inputs] to what the checkpoint stores for it, by the ends of the names, and the floats."""

SIZES = {"hidden_size": 64, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA = Case("Llama", SIZES)
"""Rows of 64 columns, and of 80, which no group of 32 divides."""
FLOATS = ("embed", "lm_head", "wte", "wpe", "norm", ".gate.weight")
"""Parts of the names of matrices that nobody quantizes."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def save(
    folder: Path, case: Case, quantize: Quantize, quantization: dict[str, Any], kept: Sequence[str] = FLOATS
) -> transformers.PreTrainedModel:
    """A checkpoint whose linears are quantized but for those that `kept` names; returns the model that has the floats they stand for."""
    case.save(folder)
    whole = load_file(folder / "model.safetensors")
    tensors, floats = dict(whole), dict(whole)
    for name, value in whole.items():
        module = name.removesuffix(".weight")
        if module == name or value.dim() != 2 or any(part in name for part in kept):
            continue
        weight = tensors.pop(name).float().numpy()
        parts, made = quantize(module, weight.T if case.stem == "GPT2" else weight)
        tensors |= {f"{module}.{end}": torch.as_tensor(part).contiguous() for end, part in parts.items()}
        floats[name] = torch.from_numpy(np.ascontiguousarray(made.T if case.stem == "GPT2" else made))
    save_file(floats, folder / "model.safetensors", metadata={"format": "pt"})
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": quantization}))
    return peer.eval()


def words_along_rows(numbers: np.ndarray, bits: int) -> np.ndarray:
    """[rows, columns] of numbers -> int32 [rows·bits/32, columns]: the first row of a word in its lowest bits."""
    per = 32 // bits
    words = np.zeros((-(-numbers.shape[0] // per), numbers.shape[1]), np.uint32)
    for i in range(per):
        words |= numbers[i::per].astype(np.uint32) << np.uint32(bits * i)
    return words.view(np.int32)


@dataclass(frozen=True)
class Gptq:
    """AutoGPTQ's rule: columns in order of some activation, groups in that order, one scale and zero point a group."""

    bits: int = 4
    group: int = 32
    symmetric: bool = True
    ordered: bool = False
    version: int = 1
    index: bool = True
    """Whether g_idx is stored where it says nothing."""

    @property
    def config(self) -> dict[str, Any]:
        """`quantization_config`."""
        form = {"checkpoint_format": "gptq_v2"} if self.version == 2 else {}
        return {
            "quant_method": "gptq",
            "bits": self.bits,
            "group_size": self.group,
            "sym": self.symmetric,
            "desc_act": self.ordered,
            **form,
        }

    def groups(self, name: str, columns: int) -> np.ndarray:
        """g_idx. Projections of one input are ordered by it alike."""
        group = columns if self.group == -1 else self.group
        place = np.arange(columns)
        if self.ordered:
            seed = zlib.crc32(f"{name.rpartition('.')[0]} {name.endswith(('o_proj', 'down_proj'))}".encode())
            place = np.random.default_rng(seed).permutation(columns)
        return (place // group).astype(np.int32)

    def __call__(self, name: str, weight: np.ndarray) -> tuple[Arrays, np.ndarray]:
        most = 2**self.bits - 1
        groups = self.groups(name, weight.shape[1])
        count = groups.max() + 1
        scales = np.zeros((count, weight.shape[0]), np.float16)
        zeros = np.full((count, weight.shape[0]), 2 ** (self.bits - 1), np.int64)
        for g in range(count):
            part = weight[:, groups == g]
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            if self.symmetric:
                scales[g] = 2 * np.maximum(-low, high) / most
            else:
                scales[g] = (high - low) / most
                zeros[g] = np.clip(np.round(-low / scales[g].astype(np.float32)), 1 if self.version == 1 else 0, most)
        by_column = scales.astype(np.float32)[groups]
        q = np.clip(np.round(weight.T / by_column) + zeros[groups], 0, most).astype(np.int64)
        floats = (by_column * (q - zeros[groups]).astype(np.float32)).T
        parts: dict[str, np.ndarray] = {
            "qweight": words_along_rows(q, self.bits),
            "qzeros": words_along_rows((zeros - (self.version == 1)).T, self.bits).T,
            "scales": scales,
        }
        if self.index or self.ordered:
            parts["g_idx"] = groups
        return parts, floats


@dataclass(frozen=True)
class Awq:
    """AutoAWQ's rule for version `gemm`: eight outputs in a word, those of even numbers first."""

    group: int = 32

    @property
    def config(self) -> dict[str, Any]:
        """`quantization_config`."""
        return {
            "quant_method": "awq",
            "bits": 4,
            "group_size": self.group,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": ["lm_head"],
        }

    def __call__(self, name: str, weight: np.ndarray) -> tuple[Arrays, np.ndarray]:
        group = weight.shape[1] if self.group == -1 else self.group
        grouped = weight.reshape(weight.shape[0], -1, group)
        low, high = grouped.min(-1), grouped.max(-1)
        scales = ((high - low) / 15).astype(np.float16)
        zeros = np.clip(np.round(-low / scales.astype(np.float32)), 0, 15)
        q = np.clip(np.round(grouped / scales[..., None].astype(np.float32)) + zeros[..., None], 0, 15)
        floats = (scales[..., None].astype(np.float32) * (q - zeros[..., None]).astype(np.float32)).reshape(weight.shape)
        stored = {"qweight": q.reshape(weight.shape).T, "qzeros": zeros.T}
        return {name: interleaved(numbers.astype(np.uint32)) for name, numbers in stored.items()} | {"scales": scales.T}, floats


def interleaved(numbers: np.ndarray) -> np.ndarray:
    """[rows, columns] -> int32 [rows, columns/8] in AWQ's order."""
    words = np.zeros((numbers.shape[0], numbers.shape[1] // 8), np.uint32)
    for i, column in enumerate(AWQ_ORDER):
        words |= numbers[:, column::8] << np.uint32(4 * i)
    return words.view(np.int32)


@dataclass(frozen=True)
class Compressed:
    """compressed-tensors' rules: `pack-quantized`, `int-quantized` or `float-quantized` weights, by tensor, channel or group."""

    storage: str = "pack-quantized"
    bits: int = 4
    strategy: str = "group"
    group: int = 32
    symmetric: bool = True
    ordered: bool = False
    old_zeros: bool = False
    """Whether zero points are stored a byte each, as the first versions did."""
    scales: torch.dtype = torch.bfloat16

    @property
    def weights(self) -> dict[str, Any]:
        """One entry of `config_groups`."""
        kind = "float" if self.storage == "float-quantized" else "int"
        weights = {"num_bits": self.bits, "type": kind, "symmetric": self.symmetric, "strategy": self.strategy}
        weights |= {"group_size": self.group if self.strategy == "group" else None, "actorder": "group" if self.ordered else None}
        activations = {"num_bits": 8, "type": kind, "dynamic": True, "strategy": "token"} if self.storage != "pack-quantized" else None
        return {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}

    @property
    def config(self) -> dict[str, Any]:
        """`quantization_config`."""
        return {
            "quant_method": "compressed-tensors",
            "format": self.storage,
            "quantization_status": "compressed",
            "ignore": ["lm_head", "re:.*gate$"],
            "kv_cache_scheme": None,
            "config_groups": {"group_0": self.weights},
        }

    def __call__(self, name: str, weight: np.ndarray) -> tuple[Arrays, np.ndarray]:
        columns = weight.shape[1]
        groups = np.zeros(columns, np.int32)
        if self.strategy == "group":
            order = np.random.default_rng(zlib.crc32(name.encode())).permutation(columns) if self.ordered else np.arange(columns)
            groups = (order // self.group).astype(np.int32)
        count = groups.max() + 1
        low = np.stack([weight[:, groups == g].min(1) for g in range(count)], 1)
        high = np.stack([weight[:, groups == g].max(1) for g in range(count)], 1)
        if self.strategy == "tensor":
            low, high = low.min().reshape(1), high.max().reshape(1)
        reach = np.maximum(-low, high)
        floats = self.storage == "float-quantized"
        least, most = -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        step = reach / 448 if floats else 2 * reach / (most - least) if self.symmetric else (high - low) / (most - least)
        stored = torch.from_numpy(step.astype(np.float32)).to(self.scales)
        scale = stored.float().numpy()
        zeros = np.zeros_like(scale) if self.symmetric else np.clip(np.round(least - low / scale), least, most)
        wide, zero = (v if self.strategy == "tensor" else v[:, groups] for v in (scale, zeros))
        parts: dict[str, np.ndarray | torch.Tensor] = {"weight_scale": stored}
        if floats:
            q = torch.from_numpy(weight / wide).to(torch.float8_e4m3fn)
            return {**parts, "weight": q, "input_scale": torch.ones(1)}, wide * q.float().numpy()
        q = np.clip(np.round(weight / wide) + zero, least, most)
        if self.storage == "int-quantized":
            parts["weight"] = q.astype(np.int8)
        else:
            parts |= {"weight_packed": words_along_rows((q - least).T, self.bits).T, "weight_shape": np.array(weight.shape)}
        if not self.symmetric:
            in_bytes = self.old_zeros or self.storage == "int-quantized"
            parts["weight_zero_point"] = zeros.astype(np.int8) if in_bytes else words_along_rows(zeros - least, self.bits)
        if self.ordered:
            parts["weight_g_idx"] = groups
        return parts, wide * (q - zero).astype(np.float32)
