"""Holds the shape of the repository: who may import whom, what a pass is called, how large a file grows."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamella import registry

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lamella"
FILES = sorted(PACKAGE.rglob("*.py"))

# Part -> the other parts it may import; `docs/architecture.md` draws the same arrows.
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "semantics": set(),
    "output": {"errors"},
    "verification": {"errors"},
    "checkpoints": {"errors"},
    "tokenizer": {"errors"},
    "dialects": {"errors"},
    "registry": {"errors"},
    "frontends": {"errors", "registry", "dialects", "checkpoints", "tokenizer"},
    "passes": {"errors", "dialects"},
    "lowering": {"errors", "dialects", "passes", "runtime.manifest"},
    "runtime": {"errors", "semantics", "checkpoints"},
    "pipeline": {"errors", "registry", "verification"},
    "program": {
        "errors",
        "pipeline",
        "dialects",
        "frontends",
        "passes.check_coalescing",
        "passes.fuse_regions",
        "passes.fusion",
        "lowering",
        "runtime.manifest",
        "registry",
    },
    "region_programs": {
        "errors",
        "pipeline",
        "program",
        "dialects",
        "frontends",
        "passes",
        "lowering",
        "runtime.manifest",
        "registry",
    },
    "tools": {
        "errors",
        "registry",
        "verification",
        "pipeline",
        "output",
        "api",
        "runtime",
        "checkpoints",
        "passes.check_coalescing",
        "passes.device",
        "passes.fusion_questions",
        "passes.tuning",
        "semantics",
        "program",
        "region_programs",
    },
}
NO_TORCH = ("dialects", "passes", "lowering", "registry", "pipeline", "verification", "output", "errors")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import of a file, also those inside functions; `from a import b` gives `a.b`."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def part_of(path: Path) -> str:
    """The folder of `lamella/` a file lies in, or the name of a file that lies in none."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def allowed(part: str, name: str) -> bool:
    """Whether files of `part` may import `name`, a dotted name within lamella without the `lamella.`"""
    return any(name == target or name.startswith(f"{target}.") for target in ARROWS[part] | {part, "__version__"})


def test_imports_follow_the_arrows() -> None:
    wrong: list[str] = []
    for path in FILES:
        part = part_of(path)
        if part not in ARROWS:
            continue
        for line, name in imports(path):
            if name.split(".")[0] == "lamella" and not allowed(part, name.partition(".")[2]):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {part} may not import {name}")
    assert not wrong, "\n".join(wrong)


def test_every_part_has_its_arrows() -> None:
    parts = {part_of(path) for path in FILES}
    assert parts - ARROWS.keys() <= {"__init__", "api", "__main__"}


def test_only_named_parts_import_torch_triton_and_xdsl() -> None:
    wrong: list[str] = []
    for path in FILES:
        part = part_of(path)
        for line, name in imports(path):
            library = name.split(".")[0]
            compiler_with_torch = part in NO_TORCH and library in {"torch", "triton", "transformers"}
            runtime_with_compiler = part in {"runtime", "semantics", "checkpoints"} and library == "xdsl"
            if compiler_with_torch or runtime_with_compiler:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {part} may not import {library}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", ["lamella.tools.opt", "lamella.pipeline", "lamella.registry"])
def test_the_compiler_loads_without_torch_and_triton(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'triton', 'transformers', 'numpy') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_loading_all_passes_loads_neither_torch_nor_triton() -> None:
    code = (
        "import sys; from lamella import registry\n"
        "for table in (registry.PASSES, registry.DIALECTS, registry.TARGETS):\n"
        "    for factory in table.values(): factory()\n"
        "print([m for m in ('torch', 'triton') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


@pytest.mark.parametrize("package", ["lamella.runtime", "lamella.semantics"])
def test_the_runtime_loads_without_the_compiler(package: str) -> None:
    folder = PACKAGE / package.split(".")[1]
    modules = [f"{package}.{path.stem}" for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]
    code = (
        f"import sys, importlib\nfor m in {modules!r}: importlib.import_module(m)\n"
        "compiler = ('xdsl', 'lamella.dialects', 'lamella.passes', 'lamella.lowering', 'lamella.pipeline', 'lamella.frontends')\n"
        "print([m for m in compiler if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "[]", result.stderr


@pytest.mark.parametrize("name", sorted(registry.LAMELLA_PASSES))
def test_a_pass_has_one_name(name: str) -> None:
    lazy = registry.LAMELLA_PASSES[name]
    module, symbol = lazy.module.split(".")[-1], lazy.symbol
    assert module == name.replace("-", "_")
    assert symbol == "".join(word.capitalize() for word in name.split("-"))
    cls = lazy()
    assert (cls.__name__, cls.name) == (symbol, name)
    assert cls.__doc__, f"{symbol} has no docstring: it is the contract of the pass"
    homes = [ROOT / "tests" / "filecheck" / folder / name for folder in ("passes", "lowering")]
    assert any(home.with_suffix(".mlir").is_file() or home.is_dir() for home in homes), f"no FileCheck file for {name}"


@pytest.mark.parametrize("name", sorted(registry.DIALECTS))
def test_a_dialect_has_one_name(name: str) -> None:
    assert registry.DIALECTS[name]().name == name


def test_no_file_is_named_after_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "tools_common", "base"}
    files = [p for folder in ("lamella", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
    assert [str(p.relative_to(ROOT)) for p in files if p.stem in vague] == []


def test_files_stay_small_and_say_what_they_do() -> None:
    long = [f"{p.relative_to(ROOT)}: {n} lines" for p in FILES if (n := len(p.read_text(encoding="utf-8").splitlines())) > 500]
    assert long == []
    mute = [str(p.relative_to(ROOT)) for p in FILES if (text := p.read_text(encoding="utf-8")) and not ast.get_docstring(ast.parse(text))]
    assert mute == [], "a module opens with one sentence: what enters, what leaves"


def test_nothing_reads_the_environment_but_for_triton() -> None:
    wrong: list[str] = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            reads = isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
            if reads and "TRITON_INTERPRET" not in path.read_text(encoding="utf-8"):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert wrong == []
