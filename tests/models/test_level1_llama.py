"""A tiny random Llama of odd sizes at level 1, op by op through `semantics`, against `transformers` in float32."""

import json
import math
from dataclasses import replace

import pytest
import torch
from transformers import LlamaForCausalLM
from xdsl.dialects.builtin import ModuleOp

from lamella import pipeline, registry
from lamella.dialects import signature
from lamella.dialects.attributes import attributes_of
from lamella.dialects.transformer import KVCacheType, PairRowsOp, RopeTableOp, WeightOp
from lamella.frontends.config import ModelConfig
from lamella.frontends.decoder import build, source_names, weight_shapes
from lamella.lowering.body import export_function
from lamella.runtime.evaluate import evaluate
from lamella.semantics import IMPLEMENTATIONS
from lamella.verification import verify
from tests.models.tiny_llama import BASE, BIASED, GELU, peer

BLOCK = 16
BLOCKS_PER_SEQUENCE = 8
TOLERANCE = {"rtol": 0, "atol": 1e-4}

CONFIGS = {"plain": BASE, "tied, biased, llama3": BIASED, "gelu": GELU}
PASSES = {
    "as built": "",
    "table": "rope-table{length=128}",
    "paired": "canonicalize,rope-table{length=128},propagate-layout,cse,dce",
    "paired formula": "propagate-layout",
    "scaled, paired": "rope-table{length=128},fold-norm-scale,propagate-layout",
}


class Level1:
    """A level-1 module with weights and caches; unused blocks of the caches hold NaN."""

    def __init__(self, config: ModelConfig, model: LlamaForCausalLM, passes: str, blocks: int = 40) -> None:
        self.module: ModuleOp = build(config, dtype="f32", block=BLOCK)
        verify(self.module)
        for built in registry.parse_passes(passes):
            pipeline.apply(registry.context(), self.module, built)
            verify(self.module)
        (self.function,) = self.module.ops
        names = source_names(config)
        state = model.state_dict()
        self.weights = {name: state[names[name]] for name in names}
        assert {name: tuple(w.shape) for name, w in self.weights.items()} == weight_shapes(config)
        self.caches = {
            name: torch.full((blocks, 2, value.type.kv_heads.data, BLOCK, value.type.head_dim.data), math.nan)
            for name, value in zip(signature.input_names(self.function), self.function.body.block.args, strict=True)
            if isinstance(value.type, KVCacheType)
        }

    def step(self, sequences: list[tuple[list[int], int, list[int]]], padding: int = 0) -> dict[str, torch.Tensor]:
        """One step of (new tokens, tokens already cached, blocks) a sequence; logits are asked of every real row."""
        tokens = [t for new, _, _ in sequences for t in new]
        positions = [old + i for new, old, _ in sequences for i in range(len(new))]
        starts = [0]
        for new, _, _ in sequences:
            starts.append(starts[-1] + len(new))
        rows = len(tokens)
        table = torch.zeros(len(sequences), BLOCKS_PER_SEQUENCE)
        for b, (_, _, blocks) in enumerate(sequences):
            table[b, : len(blocks)] = torch.tensor(blocks)
        inputs = {
            "tokens": torch.tensor(tokens + [5] * padding),
            "positions": torch.tensor(positions + [99] * padding),
            "query_start": torch.tensor(starts),
            "context_len": torch.tensor([old + len(new) for new, old, _ in sequences]),
            "block_table": table,
            "logit_rows": torch.arange(rows),
            "temperature": torch.zeros(rows),
            "top_k": torch.zeros(rows),
            "top_p": torch.ones(rows),
            "min_p": torch.zeros(rows),
            "seed": torch.zeros(rows),
        }
        wide = ("temperature", "top_p", "min_p")
        return self.run({name: value.float() if name in wide else value.int() for name, value in inputs.items()}, poisoned=starts[-1])

    def run(self, inputs: dict[str, torch.Tensor], poisoned: int) -> dict[str, torch.Tensor]:
        """Every op by its meaning; rows from `poisoned` on become NaN as soon as they are made."""
        block = self.function.body.block
        values = dict(zip(block.args, [*inputs.values(), *self.caches.values()], strict=True))
        tokens = len(inputs["tokens"])
        for op in block.ops:
            if isinstance(op, WeightOp):
                values[op.result] = self.weights[op.weight_name.data]
            elif op.results:
                value = IMPLEMENTATIONS[op.name](*(values[operand] for operand in op.operands), **attributes_of(op))
                if op.name == "transformer.embedding":
                    assert len(value) == tokens
                    value[poisoned:] = math.nan
                values[op.results[0]] = value
        results = [values[v] for v in signature.return_of(self.function).operands]
        return dict(zip(signature.output_names(self.function), results, strict=True))


