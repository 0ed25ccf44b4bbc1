"""`lamella sweep`: one compilation a value, one row a bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lamella.errors import PassError
from lamella.tools import cli
from lamella.tools.sweep import Axis

TINY = str(Path(__file__).resolve().parents[2] / "benchmarks" / "models" / "tiny.json")


def test_an_axis_is_a_range_or_a_list() -> None:
    assert Axis.parse("fuse-regions.max-depth=0..3") == Axis("fuse-regions", "max-depth", (0, 1, 2, 3))
    assert Axis.parse("fuse-regions.prologue=true,false").values == (True, False)
    assert Axis.parse("fold-constants.max-growth=0.5,2,x").values == (0.5, 2, "x")
    assert Axis.parse("fuse-regions.policy=a,b.json", one=True).values == ("a,b.json",)


@pytest.mark.parametrize("text", ["max-depth=0..3", "fuse-regions.max-depth", "fuse-regions.=1", "fuse-regions.max-depth=", ".a=1"])
def test_a_bad_axis_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(PassError, match=r"--over: bad option of a pass, expected PASS\.OPTION=VALUES"):
        Axis.parse(text)


def test_an_empty_range_is_a_mistake() -> None:
    with pytest.raises(PassError, match=r"an empty range, got '3\.\.0'"):
        Axis.parse("fuse-regions.max-depth=3..0")


def test_more_depth_means_fewer_launches_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", TINY, "--random-weights", "0", "--over", "fuse-regions.max-depth=0..4", "--max-context", "128", "--json"]
    assert cli.main(command) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["value"] for row in rows] == [0, 1, 2, 3, 4]
    launches = [row["launches"] for row in rows]
    assert launches == sorted(launches, reverse=True) and launches[0] > launches[-1]
    assert rows[0]["bytes"] > rows[-1]["bytes"]


def test_the_table_has_a_row_a_bucket(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "sweep",
        TINY,
        "--random-weights",
        "0",
        "--over",
        "fuse-regions.prologue=true,false",
        "--tokens",
        "1,16",
        "--max-context",
        "64",
    ]
    assert cli.main(command) == 0
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert title == "fuse-regions.prologue"
    assert header.split("  ")[1:3] == ["prologue", "bucket"]
    assert [row.split()[:2] for row in rows] == [["true", "t1"], ["true", "t16"], ["false", "t1"], ["false", "t16"]]


def test_an_unknown_pass_or_option_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    for axis, message in (("fuse-region.max-depth=1", "no pass 'fuse-region'"), ("fuse-regions.depth=1", "unknown option 'depth'")):
        assert cli.main(["sweep", TINY, "--random-weights", "0", "--over", axis]) == 2
        assert message in capsys.readouterr().err
