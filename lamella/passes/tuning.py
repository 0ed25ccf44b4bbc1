"""Files of measurements go in; for a region, the schedule that was fastest on its device leaves, or the reason why there is none.

A file is JSON, one measurement a line: `{"format": 1, "arch": "sm_90", "entries": [{"op": "contract", "shape": {…}, "skeleton": "gemv",
"options": {…}, "us": 3.1, "share": 0.82, "model_us": 3.4, "device": "NVIDIA H200", "triton": "3.6.0"}, …]}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import Operation

from lamella.dialects.attributes import ELEMENT_BYTES, attributes_of, element_of, shape_of
from lamella.dialects.kernel.types import BLOCK_BYTES, BLOCK_ROWS
from lamella.dialects.tile import AttendOp, ContractOp, FusedOp, LedgerEntryAttr, ReduceOp, ScheduleAttr
from lamella.errors import OutputError, PassError
from lamella.passes.byte_products import of_bytes
from lamella.passes.contractions import FEW_ROWS, weight_kind
from lamella.passes.descriptors import DESCRIPTORS, describable
from lamella.passes.device import Device
from lamella.passes.packed_columns import LEAST_BYTES, RUNS, digits, most_columns, piece_columns, streamed
from lamella.passes.region_parts import Parts, parts
from lamella.passes.registers import most_registers, registers
from lamella.passes.schedules import MOST_BESIDE, WARP_GROUP_ROWS, minimum_columns, power_of_two

FORMAT = 1
SHIPPED = Path(__file__).with_name("tuned")
"""Measurements that come with Lamella, one file an architecture."""
USER = Path("~/.cache/lamella/tuning")
"""Where `lamella tune` leaves its own."""
TUNABLE = ("gemv", "mma", "attend")
"""Skeletons whose parameters are worth a measurement."""
BLOCKS = frozenset({"rows", "k", "m", "n", "tile", "warps", "columns"})
"""Options that are sizes of blocks, which are powers of two."""
BARRIER = 64
"""Bytes of what tells a program that a tile of a descriptor has arrived, generously."""
FACTS = ("us", "share", "model_us")
STEP = "step"
"""The one field that an entry may lack."""

Shape = Mapping[str, int | str | bool]


@dataclass(frozen=True)
class Entry:
    """What one measurement found: the fastest options of a skeleton for regions of one key.

    `us` is the time of one launch (of all launches, where attention is split), `share` the ceiling's time (bytes / bandwidth or operations
    / rate, whichever is longer) over it, `model_us` the time of what the cost model had chosen. `step` holds the times of the whole step with these
    options and with the cost model's, for a measurement that was decided by them.
    """

    op: str
    shape: Shape
    skeleton: str
    options: Mapping[str, int]
    us: float
    share: float
    model_us: float
    device: str
    triton: str
    step: tuple[float, float] | None = None

    @property
    def key(self) -> str:
        """What the regions it holds for have in common."""
        return key_text(self.op, self.shape)

    def as_dict(self) -> dict[str, Any]:
        """The entry as JSON, mappings sorted; `step` only where there is one."""
        out = {name: value for name, value in vars(self).items() if name != STEP}
        step = {} if self.step is None else {STEP: list(self.step)}
        return {**out, "shape": dict(sorted(self.shape.items())), "options": dict(sorted(self.options.items())), **step}


@dataclass(frozen=True)
class Measurements:
    """Entries by key."""

    entries: Mapping[str, Entry] = field(default_factory=dict[str, Entry])

    @staticmethod
    def of(entries: Iterable[Entry]) -> Measurements:
        """Of two entries for one key the later counts."""
        return Measurements({entry.key: entry for entry in entries})

    @staticmethod
    def read(tuning: str, arch: str) -> Measurements | None:
        """`off`: none are asked for. `auto`: those that come with Lamella, and above them the user's own. Else those of the file `tuning`.

        Raises PassError for a file that does not exist (unless `auto`), cannot be read, or is no file of measurements of `arch`.
        """
        if tuning == "off":
            return None
        if tuning != "auto":
            if not Path(tuning).expanduser().is_file():
                raise PassError("no such file of measurements", where=tuning, expected="auto, off or a file that lamella tune wrote")
            return Measurements.of(read_entries(Path(tuning).expanduser(), arch))
        files = (shipped_file(arch), user_file(arch))
        return Measurements.of(entry for file in files if file is not None and file.is_file() for entry in read_entries(file, arch))

    def find(self, ops: Sequence[Operation], longest: int) -> Entry | None:
        """The entry for a region."""
        key = region_key(ops, longest)
        return None if key is None else self.entries.get(key_text(*key))


def shipped_file(arch: str) -> Path:
    """The measurements that come with Lamella."""
    return SHIPPED / f"{arch}.json"


def user_file(arch: str) -> Path | None:
    """The user's own measurements, existing or not; None for a user without a home."""
    try:
        return USER.expanduser() / f"{arch}.json"
    except RuntimeError:
        return None


