"""The runtime on a hand-written program: memory, weights, the reference executor, generation, and text on top of it."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from lamella.errors import DeviceError, LamellaError, ManifestError, OutOfMemoryError, PromptError, TensorError
from lamella.runtime.executor import make_executor, resolve
from lamella.runtime.generate import Session
from lamella.runtime.manifest import Manifest
from lamella.runtime.memory import BlockAllocator, cache_blocks, poison
from lamella.runtime.reference import ReferenceExecutor
from lamella.runtime.sampling_parameters import SamplingParameters
from lamella.runtime.text import Completion, StopStrings
from lamella.runtime.weights import load_weights, make_constants
from tests.unit import tiny_program
from tests.unit.tiny_program import BLOCK, BLOCKS, BUCKETS, EOS, VOCABULARY, FixedSource, logits_of

CONTEXT = BLOCK * BLOCKS
WEIGHTS = tiny_program.weights()


def session(
    data: dict[str, Any] | None = None, buckets: Sequence[tuple[int, int, int, int, bool]] = BUCKETS, cache_tokens: int | None = None
) -> Session:
    """A session on the reference executor."""
    manifest = Manifest.from_json(data or tiny_program.manifest(buckets))
    store = load_weights(manifest, FixedSource(WEIGHTS))
    executor = make_executor(manifest, store, executor="reference", device="cpu", cache_tokens=cache_tokens)
    assert isinstance(executor, ReferenceExecutor)
    return Session(executor, BlockAllocator(executor.caches[0].shape[0], shuffle_seed=1))


def greedy(ids: Sequence[int], count: int) -> list[int]:
    """The model's own greedy continuation, recomputed from scratch for every token."""
    out = list(ids)
    for _ in range(count):
        out.append(int(logits_of(out, WEIGHTS)[-1].argmax()))
    return out[len(ids) :]


PROMPTS = (
    [3],
    [1, 2],
    [4, 0, 9],
    [5, 6, 1, 2],
    list(range(8)),
    [i % VOCABULARY for i in range(9)],
    [i * i % VOCABULARY for i in range(19)],
)


@pytest.mark.parametrize("ids", PROMPTS)
def test_greedy_generation_equals_recomputation(ids: list[int]) -> None:
    assert list(session().stream(ids, 12, ignore_eos=True)) == greedy(ids, 12)


def test_generation_works_with_a_decode_bucket_alone() -> None:
    ids = [4, 0, 9, 2]
    assert list(session(buckets=[(1, 1, 1, 1, True)]).stream(ids, 5, ignore_eos=True)) == greedy(ids, 5)


def test_generation_stops_before_the_eos_token_and_returns_its_blocks() -> None:
    runner = session()
    free = runner.allocator.available
    ids = next([i] for i in range(VOCABULARY) if EOS in greedy([i], 20)[1:])
    expected = greedy(ids, 20)
    tokens = runner.stream(ids, 20)
    assert list(tokens) == expected[: expected.index(EOS)]
    assert tokens.stop_reason == "eos"
    assert runner.allocator.available == free


def test_generation_to_the_end_of_the_context() -> None:
    ids = [i * i % VOCABULARY for i in range(19)]
    tokens = session().stream(ids, ignore_eos=True)
    assert list(tokens) == greedy(ids, CONTEXT - 19)
    assert tokens.stop_reason == "length"
    assert tokens.timings.prefill > 0
    assert tokens.timings.decoded == CONTEXT - 20


def test_one_generation_at_a_time() -> None:
    runner = session()
    first = runner.stream([1, 2], 5, ignore_eos=True)
    next(first)
    with pytest.raises(LamellaError, match="a generation is in progress"):
        next(runner.stream([1], 1))
    first.close()
    assert list(runner.stream([1], 3, ignore_eos=True)) == greedy([1], 3)


def test_teacher_forced_logits() -> None:
    ids = [i * 5 % VOCABULARY for i in range(23)]
    expected = logits_of(ids, WEIGHTS).float()
    runner = session()
    torch.testing.assert_close(runner.forward_logits(ids), expected)
    torch.testing.assert_close(runner.forward_logits(ids, [22, 0, 11]), expected[[22, 0, 11]])
    torch.testing.assert_close(session(buckets=[(30, 1, 30, 30, False)]).forward_logits(ids), expected)


