# pyright: basic
"""A step at level 1 and texts enter; what each linear multiplies leaves, op by op, each weight in memory only while ops need it.

It serves quantization, which asks what the float model computes, where weights of all layers together may fit no memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from lamella.errors import ManifestError, nearest
from lamella.semantics import IMPLEMENTATIONS, SCALARS

if TYPE_CHECKING:
    from lamella.checkpoints.source import TensorSource

BLOCK = 16
"""Tokens of a cache block."""
BAND = 1 << 20
"""Numbers of a weight that are widened to float32 at a time."""
MOST_ROWS = 128
"""Rows whose logits are computed."""
EXPERTS, JOINED = "transformer.experts", "transformer.concat_rows"
GATE = 3
"""Which operand of experts is the first that is a weight: gate, then up and down."""
UNCHANGED = ("transformer.transpose", "transformer.slice_rows")
"""Ops on a weight whose result is multiplied as that weight, or as some rows of it."""

Linear = Callable[[str, str, torch.Tensor], None]
"""Called with the location of a linear, the weight that it multiplies, and x [N, K] float32; of an expert the rows of tokens that chose it."""


def walk(
    body: Mapping[str, Any],
    inputs: Sequence[str],
    weights: Sequence[str],
    locations: Sequence[str],
    *,
    source: TensorSource,
    cache: tuple[int, int],
    texts: Sequence[Sequence[int]],
    linear: Linear,
) -> None:
    """Runs `body` (`program.StepBody` says what it is) on the CPU in float32, all `texts` as sequences of one step, and calls `linear` for
    each linear in order, before it is computed, and for each weight of experts: those of an expert that no token chose are left out, one weight
    of all of them is fed all rows. `cache`: KV heads and head size.

    Weights are loaded as they are stored when the first op reads them and dropped after the last, those of experts one by one. What follows the
    last linear is left out.
    Raises ManifestError for an input nobody knows, and what the source raises.
    """
    given = _inputs(texts)
    blocks = 1 + sum(-(-len(text) // BLOCK) for text in texts)
    ops = body["ops"]
    last = max((i for i, op in enumerate(ops) if op[0] == "transformer.linear"), default=-1)
    uses = Counter(operand for _, operands, _, _ in ops[: last + 1] for operand in operands)
    names = [*inputs, *weights]
    values: dict[int, torch.Tensor] = {}
    of_experts = {operand for name, operands, _, _ in ops if name == EXPERTS for operand in operands[GATE:]}
    names_of: dict[int, tuple[str, ...]] = {operand: (names[operand],) for operand in of_experts if operand < len(names)}
    weight_of = {len(inputs) + i: name for i, name in enumerate(weights)}

    def value(number: int) -> torch.Tensor:
        if number not in values:
            name = names[number]
            if number >= len(inputs):
                values[number] = source.load(name)
            elif name.startswith("cache."):
                values[number] = torch.zeros(blocks, 2, cache[0], BLOCK, cache[1])
            elif name in given:
                values[number] = given[name]
            else:
                raise ManifestError(f"a step reads an input {name!r} that texts do not have", remedy=nearest(name, given))
        return values[number]

    with torch.inference_mode():
        for place, (name, operands, attributes, results) in zip(locations[: last + 1], ops[: last + 1], strict=True):
            if name == JOINED and results[0] in of_experts:
                names_of[results[0]] = tuple(names[operand] for operand in operands)
                continue
            if name == EXPERTS:
                x, chosen, shares = map(value, operands[:GATE])
                matrices = [names_of[operand] for operand in operands[GATE:]]
                mixture = Mixture(chosen, attributes["experts"], lambda weight, fed, place=place: linear(place, weight, fed), source)
                made = (mixture(x, shares, matrices, attributes["activation"]),)
            elif name == "transformer.linear":
                x, weight, *bias = map(value, operands)
                linear(place, weight_of.get(operands[1], ""), x)
                made = (_product(x, weight, *bias),)
            else:
                arguments = [value(operand) for operand in operands]
                if name == "transformer.embedding":
                    made = (IMPLEMENTATIONS[name](*arguments).float(),)
                elif name in UNCHANGED:
                    weight_of[results[0]] = weight_of.get(operands[0], "")
                    made = (IMPLEMENTATIONS[name](*arguments, **attributes),)
                else:
                    wide = [a.float() if a.dtype in (torch.float16, torch.bfloat16) else a for a in arguments]
                    made = IMPLEMENTATIONS[name](*wide, **attributes)
                    made = made if isinstance(made, tuple) else (made,)
            values |= dict(zip(results, made, strict=True))
            for operand in operands:
                uses[operand] -= 1
                if not uses[operand]:
                    values.pop(operand, None)


@dataclass(frozen=True)
class Mixture:
    """The experts of one layer, whose weights are loaded one by one: expert by expert, or all of one projection where they are stored as one."""

    chosen: torch.Tensor
    """i32 [N, k]."""
    experts: int
    fed: Callable[[str, torch.Tensor], None]
    """Called with a weight and what it multiplies."""
    source: TensorSource

    def __call__(self, x: torch.Tensor, shares: torch.Tensor, matrices: Sequence[Sequence[str]], activation: str) -> torch.Tensor:
        """x [N, K], shares [N, k] -> [N, K]: as `transformer.experts` in float32. `matrices`: names of gate, up and down."""
        gate, up = self.products(matrices[:2], x, self.chosen.shape[1])
        (down,) = self.products(matrices[2:], SCALARS[activation](gate) * up, 1)
        return (down.unflatten(0, self.chosen.shape) * shares.float()[..., None]).sum(1)

    def products(self, matrices: Sequence[Sequence[str]], rows: torch.Tensor, share: int) -> list[torch.Tensor]:
        """For each projection [N·k, O]: choice c multiplies row c // share by rows of the expert that it names."""
        stacked: list[torch.Tensor] = []
        for names in matrices:
            if len(names) < self.experts:
                self.fed(names[0], rows)
                stacked.append(self.source.load(names[0]).unflatten(0, (self.experts, -1)))
        flat, made = self.chosen.flatten(), list[torch.Tensor]()
        for expert in map(int, flat.unique().tolist()):
            own = torch.nonzero(flat == expert)[:, 0]
            fed = rows[own // share]
            for number, names in enumerate(matrices):
                if not stacked:
                    self.fed(names[expert], fed)
                products = _product(fed, stacked[number][expert] if stacked else self.source.load(names[expert]))
                if len(made) <= number:
                    made.append(torch.empty(len(flat), products.shape[1]))
                made[number][own] = products
        return made


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weightᵀ (+ bias) in float32, bands of rows of the weight widened one after the other."""
    rows = max(1, BAND // weight.shape[1])
    made = torch.cat([x @ weight[at : at + rows].float().T for at in range(0, weight.shape[0], rows)], dim=1)
    return made if bias is None else made + bias.float()


def _inputs(texts: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    """The inputs of a step that is the first of each text."""
    lengths = [len(text) for text in texts]
    starts = [0, *accumulate(lengths)]
    counts = [-(-length // BLOCK) for length in lengths]
    table = torch.zeros(len(texts), max(counts), dtype=torch.int32)
    following = 1
    for row, count in enumerate(counts):
        table[row, :count] = torch.arange(following, following + count)
        following += count
    rows = torch.arange(0, starts[-1], -(-starts[-1] // MOST_ROWS)).int()
    count = len(rows)
    return {
        "tokens": torch.tensor([token for text in texts for token in text], dtype=torch.int32),
        "positions": torch.cat([torch.arange(length) for length in lengths]).int(),
        "token_types": torch.zeros(starts[-1], dtype=torch.int32),
        "query_start": torch.tensor(starts, dtype=torch.int32),
        "context_len": torch.tensor(lengths, dtype=torch.int32),
        "text_length": torch.cat([torch.full((length,), length) for length in lengths]).int(),
        "block_table": table,
        "logit_rows": rows,
        "temperature": torch.zeros(count),
        "top_k": torch.zeros(count, dtype=torch.int32),
        "top_p": torch.ones(count),
        "min_p": torch.zeros(count),
        "seed": torch.zeros(count, dtype=torch.int32),
    }
