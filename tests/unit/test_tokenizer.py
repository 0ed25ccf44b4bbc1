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
from lamella.tokenizer import Tokenizer, has_tokenizer, read_tools

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


TOOLS_TEMPLATE = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "of a place", "parameters": {"type": "object", "properties": {}}},
}
HELLO = {"role": "user", "content": "hello"}


def test_system_prompts_and_tools_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = save(byte_level(), tmp_path / "model", template=TOOLS_TEMPLATE)
    messages = [{"role": "system", "content": "be brief"}, HELLO]
    reference = AutoTokenizer.from_pretrained(tokenizer.folder)
    expected = reference.apply_chat_template(messages, tools=[WEATHER], add_generation_prompt=True, return_dict=True)["input_ids"]
    ids = tokenizer.chat(messages, [WEATHER])
    assert ids == expected
    assert tokenizer.decode(ids, special=True) == "[weather]<|system|>be brief<|user|>hello<|assistant|>"


def test_a_template_that_ignores_what_it_is_given_is_found_out(tmp_path: Path) -> None:
    tokenizer = save(byte_level(), tmp_path / "model", template="{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    with pytest.raises(PromptError, match=r"knows no tools \(describe them in the prompt\)"):
        tokenizer.chat([HELLO], [WEATHER])
    with pytest.raises(PromptError, match="knows no system prompt"):
        tokenizer.chat([{"role": "system", "content": "be brief"}, HELLO])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "malformed JSON"),
        ("{}", "no list of functions"),
        ("[]", "no list of functions"),
        ("[1]", "no list of functions"),
        (None, "cannot be read"),
    ],
)
def test_files_of_tools(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([WEATHER]))
    assert read_tools(file) == [WEATHER]
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(PromptError, match=message):
        read_tools(file)


def test_added_tokens_are_one_id_each(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = save(byte_level(), tmp_path / "model")
    reference = AutoTokenizer.from_pretrained(tokenizer.folder)
    reference.add_tokens(["<think>"], special_tokens=False)
    reference.add_special_tokens({"additional_special_tokens": ["<|call|>"]})
    reference.save_pretrained(tmp_path / "more")
    more = Tokenizer(tmp_path / "more")
    ids = more.encode("a<think>b<|call|>c")
    assert more.size == tokenizer.size + 2
    assert ids == reference("a<think>b<|call|>c").input_ids
    assert ids.count(tokenizer.size) == ids.count(tokenizer.size + 1) == 1
    assert more.decode(ids) == "a<think>bc"
    assert "".join(streamed(more, ids)) == "a<think>bc"


def test_a_broken_tokenizer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{ nonsense\n}")
    with pytest.raises(CheckpointError) as caught:
        Tokenizer(tmp_path).encode("a")
    assert str(tmp_path) in str(caught.value)
    assert "--prompt-ids" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_a_fast_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x05\n\x01a\x15\x00")
    assert has_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match=r"tokenizer.model alone is not read, expected tokenizer.json \(make it .*save_pretrained"):
        Tokenizer(tmp_path).encode("a")


class Panic(BaseException):
    """As the Rust half of tokenizers raises."""


Panic.__name__ = "PanicException"


@pytest.mark.parametrize("error", [Panic("index out of bounds\nat x.rs"), KeyError("input_ids"), TypeError("no"), RuntimeError("unk")])
def test_what_a_tokenizer_stumbles_over_is_one_line(tmp_path: Path, error: BaseException) -> None:
    def stumble(*_: object, **__: object) -> None:
        raise error

    tokenizer = save(byte_level(), tmp_path / "model")
    broken = type("Broken", (), {"__call__": stumble, "decode": stumble, "apply_chat_template": stumble, "chat_template": "x"})()
    tokenizer.__dict__["backend"] = broken
    for call in (lambda: tokenizer.encode("a"), lambda: tokenizer.decode([1]), lambda: tokenizer.chat([HELLO])):
        with pytest.raises((CheckpointError, PromptError)) as caught:
            call()
        assert "\n" not in str(caught.value)
        assert str(tokenizer.folder) in str(caught.value)


def test_an_interruption_is_none_of_a_tokenizers_mistakes(tmp_path: Path) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    tokenizer = save(byte_level(), tmp_path / "model")
    tokenizer.__dict__["backend"] = type("Slow", (), {"decode": interrupt})()
    with pytest.raises(KeyboardInterrupt):
        tokenizer.decode([1])


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