def test_a_ragged_step_with_padding_and_poisoned_blocks() -> None:
    runner = session(cache_tokens=40 * BLOCK)
    cache = runner.executor.caches[0]
    sequences = [[3, 1, 4, 1, 5, 9], [2, 6], [5, 3, 5, 8, 9, 7, 9, 3, 2]]
    tables = [runner.allocator.allocate(3) for _ in sequences]
    # All but the last token of the first two sequences first, then one step: two decodes and a chunk of five.
    cuts = [5, 1, 4]
    for ids, table, cut in zip(sequences, tables, cuts, strict=True):
        runner.step(ids[:cut], range(cut), [0, cut], [cut], [table], [cut - 1])
    assert torch.isnan(cache).any()
    tokens = [t for ids, cut in zip(sequences, cuts, strict=True) for t in ids[cut:]]
    positions = [p for ids, cut in zip(sequences, cuts, strict=True) for p in range(cut, len(ids))]
    result = runner.step(tokens, positions, [0, 1, 2, 7], [6, 2, 9], tables, [0, 1, 4, 6])
    expected = torch.stack(
        [logits_of(sequences[0], WEIGHTS)[-1], logits_of(sequences[1], WEIGHTS)[-1], *logits_of(sequences[2], WEIGHTS)[[6, 8]]]
    )
    torch.testing.assert_close(result.logits, expected.float())
    assert result.next.tolist() == expected.argmax(-1).tolist()


def test_more_rows_of_one_token_than_any_bucket_has() -> None:
    with pytest.raises(ManifestError, match=r"no bucket of the compiled program holds this batch, got 1 tokens, .* 5 logit rows"):
        session().step([3], [0], [0, 1], [1], [[1]], [0] * 5)


def test_sampling_is_reproducible_and_keyed_by_the_seed() -> None:
    hot = SamplingParameters(temperature=2.0, seed=5)
    runs = [list(session().stream([1, 2, 3], 20, hot, ignore_eos=True)) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0] != list(session().stream([1, 2, 3], 20, SamplingParameters(temperature=2.0, seed=6), ignore_eos=True))
    assert list(session().stream([1, 2, 3], 9, SamplingParameters(temperature=2.0, top_k=1), ignore_eos=True)) == greedy([1, 2, 3], 9)


@pytest.mark.parametrize("early", [1, 0])
def test_a_value_declared_dead_too_early_is_seen(early: int) -> None:
    data = tiny_program.manifest()
    for bucket in data["buckets"]:
        launches = bucket["launches"]
        launches[early]["dead"], launches[2]["dead"] = launches[2]["dead"], []
    assert session(data).forward_logits([1, 2, 3]).isnan().all()


def test_overlapping_buffers_are_seen() -> None:
    data = tiny_program.manifest()
    for bucket in data["buckets"]:
        embed, write, *_ = copy.deepcopy(bucket["launches"])
        write["args"][0] = {**embed["args"][2], "offset": embed["args"][2]["offset"] + 16}
        bucket["launches"][1] = write
    assert not torch.allclose(session(data).forward_logits([1, 2, 3]), logits_of([1, 2, 3], WEIGHTS).float())


def test_a_value_passed_through_survives_an_in_place_store() -> None:
    """Outs (a', old a) with a' over a: the second result is a's old value, which lies in the arena until the first store."""
    body = {"args": 1, "ops": [["tile.map", [0, 0], {"kind": "add"}, [1]], ["tile.cast", [0], {"dtype": "f32"}, [2]]], "yields": [1, 2]}
    data = tiny_program.manifest([(1, 1, 1, 1, True)])
    kernel = {"file": "", "inputs": 1, "body": body, "sources": []}
    bucket = data["buckets"][0]
    x, y = bucket["launches"][0]["args"][2], bucket["launches"][2]["args"][5]
    data["kernels"]["double"] = kernel
    bucket["launches"] = [bucket["launches"][0], {"kernel": "double", "grid": [1, 1, 1], "args": [x, x, y]}]
    bucket["outputs"] = [{"name": "x", "ref": x}, {"name": "y", "ref": y}]
    runner = session(data)
    executor, program = runner.executor, runner.manifest.buckets[0]
    executor.inputs(program)["tokens"].fill_(4)
    executor.launch(program)
    assert torch.equal(executor.output(program, "y")[0], WEIGHTS["embed"][4])
    assert torch.equal(executor.output(program, "x")[0], 2 * WEIGHTS["embed"][4])


