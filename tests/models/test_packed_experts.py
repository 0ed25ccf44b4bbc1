"""Mixtures whose experts stay packed: from every kind of checkpoint, in whole models, in bytes, and where they become floats, why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lamella
from lamella.dialects import kernel
from lamella.frontends import decoder, open_model
from lamella.frontends.survey import survey
from lamella.lowering.print_triton import print_kernel
from lamella.passes.device import device
from lamella.pipeline import Options, PassOptions, run
from lamella.program import Shape
from lamella.tools import cli
from lamella.tools.cross_compile import cross_compile
from lamella.tools.report import weight_bytes
from lamella.tools.roofline import step_work
from tests.models.quantized_files import SIZES, Arrays, Awq, Compressed, Gptq, save
from tests.models.test_packed_gguf import random_blocks, write
from tests.models.tiny_families import CASES

MIXTURE: dict[str, Any] = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "hidden_size": 128,
    "intermediate_size": 64,
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "vocab_size": 67,
    "max_position_embeddings": 256,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LARGE = {"hidden_size": 384, "moe_intermediate_size": 320, "num_experts": 11, "num_experts_per_tok": 3, "num_hidden_layers": 2}
LIKE_QWEN = {
    "hidden_size": 2048,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
}
"""A layer of Qwen1.5-MoE-A2.7B."""
IDS = torch.randint(3, 67, (75,), generator=torch.Generator().manual_seed(4)).tolist()
GATE = "layers.0.ffn.experts.gate"


def config(folder: Path, **changes: Any) -> Path:
    """The configuration of a small mixture."""
    file = folder / "config.json"
    file.write_text(json.dumps({**MIXTURE, **changes}))
    return file


def logits(model: Path, tokens: int, count: int, **options: Any) -> torch.Tensor:
    """Of the first positions, so many tokens a step."""
    buckets = [1, *([Shape(tokens, 1, tokens, tokens)] if tokens > 1 else [])]
    loaded = lamella.load(model, max_context=96, buckets=buckets, **options)
    loaded.session.prefill_buckets = [b for b in loaded.executor.manifest.buckets if b.tokens == tokens and tokens > 1]
    return loaded.session.forward_logits(IDS[:count]).float().cpu()


CPU = {"random_weights": 0, "device": "cpu", "dtype": "float32"}


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("tokens", [1, 3, 17])
def test_interpreted_steps_are_those_of_the_reference(kind: str, tokens: int, tmp_path: Path) -> None:
    """One token, a few whose choices are rows, and many whose choices are sorted."""
    file = config(tmp_path)
    found, expected = (logits(file, tokens, tokens + 1, quantize=kind, executor=e, **CPU) for e in ("interpret", "reference"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_steps_on_a_gpu_are_those_of_the_reference(kind: str, dtype: str, tmp_path: Path) -> None:
    """In narrow types a rounding may choose another expert for a token: they are judged by the median of tokens."""
    file = config(tmp_path, **LARGE)
    for tokens in (1, 5, 16, 70):
        count = min(75, 4 * tokens)
        options = {"random_weights": 0, "dtype": dtype, "quantize": kind}
        found = logits(file, tokens, count, device="cuda", **options)
        expected = logits(file, tokens, count, device="cpu", executor="reference", **options)
        error = ((found - expected).square().mean(-1).median() / expected.square().mean()).sqrt().item()
        assert error < (1e-4 if dtype == "float32" else 2e-2), f"{tokens} tokens a step: {error:.2e}"


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_a_step_counts_the_experts_it_chooses(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything packed but router, shared gate, norms, biases and embeddings; of five experts a step of one token reads two."""
    file = str(config(tmp_path))
    program = lamella.compile(file, random_weights=0, quantize=kind, buckets=[1], max_context=64, until="plan")
    manifest = program.manifest
    assert manifest is not None
    experts, shared = 5 * 3 * 128 * 96, 3 * 128 * 64
    attention, head = 2 * 128 * 128 + 2 * 64 * 128, 67 * 128
    held = weight_bytes(manifest)
    numbers = experts + shared + attention
    assert held[kind] == (numbers // 2 if kind == "int4" else numbers) + (head if kind == "int8" else 0)
    sizes = {name: int(np.prod(w.shape)) * {"i32": 4, "f8": 1, "bf16": 2, "f32": 4}[w.dtype] for name, w in manifest.weights.items()}
    of_experts = sum(size for name, size in sizes.items() if ".experts." in name)
    work = step_work(manifest, manifest.buckets[0], device("sm_90"), 64)
    assert work.cost.weights == sum(sizes.values()) - sizes["embed"] + 128 * 2 - of_experts + of_experts * 2 // 5
    assert cli.main(["inspect", file, "--context", "64", "--quantize", kind, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["weights"][kind] == held[kind]


CASE = replace(CASES["mixtral"], changes={**CASES["mixtral"].changes, **SIZES, "num_hidden_layers": 1, "num_local_experts": 3})
FORMS = {
    "GPTQ": Gptq(symmetric=False),
    "AWQ": Awq(16),
    "W4A16": Compressed(),
    "W8A16": Compressed(bits=8, strategy="channel", symmetric=False),
    "float8": Compressed("float-quantized", 8, "channel"),
}


@pytest.mark.parametrize("name", FORMS)
def test_experts_of_other_tools_stay_packed(name: str, tmp_path: Path) -> None:
    """Stored one by one, multiplied as one packed weight: logits are those of the floats that they stand for."""
    peer = save(tmp_path, CASE, FORMS[name], FORMS[name].config)
    model = lamella.load(tmp_path, device="cpu", dtype="float32", max_context=32, buckets=[1, 8])
    assert model.program.manifest is not None
    kernels = [{op for op, *_ in k.body["ops"]} for k in model.program.manifest.kernels.values()]
    assert all("tile.dequantize" in ops for ops in kernels if "tile.contract_experts" in ops)
    (experts,) = (kind for kind in survey(tmp_path).kinds if kind.kind == "experts")
    assert experts.packed[0] == experts.parameters == 3 * 3 * 64 * 80
    with torch.no_grad():
        expected = peer(torch.tensor([IDS[:6]])).logits[0]
    torch.testing.assert_close(model.session.forward_logits(IDS[:6], range(6)), expected, rtol=1e-4, atol=1e-4)


@dataclass(frozen=True)
class Apart:
    """The second expert in eight bits, or as floats, and the others in four."""

    second: Compressed | None
    narrow: Compressed

    @property
    def config(self) -> dict[str, Any]:
        """`quantization_config`."""
        entries: dict[str, Any] = {"group_0": {**self.narrow.weights, "targets": ["Linear"]}}
        ignored = ["lm_head", "re:.*router.*"]
        if self.second is not None:
            entries["group_1"] = {**self.second.weights, "targets": ["re:.*experts.1.*"]}
        else:
            ignored.append("re:.*experts.1.*")
        return {**self.narrow.config, "config_groups": entries, "ignore": ignored}

    def __call__(self, name: str, weight: np.ndarray) -> tuple[Arrays, np.ndarray]:
        form = self.second if ".experts.1." in name else self.narrow
        return ({"weight": weight}, weight) if form is None else form(name, weight)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (
            Apart(Compressed(bits=8), Compressed()),
            "experts are stored as int4 in groups of 32 (scales bf16) and int8 in groups of 32 (scales bf16)",
        ),
        (Apart(None, Compressed()), "experts are stored as floats and int4 in groups of 32 (scales bf16)"),
        (Gptq(ordered=True), "columns of experts lie in orders of their own"),
    ],
    ids=["two kinds", "floats between", "orders"],
)
def test_experts_that_cannot_be_one_weight_become_floats(form: Any, reason: str, tmp_path: Path) -> None:
    """The ledger says why, sizes count them as floats, and the numbers are right."""
    peer = save(tmp_path, CASE, form, form.config)
    model = lamella.load(tmp_path, device="cpu", dtype="float32", max_context=32, buckets=[1, 8])
    said = {entry["what"]: entry["reason"] for entry in model.program.ledger if entry["verdict"] == "not_packed"}
    assert said[GATE + "_proj"] == reason
    assert [kind.packed for kind in survey(tmp_path).kinds if kind.kind == "experts"] == [(0, 0)]
    with torch.no_grad():
        expected = peer(torch.tensor([IDS[:6]])).logits[0]
    torch.testing.assert_close(model.session.forward_logits(IDS[:6], range(6)), expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def stacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture in a GGUF file of today: all experts of a layer as one tensor, gate, up and down in three types."""
    hidden, inner, experts = 256, 256, 3
    kinds = {"ffn_gate": "q4_k", "ffn_up": "q5_1", "ffn_down": "q6_k"}
    tensors: dict[str, tuple[np.ndarray, str]] = {}
    for name, kind in kinds.items():
        blocks = random_blocks(kind, experts * inner, hidden, len(name), 1e-3)
        tensors[f"blk.0.{name}_exps.weight"] = (blocks.reshape(experts, inner, -1), kind)
    for name, rows in {"attn_q": 128, "attn_k": 64, "attn_v": 64}.items():
        tensors[f"blk.0.{name}.weight"] = (random_blocks("q8_0", rows, hidden, rows, 1e-3), "q8_0")
    draw = np.random.default_rng(3)
    tensors |= {
        "blk.0.attn_output.weight": (random_blocks("q8_0", hidden, 128, 9, 1e-3), "q8_0"),
        "blk.0.ffn_gate_inp.weight": (draw.standard_normal((experts, hidden)).astype(np.float32), "f32"),
        "token_embd.weight": (draw.standard_normal((67, hidden)).astype(np.float32), "f32"),
        "output.weight": (random_blocks("q8_0", 67, hidden, 2, 1e-3), "q8_0"),
        **{f"{n}.weight": (np.ones(hidden, np.float32), "f32") for n in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")},
    }
    keys = {"block_count": 1, "embedding_length": hidden, "feed_forward_length": inner, "context_length": 128, "rope__dimension_count": 64}
    heads = {"attention__head_count": 2, "attention__head_count_kv": 1, "attention__key_length": 64, "attention__value_length": 64}
    return write(tmp_path_factory.mktemp("stacked") / "m.gguf", tensors, **keys, **heads, expert_count=experts, expert_used_count=2)


@pytest.mark.parametrize("tokens", [1, 4, 17])
def test_a_gguf_mixture_stays_packed(stacked: Path, tokens: int) -> None:
    assert open_model(stacked).config.experts_stacked
    options = {"device": "cpu", "dtype": "float32"}
    floats = logits(stacked, tokens, tokens, executor="reference", **options)
    assert floats.std() > 0.1
    for executor in ("reference", "interpret"):
        found = logits(stacked, tokens, tokens, executor=executor, quantize="keep", **options)
        torch.testing.assert_close(found, floats, rtol=1e-4, atol=1e-4)


QUANTIZED: Mapping[str, PassOptions] = {
    "int8": {"quantize-weights": {"kind": "int8"}},
    "int4": {"quantize-weights": {"kind": "int4"}},
    "fp8": {"quantize-weights": {"kind": "fp8"}},
    "as Q4_K": {"quantize-weights": {"kind": "int4", "group": 32}},
    "as Q5_K": {"quantize-weights": {"kind": "int8", "group": 32, "affine": "on"}},
    "as Q6_K": {"quantize-weights": {"kind": "int8", "group": 16}},
}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_kernels_of_a_large_mixture_do_not_spill(kind: str, tmp_path: Path) -> None:
    """Compiled for sm_90 with no GPU: one token, eight sequences, 64 tokens and 1024."""
    opened = open_model(config(tmp_path, **LIKE_QWEN), random_weights=0)
    sources: dict[str, str] = {}
    for tokens in (1, 8, 64, 1024):
        few = tokens <= 8
        options = Options(blocks=128, length=2048, tokens=tokens, sequences=tokens if few else 1, longest_query=1 if few else tokens)
        module = run(decoder.build(opened.config, dtype="bf16", block=16), options, pass_options=QUANTIZED[kind])
        kernels = [op for op in module.ops if isinstance(op, kernel.FuncOp) and "expert" in op.sym_name.data]
        assert len(kernels) == 2, "gate and up are one launch, down is another"
        sources |= {op.sym_name.data: print_kernel(op) for op in kernels}
    for figure in cross_compile(sources, "sm_90", pdl=True):
        assert figure.spills == 0, figure
        assert figure.registers < 240, figure
