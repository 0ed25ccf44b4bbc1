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
the sliding window where there is one (`tests/models/test_families.py`). The last column says what is switched on in them. Both spellings of a rotation are read: `rope_theta`,
`rope_scaling` and `partial_rotary_factor` (`transformers` 4), or `rope_parameters` (5); a file with both must say the same in both.

| family | `architectures` | compared |
|---|---|---|
"""

TAIL = """
These kinds of attention and norm were compared through printed kernels under Triton's interpreter too: window, soft-cap, ALiBi, attention in both directions, a norm of each head and of
all heads of q and k, two rotations in one model, two sets of frequencies, layers without rotation, partial and interleaved rotation, LayerNorm, learned positions, mixtures of experts, a
shared expert. Attention sinks (a score of its own for each head, a weight, in the sum of the softmax) are an operand of the attention ops of every level, tested there, in prefill and decode,
whole and split; no family here has them.

## Encoders

BERT, RoBERTa and what is built like them (MiniLM, BGE, E5) reads whole texts, each of whose tokens sees all of its text. `lamella.load(MODEL).embed(texts)` gives a float32 vector a text,
`lamella embed MODEL --text TEXT … | --file FILE` prints them. What becomes of a text's vectors is what the files of sentence-transformers beside the model say: pooling (`mean`, `cls`,
`max`), whether to divide by the length, and after how many tokens texts are cut; without such files it is the mean as it is. Other modules and prompts that such files ask for are refused.

A step takes texts of different lengths, one behind the other: none is padded, each sees itself alone. Keys and values are read in the step that wrote them, so one cache serves all
layers, and nothing stays from one step to the next. Tiny ones of odd sizes give `transformers`' hidden states within 1e-4, through interpreted kernels too; the real all-MiniLM-L6-v2
gives twenty sentences the embeddings of `transformers` with mean pooling (`tests/models/test_embed.py`). Token types are those of single texts.

## Mixtures of experts

A router is a linear, `transformer.route` the softmax and the choice of its k likeliest experts, `transformer.experts` their feed-forward layers. The checkpoint's tensors of single
experts become one weight each for gate, up and down when the model is loaded, floats or [packed](quantization.md). An expert that all tokens go through beside them (Qwen 2 MoE) is linears like any other: its gate and up, the
number whose sigmoid weights it, and the router share one launch, and its product is the epilogue of its down projection. A layer is four launches behind its norm: router, choice, gate and up with their product, down with the
routing weights; the sum over a token's choices joins the residual. Up to 16 tokens a program takes one choice of one token and weight rows of that expert: a step reads the
weights of experts that its tokens chose and of no other. For more tokens one launch more sorts the choices by expert, and gate, up and down run in tiles of sorted choices on the tensor
cores, about as many as an expert has on average: a tile multiplies by the weights of each expert that it names, mostly one or two, reads x through the order and stores each row in its
token's place. So an expert's weights are read once for each tile of its own tokens, and those of experts that nobody chose not at all.

In float32 logits agree as for other families. In narrow types rounding may tip a choice between experts that are nearly as likely, in `transformers` as in Lamella, and that token's
logits then differ: a mixture is compared by the median of its tokens. Of several equally likely experts the first is chosen.

## GGUF

Of these architectures files are read, quantized blocks and all; tensor names are those of the `gguf` package. A tiny model of each, written as llama.cpp's converter would, gives
`transformers`' logits within 1e-4 (`tests/models/test_gguf_families.py`); where `transformers` reads the architecture too, it finds the same weights in the file.

| architecture | family | architecture | family |
|---|---|---|---|
{gguf}

What the format does not keep is what llama.cpp takes it to be: the chosen weights of Qwen 3 MoE are divided by their sum, and the 27B models of Gemma scale scores by their width, which is
told by their number of layers. YaRN in metadata is refused.

## Rotations

| `rope_type` | what Lamella does |
|---|---|
| `default`, `linear`, `llama3`, `yarn` | one table of cosines and sines, made when the model is loaded |
| `dynamic` | the unscaled table: up to `max_position_embeddings` they are the same, and a longer `max_context` is refused |
| `longrope` | a table of two sets of factors, chosen for each text by its length, as `transformers` does: a prompt of up to `original_max_position_embeddings` tokens has the short ones. A text that outgrows that length while it is continued is read again with the long ones, once, and goes on with them: what `transformers` does for Phi 3, here for any family |

A rotation may turn part of a head (`partial_rotary_factor`, `rotary_pct`), neighbours instead of halves (Command-R, GGUF), or differ from layer to layer (Gemma 3).

## What is refused

What a configuration asks for and Lamella does not compute is refused in one line that names file, field, expected and given value, before any weight is
read: unknown architectures, activations and RoPE scalings; attention sinks, ALiBi, shared experts and attention in both directions in families that do not have them; other methods of
quantization than [these](quantization.md); and every field that changes the mathematics of some family in a family that does not have it. Tensors that the configuration does not imply are refused too.
"""


def families_page(note: str) -> str:
    """The page, with `note` below its title."""
    rows: list[str] = []
    for make in registry.FAMILIES.values():
        family: Any = make()
        rows.append(f"| `{family.name}` | `{family.architecture}` | {family.compared} |")
    return HEAD.format(note=note) + "\n".join(rows) + "\n" + TAIL.format(gguf=_gguf_rows())


def _gguf_rows() -> str:
    """The architectures of GGUF files, two a row."""
    known = {
        "llama": "llama, and mixtral where there are experts",
        **{n: a.family for n, a in registry.GGUF_ARCHITECTURES().items() if n != "llama"},
    }
    cells = [f"`{name}` | {family}" for name, family in known.items()]
    pairs = [cells[start : start + 2] for start in range(0, len(cells), 2)]
    return "\n".join(f"| {' | '.join(pair)} |" if len(pair) == 2 else f"| {pair[0]} | | |" for pair in pairs)