def test_padding_rows_write_to_the_null_block_only() -> None:
    runner = session()
    cache = runner.executor.caches[0]
    poison(cache)
    runner.step([1, 2], [0, 1], [0, 2], [2], [[3]], [1])
    written = ~cache.isnan().flatten(1).all(1)
    assert written.nonzero().flatten().tolist() == [0, 3]


@pytest.mark.parametrize(
    ("ids", "count", "message"),
    [
        ([], 1, "the prompt is empty"),
        ([0, VOCABULARY], 1, f"an id outside the vocabulary, expected 0 to {VOCABULARY - 1}, got {VOCABULARY}"),
        ([-1], 1, "an id outside the vocabulary"),
        ([0] * CONTEXT, None, "the prompt is longer than the context"),
        ([0] * (CONTEXT - 2), 3, "longer than the context, expected at most 32 together (ask for at most 2 new tokens)"),
        ([0], 0, "bad max_new_tokens"),
    ],
)
def test_bad_prompts(ids: list[int], count: int | None, message: str) -> None:
    runner = session()
    with pytest.raises(PromptError) as caught:
        runner.stream(ids, count)
    assert message in str(caught.value)
    assert runner.allocator.available == BLOCKS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("min_p", float("nan")),
        ("seed", -1),
        ("seed", 1 << 31),
    ],
)
def test_bad_sampling_parameters(field: str, value: float) -> None:
    with pytest.raises(PromptError, match=f"bad {field}"):
        SamplingParameters(**{field: value})  # pyright: ignore[reportArgumentType]


def test_block_allocator() -> None:
    blocks = BlockAllocator(5)
    owned = blocks.allocate(3)
    assert 0 not in owned
    assert len(set(owned)) == 3
    with pytest.raises(OutOfMemoryError, match="the cache is full, expected 2 free blocks, got 1"):
        blocks.allocate(2)
    assert blocks.available == 1
    blocks.free(owned)
    assert sorted(blocks.allocate(4)) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="block 0 is not allocated"):
        blocks.free([0])
    assert BlockAllocator(50, shuffle_seed=1).allocate(49) != BlockAllocator(50, shuffle_seed=2).allocate(49)


def test_the_cache_is_sized_once() -> None:
    manifest = Manifest.from_json(tiny_program.manifest())
    assert cache_blocks(manifest, torch.device("cpu")) == 1 + BLOCKS
    assert cache_blocks(manifest, torch.device("cpu"), cache_tokens=9) == 1 + 3


def transformed(data: dict, name: str, op: str, attributes: dict) -> None:
    """Let the weight `name` be made of the checkpoint's tensor of that name by one op."""
    spec = data["weights"][name]
    spec["sources"] = [{"name": name, "dtype": "f32", "shape": spec["shape"]}]
    spec["transform"] = {"args": 1, "ops": [[op, [0], attributes, [1]]], "yields": [1]}


def test_weights_are_loaded_once_and_transformed() -> None:
    data = tiny_program.manifest()
    transformed(data, "k", "transformer.pair_rows", {"head_dim": 4, "rotary_dim": 4})
    seen: list[tuple[int, int, str]] = []
    store = load_weights(Manifest.from_json(data), FixedSource(WEIGHTS), progress=lambda *step: seen.append(step))
    assert torch.equal(store["k"], WEIGHTS["k"][[0, 2, 1, 3]])
    assert store["embed"].data_ptr() == WEIGHTS["embed"].data_ptr()
    assert [s[0] for s in seen] == [1, 2, 3, 4]
    assert seen[-1][1] == 4


def test_weights_that_do_not_fit_the_program() -> None:
    manifest = Manifest.from_json(tiny_program.manifest())
    lacking = {k: v for k, v in WEIGHTS.items() if k != "out"}
    with pytest.raises(TensorError, match="the checkpoint lacks the weight 'out'"):
        load_weights(manifest, FixedSource(lacking))
    with pytest.raises(TensorError, match=r"weight 'out' has another shape, expected \[11, 8\], got \[8, 11\]"):
        load_weights(manifest, FixedSource({**WEIGHTS, "out": WEIGHTS["out"].T}))
    data = tiny_program.manifest()
    transformed(data, "k", "transformer.pear_rows", {})
    with pytest.raises(ManifestError, match=r"op 'transformer.pear_rows' has no semantics \(nearest: transformer.pair_rows"):
        load_weights(Manifest.from_json(data), FixedSource(WEIGHTS))


