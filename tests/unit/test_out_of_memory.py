"""Memory that is not there is one line that says how much was wanted and what to do: on a GPU, on a CPU, for arena, cache, weights and tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lamella import api
from lamella.errors import LamellaError, OutOfMemoryError, PromptError
from lamella.runtime import memory as memory_module
from lamella.runtime import weights as weights_module
from lamella.runtime.manifest import Manifest
from lamella.runtime.memory import RESERVE_BYTES, BlockAllocator, cache_blocks, free_bytes, promise, ran_out, reserve
from lamella.runtime.weights import load_weights, make_constants
from lamella.tools import cli
from tests.unit import tiny_program
from tests.unit.tiny_program import FixedSource

MODEL = "benchmarks/models/tiny.json"
CUDA, CPU = torch.device("cuda"), torch.device("cpu")
MIB = 1 << 20


class FakeGpu:
    """Hands out CPU memory for GPU memory until there is no more."""

    def __init__(self, size: int, error: Callable[[str], BaseException]) -> None:
        self.free, self.error, self.taken = size, error, list[int]()

    def zeros(self, *shape: Any, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
        assert torch.device(device).type == "cuda"
        made = ZEROS(*shape, dtype=dtype)
        if made.nbytes > self.free:
            raise self.error(f"CUDA out of memory. Tried to allocate {made.nbytes} bytes.")
        self.free -= made.nbytes
        self.taken.append(made.nbytes)
        return made

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        return self.free, self.free


ZEROS = torch.zeros


def gpu(monkeypatch: pytest.MonkeyPatch, size: int, error: Callable[[str], BaseException] = torch.cuda.OutOfMemoryError) -> FakeGpu:
    fake = FakeGpu(size, error)
    for name in ("zeros", "empty"):
        monkeypatch.setattr(torch, name, fake.zeros)
    monkeypatch.setattr(torch.cuda, "mem_get_info", fake.mem_get_info)
    return fake


def line(kind: type[LamellaError], call: Callable[[], object], *parts: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert type(caught.value) is kind and text.isprintable()
    assert [part for part in parts if part not in text] == [], text


def program() -> Manifest:
    return Manifest.from_json(tiny_program.manifest())


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError, RuntimeError, MemoryError])
def test_a_gpu_without_room(monkeypatch: pytest.MonkeyPatch, error: Callable[[str], BaseException]) -> None:
    manifest = program()
    gpu(monkeypatch, 100, error)
    line(
        OutOfMemoryError,
        lambda: reserve(manifest, {}, {}, "cuda"),
        "the arena does not fit on cuda",
        f"expected {manifest.arena_bytes} free",
        "got 100",
        "max_arena",
    )
    fake = gpu(monkeypatch, MIB, error)
    line(OutOfMemoryError, lambda: reserve(manifest, {}, {}, "cuda"), "no memory is left for the cache", "bytes free, got", "quantize")
    assert fake.taken[0] == manifest.arena_bytes
    line(
        OutOfMemoryError,
        lambda: reserve(manifest, {}, {}, "cuda", cache_tokens=10**6),
        "the cache does not fit on cuda",
        "free bytes",
        "cache_tokens",
    )
    fake = gpu(monkeypatch, MIB, error)
    assert reserve(manifest, {}, {}, "cuda", cache_tokens=8, poisoned=False).arena.nbytes == manifest.arena_bytes


def test_a_fault_is_not_called_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, 100, lambda _: RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        reserve(program(), {}, {}, "cuda")
    assert not ran_out(RuntimeError("CUDA error: an illegal memory access was encountered")) and not ran_out(ValueError("out of memory"))
    for text in (
        "CUDA error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "DefaultCPUAllocator: can't allocate memory: you tried …",
    ):
        assert ran_out(RuntimeError(text))


def test_the_cache_takes_what_the_arena_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with little more than the reserve: the cache is smaller than the buckets could use, and counted after the arena."""
    manifest = program()
    block = manifest.cache.block_bytes
    whole = cache_blocks_with(monkeypatch, manifest, RESERVE_BYTES + 1000 * block)
    assert whole == 1 + manifest.cache.blocks_per_sequence * max(b.sequences for b in manifest.buckets)
    assert cache_blocks_with(monkeypatch, manifest, RESERVE_BYTES + 5 * block) == 5
    line(
        OutOfMemoryError, lambda: cache_blocks_with(monkeypatch, manifest, RESERVE_BYTES + block), "no memory is left for the cache", "GPU"
    )


