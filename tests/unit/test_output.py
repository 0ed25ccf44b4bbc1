"""An output folder appears complete or not at all, and replaces nothing that a compilation did not write."""

from pathlib import Path

import pytest

from lamella.errors import OutputError
from lamella.output import output_folder


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_new_folder_and_its_parents_appear_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    with output_folder(target) as work:
        assert not target.exists()
        (work / "manifest.json").write_text("{}")
    assert names(target) == ["manifest.json"]
    assert names(target.parent) == ["b"]
    assert target.stat().st_mode & 0o700 == 0o700


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), output_folder(tmp_path / "a" / "b") as work:
        (work / "manifest.json").write_text("{")
        raise RuntimeError
    assert names(tmp_path) == []


def test_an_earlier_output_is_replaced_whole_and_kept_after_an_error(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with output_folder(target) as work:
        (work / "01-model.mlir").write_text("old")
        (work / "kernels").mkdir()
    with pytest.raises(RuntimeError), output_folder(target) as work:
        raise RuntimeError
    assert names(target) == ["01-model.mlir", "kernels"]
    with output_folder(target) as work:
        (work / "manifest.json").write_text("{}")
    assert names(target) == ["manifest.json"]
    assert names(tmp_path) == ["out"]


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match=r"holds other files \('thesis.tex'\)"), output_folder(tmp_path):
        pytest.fail("the body must not run")
    assert names(tmp_path) == ["thesis.tex"]


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(OutputError, match="exists and is a file"), output_folder(file):
        pytest.fail("the body must not run")
    with pytest.raises(OutputError, match="cannot write: Not a directory"), output_folder(file / "out"):
        pytest.fail("the body must not run")


def test_a_place_that_refuses_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(**_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(OutputError, match=r"out: cannot write: Permission denied \(choose another"), output_folder(tmp_path / "in" / "out"):
        pytest.fail("the body must not run")
    assert names(tmp_path) == []


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write: No space left"), output_folder(tmp_path / "out"):
        raise OSError(28, "No space left on device")
    assert names(tmp_path) == []