def test_constants() -> None:
    data = tiny_program.manifest()
    attributes = {"length": 6, "rotary_dim": 4, "theta": 100.0, "scaling": {}}
    data["constants"]["table"] = {"dtype": "f32", "shape": [6, 4], "op": "transformer.rope_table", "attributes": attributes}
    table = make_constants(Manifest.from_json(data))["table"]
    torch.testing.assert_close(
        table[3],
        torch.tensor([3.0, 0.3, 3.0, 0.3]).cos() * torch.tensor([1, 1, 0, 0])
        + torch.tensor([3.0, 0.3, 3.0, 0.3]).sin() * torch.tensor([0, 0, 1, 1]),
    )
    data["constants"]["table"]["shape"] = [5, 4]
    with pytest.raises(ManifestError, match="constant 'table' has another shape"):
        make_constants(Manifest.from_json(data))


@pytest.mark.parametrize(
    ("executor", "device", "message"),
    [
        ("referense", "auto", r"unknown executor 'referense' \(nearest: reference"),
        ("auto", "tpu", "unknown device 'tpu'"),
        ("reference", "cuda", "executor 'reference' does not run on device 'cuda'"),
        ("cuda", "cpu", "executor 'cuda' does not run on device 'cpu'"),
    ],
)
def test_executors_that_do_not_exist(executor: str, device: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        resolve(executor, device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu() -> None:
    assert resolve("auto", "auto") == ("reference", torch.device("cpu"))
    for executor, device in (("cuda", "auto"), ("auto", "cuda"), ("cuda", "cuda")):
        with pytest.raises(DeviceError, match="there is no CUDA GPU here"):
            resolve(executor, device)


class Letters:
    """A detokenizer: id i is letter i, doubled, so that stop strings can end inside a token."""

    def stream(self) -> "Letters":
        return self

    def push(self, token: int) -> str:
        return chr(ord("a") + token) * 2

    def flush(self) -> str:
        return "!"


def spell(ids: Sequence[int]) -> str:
    return "".join(chr(ord("a") + i) * 2 for i in ids)


def test_text_and_its_generation() -> None:
    expected = greedy([1, 2], 6)
    completion = Completion(session(), Letters(), [1, 2], 6, ignore_eos=True)
    assert "".join(completion) == spell(expected) + "!"
    generation = completion.generation
    assert (generation.prompt_ids, generation.output_ids) == ((1, 2), tuple(expected))
    assert (generation.text, generation.stop_reason) == (spell(expected) + "!", "length")


def test_text_ends_before_a_stop_string_that_spans_tokens() -> None:
    expected = greedy([1, 2], 12)
    text = spell(expected)
    stop = text[7:10]
    runner = session()
    free = runner.allocator.available
    completion = Completion(runner, Letters(), [1, 2], 12, stop_strings=["zz", stop], ignore_eos=True)
    generation = completion.generation
    assert generation.text == text[: text.index(stop)]
    assert generation.stop_reason == "stop_string"
    assert list(generation.output_ids) == expected[: (text.index(stop) + 2) // 2 + 1]
    assert runner.allocator.available == free
    assert not runner.busy


def test_without_a_tokenizer_there_are_ids_but_no_text() -> None:
    generation = Completion(session(), None, [1, 2], 4, ignore_eos=True).generation
    assert (list(generation.output_ids), generation.text) == (greedy([1, 2], 4), "")
    with pytest.raises(PromptError, match="stop strings need a tokenizer"):
        Completion(session(), None, [1], 4, stop_strings=["a"])
    with pytest.raises(PromptError, match="a stop string is empty"):
        Completion(session(), Letters(), [1], 4, stop_strings=[""])


def test_stop_strings_hold_back_no_more_than_needed() -> None:
    stops = StopStrings(["</s>", "<end>"])
    assert [stops.push(p) for p in ("a<", "b<e", "n", "x", "</s")] == ["a", "<b", "", "<enx", ""]
    assert stops.flush() == "</s"
    assert not stops.found
    assert stops.push("one</s>two") == "one"
    assert stops.found
    assert stops.push("three") == ""
