"""Tokenizers: ids are transformers' own, and text streamed piece by piece is the text decoded whole, never half a character."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Builder
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from lamella.errors import CheckpointError, PromptError
from lamella.tokenizer import Tokenizer, has_tokenizer

TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
TEXTS = ["Hello world", "naïve café — 你好，世界", "👩‍👩‍👧 family", "def f(x):\n    return x . \n", "नमस्ते", " leading", "trailing ", ""]


def save(builder: Builder, folder: Path, template: str | None = TEMPLATE) -> Tokenizer:
    """A folder as transformers writes it."""
    folder.mkdir()
    builder.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    config["clean_up_tokenization_spaces"] = True
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    assert has_tokenizer(folder)
    return Tokenizer(folder)


def byte_level() -> Builder:
    """Tokens of bytes, as GPT-2 and Llama 3: a character outside ASCII takes several ids. Texts begin with <s>."""
    builder = Builder(models.BPE())
    builder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    builder.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    builder.train_from_iterator(["hello world return the family"] * 3, trainer)
    builder.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return builder


def byte_fallback() -> Builder:
    """Pieces with a mark for spaces and bytes as a last resort, as Llama 2: decoders drop the space of the first piece."""
    pieces = ["<unk>", *SPECIAL, *(f"<0x{b:02X}>" for b in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyzHé"]
    builder = Builder(models.BPE({p: i for i, p in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    builder.add_special_tokens(SPECIAL)
    builder.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    builder.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return builder


@pytest.fixture(scope="module", params=[byte_level, byte_fallback], ids=["byte-level", "byte-fallback"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    make: Callable[[], Builder] = request.param
    return save(make(), tmp_path_factory.mktemp("tokenizer") / "model")


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [*(stream.push(i) for i in ids), stream.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_transformers(tokenizer: Tokenizer, text: str) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(tokenizer.folder)
    assert tokenizer.encode(text) == reference(text).input_ids
    messages = [{"role": "user", "content": text}]
    assert tokenizer.chat(messages) == reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]


def test_special_tokens_are_added_once_and_left_out_of_text(tmp_path: Path) -> None:
    tokenizer = save(byte_level(), tmp_path / "model")
    ids = tokenizer.encode("Hello")
    assert ids[0] == 0
    assert tokenizer.decode([*ids, 1]) == "Hello"
    assert tokenizer.decode([*ids, 1], special=True) == "<s>Hello</s>"
    assert tokenizer.chat([{"role": "user", "content": "a"}])[0] == 2
    assert (tokenizer.eos, tokenizer.size) == ((1,), 280)


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_is_the_whole_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    whole = "".join(streamed(tokenizer, ids))
    assert whole == tokenizer.decode(ids)
    # A tokenizer that marks the beginning of a word makes no difference between none and one leading space.
    assert whole in (text, text.removeprefix(" "))


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_streams_whole(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


def test_no_piece_ends_inside_a_character(tmp_path: Path) -> None:
    tokenizer = save(byte_level(), tmp_path / "model")
    ids = tokenizer.encode("é你👩")
    pieces = streamed(tokenizer, ids[1:])
    assert len(ids) == 1 + 2 + 3 + 4
    assert pieces == ["", "é", "", "", "你", "", "", "", "👩", ""]


def test_bytes_that_never_become_a_character_come_out_in_the_end(tmp_path: Path) -> None:
    tokenizer = save(byte_level(), tmp_path / "model")
    half = tokenizer.encode("你")[1:3]
    assert streamed(tokenizer, half) == ["", "", "\ufffd"]
    assert "".join(streamed(tokenizer, [*half, *tokenizer.encode("ab")])) == "\ufffdab"


def test_words_come_out_as_they_are_made(tmp_path: Path) -> None:
    tokenizer = save(byte_level(), tmp_path / "model")
    pieces = streamed(tokenizer, tokenizer.encode("hello world " * 20))
    assert pieces[-1] == ""
    assert max(map(len, pieces)) < 8


def test_spaces_are_left_as_they_are(tmp_path: Path) -> None:
    """transformers would tidy `x .` into `x.` for this tokenizer, which breaks code."""
    tokenizer = save(byte_level(), tmp_path / "model")
    assert tokenizer.decode(tokenizer.encode("x . y ' s")) == "x . y ' s"


def test_a_model_without_a_template_cannot_chat(tmp_path: Path) -> None:
    tokenizer = save(byte_level(), tmp_path / "model", template=None)
    with pytest.raises(PromptError, match=r"no chat template.*leave out --chat"):
        tokenizer.chat([{"role": "user", "content": "a"}])


def test_a_template_may_refuse(tmp_path: Path) -> None:
    tokenizer = save(byte_level(), tmp_path / "model", template="{{ raise_exception('roles must\nalternate') }}")
    with pytest.raises(PromptError, match=r"refuses these messages: roles must alternate"):
        tokenizer.chat([{"role": "user", "content": "a"}])


def test_a_template_in_its_own_file(tmp_path: Path) -> None:
    tokenizer = save(byte_level(), tmp_path / "model", template=None)
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE)
    assert tokenizer.decode(tokenizer.chat([{"role": "user", "content": "a"}]), special=True) == "<|user|>a<|assistant|>"


def test_a_broken_tokenizer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{ nonsense\n}")
    with pytest.raises(CheckpointError) as caught:
        Tokenizer(tmp_path).encode("a")
    assert str(tmp_path) in str(caught.value)
    assert "--prompt-ids" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folders_without_a_tokenizer(tmp_path: Path) -> None:
    assert not has_tokenizer(tmp_path)
    (tmp_path / "merges.txt").touch()
    assert not has_tokenizer(tmp_path)
    (tmp_path / "vocab.json").touch()
    assert has_tokenizer(tmp_path)


def test_the_real_chat_prompt(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = Tokenizer(smollm2.parent, smollm2.name)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    reference = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    ids = tokenizer.chat(messages)
    assert ids == reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert len(ids) == 37
    for text in TEXTS:
        assert tokenizer.encode(text) == reference(text).input_ids
        assert "".join(streamed(tokenizer, tokenizer.encode(text))) == text
    assert tokenizer.eos == (2,)