# Keys


def region_key(ops: Sequence[Operation], longest: int) -> tuple[str, Shape] | None:
    """What decides how fast a region's schedules are: (`contract` or `attend`, shape). None for a region that is not tuned.

    Rows of weights stand as `2048+512+512` where programs divide them, `8192|8192` where they are computed side by side. Tokens, queries
    and contexts count by the next power of two, so that buckets of nearly the same size share what was measured.
    """
    attend = next((op for op in ops if isinstance(op, AttendOp)), None)
    if attend is not None:
        sequences, blocks = shape_of(attend.block_table)
        block = shape_of(attend.cache)[3]
        # Heads, and whatever else changes the work of a score; of a factor it only matters that there is one.
        own = {
            name: value if isinstance(value, int | str) else bool(value) for name, value in attributes_of(attend).items() if name != "scale"
        }
        return "attend", {
            **own,
            "sequences": sequences,
            "queries": power_of_two(longest),
            "context": power_of_two(blocks * block),
            "block": block,
            "x": element_of(attend.q),
            "cache": element_of(attend.cache),
        }
    if not any(isinstance(op, ContractOp) for op in ops):
        return None
    split = parts(ops)
    tokens, k = shape_of(split.contracts[0].x)
    return "contract", {
        "rows": "+".join("|".join(str(shape_of(c.result)[1]) for c in component) for component in split.components),
        "k": k,
        "tokens": power_of_two(tokens),
        "x": element_of(split.contracts[0].x),
        "weights": "+".join(sorted({weight_kind(c) for c in split.contracts})),
        "columns": max(minimum_columns(split, i) for i in range(len(split.components))),
        "norm": any(isinstance(op, ReduceOp) for op in split.prologue),
        **({DESCRIPTORS: True} if describable(ops) else {}),
    }


def key_text(op: str, shape: Shape) -> str:
    """A key as one line: `contract columns=2 k=2048 norm=true rows=2048+512+512 tokens=1 weights=bf16 x=bf16`."""
    return " ".join([op, *(f"{name}={str(value).lower()}" for name, value in sorted(shape.items()))])


# Choice


def settled(
    fused: FusedOp, ops: Sequence[Operation], longest: int, target: Device, schedule: ScheduleAttr, measurements: Measurements
) -> ScheduleAttr:
    """The measured schedule of a region, or the cost model's `schedule` where there is none that fits; the ledger says which and why."""
    if schedule.skeleton.data not in TUNABLE:
        return schedule
    entry = measurements.find(ops, longest)
    if entry is None:
        _note(fused, "not_measured", "no measurement for this shape: the cost model's choice")
        return schedule
    objection = why_not(entry.skeleton, entry.options, ops, longest, target, schedule)
    if objection is not None:
        _note(fused, "not_measured", f"the measured schedule does not fit, {objection}: the cost model's choice")
        return schedule
    alone = f"{entry.us:.2f} us on {entry.device}, {entry.share:.0%} of the ceiling; the cost model's choice took {entry.model_us:.2f} us"
    whole = (
        ""
        if entry.step is None
        else f"the whole step takes {entry.step[0]:.1f} us, and {entry.step[1]:.1f} with the cost model's choice; by itself "
    )
    _note(fused, "measured", f"measured: {whole}{alone}")
    return ScheduleAttr.of(entry.skeleton, **entry.options)


