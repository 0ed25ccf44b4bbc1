# pyright: basic
"""The process that compiles kernel files with Triton: a JSON request as argument, a JSON object of figures as its last line."""

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def compiled_file(path: Path, capability: int, pdl: bool) -> tuple:
    """The last function of a kernel file, compiled, and its module."""
    spec = importlib.util.spec_from_file_location(f"kernel_{path.stem}", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = next(f for f in reversed(vars(module).values()) if isinstance(f, triton.JITFunction))
    switches = {p.name: p.default for p in function.params if p.is_constexpr}
    if "PDL" in switches:
        switches["PDL"] = pdl
    source = ASTSource(
        function,
        {**module.SIGNATURE, **dict.fromkeys(switches, "constexpr")},
        constexprs=switches,
        attrs={(i,): [["tt.divisibility", 16]] for i, kind in enumerate(module.SIGNATURE.values()) if kind.startswith("*")},
    )
    options = {"num_warps": module.NUM_WARPS, "num_stages": module.NUM_STAGES, "maxnreg": getattr(module, "MAX_REGISTERS", None)}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options), module


def compile_file(path: Path, capability: int, pdl: bool) -> dict:
    """Compiles the kernel of a file and reads its resources."""
    compiled, module = compiled_file(path, capability, pdl)
    cubin = compiled.asm["cubin"]
    return {
        "name": compiled.metadata.name,
        **resource_usage(cubin),
        **loads(compiled.asm["ptx"]),
        "shared_memory": compiled.metadata.shared,
        "num_warps": module.NUM_WARPS,
        "num_stages": module.NUM_STAGES,
        "cubin_bytes": len(cubin),
    }


def resource_usage(cubin: bytes) -> dict:
    """Registers and spilled bytes of a thread, as `cuobjdump -res-usage` says (`REG:40 STACK:0 SHARED:0 LOCAL:0 …`), and instructions, as `nvdisasm` lists them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
        listing = subprocess.run([TOOLS / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True).stdout
    usage = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    instructions = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?!NOP)[@A-Z]", listing)
    return {"registers": usage["REG"], "spills": max(usage["STACK"], usage["LOCAL"]), "instructions": len(instructions)}


def loads(ptx: str) -> dict:
    """Instructions that load from memory, and those that load 16 bytes a thread: `ld.global.v4.b32`, `ld.global.L1::evict_first.v2.b64`."""
    found = re.findall(r"\bld\.global\S*?(?:\.v(\d))?\.[bsuf](\d+)\b", ptx)
    return {"loads": len(found), "wide_loads": sum(int(count or 1) * int(bits) == 128 for count, bits in found)}


def main() -> None:
    request = json.loads(sys.argv[1])
    found = {}
    for path in request["paths"]:
        try:
            found[path] = compile_file(Path(path), request["capability"], request["pdl"])
        except Exception as error:  # Triton raises many classes; the parent reports the kernel by name
            found[path] = {"error": " ".join(f"{type(error).__name__}: {error}".split())[-400:]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
