# pyright: basic
"""Executes body forms: a JSON list of ops and tensors enter, the yielded tensors leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from lamella.errors import ManifestError, nearest
from lamella.semantics import IMPLEMENTATIONS

Body = Mapping[str, Any]
Run = Callable[..., list[torch.Tensor]]


def compile_body(body: Body, weights: Mapping[str, torch.Tensor] | None = None) -> Run:
    """`body` as a function of its arguments, for many calls: names are looked up and ops without operands run once, here.

    `{"args": n, "ops": [[name, [operand ids], {attributes}, [result ids]], …], "yields": [ids]}`; ids number arguments first. An op
    `transformer.weight` reads `weights` by its `name`. The results may be, or alias, arguments (a scatter returns its cache).
    Raises ManifestError for an op without semantics or a weight that is not there.
    """
    steps: list[tuple[Callable[..., Any], list[int], int | list[int]]] = []
    known: dict[int, torch.Tensor] = {}
    highest = body["args"] - 1
    for name, operands, attributes, results in body["ops"]:
        function = _function(name, attributes, weights or {})
        highest = max([highest, *results])
        if not operands:
            known[results[0]] = function()
            continue
        steps.append((function, list(operands), results[0] if len(results) == 1 else list(results)))
    template: list[Any] = [None] * (highest + 1)
    for i, value in known.items():
        template[i] = value
    count, yields = body["args"], list(body["yields"])

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        if len(tensors) != count:
            raise ValueError(f"the body takes {count} tensors, got {len(tensors)}")
        values = template.copy()
        values[:count] = tensors
        for function, operands, result in steps:
            if isinstance(result, int):
                values[result] = function(*[values[i] for i in operands])
            else:
                for i, value in zip(result, function(*[values[i] for i in operands]), strict=True):
                    values[i] = value
        return [values[i] for i in yields]

    return run


def evaluate(body: Body, tensors: Sequence[torch.Tensor], weights: Mapping[str, torch.Tensor] | None = None) -> list[torch.Tensor]:
    """The values `body` yields for `tensors`, one call; see `compile_body`."""
    with torch.inference_mode():
        return compile_body(body, weights)(*tensors)


def _function(name: str, attributes: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> Callable[..., Any]:
    if name == "transformer.weight":
        weight = attributes["name"]
        if weight not in weights:
            raise ManifestError(f"no weight {weight!r} was given", remedy=nearest(weight, weights))
        return lambda: weights[weight]
    function = IMPLEMENTATIONS.get(name)
    if function is None:
        raise ManifestError(f"op {name!r} has no semantics", remedy=nearest(name, IMPLEMENTATIONS))
    return partial(function, **attributes) if attributes else function
