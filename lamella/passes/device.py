"""What the cost models know of a target: ceilings measured once, and limits a schedule must keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lamella.errors import PassError, nearest


@dataclass(frozen=True)
class Device:
    """One target. Rates are measured ceilings, not datasheet figures; benchmarks/results holds the runs they come from."""

    arch: str
    multiprocessors: int
    bandwidth: float
    """Device memory, read-only stream, bytes a second."""
    cache_bandwidth: float
    """L2 to all multiprocessors, bytes a second."""
    launch_us: float
    """A dependent kernel in a CUDA graph, microseconds."""
    shared_memory: int
    """Bytes one program may use."""
    cache_bytes: int
    """Bytes of the L2 cache."""
    flops: Mapping[str, float]
    """Matrix products, operations a second by element type; f32 is exact, which the tensor cores are not."""
    registers: int = 65536
    """Of a multiprocessor, 32 bits each."""
    threads: int = 2048
    """Resident on a multiprocessor."""
    programs: int = 32
    """Resident on a multiprocessor."""
    graph_bytes: int = 70 << 20
    """Device memory that the driver takes for the first CUDA graph of a process, and for all that follow."""
    library_flops: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Operations a second of the vendor's library of matrix products where its tiles, which are as wide as ours, fill the device; no entry: not measured."""
    tile_flops: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """The same of Lamella's own kernels with many tokens, norms and what follows included, where tiles are loaded through pointers."""
    described_flops: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """The same where they are loaded through tensor descriptors. No entry where the hardware has none."""
    tile_rows: int = 128
    """Tokens of a tile where there are many."""
    tile_shares: Mapping[tuple[int, int], float] = field(
        default_factory=lambda: MappingProxyType({(128, 256): 1.0, (128, 128): 0.98, (64, 128): 0.85, (128, 64): 0.75, (128, 32): 0.4})
    )
    """The share of those rates that tiles of so many tokens by weight rows reach: small ones read more for each product."""
    narrow_share: float = 0.84
    """What is left of that where a tile is several products of 64 weight rows or fewer each, which read x from shared memory once more: in the step,
    where power counts (benchmarks/results)."""
    library_bytes: int = 64 << 20
    """What the library keeps for itself: a workspace for the stream that launches run on, and one for the stream that graphs are captured on."""

    @property
    def counters(self) -> int:
        """Groups of programs that may count their arrivals: a split pays while there are few programs for the multiprocessors."""
        return 4 * self.multiprocessors

    compile_us: float = 0.001
    """What computing an op in one more region costs a step: 10 ms of compilation, spread over ten million steps."""

    def library_us(self, tokens: int, columns: int, k: int, element: str) -> float | None:
        """Microseconds of x[tokens, k] @ w[columns, k]ᵀ by the library, which computes in whole waves of its tiles; None: not measured."""
        return self._in_waves(self.library_flops, tokens, columns, k, element)

    def tiles_us(self, tokens: int, columns: int, k: int, element: str, *, described: bool = False) -> float | None:
        """The same by a kernel of tensor-core tiles as large as `tile` says; `described`: loaded through descriptors."""
        return self._in_waves(self.described_flops if described else self.tile_flops, tokens, columns, k, element)

    def tile(self, tokens: int, columns: int, products: int = 1) -> tuple[int, int]:
        """Tokens and weight rows of a tile with which whole waves of programs take the least time; the rows are those of `products` weights.

        Tiles of half the tokens read every weight twice as often: none where one tile takes all tokens.
        """
        offered = [tile for tile in self.tile_shares if tile[0] == self.tile_rows or tokens > self.tile_rows]
        return min(offered, key=lambda tile: (self._tile_work(tokens, columns, tile, products), -tile[1]))

    def _in_waves(self, rates: Mapping[str, float], tokens: int, columns: int, k: int, element: str) -> float | None:
        """Microseconds at one of the rates; no less than its operands and result take to pass. Bytes nobody measured: twice the rate of bf16."""
        size = 1 if element in ("i8", "f8") else 2
        rate = rates.get(element, 2 * rates.get("bf16", 0.0) if size == 1 else 0.0)
        if not rate:
            return None
        work = self._tile_work(tokens, columns, self.tile(tokens, columns))
        return max(2 * work * k / rate, self._streamed(tokens, columns, k, size)) * 1e6

    def _tile_work(self, tokens: int, columns: int, tile: tuple[int, int], products: int = 1) -> float:
        """Elements of the result in the time of which whole waves of such tiles are done."""
        m, n = tile
        tiles = -(-tokens // m) * -(-columns // n)
        share = self.tile_shares[tile] * (self.narrow_share if products > 1 and n // products <= 64 else 1.0)
        return -(-tiles // self.multiprocessors) * self.multiprocessors * m * n / share

    def _streamed(self, tokens: int, columns: int, k: int, size: int) -> float:
        """Seconds to read x and w, `size` bytes a number, and to store the product, two bytes a number."""
        return (size * (tokens * k + columns * k) + 2 * tokens * columns) / self.bandwidth


DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "sm_90": Device(
            "sm_90",
            132,
            4.64e12,
            7.0e12,
            0.97,
            227 * 1024,
            60 << 20,
            {"bf16": 790e12, "f16": 790e12, "f32": 50e12},
            library_flops={"bf16": 780e12, "f16": 780e12},
            tile_flops={"bf16": 530e12, "f16": 530e12},
            described_flops={"bf16": 780e12, "f16": 780e12},
        ),
        "sm_80": Device("sm_80", 108, 1.7e12, 4.0e12, 1.3, 163 * 1024, 40 << 20, {"bf16": 250e12, "f16": 250e12, "f32": 17e12}),
    }
)


def device(arch: str) -> Device:
    """The device of an architecture. Raises PassError for one that is not in the table."""
    found = DEVICES.get(arch)
    if found is None:
        raise PassError("unknown architecture", where="target", got=arch, remedy=nearest(arch, DEVICES))
    return found
