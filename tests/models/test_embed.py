"""Encoders: hidden states and embeddings of ragged batches against `transformers`, for a tiny BERT of odd sizes and for the real MiniLM."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import lamella
from lamella import api
from lamella.errors import ConfigError, LamellaError, PassError, PromptError
from lamella.frontends import open_model
from lamella.frontends.pooling import Pooling, read_pooling
from lamella.program import Shape
from lamella.runtime.embed import Embedder
from lamella.runtime.manifest import DTYPE_BYTES
from lamella.tools import cli
from tests.models.test_families import AS_NEAR, ids_of
from tests.models.tiny_families import ENCODERS

LENGTHS = (7, 1, 65, 33, 16, 2, 70, 17)
BUCKETS = [Shape.batch(40), Shape.batch(150)]


def texts(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Random token ids."""
    return [ids_of(length, 97, number) for number, length in enumerate(lengths)]


def hidden(model: transformers.PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """What transformers makes of one text, float32 [tokens, E]."""
    with torch.no_grad():
        return model(torch.tensor([ids])).last_hidden_state[0].float()


def make(folder: Path, executor: str, dtype: str = "float32", name: str = "bert") -> tuple[transformers.PreTrainedModel, lamella.Model]:
    """A tiny encoder, as transformers has it and as Lamella loads it."""
    model = ENCODERS[name].save(folder)
    device = "cuda" if executor == "cuda" else "cpu"
    return model, api.load(folder, device=device, dtype=dtype, executor=executor, buckets=BUCKETS)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[transformers.PreTrainedModel, lamella.Model]:
    return make(tmp_path_factory.mktemp("bert"), "reference")


def agree(model: transformers.PreTrainedModel, loaded: lamella.Model, lengths: tuple[int, ...]) -> None:
    """Hidden states of every token of a batch of texts, some of which share steps."""
    given = texts(lengths)
    for ids, found in zip(given, Embedder(loaded.executor).hidden(given), strict=True):
        expected = hidden(model, ids)
        assert float(expected.std()) > 0.05
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_each_text_sees_itself_alone(tiny: tuple[transformers.PreTrainedModel, lamella.Model]) -> None:
    agree(*tiny, LENGTHS)


@pytest.mark.parametrize("name", [name for name in ENCODERS if name != "bert"])
def test_other_encoders(name: str, tmp_path: Path) -> None:
    agree(*make(tmp_path, "reference", name=name), LENGTHS)


def test_kernels_embed_as_well(tmp_path: Path) -> None:
    agree(*make(tmp_path, "interpret"), (7, 1, 33, 16))


@pytest.mark.gpu
def test_embeddings_on_a_gpu(tmp_path: Path) -> None:
    agree(*make(tmp_path, "cuda"), LENGTHS)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_are_as_near_as_transformers(dtype: str, tmp_path: Path) -> None:
    narrow = getattr(torch, dtype)
    ENCODERS["bert"].model().to(narrow).save_pretrained(tmp_path)
    load = transformers.BertModel.from_pretrained
    exact, rounded = (load(tmp_path, dtype=kind, attn_implementation="eager").eval() for kind in (torch.float32, narrow))
    loaded = api.load(tmp_path, device="cpu", dtype=dtype, buckets=BUCKETS)
    given = texts()
    found = torch.cat(Embedder(loaded.executor).hidden(given))
    expected, theirs = (torch.cat([hidden(model, ids) for ids in given]) for model in (exact, rounded))
    mine, limit = ((x - expected).square().mean().sqrt() for x in (found, theirs))
    assert mine < AS_NEAR * limit, f"{mine:.5f} from float32, transformers {limit:.5f}"


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", ["mean", "cls", "max"])
def test_poolings(kind: str, normalize: bool, tiny: tuple[transformers.PreTrainedModel, lamella.Model]) -> None:
    model, loaded = tiny
    given = texts()
    pool = {"mean": lambda x: x.mean(0), "cls": lambda x: x[0], "max": lambda x: x.amax(0)}[kind]
    expected = torch.stack([pool(hidden(model, ids)) for ids in given])
    expected = torch.nn.functional.normalize(expected) if normalize else expected
    torch.testing.assert_close(loaded.embed(given, pooling=kind, normalize=normalize), expected, rtol=0, atol=1e-4)


def test_no_texts_are_no_vectors(tiny: tuple[transformers.PreTrainedModel, lamella.Model]) -> None:
    assert tiny[1].embed([]).shape == (0, 60)


@pytest.mark.parametrize(
    ("given", "options", "parts"),
    [
        ([[5], []], {}, ("text 2: the text has no tokens", "at least one")),
        ([[5, 97]], {}, ("outside the vocabulary", "0 to 96", "got 97")),
        ([[5] * 81], {}, ("too long", "at most 70 tokens", "got 81")),
        ([[5]], {"pooling": "sum"}, ("unknown pooling", "mean, cls, max", "got sum")),
        (["text"], {}, ("this model has no tokenizer",)),
    ],
)
def test_bad_texts(
    given: list[Any], options: dict[str, Any], parts: tuple[str, ...], tiny: tuple[transformers.PreTrainedModel, lamella.Model]
) -> None:
    with pytest.raises(PromptError) as caught:
        tiny[1].embed(given, **options)
    assert [part for part in parts if part not in str(caught.value)] == []


def test_encoders_generate_nothing_and_decoders_embed_nothing(
    tiny: tuple[transformers.PreTrainedModel, lamella.Model], tmp_path: Path
) -> None:
    with pytest.raises(PromptError, match="continues no text"):
        tiny[1].generate([1, 2, 3])
    with pytest.raises(PassError, match="an encoder has no decode steps"):
        api.compile(tiny[1].opened, buckets=[Shape.decode()])
    with pytest.raises(PassError, match="an encoder draws no tokens to penalize"):
        api.compile(tiny[1].opened, penalties=True)
    transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, architectures=["LlamaForCausalLM"]
    ).save_pretrained(tmp_path)
    decoder = api.load(tmp_path / "config.json", random_weights=0, device="cpu", buckets=[1], max_context=32)
    with pytest.raises(PromptError, match="embeds none"):
        decoder.embed([[1]])


