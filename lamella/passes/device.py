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


DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "sm_90": Device("sm_90", 132, 4.64e12, 7.0e12, 0.97, 227 * 1024),
        "sm_80": Device("sm_80", 108, 1.7e12, 4.0e12, 1.3, 163 * 1024),
    }
)


def device(arch: str) -> Device:
    """The device of an architecture. Raises PassError for one that is not in the table."""
    found = DEVICES.get(arch)
    if found is None:
        raise PassError("unknown architecture", where="target", got=arch, remedy=nearest(arch, DEVICES))
    return found
