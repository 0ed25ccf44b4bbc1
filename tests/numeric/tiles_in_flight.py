# pyright: basic
"""A process of its own, without Triton's interpreter: compiles printed kernels for a GPU that is not there; JSON says which tiles are written too early."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from lamella.tools.cross_compile_worker import compiled_file

VIEW = re.compile(r"ttg\.memdesc_(?:index|trans|subslice|reinterpret|reshape)\w* (%\w+)")
WAIT = re.compile(r"warp_group_dot_wait (.*?) \{pendings = (\d+)")


def early(text: str, stages: int) -> list[str]:
    """The buffers, of Triton's GPU IR, that a product still under way reads and that hold fewer tiles than a loop of `stages` has in flight.

    A loop asks for the tile of `stages` − 1 trips later behind the products of its own trip: with one buffer less than `stages` it is theirs.
    """
    made = dict(re.findall(r"(%\w+)(?::\d+)? = (.*)", text))
    found: list[str] = []
    for operands, pending in WAIT.findall(text):
        for operand in operands.split(", ") if int(pending) else ():
            value = operand
            while (view := VIEW.match(made.get(value, ""))) is not None:
                value = view[1]
            buffers = re.match(r"ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x\d+x\d+x", made.get(value, ""))
            if buffers is not None and int(buffers[1]) < stages:
                found.append(value)
    return found


def compiled(path: Path) -> tuple[str, bool]:
    """Triton's GPU IR of a printed kernel for sm_90, and whether warp groups multiply in it."""
    kernel, _ = compiled_file(path, 90, False)
    text = re.sub(r" loc\(.*?\)", "", kernel.asm["ttgir"])
    return text, "ttng.warp_group_dot " in text


if __name__ == "__main__":
    report = {}
    for name in sys.argv[1:]:
        stages = max((int(n) for n in re.findall(r"num_stages=(\d+)", Path(name).read_text())), default=0)
        text, groups = compiled(Path(name))
        report[Path(name).stem] = {"early": early(text, stages), "groups": groups, "stages": stages}
    print(json.dumps(report))