def logits_of(model: LlamaForCausalLM, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


def text(length: int, seed: int) -> list[int]:
    return torch.randint(0, 257, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module", params=CONFIGS)
def case(request):
    config = CONFIGS[request.param]
    return config, peer(config)


@pytest.mark.parametrize("passes", PASSES)
def test_prefill_and_decode_equal_transformers(case, passes):
    config, model = case
    for length in (1, 13, 70):
        level1 = Level1(config, model, PASSES[passes])
        tokens, blocks = text(length + 3, length), [7, 3, 30, 11, 2]
        expected = logits_of(model, tokens)
        out = level1.step([(tokens[:length], 0, blocks)])
        torch.testing.assert_close(out["logits"], expected[:length], **TOLERANCE)
        assert out["next"].tolist() == expected[:length].argmax(-1).tolist()
        assert out["cache.0"] is level1.caches["cache.0"]
        for n in range(length, length + 3):
            out = level1.step([([tokens[n]], n, blocks)])
            torch.testing.assert_close(out["logits"], expected[n : n + 1], **TOLERANCE)


@pytest.mark.parametrize("passes", PASSES)
def test_one_ragged_step_equals_transformers(case, passes):
    """Three decodes, a chunk of 37 tokens in the middle of its sequence, padding rows of NaN, shuffled blocks, NaN in every unused one."""
    config, model = case
    level1 = Level1(config, model, PASSES[passes])
    free = (1 + torch.randperm(39, generator=torch.Generator().manual_seed(3))).tolist()
    lengths, chunks = [17, 33, 70, 58], [1, 1, 37, 1]
    sequences = []
    for seed, (length, new) in enumerate(zip(lengths, chunks, strict=True)):
        blocks, free = free[: -(-length // BLOCK)], free[-(-length // BLOCK) :]
        sequences.append((text(length, seed + 50), length - new, blocks))
    for tokens, old, blocks in sequences:
        level1.step([(tokens[:old], 0, blocks)], padding=2)
    out = level1.step([(tokens[old:], old, blocks) for tokens, old, blocks in sequences], padding=9)
    expected = torch.cat([logits_of(model, tokens)[old:] for tokens, old, _ in sequences])
    torch.testing.assert_close(out["logits"], expected, **TOLERANCE)
    assert all(cache[free].isnan().all() for cache in level1.caches.values())


def test_a_specialized_step_feeds_the_next_one(case):
    """Greedy decode of two sequences with nothing but the results of a step as the next step's inputs; transformers follows."""
    config, model = case
    decode = "specialize{tokens=2 sequences=2 logit-rows=2 blocks=8 advance=true}"
    level1 = Level1(config, model, f"{PASSES['paired']},{decode}")
    histories, blocks = [text(3, 8), text(15, 9)], [[4, 1], [2, 6]]
    for tokens, owned in zip(histories, blocks, strict=True):
        level1.step([(tokens[:-1], 0, owned)])
    inputs = {
        "tokens": torch.tensor([tokens[-1] for tokens in histories]),
        "positions": torch.tensor([len(tokens) - 1 for tokens in histories]),
        "query_start": torch.arange(3),
        "context_len": torch.tensor([len(tokens) for tokens in histories]),
        "block_table": torch.tensor([owned + [0] * 6 for owned in blocks]),
        "logit_rows": torch.arange(2),
        "temperature": torch.zeros(2),
        "top_k": torch.zeros(2),
        "top_p": torch.ones(2),
        "min_p": torch.zeros(2),
        "seed": torch.zeros(2),
    }
    inputs = {name: value if name in ("temperature", "top_p", "min_p") else value.int() for name, value in inputs.items()}
    for _ in range(5):
        out = level1.run(inputs, poisoned=2)
        for row, tokens in enumerate(histories):
            torch.testing.assert_close(out["logits"][row], logits_of(model, tokens)[-1], **TOLERANCE)
            tokens.append(int(out["next"][row]))
        names = [signature.input_names(level1.function)[i] if i >= 0 else "" for i in signature.tied(level1.function)]
        results = dict(zip(names, out.values(), strict=True))
        inputs = {name: results.get(name, value) for name, value in inputs.items()}
    assert inputs["context_len"].tolist() == [8, 20]


def test_the_body_form_means_the_same(case):
    """What a manifest carries, run by what the executors run, gives the logits of the ops themselves."""
    config, model = case
    level1, again = (Level1(config, model, PASSES["table"]) for _ in range(2))
    tokens = text(21, 4)
    expected = level1.step([(tokens, 0, [5, 3])])
    body, names = export_function(again.function)
    handles = {**again.weights, "rope_table": IMPLEMENTATIONS["transformer.rope_table"](**attributes_of(first_table(again.module)))}
    inputs = {
        "tokens": tokens,
        "positions": range(21),
        "query_start": [0, 21],
        "context_len": [21],
        "block_table": [[5, 3]],
        "logit_rows": range(21),
        "top_k": [0] * 21,
        "seed": [0] * 21,
    }
    arguments = {name: torch.tensor(value, dtype=torch.int32) for name, value in inputs.items()}
    arguments |= {"temperature": torch.zeros(21), "top_p": torch.ones(21), "min_p": torch.zeros(21), **again.caches}
    given = [arguments[name] for name in signature.input_names(again.function)]
    logits, token, *_ = evaluate(json.loads(json.dumps(body)), [*given, *(handles[name] for name in names)])
    assert torch.equal(logits, expected["logits"])
    assert torch.equal(token, expected["next"])


def first_table(module: ModuleOp) -> RopeTableOp:
    return next(op for op in module.walk() if isinstance(op, RopeTableOp))


def test_the_passes_change_what_they_say(case):
    config, model = case
    paired = Level1(config, model, PASSES["paired"])
    names = [op.name for op in paired.module.walk()]
    assert names.count("transformer.rope_table") == 1
    assert names.count("transformer.rotate") == 2 * config.layers
    assert "transformer.rope" not in names
    laid_out = {op.w.owner.weight_name.data for op in paired.module.walk() if isinstance(op, PairRowsOp)}
    biases = ("", ".bias") if config.attention_bias else ("",)
    assert laid_out == {f"layers.{i}.attn.{p}_proj{b}" for i in range(config.layers) for p in "qk" for b in biases}


def test_a_checkpoint_that_interleaves_needs_no_layout():
    """GGUF files of the family store q and k rows in pairs: the module says so and the logits are those of the half-split checkpoint."""
    model = peer(BASE)
    level1 = Level1(replace(BASE, rope_style="paired"), model, PASSES["paired"])
    for i in range(BASE.layers):
        for part in "qk":
            name = f"layers.{i}.attn.{part}_proj"
            level1.weights[name] = IMPLEMENTATIONS["transformer.pair_rows"](level1.weights[name], head_dim=16, rotary_dim=16)
    assert not any(isinstance(op, PairRowsOp) for op in level1.module.walk())
    tokens = text(20, 1)
    torch.testing.assert_close(level1.step([(tokens, 0, [4, 9])])["logits"], logits_of(model, tokens), **TOLERANCE)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_module_prints_and_parses_unchanged(name):
    from xdsl.parser import Parser

    module = build(CONFIGS[name], dtype="bf16", block=BLOCK)
    for passes in ("", PASSES["paired"], "specialize{tokens=4 sequences=4 logit-rows=4 blocks=8 advance=true}"):
        for built in registry.parse_passes(passes):
            pipeline.apply(registry.context(), module, built)
        verify(module)
        written = pipeline.text(module)
        assert pipeline.text(Parser(registry.context(), written).parse_module()) == written


def test_every_op_of_a_layer_says_where_it_comes_from():
    module = build(BASE, dtype="f32", block=BLOCK)
    unlocated = {op.name for op in module.walk() if op.name.startswith("transformer.") and "loc" not in op.attributes}
    assert unlocated == {"transformer.weight"}
    locations = {op.attributes["loc"].data for op in module.walk() if "loc" in op.attributes}
    assert {"layers.2.attn.q", "layers.0.attn.rope_k", "layers.1.ffn.gate", "final_norm", "lm_head"} <= locations