def why_not(
    skeleton: str, options: Mapping[str, int], ops: Sequence[Operation], longest: int, target: Device, model: ScheduleAttr
) -> str | None:
    """Why a schedule is not one for this region; None when it is. `model` is the cost model's, which has the options there are."""
    if skeleton != model.skeleton.data:
        return f"it is {skeleton}, and the region takes {model.skeleton.data}"
    if options.keys() != model.options.data.keys():
        return f"it sets {', '.join(sorted(options))}, and the options are {', '.join(sorted(model.options.data))}"
    blocks = BLOCKS - {"k"} if "runs" in options else BLOCKS
    odd = next((name for name, value in sorted(options.items()) if name in blocks and value != power_of_two(value)), None)
    if odd is not None:
        return f"{odd} = {options[odd]} is no power of two"
    reason = _attend_limits(options, ops, longest, target) if skeleton == "attend" else _contract_limits(skeleton, options, ops, target)
    if reason is not None:
        return reason
    used = shared_memory(skeleton, options, ops)
    if used > target.shared_memory:
        return f"it needs {used} bytes of shared memory of {target.shared_memory}"
    schedule = ScheduleAttr.of(skeleton, **options)
    estimate, most = registers(ops, schedule), most_registers(schedule)
    return f"it needs {estimate} registers a thread of {most}" if estimate > most else None


def _contract_limits(skeleton: str, options: Mapping[str, int], ops: Sequence[Operation], target: Device) -> str | None:
    split = parts(ops)
    need = max(minimum_columns(split, i) for i in range(len(split.components)))
    name = "rows" if skeleton == "gemv" else "n"
    if options[name] < need:
        return f"{name} = {options[name]} is less than the {need} columns that the epilogue needs in one program"
    if "runs" in options:
        return _run_limits(options, split)
    if skeleton == "mma":
        reason = _few_limits(options, split, target) or _described_limits(options, ops)
        if reason is not None:
            return reason
    tokens = shape_of(split.contracts[0].x)[0]
    few, as_bytes = streamed(split.contracts, tokens), of_bytes(split.contracts[0]) or digits(split.contracts, tokens)
    least = {"m": 1 if few else 8 if options.get("swap") == 1 else 16, "n": 16, "k": LEAST_BYTES if as_bytes else 16}
    small = next((n for n in least if skeleton == "mma" and options[n] < least[n]), None)
    if skeleton == "mma" and most_columns(split.contracts, options["k"]) != options["k"]:
        return f"k = {options['k']} are no whole groups, or do not divide a row of packed weights"
    return None if small is None else f"{small} = {options[small]} is less than the {least[small]} of a tensor core"


def _run_limits(options: Mapping[str, int], split: Parts) -> str | None:
    """What holds of rows that are cut into runs."""
    if (options["runs"], options["warps"]) != (RUNS, 1) or options["rows"] < 2:
        return f"runs = {options['runs']}, warps = {options['warps']}, rows = {options['rows']}, expected {RUNS}, 1 and at least 2"
    k, piece = shape_of(split.contracts[0].x)[1], piece_columns(split.contracts[0])
    if options["k"] == 0 or options["k"] % piece or k % options["k"]:
        return f"k = {options['k']} are no whole pieces of {piece} columns, or do not divide {k}"
    return None


