"""The files that sentence-transformers puts beside a config.json enter; how the vectors of a text's tokens become one vector leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from lamella.errors import ConfigError
from lamella.frontends.fields import Fields, read_json

KINDS: Mapping[str, str] = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max"}
"""What a configuration calls the kinds of pooling, and what `runtime.embed` does."""


@dataclass(frozen=True)
class Pooling:
    """What becomes of a text's vectors; without any file their mean, which is sentence-transformers' default."""

    kind: str = "mean"
    """`mean` of all tokens, `cls`: the first, or `max` of each number."""
    normalize: bool = False
    """Whether vectors are divided by their length."""
    max_length: int | None = None
    """Most tokens of a text, special ones included; None: as many as the model has positions."""
    lower: bool = False
    """Whether texts are made lower case before the tokenizer has its say."""


def read_pooling(folder: Path) -> Pooling:
    """What modules.json, sentence_bert_config.json and the pooling's config.json in a folder say. Raises ConfigError for anything else in them."""
    made = Pooling()
    if (folder / "sentence_bert_config.json").is_file():
        fields = read_json(folder / "sentence_bert_config.json")
        length = fields.count("max_seq_length") if fields.has("max_seq_length") else None
        made = replace(made, max_length=length, lower=fields.flag("do_lower_case", False))
    if (folder / "config_sentence_transformers.json").is_file():
        fields = read_json(folder / "config_sentence_transformers.json")
        if fields.get("default_prompt_name"):
            raise fields.error(
                "default_prompt_name puts a prompt before each text, which is not supported", "null", fields.get("default_prompt_name")
            )
    if (folder / "modules.json").is_file():
        for kind, path in _modules(folder):
            made = _applied(made, kind, path)
    return made


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Kind and folder of each module, in order. Raises ConfigError for a malformed list, and for a path that leaves the folder."""
    file = folder / "modules.json"
    # The file is a list, which `read_json` refuses as a configuration.
    try:
        given = json.loads(file.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise ConfigError(f"malformed JSON: {error}", where=str(file)) from error
    found = cast("list[Any]", given) if isinstance(given, list) else []
    if not found or not all(isinstance(entry, dict) for entry in found):
        raise ConfigError("no list of modules", where=str(file), expected="a JSON list of objects")
    out: list[tuple[str, Path]] = []
    for entry in found:
        fields = Fields(str(file), cast("dict[str, Any]", entry))
        path = folder / fields.text("path", "")
        if not path.resolve().is_relative_to(folder.resolve()):
            raise fields.error("a module lies outside of the folder", "a path below it", fields.text("path", ""))
        out.append((fields.text("type").rpartition(".")[2], path))
    return out


def _applied(made: Pooling, kind: str, path: Path) -> Pooling:
    """The pooling with one more module."""
    match kind:
        case "Transformer":
            return made
        case "Normalize":
            return replace(made, normalize=True)
        case "Pooling":
            return replace(made, kind=_kind(read_json(path / "config.json")))
        case _:
            what = f"a module of kind {kind} is not supported"
            raise ConfigError(what, where=str(path.parent / "modules.json"), expected="Transformer, Pooling, Normalize")


def _kind(fields: Fields) -> str:
    """The one kind of pooling that a configuration switches on, by flags or (newer) by name."""
    if fields.has("pooling_mode"):
        named: Any = fields.get("pooling_mode")
        on = {str(name) for name in (cast("list[Any]", named) if isinstance(named, list) else [named])}
        known = {kind: kind for kind in KINDS.values()}
    else:
        on = {name.removeprefix("pooling_mode_") for name in fields.values if name.startswith("pooling_mode_") and fields.flag(name, False)}
        known = KINDS
    if len(on) != 1 or not on <= known.keys():
        raise fields.error("unsupported pooling", f"one of {', '.join(known)}", ", ".join(sorted(on)) or "none")
    return known[on.pop()]
