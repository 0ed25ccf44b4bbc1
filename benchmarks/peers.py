# pyright: basic
"""What a user would run instead, on the same weights or as many bits: a Llama in plain PyTorch with a static cache, eager or compiled."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.peer_weights import INDUCTOR, PEER_WEIGHTS, Linear, PeerWeights
from lamella.checkpoints import TensorSource
from lamella.errors import ConfigError, LamellaError, nearest
from lamella.frontends import ModelConfig
from lamella.semantics.rope import rope_table

MODES: dict[str, str | None] = {
    "eager": None,
    "eager-graph": None,
    "compile": "default",
    "compile-max": "max-autotune-no-cudagraphs",
}
"""Peer -> mode of torch.compile. All but `eager` are captured by hand in a CUDA graph: torch.compile skips its own where a cache changes."""
ATTENTIONS = ("sdpa", "explicit")

Step = Callable[[], object]


class Layer(nn.Module):
    """The weights of one layer; projections that share an input are one matrix, as fast implementations have them."""

    def __init__(self, load: Callable[[str], torch.Tensor], prefix: str, linear: Linear) -> None:
        super().__init__()
        self.attn_norm = _frozen(load(f"{prefix}.attn_norm"))
        self.qkv = linear(torch.cat([load(f"{prefix}.attn.{p}_proj") for p in "qkv"]))
        self.o = linear(load(f"{prefix}.attn.o_proj"))
        self.ffn_norm = _frozen(load(f"{prefix}.ffn_norm"))
        self.gate_up = linear(torch.cat([load(f"{prefix}.ffn.{p}_proj") for p in ("gate", "up")]))
        self.down = linear(load(f"{prefix}.ffn.down_proj"))


class PeerModel(nn.Module):
    """A Llama without biases. The cache is one contiguous [B, kv_heads, length, head_dim] for keys and one for values, a layer."""

    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        *,
        dtype: str,
        device: torch.device,
        batch: int,
        length: int,
        weights: PeerWeights = PEER_WEIGHTS[""],
    ) -> None:
        """`dtype` is an element name. Raises ConfigError for biases and other activations than SiLU, LamellaError for `weights` nobody can make."""
        super().__init__()
        if config.attention_bias or config.mlp_bias or config.activation != "silu" or config.rotary != config.head_dim:
            raise ConfigError("the peer knows no such Llama", expected="no biases, SiLU, whole heads rotated")
        self.config = config

        def load(name: str) -> torch.Tensor:
            return source.load(name, dtype=dtype, device=str(device))

        self.embed = _frozen(load("embed"))
        self.layers = nn.ModuleList(Layer(load, f"layers.{i}", weights.linear) for i in range(config.layers))
        self.final_norm = _frozen(load("final_norm"))
        self.head = weights.head(self.embed if config.tied else load("lm_head"))
        self.resize(batch, length)

    def resize(self, batch: int, length: int) -> None:
        """Other caches, for so many sequences of so many tokens."""
        config, device, dtype = self.config, self.embed.device, self.embed.dtype
        table = rope_table(length=length, rotary_dim=config.rotary, theta=config.rope_theta, scaling=config.rope_scaling)
        self.register_buffer("table", table.to(device))
        self.register_buffer("places", torch.arange(length, device=device))
        shape = (batch, config.kv_heads, length, config.head_dim)
        for i in range(2 * config.layers):
            self.register_buffer(f"cache{i}", torch.zeros(shape, dtype=dtype, device=device))

    def fill_caches(self, seed: int) -> None:
        """Normal numbers everywhere."""
        generator = torch.Generator(self.table.device).manual_seed(seed)
        for i in range(2 * self.config.layers):
            getattr(self, f"cache{i}").normal_(generator=generator)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attention: str = "sdpa", fresh: bool = False) -> torch.Tensor:
        """tokens [B, N], positions [N] of all sequences alike -> logits [B, V] after the last token.

        `fresh`: the tokens are all there is, the cache is written but not read. `attention` says how the cache is read: `sdpa`, or
        `explicit` for N = 1, where the heads of a group are the rows of one matrix product.
        """
        config = self.config
        x = F.embedding(tokens, self.embed)
        cos, sin = self.table[positions].chunk(2, -1)
        for i, layer in enumerate(self.layers):
            x = x + self._attention(
                layer, i, F.rms_norm(x, x.shape[-1:], layer.attn_norm, config.norm_eps), positions, cos, sin, attention, fresh
            )
            gate, up = layer.gate_up(F.rms_norm(x, x.shape[-1:], layer.ffn_norm, config.norm_eps)).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        return self.head(F.rms_norm(x[:, -1], x.shape[-1:], self.final_norm, config.norm_eps))

    def _attention(
        self,
        layer: Layer,
        number: int,
        x: torch.Tensor,
        positions: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        attention: str,
        fresh: bool,
    ) -> torch.Tensor:
        config = self.config
        batch, count, _ = x.shape
        heads = layer.qkv(x).view(batch, count, -1, config.head_dim).transpose(1, 2)
        q, k, v = heads.split((config.heads, config.kv_heads, config.kv_heads), 1)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        keys, values = getattr(self, f"cache{2 * number}"), getattr(self, f"cache{2 * number + 1}")
        keys[:, :, positions] = k
        values[:, :, positions] = v
        if fresh:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            seen = self.places <= positions[:, None]
            if attention == "explicit":
                groups = q.reshape(batch, config.kv_heads, -1, config.head_dim)
                scores = (groups @ keys.transpose(-1, -2)).float() * config.head_dim**-0.5
                weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).to(values.dtype)
                mixed = (weights @ values).view(batch, config.heads, 1, config.head_dim)
            else:
                mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen, enable_gqa=True)
        return layer.o(mixed.transpose(1, 2).reshape(batch, count, -1))


@dataclass(frozen=True)
class PeerStep:
    """One step on static tensors: the next token and position replace the old, as in a loop that generates."""

    model: PeerModel
    tokens: torch.Tensor
    """[B, N]"""
    positions: torch.Tensor
    """[N]"""
    attention: str
    fresh: bool
    first: torch.Tensor
    start: int

    @staticmethod
    def decode(model: PeerModel, context: int, attention: str, seed: int = 0) -> PeerStep:
        """One token of each sequence, `context` tokens long after the step, over caches of random numbers."""
        model.fill_caches(seed)
        return PeerStep._of(model, (model.cache0.shape[0], 1), context - 1, attention, False, seed)

    @staticmethod
    def prefill(model: PeerModel, tokens: int, seed: int = 0) -> PeerStep:
        """All tokens of fresh sequences."""
        return PeerStep._of(model, (model.cache0.shape[0], tokens), 0, "sdpa", True, seed)

    @staticmethod
    def _of(model: PeerModel, shape: tuple[int, int], start: int, attention: str, fresh: bool, seed: int) -> PeerStep:
        device = model.table.device
        tokens = torch.randint(model.config.vocabulary, shape, generator=torch.Generator().manual_seed(seed)).to(device)
        positions = torch.arange(start, start + shape[1], device=device)
        return PeerStep(model, tokens.clone(), positions, attention, fresh, tokens, start)

    def reset(self) -> None:
        """Back to the first tokens and positions."""
        self.tokens.copy_(self.first)
        torch.arange(self.start, self.start + self.positions.numel(), out=self.positions)

    def function(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """The step as a function of its static tensors, which it advances when it decodes; returns the next tokens [B]."""
        model, attention, fresh = self.model, self.attention, self.fresh

        def step(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            following = model(tokens, positions, attention, fresh).argmax(-1)
            if not fresh:
                tokens.copy_(following[:, None])
                positions.add_(1)
            return following

        return step


@dataclass(frozen=True)
class Peer:
    """`compile`, `compile:explicit`, `compile+int8` or `compile+int8:explicit`, taken apart."""

    name: str
    runs: str
    """A key of MODES."""
    weights: str
    """A key of PEER_WEIGHTS."""
    attention: str

    @staticmethod
    def parse(name: str, default: str) -> Peer:
        """`default` is the attention where none is named. Raises LamellaError for what does not exist."""
        left, _, attention = name.partition(":")
        runs, _, weights = left.partition("+")
        made = Peer(name, runs, weights, attention or default)
        known = (
            ("peer", made.runs, [*MODES, "hf-generate", "none"]),
            ("weights of a peer", made.weights, [kind for kind in PEER_WEIGHTS if kind]),
            ("attention", made.attention, ATTENTIONS),
        )
        for what, got, names in known:
            if got and got not in names:
                raise LamellaError(f"unknown {what} {got}", remedy=nearest(got, names))
        if made.runs not in MODES:
            raise LamellaError(f"{name} is no peer in plain PyTorch", remedy=f"one of {', '.join(MODES)} in front of + and :")
        return made

    @property
    def kind(self) -> str:
        """Of its weights, as `--quantize` names it; none: as they are."""
        return PEER_WEIGHTS[self.weights].kind


@contextmanager
def ready(step: PeerStep, peer: Peer) -> Generator[tuple[Step, float]]:
    """What to time, and the seconds its compilation and capture took from cold caches."""
    mode = MODES[peer.runs]
    with torch.no_grad(), _cold(INDUCTOR if peer.weights else {}) if mode else nullcontext():
        start = perf_counter()
        function = step.function()
        if mode:
            function = torch.compile(function, mode=mode, fullgraph=True, dynamic=False)

        def run() -> torch.Tensor:
            return function(step.tokens, step.positions)

        if peer.runs != "eager" and step.tokens.is_cuda:
            run = capture(run)
        else:
            run()
        if step.tokens.is_cuda:
            torch.cuda.synchronize()
        yield run, perf_counter() - start if peer.runs != "eager" else 0.0


def capture(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """The same launches as one CUDA graph, captured by hand after three runs beside the current stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay


@contextmanager
def _cold(options: Mapping[str, bool]) -> Generator[None]:
    """torch.compile knows nothing of earlier compilations, in memory or on disk, and has these options of Inductor."""
    from torch._inductor import config
    from torch._inductor.utils import fresh_inductor_cache

    torch.compiler.reset()
    with config.patch(dict(options)), fresh_inductor_cache():
        yield
    torch.compiler.reset()


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [B, H, N, D], cos and sin float32 [N, D/2]: dimension d turns with d ± D/2."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def _frozen(weight: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(weight, requires_grad=False)
