"""A function of scheduled regions goes in; each region leaves with the name of its kernel, equal regions with equal names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects.attributes import python_value
from lamella.dialects.tile import FusedOp
from lamella.passes.settled import settled_inputs


@dataclass
class Structure:
    """Makes keys of regions that are equal exactly when the regions compute the same: names, locations and ledger do not count.

    Attributes are interned: equal ones get equal numbers, and each object is hashed once.
    """

    by_identity: dict[int, tuple[Attribute, int]] = field(default_factory=dict[int, "tuple[Attribute, int]"])
    """Keeps each attribute alive, so that its identity stays its own."""
    by_value: dict[Attribute, int] = field(default_factory=dict[Attribute, int])

    def number(self, attribute: Attribute) -> int:
        """A number for the value of `attribute`."""
        known = self.by_identity.get(id(attribute))
        if known is not None:
            return known[1]
        number = self.by_value.setdefault(attribute, len(self.by_value))
        self.by_identity[id(attribute)] = (attribute, number)
        return number

    def key(self, fused: FusedOp, settled: tuple[bool, ...]) -> Hashable:
        """Schedule, types of inputs (and whether they are `settled`) and outputs, and each op by name, operands, properties, results."""
        block = fused.body.block
        ids: dict[SSAValue, int] = {argument: i for i, argument in enumerate(block.args)}
        parts: list[Hashable] = [
            self.number(fused.schedule) if fused.schedule else -1,
            tuple((self.number(v.type), early) for v, early in zip(fused.ins, settled, strict=True)),
            tuple(self.number(v.type) for v in (*fused.outs, *fused.res)),
        ]
        for op in block.ops:
            operands = tuple(ids[v] for v in op.operands)
            properties = tuple((name, self.number(a)) for name, a in sorted(op.properties.items()))
            parts.append((op.name, operands, properties, tuple(self.number(r.type) for r in op.results)))
            for result in op.results:
                ids[result] = len(ids)
        return tuple(parts)


def bucket_prefix(function: func.FuncOp) -> str:
    """`t1`, `t13s4q8`: the parts of the bucket's key that its other parts do not imply, so that two buckets never share a name.

    One sequence implies a query of all tokens and a decode a query of one; logit rows are one a sequence, and a step of one token a
    sequence advances, unless said (`q`, `r`, `p`) otherwise.
    """
    bucket = function.attributes.get("lamella.bucket")
    if not isinstance(bucket, DictionaryAttr):
        return ""
    values = {name: python_value(a) for name, a in bucket.data.items()}
    tokens, sequences = values.get("tokens", 1), values.get("sequences", 1)
    longest, rows = values.get("longest_query"), values.get("logit_rows")
    out = f"t{tokens}"
    if sequences != 1:
        out += f"s{sequences}"
    if longest not in (None, tokens if sequences == 1 else 1):
        out += f"q{longest}"
    if rows not in (None, sequences):
        out += f"r{rows}"
    if tokens == sequences == rows and "advance" in values and not values["advance"]:
        out += "p"
    return f"{out}_"


@dataclass(frozen=True)
class NumberKernels(ModulePass):
    """Names the kernel of each region after bucket, skeleton and a number; regions that compute the same share one.

    Before:
        tile.fused schedule #tile.schedule<gemv, {…}> ins(…) outs(…) {…}
    After:
        tile.fused schedule #tile.schedule<gemv, {…}> ins(…) outs(…) attributes {kernel = "t1_gemv_0"} {…}

    Runs on tensors or buffers, once the schedules are chosen.
    """

    name = "number-kernels"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        structure = Structure()
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                number_kernels(function, structure)


def number_kernels(function: func.FuncOp, structure: Structure) -> None:
    """Sets `kernel` on each region of one function."""
    prefix = bucket_prefix(function)
    names: dict[Hashable, StringAttr] = {}
    counts: Counter[str] = Counter()
    settled = settled_inputs(function)
    for op in function.body.block.ops:
        if not isinstance(op, FusedOp):
            continue
        key = structure.key(op, settled[op])
        if key not in names:
            skeleton = op.schedule.skeleton.data if op.schedule else "region"
            names[key] = StringAttr(f"{prefix}{skeleton}_{counts[skeleton]}")
            counts[skeleton] += 1
        op.attributes["kernel"] = names[key]