def _described_limits(options: Mapping[str, int], ops: Sequence[Operation]) -> str | None:
    """What holds of tiles that are loaded through descriptors."""
    if not options.get(DESCRIPTORS):
        return None
    if options[DESCRIPTORS] != 1 or options["swap"] or options["splits"] != 1 or not describable(ops):
        return f"{DESCRIPTORS} = {options[DESCRIPTORS]}, expected 1, of a region that is marked for them, neither swapped nor split"
    x = next(op.x for op in ops if isinstance(op, ContractOp))
    limits = {"m": BLOCK_ROWS, "n": BLOCK_ROWS, "k": BLOCK_BYTES // ELEMENT_BYTES[element_of(x)]}
    large = next((name for name, most in limits.items() if options[name] > most), None)
    return None if large is None else f"{large} = {options[large]} is more than a descriptor fetches at once"


def _few_limits(options: Mapping[str, int], split: Parts, target: Device) -> str | None:
    """What holds of swapped operands and split columns."""
    tokens, k = shape_of(split.contracts[0].x)
    if options["swap"] not in (0, 1) or options["splits"] < 1:
        return f"swap = {options['swap']} and splits = {options['splits']}, expected 0 or 1, and at least 1"
    if options["swap"] == 1 and options["m"] > FEW_ROWS:
        return f"m = {options['m']} tokens are too many to be columns of a product, at most {FEW_ROWS}"
    if "digits" in options and not (options["digits"] == 3 and options["swap"] == 1 and digits(split.contracts, options["m"])):
        return f"digits = {options['digits']}, expected 3, of at most 4 tokens and weights of bytes, which go down the product"
    sums = any(isinstance(op, ReduceOp) for op in split.prologue)
    if sums and options["swap"] == 1 and options["warps"] > MOST_BESIDE and options["n"] >= WARP_GROUP_ROWS:
        return f"warps = {options['warps']} would multiply as a group while others add up the same x, at most {MOST_BESIDE}"
    if options["splits"] == 1:
        return None
    if sums:
        return "a reduction of x needs all its columns in one program"
    if options["m"] < tokens:
        return f"columns are shared by programs of one tile of tokens, and {tokens} take several"
    if -(-k // options["k"]) < 2 * options["splits"]:
        return f"{k} columns are less than two trips of {options['k']} for each of {options['splits']} programs"
    trips = -(-k // options["k"])
    runs = -(-trips // -(-trips // options["splits"]))
    if runs != options["splits"]:
        return f"{trips} trips in whole ones make {runs} runs, not {options['splits']}"
    tiles = sum(-(-shape_of(c[0].result)[1] // options["n"]) for c in split.components)
    return f"{tiles} tiles would count their arrivals, and there are {target.counters} counters" if tiles > target.counters else None


def _attend_limits(options: Mapping[str, int], ops: Sequence[Operation], longest: int, target: Device) -> str | None:
    attend = next(op for op in ops if isinstance(op, AttendOp))
    held = options["queries"] * (attend.heads.value.data // attend.kv_heads.value.data)
    if options["rows"] < held or options["queries"] < 1:
        return f"rows = {options['rows']} is less than the {held} rows of its queries"
    small = next((n for n in ("rows", "tile") if options[n] < 16), None)
    if small is not None:
        return f"{small} = {options[small]} is less than the 16 of a tensor core"
    groups = shape_of(attend.block_table)[0] * attend.kv_heads.value.data * -(-longest // options["queries"])
    if options["splits"] > 1 and groups > target.counters:
        return f"{groups} groups of programs would count their arrivals, and there are {target.counters} counters"
    return None


def shared_memory(skeleton: str, options: Mapping[str, int], ops: Sequence[Operation]) -> int:
    """Bytes of the tiles that loads in flight fill, an estimate from above."""
    if skeleton == "mma":
        split = parts(ops)
        side = max(len(c) for c in split.components)
        size = ELEMENT_BYTES[element_of(split.contracts[0].x)]
        barriers = BARRIER * options["stages"] if options.get(DESCRIPTORS) else 0
        return options["stages"] * options["k"] * (options["m"] + options["n"] * side) * size + barriers
    if skeleton == "attend":
        attend = next(op for op in ops if isinstance(op, AttendOp))
        dim, size = power_of_two(attend.head_dim.value.data), ELEMENT_BYTES[element_of(attend.q)]
        return (options["stages"] * 2 * options["tile"] + options["rows"]) * dim * size
    return 0


def _note(fused: FusedOp, verdict: str, reason: str) -> None:
    entry = LedgerEntryAttr.of(verdict, {"kind": "schedule", "reason": reason})
    fused.ledger = ArrayAttr([*(fused.ledger.data if fused.ledger else ()), entry])


# Files


def read_entries(path: Path, arch: str) -> list[Entry]:
    """The entries of a file. Raises PassError for one that cannot be read, is no file of measurements, or is of another architecture."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PassError(f"cannot read the measurements: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise PassError(
            f"the measurements are no JSON: {error}", where=str(path), remedy="delete the file, or lamella tune anew"
        ) from error
    if not isinstance(data, dict) or not isinstance(cast("dict[str, Any]", data).get("entries"), list):
        raise PassError("no file of measurements", where=str(path), expected="an object with format, arch and entries")
    found = cast("dict[str, Any]", data)
    if found.get("format") != FORMAT:
        raise PassError(
            "measurements of another format",
            where=str(path),
            expected=str(FORMAT),
            got=str(found.get("format")),
            remedy="lamella tune anew",
        )
    if found.get("arch") != arch:
        raise PassError("measurements of another architecture", where=str(path), expected=arch, got=str(found.get("arch")))
    return [_entry(item, f"{path}, entry {number}") for number, item in enumerate(found["entries"])]


def write_entries(path: Path, arch: str, entries: Iterable[Entry]) -> None:
    """Writes a file, sorted by key, one entry a line; it appears complete or not at all. Raises OutputError."""
    lines = [json.dumps(entry.as_dict()) for entry in sorted(entries, key=lambda entry: entry.key)]
    body = ",\n  ".join(lines)
    text = f'{{"format": {FORMAT}, "arch": "{arch}", "entries": [\n  {body}\n]}}\n' if lines else empty(arch)
    work = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        work.write_text(text, encoding="utf-8")
        work.replace(path)
    except OSError as error:
        raise OutputError(
            f"cannot write the measurements: {error.strerror}", where=str(path), remedy="choose another file with -o"
        ) from error
    finally:
        with suppress(OSError):
            work.unlink(missing_ok=True)


def empty(arch: str) -> str:
    """A file without entries."""
    return f'{{"format": {FORMAT}, "arch": "{arch}", "entries": []}}\n'


FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "op": str,
    "shape": dict,
    "skeleton": str,
    "options": dict,
    "us": (int, float),
    "share": (int, float),
    "model_us": (int, float),
    "device": str,
    "triton": str,
}
"""The fields of an entry and their types in JSON."""


def _entry(given: Any, where: str) -> Entry:
    if not isinstance(given, dict) or {*cast("dict[str, Any]", given)} - {STEP} != {*FIELDS}:
        raise PassError("bad measurement", where=where, expected=f"an object with {', '.join(FIELDS)}")
    values = cast("dict[str, Any]", given)
    for name, kind in FIELDS.items():
        if not isinstance(values[name], kind) or isinstance(values[name], bool):
            raise PassError(f"bad field '{name}' of a measurement", where=where, got=json.dumps(values[name]))
    wrong = next((v for v in values["options"].values() if not isinstance(v, int) or isinstance(v, bool) or v < 0), None)
    if wrong is not None:
        raise PassError("an option of a schedule is no number", where=where, got=json.dumps(wrong))
    if any(not isinstance(v, int | str) for v in values["shape"].values()):
        raise PassError("a shape holds numbers and names", where=where, got=json.dumps(values["shape"]))
    made: dict[str, Any] = {**values, **{name: float(values[name]) for name in FACTS}}
    if STEP in values:
        made[STEP] = _step_times(values[STEP], where)
    return Entry(**made)


def _step_times(given: Any, where: str) -> tuple[float, float]:
    numbers = cast("list[Any]", given) if isinstance(given, list) else []
    if len(numbers) != 2 or any(not isinstance(n, int | float) or isinstance(n, bool) for n in numbers):
        raise PassError(f"bad field '{STEP}' of a measurement", where=where, expected="two times of a step", got=json.dumps(given))
    return float(numbers[0]), float(numbers[1])
