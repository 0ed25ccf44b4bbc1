"""The building blocks of decoders as level-1 ops: norms, attention, feed-forward layers, residuals, in the forms a `ModelConfig` asks for."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.builder import Builder
from xdsl.dialects.builtin import TensorType, f32, i32
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from lamella.checkpoints.packed import Packing
from lamella.dialects.attributes import ELEMENT_TYPES, element_name
from lamella.dialects.transformer import (
    UNARY,
    AddOp,
    AdvanceOp,
    AttentionOp,
    CacheWriteOp,
    ConcatRowsOp,
    DequantizeOp,
    EmbeddingOp,
    ExpertsOp,
    FlattenOp,
    GatherColumnsOp,
    GatherRowsOp,
    LayerNormOp,
    LinearOp,
    MulOp,
    PackingAttr,
    PenalizeOp,
    RMSNormOp,
    RopeOp,
    RouteOp,
    SampleOp,
    ScaleOp,
    ScaleRowsOp,
    SigmoidOp,
    SliceColumnsOp,
    SliceRowsOp,
    TanhOp,
    TransposeOp,
    WeightOp,
)
from lamella.frontends.config import Experts, LayerKind, ModelConfig
from lamella.frontends.packed_experts import PROJECTIONS, apart, expert_names


@dataclass(frozen=True)
class Step:
    """Emits the ops of one step at `builder`, from the inputs by name. `shapes` are those of the weights."""

    config: ModelConfig
    element: Attribute
    builder: Builder
    inputs: Mapping[str, SSAValue]
    shapes: Mapping[str, tuple[int, ...]]
    weights: dict[str, SSAValue] = field(default_factory=dict[str, SSAValue])
    """Weight ops emitted so far: each name has one."""
    records: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """Packed weights that are multiplied as floats, and why: entries of `lamella.folds`."""

    def emit(self, op: Operation, hint: str | None = None) -> SSAValue:
        """Insert an op; its first result, named `hint` in the text."""
        value = self.builder.insert(op).results[0]
        value.name_hint = hint
        return value

    def weight(self, name: str) -> SSAValue:
        """The handle of a weight."""
        if name not in self.weights:
            self.weights[name] = self.emit(WeightOp(name, TensorType(self.element, self.shapes[name])), name)
        return self.weights[name]

    def scale(self, x: SSAValue, factor: float, loc: str) -> SSAValue:
        """x times a number, which is nothing at all where the number is 1."""
        return x if factor == 1 else self.emit(ScaleOp(x, factor, loc=loc), x.name_hint)

    def soft_cap(self, x: SSAValue, cap: float, loc: str) -> SSAValue:
        """cap·tanh(x / cap)."""
        if not cap:
            return x
        small = self.scale(x, 1 / cap, loc)
        return self.scale(self.emit(TanhOp(small, loc=loc), x.name_hint), cap, loc)

    # Linears

    def matrix(self, name: str) -> SSAValue:
        """The weight of a projection as [outputs, inputs]: as the checkpoint has it, turned, or unpacked."""
        if name in self.config.packed:
            return self.unpacked(name, self.config.packed[name])
        weight = self.weight(name)
        return self.emit(TransposeOp(weight)) if self.config.transposed else weight

    def unpacked(self, name: str, packing: Packing) -> SSAValue:
        """What the parts of a packed weight stand for."""
        return self.emit(DequantizeOp.of(self.parts(name, packing), PackingAttr.of(packing.kind, packing.group)))

    def parts(self, name: str, packing: Packing) -> list[SSAValue]:
        """Words, scales and perhaps least values of a packed weight, and what multiplies them."""
        layout, (rows, columns) = PackingAttr.of(packing.kind, packing.group), self.config.matrix(name, self.shapes[name])
        types = {"packed": TensorType(layout.element, layout.words_shape(rows, columns))}
        types |= {part: TensorType(ELEMENT_TYPES[element], (rows, columns // each)) for part, (element, each) in packing.factors.items()}
        return [self.emit(WeightOp(f"{name}.{part}", type), f"{name}.{part}") for part, type in types.items()]

    def in_order(self, x: SSAValue, name: str) -> SSAValue:
        """x with its columns in the order in which the weight `name` keeps its own."""
        packing = self.config.packed.get(name)
        if packing is None or not packing.order:
            return x
        if packing.order not in self.weights:
            columns = TensorType(i32, [self.config.matrix(name, self.shapes[name])[1]])
            self.weights[packing.order] = self.emit(WeightOp(packing.order, columns), packing.order)
        # Projections of one x have one location here, so that `cse` leaves one op of those whose order is the same.
        return self.emit(GatherColumnsOp(x, self.weights[packing.order], loc=f"{name.rpartition('.')[0] or name}.columns"), x.name_hint)

    def linear(self, x: SSAValue, name: str, biased: bool, loc: str) -> SSAValue:
        """x times the weight `name`, plus its bias where the model has one."""
        bias = self.weight(f"{name}.bias") if biased else None
        return self.emit(LinearOp(self.in_order(x, name), self.matrix(name), bias, loc=loc), loc.rpartition(".")[2])

    def rows(self, weight: SSAValue, start: int, size: int, groups: int) -> SSAValue:
        """Rows of each of so many equal parts of a weight; of one that is packed, of what it is made of."""
        packed = weight.owner
        if not isinstance(packed, DequantizeOp):
            return self.emit(SliceRowsOp(weight, start=start, size=size, groups=groups))
        parts = [self.emit(SliceRowsOp(part, start=start, size=size, groups=groups)) for part in packed.operands]
        return self.emit(DequantizeOp.of(parts, packed.packing))

    def columns(self, x: SSAValue, parts: Mapping[str, int], prefix: str) -> list[SSAValue]:
        """The parts of x of these widths, side by side."""
        out: list[SSAValue] = []
        start = 0
        for part, size in parts.items():
            out.append(self.emit(SliceColumnsOp(x, start=start, size=size, loc=f"{prefix}.{part}"), part))
            start += size
        return out

    def projections(self, x: SSAValue, prefix: str) -> list[SSAValue]:
        """q, k and v of normalized x."""
        config, biased = self.config, self.config.attention_bias
        sizes = {part: config.head_dim * (config.heads if part == "q" else config.kv_heads) for part in "qkv"}
        if not config.fused_qkv:
            return [self.linear(x, f"{prefix}.{part}_proj", biased, f"{prefix}.{part}") for part in sizes]
        name = f"{prefix}.qkv_proj"
        if config.fused_qkv == "rows":
            return self.columns(self.linear(x, name, biased, f"{prefix}.qkv"), sizes, prefix)
        out: list[SSAValue] = []
        x = self.in_order(x, name)
        for number, part in enumerate(sizes):
            rows = [self.matrix(name), *([self.weight(f"{name}.bias")] if biased else [])]
            own = [self.rows(w, number * config.head_dim, config.head_dim, config.heads) for w in rows]
            bias = own[1] if biased else None
            out.append(self.emit(LinearOp(x, own[0], bias, loc=f"{prefix}.{part}"), part))
        return out

    # Norms

    def norm(self, x: SSAValue, name: str) -> SSAValue:
        """x normalized, with the parameters `name`."""
        return self.normal(x, [self.weight(f"{name}{suffix}") for suffix in self.config.norm_suffixes], name)

    def normal(self, x: SSAValue, parameters: Sequence[SSAValue], loc: str, heads: int = 1) -> SSAValue:
        """x normalized, each of `heads` parts of a row by itself."""
        config = self.config
        if config.norm == "layer":
            return self.emit(LayerNormOp(x, parameters, config.norm_eps, heads=heads, loc=loc), "normal")
        return self.emit(RMSNormOp(x, parameters[0], config.norm_eps, offset=config.norm_offset, heads=heads, loc=loc), "normal")

    def head_norm(self, x: SSAValue, heads: int, name: str) -> SSAValue:
        """The norm of q or k."""
        match self.config.qk_norm:
            case "":
                return x
            case "row":
                return self.norm(x, name)
            case "head":
                return self.normal(x, [self.weight(name)], name, heads)
            case _ if self.config.qk_norm_tensors == "many":
                each = [self.weight(f"{name}.{head}") for head in range(heads)]
                return self.normal(x, [self.emit(ConcatRowsOp(each))], name, heads)
            case _:
                return self.normal(x, [self.emit(FlattenOp(self.weight(name)))], name, heads)

    # Blocks

    def rope(self, x: SSAValue, heads: int, kind: LayerKind, loc: str) -> SSAValue:
        """x [N, heads·head_dim] with its heads turned by their positions, where the layer has positions at all."""
        config = self.config
        if config.positions != "rope" or not kind.rotates:
            return x
        scaling = config.rope_scaling if kind.rope_scaling is None else kind.rope_scaling
        op = RopeOp(
            x,
            self.inputs["positions"],
            self.inputs["text_length"] if scaling.get("rope_type") == "longrope" else None,
            heads=heads,
            head_dim=config.head_dim,
            rotary_dim=config.rotary,
            theta=config.rope_theta if kind.rope_theta is None else kind.rope_theta,
            scaling=scaling,
            style=config.rope_style,
            loc=loc,
        )
        return self.emit(op, loc.rpartition(".")[2])

    def attention(self, x: SSAValue, cache: SSAValue, kind: LayerKind, prefix: str) -> tuple[SSAValue, SSAValue]:
        """The attention block on normalized x: its output, and the cache with this step's keys and values."""
        config, inputs = self.config, self.inputs
        q, k, v = self.projections(x, prefix)
        q = self.rope(self.head_norm(q, config.heads, f"{prefix}.q_norm"), config.heads, kind, f"{prefix}.rope_q")
        k = self.rope(self.head_norm(k, config.kv_heads, f"{prefix}.k_norm"), config.kv_heads, kind, f"{prefix}.rope_k")
        write = CacheWriteOp(cache, k, v, inputs["positions"], inputs["query_start"], inputs["block_table"], loc=f"{prefix}.cache")
        cache = self.emit(write, "cache")
        scales = (kind.score_scale, config.score_scale, config.head_dim**-0.5)
        mixed = AttentionOp(
            q,
            cache,
            inputs["block_table"],
            inputs["query_start"],
            inputs["context_len"],
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            scale=next(scale for scale in scales if scale is not None),
            window=kind.window,
            score_cap=config.score_cap,
            alibi=config.alibi if config.positions == "alibi" else 0.0,
            bidirectional=not config.causal,
            loc=f"{prefix}.attention",
        )
        biased = config.attention_bias if config.output_bias is None else config.output_bias
        return self.linear(self.emit(mixed, "mixed"), f"{prefix}.o_proj", biased, f"{prefix}.o"), cache

    def ffn(self, x: SSAValue, prefix: str) -> SSAValue:
        """The feed-forward block on normalized x."""
        config, biased = self.config, self.config.mlp_bias
        if config.fused_gate:
            both = self.linear(x, f"{prefix}.gate_up_proj", biased, f"{prefix}.gate_up")
            gate, up = self.columns(both, {"gate": config.ffn, "up": config.ffn}, prefix)
        else:
            gate = self.linear(x, f"{prefix}.gate_proj", biased, f"{prefix}.gate") if config.gated else None
            up = self.linear(x, f"{prefix}.up_proj", biased, f"{prefix}.up")
        active = self.emit(UNARY[config.activation](up if gate is None else gate, loc=f"{prefix}.activation"), "active")
        inner = active if gate is None else self.emit(MulOp(active, up, loc=f"{prefix}.gated"), "gated")
        return self.linear(inner, f"{prefix}.down_proj", biased, f"{prefix}.down")

    def experts(self, x: SSAValue, mixture: Experts, prefix: str) -> SSAValue:
        """The feed-forward block of a mixture of experts on normalized x. Weights of all experts are one, their rows in order."""
        logits = self.linear(x, f"{prefix}.router", False, f"{prefix}.router")
        kind = f32 if mixture.wide_weights else None
        routed = RouteOp(logits, top_k=mixture.chosen, normalized=mixture.normalized, element=kind, loc=f"{prefix}.route")
        weights = self.emit(routed, "weights")
        routed.chosen.name_hint = "chosen"
        op = ExpertsOp(
            x,
            routed.chosen,
            weights,
            *(self.joined(prefix, projection) for projection in PROJECTIONS),
            experts=mixture.count,
            activation=self.config.activation,
            loc=f"{prefix}.experts",
        )
        mixed = self.emit(op, "mixed")
        if not mixture.shared:
            return mixed
        share = self.emit(
            SigmoidOp(self.linear(x, f"{prefix}.shared_gate", False, f"{prefix}.shared_gate"), loc=f"{prefix}.shared_gate"), "share"
        )
        shared = self.emit(ScaleRowsOp(self.ffn(x, f"{prefix}.shared"), share, loc=f"{prefix}.shared"), "shared")
        return self.emit(AddOp(mixed, shared, loc=f"{prefix}.shared"), "mixed")

    def joined(self, prefix: str, projection: str) -> SSAValue:
        """One projection of all experts of a layer as one weight, their rows in order; it stays packed where all experts are packed alike."""
        names = expert_names(self.config, prefix, projection)
        packings = [self.config.packed.get(name) for name in names]
        reason, packing = apart(packings), packings[0]
        if reason:
            what = f"{prefix}.experts.{projection}"
            self.records.append({"verdict": "not_packed", "kind": "weight", "what": what, "reason": reason})
        if packing is None or reason:
            return self.rows_joined([self.weight(name) for name in names])
        each = zip(*(self.parts(name, packing) for name in names), strict=True)
        return self.emit(DequantizeOp.of([self.rows_joined(part) for part in each], PackingAttr.of(packing.kind, packing.group)))

    def rows_joined(self, parts: Sequence[SSAValue]) -> SSAValue:
        """The rows of all, in order."""
        return parts[0] if len(parts) == 1 else self.emit(ConcatRowsOp(parts))

    def residual(self, x: SSAValue, out: SSAValue, prefix: str) -> SSAValue:
        """x plus what a block returned, normalized and scaled as the model has it."""
        if self.config.post_norm:
            out = self.norm(out, f"{prefix}_post_norm")
        out = self.scale(out, self.config.residual_scale, f"{prefix}.residual")
        added = self.emit(AddOp(x, out, loc=f"{prefix}.residual"), "x")
        return self.norm(added, f"{prefix}_sum_norm") if self.config.sum_norm else added

    def layer(self, x: SSAValue, cache: SSAValue, number: int) -> tuple[SSAValue, SSAValue]:
        """One layer: the new x, and the layer's cache."""
        config, prefix = self.config, f"layers.{number}"
        normal = self.norm(x, f"{prefix}.attn_norm") if config.pre_norm else x
        out, cache = self.attention(normal, cache, config.layer(number), f"{prefix}.attn")
        added = self.residual(x, out, f"{prefix}.attn")
        if not (config.parallel and config.shared_norm):
            read = x if config.parallel else added
            normal = self.norm(read, f"{prefix}.ffn_norm") if config.pre_norm else read
        mixture = None if config.layer(number).dense else config.experts
        place = f"{prefix}.ffn"
        out = self.ffn(normal, place) if mixture is None else self.experts(normal, mixture, place)
        return self.residual(added, out, place), cache

    def table(self) -> SSAValue:
        """The embeddings of all tokens, as the checkpoint has them or unpacked."""
        packing = self.config.packed.get("embed")
        return self.weight("embed") if packing is None else self.unpacked("embed", packing)

    def embed(self) -> SSAValue:
        """The embeddings of the tokens, with those of their types and positions where such are learned, normalized where the model has it."""
        config, inputs = self.config, self.inputs
        x = self.emit(EmbeddingOp(inputs["tokens"], self.table(), element=self.element, loc="embed"), "x")
        factor = rounded(config.embed_scale, element_name(self.element)) if config.embed_scale_rounded else config.embed_scale
        x = self.scale(x, factor, "embed.scale")
        tables = {"types": "token_types"} if config.token_types else {}
        tables |= {"positions": "positions"} if config.positions == "learned" else {}
        for table, rows in tables.items():
            weight = self.weight(f"embed_{table}")
            if table == "positions" and config.position_offset:
                weight = self.emit(SliceRowsOp(weight, start=config.position_offset, size=config.max_positions))
            added = self.emit(EmbeddingOp(inputs[rows], weight, loc=f"embed_{table}"), table)
            x = self.emit(AddOp(x, added, loc="embed.sum"), "x")
        return self.norm(x, "embed_norm") if config.embed_norm else x

    def encoder(self) -> None:
        """The whole step of an encoder, and its return. A layer's keys and values are read in the step that wrote them, so that one cache serves all layers."""
        x, cache = self.embed(), self.inputs["cache.0"]
        for number in range(self.config.layers):
            x, cache = self.layer(x, cache, number)
        x = x if self.config.sum_norm else self.norm(x, "final_norm")
        self.builder.insert(ReturnOp(x, cache))

    def head(self) -> SSAValue:
        """The weight of an output projection of its own, which no family stores turned."""
        packing = self.config.packed.get("lm_head")
        return self.weight("lm_head") if packing is None else self.unpacked("lm_head", packing)

    def model(self) -> None:
        """The whole step, and its return."""
        config, inputs, caches = self.config, self.inputs, list[SSAValue]()
        x = self.embed()
        for number in range(config.layers):
            x, cache = self.layer(x, inputs[f"cache.{number}"], number)
            caches.append(cache)
        # Rows that want no logits are dropped before the last norm: it and the head work on R rows, not N.
        x = self.norm(self.emit(GatherRowsOp(x, inputs["logit_rows"], loc="logit_rows"), "x"), "final_norm")
        head = self.table() if config.tied else self.head()
        logits = self.emit(LinearOp(self.in_order(x, "lm_head"), head, element=f32, loc="lm_head"), "logits")
        logits = self.soft_cap(self.scale(logits, config.logit_scale, "lm_head.scale"), config.logit_cap, "lm_head.cap")
        position = self.emit(GatherRowsOp(inputs["positions"], inputs["logit_rows"], loc="sample.position"), "position")
        position = self.emit(AdvanceOp(position, loc="sample.position"), "position")
        temperature, top_k, top_p, min_p, seed = (inputs[name] for name in ("temperature", "top_k", "top_p", "min_p", "seed"))
        judged = self.emit(PenalizeOp(logits, inputs["factors"], loc="penalize"), "penalized") if "factors" in inputs else logits
        token = self.emit(SampleOp(judged, temperature, top_k, top_p, min_p, seed, position, loc="sample"), "next")
        self.builder.insert(ReturnOp(logits, token, *caches))


def rounded(value: float, element: str) -> float:
    """The nearest number of an element type, ties to even."""
    if element == "f16":
        return struct.unpack("<e", struct.pack("<e", value))[0]
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    if element == "bf16":
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]
