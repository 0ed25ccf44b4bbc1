"""Transformed weights: what a compiled model says of them, and a cache on disk that is never trusted and never in the way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lamella.checkpoints import RandomSource
from lamella.errors import ManifestError, OutputError, TensorError
from lamella.frontends.config import ModelConfig
from lamella.frontends.decoder import weight_shapes
from lamella.program import Shape, compile_model
from lamella.runtime.evaluate import evaluate
from lamella.runtime.manifest import Manifest, WeightSpec
from lamella.runtime.weight_cache import WeightCache
from lamella.runtime.weights import load_weights
from lamella.semantics import IMPLEMENTATIONS

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ModelConfig("llama", 2, 32, 2, 1, 16, 48, 61, 1e-5, 10000.0, max_positions=32, attention_bias=True)
SHAPES = weight_shapes(CONFIG)
MADE = {
    *(f"layers.{i}.attn.{p}_proj{end}.scaled" for i in (0, 1) for p, end in (("q", ".paired"), ("k", ".paired"), ("v", ""))),
    *(f"layers.{i}.attn.{p}_proj.bias.paired" for i in (0, 1) for p in "qk"),
    *(f"layers.{i}.ffn.{p}_proj.scaled" for i in (0, 1) for p in ("gate", "up")),
    "lm_head.scaled",
}


def program(dtype: str = "f32"):
    """The model, compiled for the reference executor."""
    return compile_model(CONFIG, [Shape.decode()], dtype=dtype, max_context=32, kernels=False)


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return program().manifest


class Counting(RandomSource):
    """A source that remembers what was read from it."""

    @property
    def read(self) -> list[str]:
        return self.__dict__.setdefault("_read", [])

    def load(self, name: str, dtype: str | None = None, device: str = "cpu") -> torch.Tensor:
        self.read.append(name)
        return super().load(name, dtype, device)


def loaded(manifest: Manifest, folder: Path | None, seed: int = 0) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The weights of a checkpoint, and the names that were read from it."""
    source = Counting(SHAPES, seed)
    cache = None if folder is None else WeightCache(folder, source.fingerprint())
    return load_weights(manifest, source, cache=cache), source.read


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_model_says_how_its_weights_are_made(manifest: Manifest) -> None:
    assert {name for name, spec in manifest.weights.items() if spec.transform} == MADE
    plain = manifest.weights.keys() - MADE
    assert plain == {
        "embed",
        *(f"layers.{i}.attn.v_proj.bias" for i in (0, 1)),
        *(f"layers.{i}.{p}" for i in (0, 1) for p in ("attn.o_proj", "attn.o_proj.bias", "ffn.down_proj")),
    }
    weights, read = loaded(manifest, None)
    source = RandomSource(SHAPES, 0)
    q, gamma = source.load("layers.1.attn.q_proj"), source.load("layers.1.attn_norm")
    paired = IMPLEMENTATIONS["transformer.pair_rows"](q * gamma, head_dim=16, rotary_dim=16)
    assert torch.equal(weights["layers.1.attn.q_proj.paired.scaled"], paired)
    assert torch.equal(weights["lm_head.scaled"], source.load("lm_head") * source.load("final_norm"))
    assert set(read) == set(SHAPES)
    assert read.count("layers.0.attn_norm") == 3


def test_equal_layers_have_equal_transforms(manifest: Manifest) -> None:
    for part in ("attn.q_proj.paired.scaled", "attn.v_proj.scaled", "ffn.up_proj.scaled"):
        assert manifest.weights[f"layers.0.{part}"].transform == manifest.weights[f"layers.1.{part}"].transform


def test_decisions_about_weights_are_in_the_ledger() -> None:
    ledger = program().ledger
    records = [record for record in ledger if record["bucket"] == ""]
    assert ledger[: len(records)] == records
    assert {(record["verdict"], record["kind"]) for record in records} == {
        ("folded", "norm-scale"),
        ("idle", "split-linears"),
        ("folded", "constant"),
        ("not_folded", "rope"),
        ("dropped", "weight"),
    }
    assert [record["accepted"] for record in records] == [record["verdict"] not in ("not_folded", "idle") for record in records]
    assert {record["loc"] for record in records if record["kind"] == "rope"} == {f"layers.{i}.attn.rope_{p}" for i in (0, 1) for p in "qk"}
    assert {record["what"] for record in records if record["verdict"] == "dropped"} == SHAPES.keys() - {
        name for name in SHAPES if name == "embed" or "o_proj" in name or "down_proj" in name or "v_proj.bias" in name
    }


def test_the_second_load_reads_the_cache(manifest: Manifest, tmp_path: Path) -> None:
    fresh, _ = loaded(manifest, None)
    first, _ = loaded(manifest, tmp_path)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == len(MADE)
    assert all(name.endswith(".safetensors") for name in files)
    second, read = loaded(manifest, tmp_path)
    assert set(read) == manifest.weights.keys() - MADE
    assert same(fresh, first)
    assert same(fresh, second)
    assert sorted(path.name for path in tmp_path.iterdir()) == files


