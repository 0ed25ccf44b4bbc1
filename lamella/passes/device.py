"""What the cost models know of a target: ceilings measured once, and limits a schedule must keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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

    @property
    def counters(self) -> int:
        """Groups of programs that may count their arrivals: a split pays while there are few programs for the multiprocessors."""
        return 4 * self.multiprocessors

    compile_us: float = 0.001
    """What computing an op in one more region costs a step: 10 ms of compilation, spread over ten million steps."""


DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "sm_90": Device("sm_90", 132, 4.64e12, 7.0e12, 0.97, 227 * 1024, 60 << 20, {"bf16": 790e12, "f16": 790e12, "f32": 50e12}),
        "sm_80": Device("sm_80", 108, 1.7e12, 4.0e12, 1.3, 163 * 1024, 40 << 20, {"bf16": 250e12, "f16": 250e12, "f32": 17e12}),
    }
)


def device(arch: str) -> Device:
    """The device of an architecture. Raises PassError for one that is not in the table."""
    found = DEVICES.get(arch)
    if found is None:
        raise PassError("unknown architecture", where="target", got=arch, remedy=nearest(arch, DEVICES))
    return found
