"""The documentation is true: generated pages are up to date, links lead somewhere, and the tutorial's changes and commands work."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lamella.tools import cli, opt, reference

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ANYTHING = "…"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, the file it belongs in (if it says one), and its lines."""

    language: str
    file: str
    lines: tuple[str, ...]
    number: int


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, with the numbers of their first lines."""
    found: list[Block] = []
    start: int | None = None
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        language, _, file = lines[start].removeprefix("```").partition(" ")
        found.append(Block(language, file, tuple(lines[start + 1 : number]), start + 2))
        start = None
    assert start is None, f"{page.name}:{start}: a block without an end"
    return found


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_generated_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main(["--check"]) == 0, capsys.readouterr().err


def test_a_stale_page_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, page in reference.PAGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(page(), encoding="utf-8")
    (tmp_path / "docs" / "passes.md").write_text("# Passes\n", encoding="utf-8")
    (tmp_path / "docs" / "passes" / "gone.md").write_text("# gone\n", encoding="utf-8")
    texts = {name: page() for name, page in reference.PAGES.items()}
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    monkeypatch.setattr(reference, "PAGES", {name: lambda text=text: text for name, text in texts.items()})
    assert reference.main(["--check"]) == 1
    stale = [line.partition(" ")[0] for line in capsys.readouterr().err.splitlines()]
    assert stale == ["docs/passes.md", "docs/passes/gone.md"]
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    assert not (tmp_path / "docs" / "passes" / "gone.md").exists()


def test_every_op_and_pass_is_in_the_reference() -> None:
    from lamella import registry

    dialects, index = reference.dialects_page(), reference.passes_page()
    assert [op.name for factory in registry.DIALECTS.values() for op in factory().operations if f"| `{op.name}` |" not in dialects] == []
    assert [name for name in registry.LAMELLA_PASSES if f"\n| [{name}](passes/{name}.md) | " not in index] == []


def test_every_pass_has_a_page_with_its_contract_and_a_case_of_its_test() -> None:
    from lamella import registry

    for name in registry.LAMELLA_PASSES:
        page = (ROOT / "docs" / "passes" / f"{name}.md").read_text(encoding="utf-8")
        case = page.split("## A case of its test")[1]
        assert page.startswith(f"# {name}\n"), name
        assert "// RUN: lamella-opt %s" in case, name
        assert "// CHECK" in case, name
        (test,) = (ROOT / "tests" / "filecheck").glob(f"[lp]*/{name}.mlir")
        block = case.split("```mlir\n")[1].removesuffix("```\n")
        assert test.read_text(encoding="utf-8").startswith(block.rstrip("\n")), name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken: list[str] = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (
            anchor and slug(anchor) not in {slug(h) for h in re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)}
        ):
            broken.append(target)
    assert broken == []


def test_the_picture_is_well_formed() -> None:
    picture = ElementTree.parse(ROOT / "docs" / "levels.svg").getroot()
    _, _, width, height = (float(n) for n in picture.attrib["viewBox"].split())
    outside = [
        e.text
        for e in picture.iter("{http://www.w3.org/2000/svg}text")
        if not (0 <= float(e.attrib["x"]) < width and 0 < float(e.attrib["y"]) <= height)
    ]
    assert outside == []


def test_the_manifest_of_the_architecture_page_has_every_field() -> None:
    from dataclasses import fields

    from lamella.runtime import manifest as m

    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    classes = (m.ModelSpec, m.CacheSpec, m.WeightSpec, m.ConstantSpec, m.Kernel, m.Bucket, m.Launch)
    assert [f"{c.__name__}.{f.name}" for c in classes for f in fields(c) if f'"{f.name}"' not in page] == []


def test_the_architecture_page_has_every_op_of_levels_1_and_2() -> None:
    from lamella import registry

    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"^\| ((?:`[a-z_0-9 ]+` ?)+)\|", page, flags=re.MULTILINE))))
    missing = [
        op.name for level in ("transformer", "tile") for op in registry.DIALECTS[level]().operations if op.name.split(".")[1] not in named
    ]
    assert missing == []


TUTORIALS = sorted((ROOT / "docs").glob("tutorial-*.md"))


def run(line: str, folder: Path, environment: Mapping[str, str], given: str | None = None) -> tuple[str, str]:
    """What a command line prints in a folder, and its errors."""
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, input=given, capture_output=True, text=True, check=False)
    return done.stdout, done.stderr


def run_here(line: str, folder: Path, environment: Mapping[str, str]) -> tuple[str, str]:
    """The same of a page that changes no source: our commands run in this process, which has loaded what they need."""
    ours, _, rest = line.partition(" | ")
    name, *arguments = shlex.split(ours.removesuffix(" 2>&1"))
    mains = {"lamella": cli.main, "lamella-opt": opt.main}
    if name not in mains:
        return run(line, folder, environment)
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(out if ours.endswith(" 2>&1") else err):
        patch.chdir(folder)
        mains[name](arguments)
    return run(rest, folder, environment, out.getvalue()) if rest else (out.getvalue(), err.getvalue())


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda p: p.stem)
def test_a_tutorial_works(page: Path, tmp_path: Path) -> None:
    """Its changes apply to a copy of the repository, and its commands print there what it says; `…` stands for anything."""
    changes = any(block.language in ("diff", "python") for block in blocks(page))
    for name in ("lamella", "tests", "docs", "benchmarks"):
        # With what Python made of the sources, whose times are copied too; but not while it is being written.
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(tmp_path), "TRITON_INTERPRET": "1"}
    commands = 0
    for block in blocks(page):
        text = "\n".join(block.lines) + "\n"
        where = f"{page.name}:{block.number}"
        if block.language == "diff":
            # A patch by its context: line numbers shift as the sources grow.
            apply = subprocess.run(
                ["git", "apply", "--recount", "-"], cwd=tmp_path, input=text, capture_output=True, text=True, check=False
            )
            assert apply.returncode == 0, f"{where}: {apply.stderr}"
        elif block.language == "console":
            commands += 1
            out, err = (run if changes else run_here)(block.lines[0].removeprefix("$ "), tmp_path, environment)
            pattern = re.escape("\n".join(block.lines[1:])).replace(re.escape(ANYTHING), r"(?s:.*)")
            assert re.fullmatch(pattern, out.rstrip("\n")), f"{where}: {block.lines[0]}\n{out}{err}"
        elif block.file:
            (tmp_path / block.file).write_text(text, encoding="utf-8")
    assert commands > 0
