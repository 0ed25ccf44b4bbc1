"""What a model does with prompts of every kind: text, ids, conversations with system prompts and tools, and a tokenizer that is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Builder
from tokenizers import decoders, models, pre_tokenizers

from lamella import api
from lamella.errors import CheckpointError, PromptError
from lamella.tools import cli
from tests.models.model_files import write_folder

TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}<a>"
)
WEATHER = {"type": "function", "function": {"name": "b", "description": "", "parameters": {}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of 50 ids with a tokenizer of 14: the vocabulary is padded."""
    made = tmp_path_factory.mktemp("model")
    write_folder(made)
    builder = Builder(
        models.BPE({c: i for i, c in enumerate(["<s>", "</s>", "<u>", "<a>", "a", "b", "c", "[", "]", "s", "t", "<", ">", "e"])}, [])
    )
    builder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    builder.decoder = decoders.Fuse()
    builder.add_special_tokens(["<s>", "</s>", "<u>", "<a>"])
    builder.save(str(made / "tokenizer.json"))
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (made / "tokenizer_config.json").write_text(json.dumps(tokens))
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> api.Model:
    return api.load(folder, device="cpu", dtype="float32", buckets=[1, 16])


def test_system_prompts_and_tools_reach_the_template(model: api.Model) -> None:
    ids = model.generate("ab", 1, chat=True, system="c", tools=[WEATHER]).prompt_ids
    assert model.opened.require_tokenizer().decode(ids, special=True) == "[b]<s>c<u>ab<a>"
    messages = [{"role": "system", "content": "c"}, {"role": "user", "content": "ab"}]
    assert model.generate(messages, 1, tools=[WEATHER]).prompt_ids == ids
    assert model.generate(messages[1:], 1, system="c", tools=[WEATHER]).prompt_ids == ids


@pytest.mark.parametrize(
    ("prompt", "given", "message"),
    [
        ("ab", {"system": "c"}, r"a system prompt without a conversation \(add --chat\)"),
        ("ab", {"tools": [WEATHER]}, r"tools without a conversation \(add --chat\)"),
        ([4, 5], {"system": "c"}, "token ids take no system prompt and no tools"),
        ([], {}, "the prompt is empty"),
        ([4, 50], {}, "an id outside the vocabulary, expected 0 to 49, got 50"),
    ],
)
def test_prompts_that_do_not_fit_together(model: api.Model, prompt: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        model.generate(prompt, 1, **given)


def test_ids_beyond_the_tokenizer_have_no_text(model: api.Model) -> None:
    """A padded vocabulary has ids that no text gives; a model may still say them."""
    made = model.generate([4, 49], 20, ignore_eos=True)
    assert any(i >= 14 for i in made.output_ids)
    assert made.text == model.opened.require_tokenizer().decode(made.output_ids)


def test_ids_need_no_tokenizer_that_loads(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(b"{" if file.name == "tokenizer.json" else file.read_bytes())
    broken = api.load(tmp_path, device="cpu", dtype="float32", buckets=[1, 16])
    made = broken.generate([4, 5], 3, ignore_eos=True)
    assert (len(made.output_ids), made.text) == (3, "")
    for prompt, stop in (("ab", ()), ([4, 5], ("a",))):
        with pytest.raises(CheckpointError, match="the tokenizer cannot be loaded"):
            broken.generate(prompt, 3, stop=stop)


def test_each_of_several_end_tokens_ends(folder: Path, tmp_path: Path, model: api.Model) -> None:
    made = model.generate([4, 5, 6], 12, ignore_eos=True).output_ids
    end = next(i for i in made[2:] if i not in made[:2])
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [49, end]}))
    ending = api.load(tmp_path, device="cpu", dtype="float32", buckets=[1, 16]).generate([4, 5, 6], 12)
    assert (ending.output_ids, ending.stop_reason) == (made[: made.index(end)], "eos")


def command(folder: Path, *options: str) -> list[str]:
    return ["generate", str(folder), "--device", "cpu", "--dtype", "float32", "--max-new-tokens", "1", "--json", *options]


def test_the_command_takes_a_system_prompt_and_tools(
    folder: Path, tmp_path: Path, model: api.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([WEATHER]))
    assert cli.main(command(folder, "--prompt", "ab", "--chat", "--system", "c", "--tools", str(file))) == 0
    ids = json.loads(capsys.readouterr().out)["prompt_ids"]
    assert model.opened.require_tokenizer().decode(ids, special=True) == "[b]<s>c<u>ab<a>"
    for options, part in (
        (("--prompt", "ab", "--system", "c"), "--system: a conversation is missing (add --chat)"),
        (("--prompt", "ab", "--tools", str(file)), "--tools: a conversation is missing (add --chat)"),
        (("--prompt", "ab", "--chat", "--tools", str(tmp_path / "none")), "the tools cannot be read: No such file"),
    ):
        assert cli.main(command(folder, *options)) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and part in err