@pytest.mark.parametrize(("name", "architecture"), [("bert", "BertForMaskedLM"), ("xlm-roberta", "XLMRobertaForMaskedLM")])
def test_a_masked_language_model_is_read_without_its_head(name: str, architecture: str, tmp_path: Path) -> None:
    model = getattr(transformers, architecture)(ENCODERS[name].model().config).eval()
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    head, stem = ("cls.predictions", "bert") if name == "bert" else ("lm_head", "roberta")
    old = {f"{head}.decoder.bias": torch.zeros(97), f"{stem}.embeddings.position_ids": torch.arange(70)[None]}
    save_file({**tensors, **old}, file)
    loaded = api.load(tmp_path, device="cpu", dtype="float32", buckets=[Shape.batch(40)])
    given = texts((7, 16))
    for ids, found in zip(given, Embedder(loaded.executor).hidden(given), strict=True):
        with torch.no_grad():
            expected = model.base_model(torch.tensor([ids])).last_hidden_state[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"is_decoder": True}, ("is_decoder", "expected false")),
        ({"position_embedding_type": "relative_key"}, ("position_embedding_type", "expected absolute", "got relative_key")),
        ({"hidden_act": "quick_gelu"}, ("unknown activation quick_gelu",)),
        ({"type_vocab_size": 0}, ("type_vocab_size", "a positive integer")),
    ],
)
def test_berts_that_compute_something_else(changes: dict[str, Any], parts: tuple[str, ...], tmp_path: Path) -> None:
    ENCODERS["bert"].save(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ConfigError) as caught:
        open_model(tmp_path)
    assert [part for part in ("config.json", *parts) if part not in str(caught.value)] == []


# The files of sentence-transformers

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


def described(folder: Path, modules: Any, pooling: dict[str, Any], **others: dict[str, Any]) -> Path:
    """A folder with the files of sentence-transformers."""
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "modules.json").write_text(json.dumps(modules))
    for name, values in others.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return folder


def test_without_files_the_mean_as_it_is(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == Pooling("mean", normalize=False, max_length=None, lower=False)


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
)
def test_poolings_by_flag_and_by_name(pooling: dict[str, Any], kind: str, tmp_path: Path) -> None:
    folder = described(tmp_path, MODULES, pooling, sentence_bert_config={"max_seq_length": 99, "do_lower_case": True})
    assert read_pooling(folder) == Pooling(kind, normalize=True, max_length=99, lower=True)