def test_another_checkpoint_or_type_or_transform_is_another_entry(manifest: Manifest, tmp_path: Path) -> None:
    loaded(manifest, tmp_path)
    other, read = loaded(manifest, tmp_path, seed=1)
    assert set(read) == set(SHAPES)
    assert same(other, loaded(manifest, None, seed=1)[0])
    narrow = program("bf16").manifest
    weights, read = loaded(narrow, tmp_path)
    assert set(read) == set(SHAPES)
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert len(list(tmp_path.iterdir())) == 3 * len(MADE)
    assert same(weights, loaded(narrow, tmp_path)[0])
    spec = manifest.weights["lm_head.scaled"]
    cache = WeightCache(tmp_path, "checkpoint")
    ops = [["transformer.scale_columns", [0, 1], {"offset": 1.0}, [2]]]
    assert cache.key(spec) != cache.key(WeightSpec(spec.dtype, spec.shape, spec.sources, {**spec.transform, "ops": ops}))
    assert cache.key(spec) != cache.key(WeightSpec(spec.dtype, spec.shape, spec.sources[::-1], spec.transform))


def truncate(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path, other: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: Path, other: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def write_anything(path: Path, other: Path) -> None:
    path.write_bytes(b"not a tensor" * 9)


def take_anothers(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


def change_the_shape(path: Path, other: Path) -> None:
    weight = load_file(path)["weight"].flatten()
    save_file({"weight": weight}, path, metadata=metadata(path))


def change_the_name(path: Path, other: Path) -> None:
    save_file({"w": load_file(path)["weight"]}, path, metadata=metadata(path))


def lose_the_metadata(path: Path, other: Path) -> None:
    save_file(load_file(path), path)


def metadata(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.metadata()


DAMAGE = (truncate, empty, flip_a_bit, write_anything, take_anothers, change_the_shape, change_the_name, lose_the_metadata)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_a_bad_entry_is_rebuilt(damage: Callable[[Path, Path], None], manifest: Manifest, tmp_path: Path) -> None:
    fresh, _ = loaded(manifest, tmp_path)
    cache = WeightCache(tmp_path, RandomSource(SHAPES, 0).fingerprint())
    q, k = (manifest.weights[f"layers.0.attn.{p}_proj.paired.scaled"] for p in "qk")
    good = cache.path(q).read_bytes()
    damage(cache.path(q), cache.path(k))
    assert cache.load(q) is None
    again, read = loaded(manifest, tmp_path)
    assert set(read) - (manifest.weights.keys() - MADE) == {"layers.0.attn.q_proj", "layers.0.attn_norm"}
    assert same(fresh, again)
    assert cache.path(q).read_bytes() == good
    assert len(list(tmp_path.iterdir())) == len(MADE)


def test_a_cache_that_cannot_be_written(manifest: Manifest, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OutputError, match=r"file: the weight cache is a file, expected a folder"):
        WeightCache(file, "checkpoint")
    with pytest.raises(OutputError, match=r"the weight cache cannot be made: Not a directory, expected a folder"):
        WeightCache(file / "below", "checkpoint")
    cache = WeightCache(tmp_path / "cache", "checkpoint")
    spec = manifest.weights["lm_head.scaled"]
    obstacle = cache.path(spec)
    obstacle.mkdir()
    assert cache.load(spec) is None
    with pytest.raises(OutputError, match="cannot write to the weight cache"):
        cache.store(spec, torch.zeros(spec.shape))
    assert list(cache.folder.iterdir()) == [obstacle], "what was begun is taken away"


def test_a_source_of_another_shape_is_refused(manifest: Manifest) -> None:
    wrong = RandomSource({**SHAPES, "lm_head": (61, 31)}, 0)
    with pytest.raises(TensorError, match=r"weight 'lm_head' has another shape, expected \[61, 32\], got \[61, 31\]"):
        load_weights(manifest, wrong)
    lacking = RandomSource({name: shape for name, shape in SHAPES.items() if name != "final_norm"}, 0)
    with pytest.raises(TensorError, match=r"lacks the weight 'final_norm' of the compiled program"):
        load_weights(manifest, lacking)
    with pytest.raises(ManifestError, match=r"op 'transformer.scale_colums' has no semantics \(nearest: transformer.scale_columns"):
        evaluate({"args": 2, "ops": [["transformer.scale_colums", [0, 1], {}, [2]]], "yields": [2]}, [torch.ones(2, 3), torch.ones(3)])


RACE = """
import random, sys, time
from pathlib import Path
import torch
from lamella.checkpoints import RandomSource
from lamella.frontends.decoder import weight_shapes
from lamella.runtime.manifest import load
from lamella.runtime.weight_cache import WeightCache
from lamella.runtime.weights import load_weights
from tests.unit.test_weights import CONFIG, same

folder, mine = Path(sys.argv[1]), sys.argv[2]
manifest, source = load(folder), RandomSource(weight_shapes(CONFIG), 0)
expected = load_weights(manifest, source)
cache = WeightCache(folder / "cache", source.fingerprint())
(folder / mine).touch()
while len(list(folder.glob("ready-*"))) < 2:
    time.sleep(0.001)
for turn in range(15):
    assert same(load_weights(manifest, source, cache=cache), expected), turn
    for path in random.Random(f"{mine}{turn}").sample(sorted(cache.folder.glob("*.safetensors")), 4):
        path.unlink(missing_ok=True)
assert same(load_weights(manifest, source, cache=cache), expected)
"""


def test_two_processes_may_share_a_cache(manifest: Manifest, tmp_path: Path) -> None:
    """Both load the same model again and again, and each removes entries while the other reads and writes them."""
    manifest.save(tmp_path)
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    both = [subprocess.Popen([*command, f"ready-{n}"], cwd=ROOT, stderr=subprocess.PIPE, text=True) for n in (1, 2)]
    errors = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.suffix != ".safetensors"] == []
    _, read = loaded(manifest, tmp_path / "cache")
    assert len(set(read) & MADE) == 0
