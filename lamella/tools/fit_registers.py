"""A way to compile a model goes in; the program leaves in which kernels that spilled registers are smaller, or taken apart, with the reasons."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lamella.errors import PassError
from lamella.pipeline import PassOptions
from lamella.program import Program
from lamella.tools.cross_compile import cross_compile

ROUNDS = 6
"""Compilations after the first, at most."""
MOST_STEPS = 3
"""How many times the schedule of a region becomes smaller before the region is taken apart."""
LAYER = re.compile(r"\blayers\.\d+\b")
Record = Mapping[str, Any]
Compiled = Callable[[Mapping[str, PassOptions]], Program]


@dataclass
class Bucket:
    """What one bucket is asked for: regions with smaller schedules, by the location of one of their ops, and pairs that stay apart."""

    smaller: dict[str, int] = field(default_factory=dict[str, int])
    forbidden: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def options(self, policy: Sequence[Any]) -> PassOptions:
        """As options of passes; `policy` are the rules that hold anyway."""
        out: dict[str, dict[str, str]] = {}
        if self.smaller:
            out["choose-schedule"] = {"smaller": ";".join(f"{where}={steps}" for where, steps in self.smaller.items())}
        if self.forbidden:
            out["fuse-regions"] = {"policy": json.dumps([*self.forbidden, *policy])}
        return out


@dataclass(frozen=True)
class Spill:
    """A kernel that spilled `bytes` a thread: its bucket, the location that tells its regions from others, its schedule and its fusions."""

    kernel: str
    bytes: int
    bucket: str
    where: str
    parameters: Mapping[str, int]
    joins: Sequence[Record]

    @property
    def schedule(self) -> str:
        """`tile 64, warps 4`."""
        return ", ".join(f"{name} {value}" for name, value in self.parameters.items())


def fit_registers(compiled: Compiled, arch: str, *, policy: str = "", workers: int | None = None) -> Program:
    """Compiles, cross-compiles the kernels for `arch` and, while some spill, compiles again with smaller schedules for their regions.

    `compiled` makes the program with options of passes by bucket. A region whose schedule gets no smaller, or spills on, loses the fusion
    that costs most registers (`policy` is the file of rules that hold anyway). Each of these decisions is a record `split` of the ledger;
    a kernel that spills in the end has one that says so. Raises PassError for a kernel that does not compile.
    """
    rules: list[Any] = json.loads(Path(policy).read_text(encoding="utf-8")) if policy else []
    buckets: dict[str, Bucket] = {}
    known: dict[str, int] = {}
    records: list[dict[str, Any]] = []
    program = compiled({})
    spilled = find_spills(program, arch, known, workers)
    earlier: dict[tuple[str, str], Mapping[str, int]] = {}
    for _ in range(ROUNDS):
        asked = [(spill, remedy) for spill in spilled if (remedy := ask(spill, buckets.setdefault(spill.bucket, Bucket()), earlier))]
        if not asked:
            break
        program = compiled({name: bucket.options(rules) for name, bucket in buckets.items()})
        records += [record(spill, remedy) for spill, remedy in asked]
        spilled = find_spills(program, arch, known, workers)
    records += [record(spill, "it still spills: nothing smaller is known") for spill in spilled]
    return replace(program, ledger=[*records, *program.ledger])


def ask(spill: Spill, bucket: Bucket, earlier: dict[tuple[str, str], Mapping[str, int]]) -> str:
    """Notes in `bucket` what may help against a spill, and says it; empty where nothing is left. `earlier` are the schedules tried before."""
    steps = bucket.smaller.get(spill.where, 0)
    key = (spill.bucket, spill.where)
    if steps < MOST_STEPS and earlier.get(key) != spill.parameters and spill.where:
        earlier[key] = spill.parameters
        bucket.smaller[spill.where] = steps + 1
        return "a smaller schedule"
    rule = costliest(spill.joins, bucket.forbidden)
    if rule is None:
        return ""
    bucket.forbidden.append(rule)
    return f"{rule['producer']} and {rule['consumer']} stay apart: that fusion took most registers"


def costliest(joins: Sequence[Record], forbidden: Sequence[Mapping[str, str]]) -> dict[str, str] | None:
    """The rule that forbids the fusion after which the estimate of registers had grown most, of those between two locations."""
    best, most, before = None, -1, 0
    for join in joins:
        pair = {"action": "forbid", "producer": pattern(join["producer"]), "consumer": pattern(join["consumer"])}
        growth, before = int(join.get("registers", 0)) - before, int(join.get("registers", 0))
        if pair["producer"] != pair["consumer"] and pair not in forbidden and growth >= most:
            best, most = pair, growth
    return best


def pattern(label: str) -> str:
    """What a policy calls the op of `tile.map at layers.3.attn.q`: its location in all layers, or its name."""
    name, _, where = str(label).partition(" at ")
    return LAYER.sub("layers.*", where) if where else name


def find_spills(program: Program, arch: str, known: dict[str, int], workers: int | None) -> list[Spill]:
    """The kernels of a program that spill on `arch`; `known` holds the bytes of texts that were compiled before. Raises PassError."""
    if not program.kernels:
        raise PassError("no kernels to fit", where="--fit-registers", remedy="compile to the last stage")
    new = {name: text for name, text in program.kernels.items() if text not in known}
    figures = cross_compile(new, arch, pdl=int(arch.removeprefix("sm_")) >= 90, workers=workers) if new else []
    known.update({text: figure.spills for text, figure in zip(new.values(), figures, strict=True)})
    heads = {r["kernel"]: r for r in reversed(program.ledger) if r["verdict"] == "region"}
    return [spill_of(program, heads, name, known[text]) for name, text in program.kernels.items() if known[text] and name in heads]


def spill_of(program: Program, heads: Mapping[str, Record], kernel: str, size: int) -> Spill:
    """What is known of a kernel that spills. Where all its locations are also in other kernels of its bucket, it has none of its own."""
    head = heads[kernel]
    others = {pattern(f" at {op}") for k, h in heads.items() if k != kernel and h["bucket"] == head["bucket"] for op in h["ops"]}
    own = [place for op in head["ops"] if (place := pattern(f" at {op}")) not in others]
    joins = [
        r
        for r in program.ledger
        if r["verdict"] == "joined" and (r["bucket"], r["region"]) == (head["bucket"], head["region"]) and r["producer"] and r["consumer"]
    ]
    return Spill(kernel, size, head["bucket"], own[-1] if own else "", head["parameters"], joins)


def record(spill: Spill, remedy: str) -> dict[str, Any]:
    """The record of a decision, as JSON."""
    reason = f"spilled {spill.bytes} bytes a thread at {spill.schedule}: {remedy}"
    what = f"{spill.kernel} at {spill.where}" if spill.where else spill.kernel
    about = {"verdict": "split", "kind": "kernel", "what": what, "reason": reason}
    return {"producer": "", "consumer": "", **about, "accepted": True, "loc": spill.where, "bucket": ""}
