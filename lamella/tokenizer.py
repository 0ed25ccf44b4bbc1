"""Text enters, token ids leave, and back: a model's own tokenizer and chat template, through transformers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from lamella.errors import CheckpointError, PromptError

REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are not (yet) a character."""


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder holds a tokenizer that transformers can load."""
    files = {f for f in ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt") if (folder / f).is_file()}
    return bool(files & {"tokenizer.json", "tokenizer.model"}) or files == {"vocab.json", "merges.txt"}


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
        # Loading transformers takes seconds, which a compile or a run on token ids should not pay.
        from transformers import AutoTokenizer

        options: dict[str, Any] = {"gguf_file": self.gguf} if self.gguf else {}
        load = cast(Any, AutoTokenizer).from_pretrained
        try:
            return load(str(self.folder), local_files_only=True, trust_remote_code=False, **options)
        except Exception as error:
            # Its parsers raise whatever they stumble over; the user needs one line that says which file.
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise CheckpointError(f"the tokenizer cannot be loaded: {reason}", where=self.where, remedy=REMEDY) from error

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the model's own rules for special tokens: those of `tokenizer(text).input_ids`."""
        return [int(i) for i in self.backend(text)["input_ids"]]

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """
        Token ids of a conversation, `{"role": "user", "content": …}` each, ending where the assistant's answer begins.
        Raises PromptError when the model has no chat template or the template refuses the messages.
        """
        if not self.backend.chat_template:
            raise PromptError("this model has no chat template", where=self.where, remedy="leave out --chat")
        try:
            encoded = self.backend.apply_chat_template(
                [dict(m) for m in messages], add_generation_prompt=True, tokenize=True, return_dict=True
            )
        except Exception as error:
            # Templates are programs: they raise jinja errors, type errors, and what they call raise_exception with.
            raise PromptError(f"the chat template refuses these messages: {error}", where=self.where) from error
        return [int(i) for i in encoded["input_ids"]]

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of token ids, spaces as the tokens have them; special tokens are left out unless `special`."""
        return str(self.backend.decode(list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False))

    def stream(self) -> TextStream:
        """An incremental decoder: for ids whose bytes make whole characters, the pieces it gives, joined, are `decode` of all ids."""
        return TextStream(self)

    @property
    def eos(self) -> tuple[int, ...]:
        """End-of-text ids that the tokenizer itself knows."""
        end = cast("int | list[int] | None", self.backend.eos_token_id)
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
