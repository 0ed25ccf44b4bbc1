"""Ways to break a memory plan, one buffer or launch at a time: a manifest goes in, broken ones leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lamella.runtime.manifest import Bucket, Launch, Manifest, Ref


def moved(manifest: Manifest, ref: Ref, offset: int, launches: range | None = None) -> Manifest:
    """The first bucket with the buffer `ref` at another offset, in the given launches or in all."""
    (bucket, *others) = manifest.buckets
    there = replace(ref, offset=offset)

    def at(number: int, launch: Launch) -> Launch:
        if launches is not None and number not in launches:
            return launch
        return replace(launch, args=tuple(there if a == ref else a for a in launch.args))

    outputs = tuple(replace(o, ref=there) if o.ref == ref and launches is None else o for o in bucket.outputs)
    changed = replace(bucket, launches=tuple(at(i, launch) for i, launch in enumerate(bucket.launches)), outputs=outputs)
    return replace(manifest, buckets=(changed, *others))


def lives(bucket: Bucket, manifest: Manifest) -> list[tuple[Ref, int, int]]:
    """Each buffer between a launch that writes it and the last that reads what was written: (where, first, last)."""
    found: list[tuple[Ref, int, int]] = []
    for first, launch in enumerate(bucket.launches):
        for out in launch.args[manifest.kernels[launch.kernel].inputs :]:
            if out.pool != "arena":
                continue
            last = first
            for number, later in enumerate(bucket.launches[first + 1 :], first + 1):
                inputs = manifest.kernels[later.kernel].inputs
                last = number if out in later.args[:inputs] else last
                if any(a.pool == "arena" and meets(a, out) for a in later.args[inputs:]):
                    break
            if last > first:
                found.append((out, first, last))
    return found


def meets(a: Ref, b: Ref) -> bool:
    return a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes


def corruptions(manifest: Manifest) -> Mapping[str, Callable[[], list[Manifest]]]:
    bucket = manifest.buckets[0]

    def overlapping() -> list[Manifest]:
        """One buffer is put where another one lies that is still read afterwards."""
        out = []
        for ref, first, last in lives(bucket, manifest):
            for other, written, _ in lives(bucket, manifest):
                if first < written < last and not meets(ref, other) and other.offset + other.bytes <= bucket.arena_bytes:
                    out.append(moved(manifest, other, ref.offset, range(written, len(bucket.launches))))
                    break
        return out

    def freed_early() -> list[Manifest]:
        """A buffer dies one launch before its last reader."""
        out = []
        for ref, _, last in lives(bucket, manifest):
            launches = list(bucket.launches)
            launches[last - 1] = replace(launches[last - 1], dead=(*launches[last - 1].dead, (ref.offset, ref.bytes)))
            out.append(replace(manifest, buckets=(replace(bucket, launches=tuple(launches)), *manifest.buckets[1:])))
        return out

    def unwritten() -> list[Manifest]:
        """A launch is missing."""
        out = []
        for missing in range(len(bucket.launches) - 2):
            launches = tuple(launch for i, launch in enumerate(bucket.launches) if i != missing)
            out.append(replace(manifest, buckets=(replace(bucket, launches=launches), *manifest.buckets[1:])))
        return out

    return {"overlapping": overlapping, "freed early": freed_early, "unwritten": unwritten}
