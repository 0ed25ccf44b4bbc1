"""A finished generation enters; one line about its time and the memory of graphs leaves."""

from __future__ import annotations

from collections.abc import Mapping


def stats_text(prompt_tokens: int, output_tokens: int, timings: Mapping[str, float], graph_bytes: int) -> str:
    """`compile 2.1 s, load 0.5 s, prefill 12.00 ms of 37 tokens, decode 90.10 ms of 127 tokens (709 us each), graphs 14.0 MiB`.

    The first new token comes of the prefill. `graph_bytes` is device memory that captured graphs took, 0 on a CPU.
    """
    decoded = max(0, output_tokens - 1)
    each = f" ({timings['decode'] / decoded * 1e6:.0f} us each)" if decoded else ""
    parts = [
        f"compile {timings['compile']:.1f} s",
        f"load {timings['load']:.1f} s",
        f"prefill {timings['prefill'] * 1e3:.2f} ms of {prompt_tokens} token{'s' * (prompt_tokens != 1)}",
        f"decode {timings['decode'] * 1e3:.2f} ms of {decoded} token{'s' * (decoded != 1)}{each}",
    ]
    return ", ".join([*parts, f"graphs {graph_bytes / 2**20:.1f} MiB"] if graph_bytes else parts)