def cache_blocks_with(monkeypatch: pytest.MonkeyPatch, manifest: Manifest, free: int) -> int:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free, free))
    return cache_blocks(manifest, CUDA)


def test_weights_that_do_not_fit_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    source = FixedSource(tiny_program.weights())
    gpu(monkeypatch, 300)
    line(
        OutOfMemoryError,
        lambda: load_weights(program(), source, "cuda"),
        "the weights do not fit on cuda",
        "free bytes, got 300",
        "quantize",
    )


def test_a_cpu_promises_nothing_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux would hand the memory out, and end the process when it is touched."""
    promise(CPU, 1000)
    for module in (memory_module, weights_module):
        monkeypatch.setattr(module, "free_bytes", lambda device: 1000)
    with pytest.raises(MemoryError):
        promise(CPU, 1001)
    promise(CUDA, 1001)
    manifest = program()
    for module in (memory_module, weights_module):
        monkeypatch.setattr(module, "free_bytes", lambda device: 100)
    line(OutOfMemoryError, lambda: reserve(manifest, {}, {}), "the arena does not fit on cpu", "got 100", "max_arena")
    monkeypatch.setattr(memory_module, "free_bytes", lambda device: manifest.arena_bytes)
    line(
        OutOfMemoryError,
        lambda: reserve(manifest, {}, {}, cache_tokens=10**9),
        "the cache does not fit on cpu",
        "max_context or cache_tokens",
    )
    monkeypatch.setattr(memory_module, "free_bytes", lambda device: 100)
    made = SimpleNamespace(names=lambda: ["embed", "k", "v", "out"], dtype=lambda name: "bf16", describe=lambda: {"kind": "safetensors"})
    line(OutOfMemoryError, lambda: load_weights(program(), made), "the weights do not fit on cpu", "a smaller dtype")  # pyright: ignore[reportArgumentType]


def test_weights_that_are_mapped_need_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "free_bytes", lambda device: 100)
    assert len(load_weights(program(), FixedSource(tiny_program.weights()))) == 4


def test_a_weight_or_a_table_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Large(FixedSource):
        def load(self, name: str, dtype: str | None = None, device: str = "cpu") -> torch.Tensor:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."
            )

    line(OutOfMemoryError, lambda: load_weights(program(), Large(tiny_program.weights())), "weight 'embed' does not fit on cpu", "quantize")
    data = tiny_program.manifest()
    attributes = {"length": 2**31 - 1, "rotary_dim": 2**31 - 2, "theta": 100.0, "scaling": {}}
    data["constants"]["table"] = {"dtype": "f32", "shape": [2**31 - 1, 2**31 - 2], "op": "transformer.rope_table", "attributes": attributes}
    line(OutOfMemoryError, lambda: make_constants(Manifest.from_json(data)), "constant 'table' does not fit in memory", "max_context")


def test_free_memory_is_known_where_the_system_says_it() -> None:
    free = free_bytes(CPU)
    assert free is None or free > MIB


def test_a_full_cache_says_what_to_do() -> None:
    line(
        OutOfMemoryError,
        lambda: BlockAllocator(3).allocate(5),
        "the cache is full, expected 5 free blocks, got 2",
        "fewer new tokens",
        "cache_tokens",
    )
    model = api.load(MODEL, random_weights=0, device="cpu", dtype="float32", max_context=64, buckets=[1, 16], cache_tokens=16)
    line(OutOfMemoryError, lambda: model.generate([3] * 10, 20), "the cache is full, expected 2 free blocks, got 1")
    assert len(model.generate([3] * 10, 6, ignore_eos=True).output_ids) == 6
    for tokens in (0, -5):
        line(
            PromptError,
            lambda n=tokens: api.load(MODEL, random_weights=0, device="cpu", cache_tokens=n, buckets=[1]),
            "bad cache_tokens",
            "at least 1",
        )


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--max-arena", "1KiB"], ("the arena exceeds max-arena", "at most 1024 bytes", "allow ")),
        (["--max-context", "4"], ("the prompt is longer than the context", "at most 3 tokens, got 6", "max_context")),
        (["--max-context", "9", "--max-new-tokens", "4"], ("longer than the context", "at most 9 together", "at most 3 new tokens")),
        (["--max-context", "5000"], ("bad max_context", "1 to 4096, the positions of the model")),
    ],
)
def test_what_the_command_refuses(options: list[str], parts: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["generate", MODEL, "--random-weights", "0", "--prompt-ids", "3,4,5,6,7,8", "--device", "cpu", *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("lamella: error: ")
    assert [part for part in parts if part not in err] == [], err
