"""The registry's families go in; docs/families.md leaves. `lamella.tools.reference` writes it."""

from __future__ import annotations

from typing import Any

from lamella import registry

HEAD = """\
# Model families

{note}

A model is a folder with `config.json` and safetensors as `transformers` writes them, of one of these families. Each is one file in
`lamella/frontends/families/` ([tutorial](tutorial-add-a-model-family.md)). For each, tiny random models that `transformers` makes and saves, of odd sizes, are loaded
by Lamella and give `transformers`' logits within 1e-4 in float32 on the reference executor: prompts of 1, 7 and 65 tokens, a decode step after each, and past
the sliding window where there is one (`tests/models/test_families.py`). The last column says what is switched on in them.

| family | `architectures` | compared |
|---|---|---|
"""

TAIL = """
These kinds of attention and norm were compared through printed kernels under Triton's interpreter too: window, soft-cap, a norm of each head and of all heads of q and k, two
rotations in one model, layers without rotation, partial and interleaved rotation, LayerNorm, learned positions, mixtures of experts.

## Mixtures of experts

A router is a linear, `transformer.route` the softmax and the choice of its k likeliest experts, `transformer.experts` their feed-forward layers. The checkpoint's tensors of single
experts become one weight each for gate, up and down when the model is loaded. A layer is four launches behind its norm: router, choice, gate and up with their product, down with the
routing weights; the sum over a token's choices joins the residual. Up to 16 tokens a program takes one choice of one token and weight rows of that expert: a step reads the
weights of experts that its tokens chose and of no other. More tokens run in tiles on the tensor cores: a program takes a tile of choices and one expert, ends at once if none of
them names it, and stores only those that do. Choices are not sorted by expert, so tiles of models with many small experts multiply mostly for nothing: their prefill is correct, and slow.

In float32 logits agree as for other families. In narrow types rounding may tip a choice between experts that are nearly as likely, in `transformers` as in Lamella, and that token's
logits then differ: a mixture is compared by the median of its tokens. Of several equally likely experts the first is chosen.

GGUF files are read for the llama architecture.

## Rotations

| `rope_type` | what Lamella does |
|---|---|
| `default`, `linear`, `llama3`, `yarn` | one table of cosines and sines, made when the model is loaded |
| `dynamic` | the unscaled table: up to `max_position_embeddings` they are the same, and no context is longer |
| `longrope` | two sets of factors, of which one is chosen for a whole compiled program: the short ones if its `max_context` is at most the original length, else the long ones. `transformers` chooses by the length of each text: short texts in a program with a long context differ from it; compile with a `max_context` of the original length for them |

A rotation may turn part of a head (`partial_rotary_factor`, `rotary_pct`), neighbours instead of halves (Command-R, GGUF), or differ from layer to layer (Gemma 3).

## What is refused

What a configuration asks for and Lamella does not compute is refused in one line that names file, field, expected and given value, before any weight is
read: unknown architectures, activations and RoPE scalings; ALiBi, attention sinks, bidirectional attention, shared experts, quantized checkpoints; and
every field that changes the mathematics of some family in a family that does not have it. Tensors that the configuration does not imply are refused too.
"""


def families_page(note: str) -> str:
    """The page, with `note` below its title."""
    rows: list[str] = []
    for make in registry.FAMILIES.values():
        family: Any = make()
        rows.append(f"| `{family.name}` | `{family.architecture}` | {family.compared} |")
    return HEAD.format(note=note) + "\n".join(rows) + "\n" + TAIL
