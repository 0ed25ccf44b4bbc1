"""Text enters, token ids leave, and back: a model's own tokenizer and chat template, through transformers."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from lamella.errors import CheckpointError, LamellaError, PromptError

REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are not (yet) a character."""


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder holds a tokenizer that transformers can load."""
    files = {f for f in ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt") if (folder / f).is_file()}
    return bool(files & {"tokenizer.json", "tokenizer.model"}) or files == {"vocab.json", "merges.txt"}


def read_tools(path: Path) -> list[dict[str, Any]]:
    """The functions that a JSON file describes, as `Tokenizer.chat` takes them. Raises PromptError."""
    try:
        with path.open("rb") as stream:
            values = json.loads(stream.read(LONGEST_TOOLS + 1)[:LONGEST_TOOLS])
    except OSError as error:
        raise PromptError(f"the tools cannot be read: {error.strerror}", where=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise PromptError(f"the tools are malformed JSON: {error}", where=str(path)) from error
    found = cast("list[Any]", values) if isinstance(values, list) else []
    if not found or not all(isinstance(tool, dict) for tool in found):
        raise PromptError("the tools are no list of functions", where=str(path), expected=TOOLS)
    return found


@dataclass(frozen=True)
class Tokenizer:
    """
    The tokenizer in `folder`, or inside its file `gguf`. It is loaded at first use, from local files alone, and never runs code that
    a checkpoint brings. Raises CheckpointError at first use when it cannot be loaded.
    """

    folder: Path
    gguf: str | None = None

    @property
    def where(self) -> str:
        """What errors name: the folder or the file."""
        return str(self.folder / self.gguf if self.gguf else self.folder)

    @cached_property
    def backend(self) -> Any:
        """transformers' tokenizer."""
        if not self.gguf and (self.folder / "tokenizer.model").is_file() and not (self.folder / "tokenizer.json").is_file():
            raise CheckpointError("a tokenizer.model alone is not read", where=self.where, expected="tokenizer.json", remedy=CONVERT)
        # Loading transformers takes seconds, which a compile or a run on token ids should not pay.
        from transformers import AutoTokenizer

        options: dict[str, Any] = {"gguf_file": self.gguf} if self.gguf else {}
        load = cast(Any, AutoTokenizer).from_pretrained
        with self._guarded("cannot be loaded"):
            return load(str(self.folder), local_files_only=True, trust_remote_code=False, **options)

    @property
    def loads(self) -> bool:
        """Whether `backend` can be had."""
        try:
            return self.backend is not None
        except CheckpointError:
            return False

    @contextmanager
    def _guarded(self, what: str) -> Generator[None]:
        """Within it, whatever the libraries stumble over in a broken tokenizer is one CheckpointError that says where."""
        try:
            yield
        except LamellaError:
            raise
        except BaseException as error:
            # A panic of their Rust half is no Exception.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            reason = str(error).strip().split("\n")[0]
            if isinstance(error, (TypeError, AttributeError, LookupError)) or not reason:
                reason = f"its files are malformed ({type(error).__name__}: {reason})"
            raise CheckpointError(f"the tokenizer {what}: {reason}", where=self.where, remedy=REMEDY) from error

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the model's own rules for special tokens: those of `tokenizer(text).input_ids`."""
        backend = self.backend
        with self._guarded("cannot encode a text"):
            return [int(i) for i in backend(text)["input_ids"]]

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """
        Token ids of a conversation, `{"role": "user", "content": …}` each, ending where the assistant's answer begins. `tools`: functions
        that the model may call, each as JSON schema has it: `{"type": "function", "function": {"name": …, "description": …, "parameters": …}}`.
        Raises PromptError when the model has no chat template, or the template ignores the tools or a system prompt, or refuses the messages.
        """
        if not self.backend.chat_template:
            raise PromptError("this model has no chat template", where=self.where, remedy="leave out --chat")
        others = [m for m in messages if m.get("role") != "system"]
        with self._guarded("cannot encode a conversation"):
            try:
                encoded = self._applied(messages, tools)
                no_tools = bool(tools) and encoded == self._applied(messages, ())
                no_system = 0 < len(others) < len(messages) and encoded == self._applied(others, tools)
            except Exception as error:
                # Templates are programs: they raise jinja errors, type errors, and what they call raise_exception with.
                raise PromptError(f"the chat template refuses these messages: {error}", where=self.where) from error
        if no_tools:
            raise PromptError("the model's chat template knows no tools", where=self.where, remedy="describe them in the prompt")
        if no_system:
            raise PromptError("the model's chat template knows no system prompt", where=self.where, remedy="say it in the prompt")
        return encoded

    def _applied(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """The ids of a conversation. Raises what its template does."""
        given = [dict(tool) for tool in tools] or None
        apply = self.backend.apply_chat_template
        encoded = apply([dict(m) for m in messages], tools=given, add_generation_prompt=True, tokenize=True, return_dict=True)
        return [int(i) for i in encoded["input_ids"]]

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of token ids, spaces as the tokens have them; special tokens are left out unless `special`."""
        backend = self.backend
        with self._guarded("cannot decode these ids"):
            return str(backend.decode(list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False))

    def stream(self) -> TextStream:
        """An incremental decoder: for ids whose bytes make whole characters, the pieces it gives, joined, are `decode` of all ids."""
        return TextStream(self)

    @property
    def eos(self) -> tuple[int, ...]:
        """End-of-text ids that the tokenizer itself knows."""
        backend = self.backend
        with self._guarded("does not know its end token"):
            end = cast("int | list[int] | None", backend.eos_token_id)
            return () if end is None else tuple(end) if isinstance(end, list) else (int(end),)

    @property
    def size(self) -> int:
        """Number of ids it can produce, added tokens included."""
        return len(self.backend)


@dataclass
class TextStream:
    """
    Turns ids into text as they come. A piece never ends inside a character: bytes that do not make one yet wait for the next id.
    Decoding starts at the previous piece, not at the new ids, because decoders treat the first token of a text specially.
    """

    tokenizer: Tokenizer
    ids: list[int] = field(default_factory=list[int])
    """Ids since the start of the previous piece."""
    context: int = 0
    """How many of `ids` belong to the previous piece."""
    emitted: int = 0
    """Characters of the text of `ids` that are out."""

    def push(self, token: int) -> str:
        """The text that `token` completes, often one word, sometimes nothing."""
        self.ids.append(token)
        text = self.tokenizer.decode(self.ids)
        whole = text.rstrip(REPLACEMENT)
        piece = whole[self.emitted :]
        self.emitted = max(self.emitted, len(whole))
        if piece and whole == text:
            self.ids = self.ids[self.context :]
            self.context = len(self.ids)
            self.emitted = len(self.tokenizer.decode(self.ids))
        return piece

    def flush(self) -> str:
        """What is left at the end, including bytes that never became a character; the stream is then empty."""
        piece = self.tokenizer.decode(self.ids)[self.emitted :]
        self.ids, self.context, self.emitted = [], 0, 0
        return piece


REMEDY = "check its files, or give token ids: --prompt-ids 1,2,3"
CONVERT = "make it where sentencepiece is installed: AutoTokenizer.from_pretrained(folder).save_pretrained(folder); or give token ids"
TOOLS = 'a JSON list of {"type": "function", "function": {"name": …, "description": …, "parameters": …}}'
LONGEST_TOOLS = 1 << 20
"""Bytes of a file of tools."""