@pytest.mark.parametrize(
    ("modules", "pooling", "others", "parts"),
    [
        (
            MODULES,
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            {},
            ("unsupported pooling", "cls_token, mean_tokens"),
        ),
        (MODULES, {"pooling_mode_weightedmean_tokens": True}, {}, ("unsupported pooling", "weightedmean_tokens")),
        (MODULES, {}, {}, ("unsupported pooling", "got none")),
        ([*MODULES, {"path": "3_Dense", "type": "sentence_transformers.models.Dense"}], {"pooling_mode": "mean"}, {}, ("kind Dense",)),
        ([{"path": "../elsewhere", "type": "a.Pooling"}], {}, {}, ("outside of the folder", "../elsewhere")),
        ({"a": 1}, {}, {}, ("no list of modules",)),
        ([{"path": ""}], {}, {}, ("field type is missing",)),
        (MODULES, {"pooling_mode": "mean"}, {"sentence_bert_config": {"max_seq_length": -5}}, ("max_seq_length", "a positive integer")),
        (
            MODULES,
            {"pooling_mode": "mean"},
            {"config_sentence_transformers": {"default_prompt_name": "query"}},
            ("default_prompt_name", "got query"),
        ),
    ],
)
def test_what_the_files_may_not_ask_for(
    modules: Any, pooling: dict[str, Any], others: dict[str, Any], parts: tuple[str, ...], tmp_path: Path
) -> None:
    folder = described(tmp_path, modules, pooling, **others)
    with pytest.raises(LamellaError) as caught:
        read_pooling(folder)
    text = str(caught.value)
    assert "\n" not in text
    assert [part for part in (str(tmp_path), *parts) if part not in text] == [], text


# The real one

SENTENCES = [
    "The cat sits on the mat.",
    "A feline rests on a rug.",
    "Compilers turn one program into another.",
    "a",
    "Ünïcode — naïve café, Москва, 日本",
    "  spaces,\ttabs\nand lines  ",
    "word " * 300,
    *(f"Sentence number {n}: " + "the quick brown fox jumps over a lazy dog, " * (n % 6) for n in range(13)),
]


def test_real_embeddings_are_those_of_mean_pooling(minilm: Path) -> None:
    """Twenty sentences; the longest is cut at 256 tokens, as sentence-transformers does."""
    assert len(SENTENCES) == 20
    loaded = api.load(minilm, device="cpu", dtype="float32", buckets=[Shape.batch(n) for n in (128, 512)])
    found = loaded.embed(SENTENCES)
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.AutoModel.from_pretrained(minilm).eval()
    for sentence, vector in zip(SENTENCES, found, strict=True):
        states = hidden(model, tokenizer(sentence.strip(), truncation=True, max_length=256)["input_ids"])
        torch.testing.assert_close(vector, torch.nn.functional.normalize(states.mean(0), dim=0), rtol=0, atol=1e-4)
    near = found @ found.T
    assert near[0, 1] > 0.5 > near[0, 2]


def test_the_command(minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("The cat sits on the mat.\n\nA feline rests on a rug.\n")
    command = ["embed", str(minilm), "--file", str(lines), "--text", "Compilers", "--device", "cpu", "--max-context", "64"]
    assert cli.main([*command, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["texts"] == ["Compilers", "The cat sits on the mat.", "A feline rests on a rug."]
    vectors = torch.tensor(made["embeddings"])
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(3))
    assert cli.main(command) == 0
    printed = [[float(number) for number in line.split()] for line in capsys.readouterr().out.splitlines()]
    torch.testing.assert_close(torch.tensor(printed), vectors, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "there is nothing to embed"),
        (["--file", "/nowhere/lines.txt"], "/nowhere/lines.txt: the file cannot be read"),
        (["--text", "x", "--pooling", "sum"], "sum"),
    ],
)
def test_mistakes_of_the_command(arguments: list[str], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["embed", str(tmp_path), *arguments]) == 2
    text = capsys.readouterr().err
    assert text.startswith("lamella: error: ") and text.count("\n") == 1 and part in text


def test_an_encoder_is_inspected_with_memory_and_a_floor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step of four texts: the weights as the loaded model holds them, room for the texts in one cache, and microseconds a text."""
    made, loaded = make(tmp_path, "reference")
    assert cli.main(["inspect", str(tmp_path), "--context", "32", "--batch", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    memory, step = found["memory"]["bytes"], found["step"]
    manifest = loaded.executor.manifest
    assert memory["weights"] == sum(prod(w.shape) * DTYPE_BYTES[w.dtype] for w in manifest.weights.values())
    assert memory["cache"] >= 4 * 32 * manifest.cache.block_bytes // manifest.cache.block
    assert memory["total"] == sum(size for name, size in memory.items() if name != "total")
    assert step["floor_us_a_text"] == pytest.approx(step["floor_us"] / 4) and step["texts_per_second"] > 0
    assert cli.main(["inspect", str(tmp_path), "--context", "32"]) == 0
    text = capsys.readouterr().out
    assert "A step, 1 sequence of 32 tokens" in text and "texts/s at most" in text
    assert sum(p.numel() for p in made.parameters()) >= found["parameters"]
