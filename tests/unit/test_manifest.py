"""The manifest as plain data: what goes through JSON unchanged, and which faults are found when it is read."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lamella.errors import ManifestError
from lamella.runtime.manifest import Manifest, Ref, load
from tests.unit.tiny_program import manifest

PROGRAM = manifest()


def test_json_round_trip_is_exact() -> None:
    parsed = Manifest.from_json(PROGRAM)
    assert parsed.to_json() == PROGRAM
    assert Manifest.from_json(json.loads(json.dumps(parsed.to_json()))) == parsed


def test_save_and_load(tmp_path: Path) -> None:
    parsed = Manifest.from_json(PROGRAM)
    parsed.save(tmp_path)
    with pytest.raises(ManifestError, match=r"kernel 'embed' has no file, expected kernels/embed\.py"):
        load(tmp_path)
    (tmp_path / "kernels").mkdir()
    for kernel in parsed.kernels.values():
        (tmp_path / kernel.file).touch()
    assert load(tmp_path) == parsed


def test_arena_holds_the_largest_bucket() -> None:
    parsed = Manifest.from_json(PROGRAM)
    assert parsed.arena_bytes == max(b["arena_bytes"] for b in PROGRAM["buckets"])
    assert Ref("arena", offset=0, dtype="bf16", shape=(3, 5)).bytes == 30


def test_a_bucket_is_hashable_and_finds_its_outputs() -> None:
    bucket = Manifest.from_json(PROGRAM).buckets[2]
    assert bucket.key == (1, 1, 1, 1, True)
    assert bucket.refs["next"] == Ref("input", name="tokens")


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def fault(data: Any) -> None:
        *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
        for parent in parents:
            data = data[parent]
        if value is None:
            del data[last]
        else:
            data[last] = value

    return fault


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (_set("format", 2), "manifest.json: is of another format, expected 1, got 2"),
        (_set("format", None), "manifest.json: is of another format, expected 1, got none"),
        (_set("cache", None), "manifest.json: field 'cache' is missing"),
        (_set("cache.blok", 1), "manifest.json: cache: unknown field 'blok' (nearest: block"),
        (_set("max_context", "many"), "manifest.json: max_context: wrong type, expected int, got str"),
        (_set("max_context", True), "manifest.json: max_context: wrong type, expected int, got bool"),
        (_set("buckets", {}), "manifest.json: buckets: wrong type, expected a list, got dict"),
        (_set("weights", []), "manifest.json: weights: wrong type, expected an object, got list"),
        (_set("weights.embed.sources", [{"name": "e", "dtype": "f32"}]), "weights.embed.sources[0]: field 'shape' is missing"),
        (_set("weights.embed.sources", [{"name": "e", "dtype": "f32", "shape": []}]), "weights.embed.transform: field 'args' is missing"),
        (
            _set("weights.embed.transform", {"args": 1, "ops": [], "yields": [0]}),
            "embed.transform: wrong number of args, expected 0, got 1",
        ),
        (_set("kernels.head.body.yields", None), "kernels.head.body: field 'yields' is missing"),
        (_set("kernels.head.inputs", 2), "kernels.head.body: wrong number of args, expected 2, got 3"),
        (_set("buckets.0.launches.3.kernel", "heat"), "buckets[0].launches[3]: unknown kernel 'heat' (nearest: head"),
        (_set("buckets.0.launches.3.args", []), "launches[3]: wrong number of args for 'head', expected 4, got 0"),
        (_set("buckets.0.launches.2.dead", [[0, 1 << 20]]), "launches[2]: dead range lies outside the arena"),
        (_set("buckets.0.launches.0.args.1.name", "embd"), "launches[0].args[1]: unknown weight 'embd' (nearest: embed"),
        (_set("buckets.0.launches.0.args.0.pool", "inputs"), "args[0]: unknown pool 'inputs' (nearest: input"),
        (_set("buckets.0.launches.1.args.6.layer", 1), "args[6]: no such cache layer, expected below 1, got 1"),
        (_set("buckets.0.launches.0.args.2.offset", 2), "args[2]: range is misaligned or outside the arena"),
        (_set("buckets.0.launches.0.args.2.offset", 1 << 20), "args[2]: range is misaligned or outside the arena"),
        (_set("buckets.0.launches.0.args.2.dtype", "f33"), "args[2]: unknown dtype"),
        (_set("buckets.0.outputs.0.ref.shape", [1 << 20]), "outputs[logits]: range is misaligned or outside the arena"),
    ],
)
def test_a_fault_is_one_clear_line(fault: Callable[[dict[str, Any]], None], message: str) -> None:
    data = copy.deepcopy(PROGRAM)
    fault(data)
    with pytest.raises(ManifestError) as caught:
        Manifest.from_json(data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("content", "message"), [(None, "cannot be read"), ("{", "is not JSON"), ("[]", "wrong type")])
def test_an_unreadable_file(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ManifestError, match=message):
        load(tmp_path)
