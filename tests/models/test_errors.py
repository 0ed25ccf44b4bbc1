"""Bad input through the real commands: each mistake is one clear line on stderr, exit code 2, and no trace on disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lamella.tools import cli, opt
from tests.models.model_files import save, write_config, write_folder, write_gguf

Capture = pytest.CaptureFixture[str]


def files(folder: Path) -> list[str]:
    """Everything under a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refusal(capsys: Capture, folder: Path, main: Callable[[list[str]], int], args: list[str], name: str = "lamella") -> str:
    """The line that a command which changes nothing under `folder` prints before it exits with 2."""
    before = files(folder)
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"{name}: error: ")
    assert "Traceback" not in err
    assert len(err) < 500
    assert files(folder) == before
    return err.removeprefix(f"{name}: error: ").rstrip("\n")


def check(capsys: Capture, folder: Path, args: list[str], *parts: str) -> None:
    """`lamella` refuses the arguments and says each of the parts."""
    line = refusal(capsys, folder, cli.main, args)
    for part in parts:
        assert part in line, line


def generate(model: Path | str, *options: str) -> list[str]:
    """Arguments that would run a model on the CPU."""
    return ["generate", str(model), "--device", "cpu", "--dtype", "float32", *(options or ("--prompt-ids", "1,2,3"))]


# --- the model


def test_no_such_path(tmp_path: Path, capsys: Capture) -> None:
    check(capsys, tmp_path, generate(tmp_path / "nowhere"), str(tmp_path / "nowhere"), "no such file or folder")
    for command in ("explain", "report"):
        check(capsys, tmp_path, [command, str(tmp_path / "nowhere")], "no such file or folder")
    check(capsys, tmp_path, ["compile", str(tmp_path / "nowhere"), "-o", str(tmp_path / "out")], "no such file or folder")


def test_a_folder_without_a_configuration(tmp_path: Path, capsys: Capture) -> None:
    check(capsys, tmp_path, generate(tmp_path), str(tmp_path), "holds no config.json")


def test_an_unknown_architecture_names_the_nearest(tmp_path: Path, capsys: Capture) -> None:
    config = write_config(tmp_path, architectures=["LlamoForCausalLM"], model_type="llamo")
    check(capsys, tmp_path, generate(config, "--prompt-ids", "1", "--random-weights", "0"), "unknown architecture", "nearest: Llama")
    file = write_gguf(tmp_path / "m.gguf", architecture="lama")
    check(capsys, tmp_path, generate(file), "unknown architecture lama", "nearest: llama")


def test_a_bare_configuration_needs_a_seed(tmp_path: Path, capsys: Capture) -> None:
    check(capsys, tmp_path, generate(write_config(tmp_path)), "no weights", "add --random-weights SEED")


def test_truncated_safetensors(tmp_path: Path, capsys: Capture) -> None:
    write_folder(tmp_path)
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    for keep in (4, 100, len(content) - 10):
        file.write_bytes(content[:keep])
        check(capsys, tmp_path, generate(tmp_path), str(file), "truncated")


def test_truncated_gguf(tmp_path: Path, capsys: Capture) -> None:
    file = write_gguf(tmp_path / "m.gguf")
    content = file.read_bytes()
    for keep in (100, len(content) - 64):
        file.write_bytes(content[:keep])
        check(capsys, tmp_path, generate(file), str(file), "truncated GGUF")


def test_missing_extra_and_misshapen_tensors(tmp_path: Path, capsys: Capture) -> None:
    tensors = write_folder(tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    save(tmp_path, {n: t for n, t in tensors.items() if n != name})
    check(capsys, tmp_path, generate(tmp_path), f"tensor {name}", "is missing")
    save(tmp_path, {**tensors, "model.layers.0.mlp.router.weight": torch.zeros(2, 2)})
    check(capsys, tmp_path, generate(tmp_path), "unexpected tensor model.layers.0.mlp.router.weight")
    save(tmp_path, {**tensors, name: torch.zeros(40, 32)})
    check(capsys, tmp_path, generate(tmp_path), name, "wrong shape, expected (48, 32), got (40, 32)")
    file = write_gguf(tmp_path / "m.gguf", drop=["blk.0.ffn_up.weight"])
    check(capsys, tmp_path, generate(file), "tensor blk.0.ffn_up.weight", "is missing")


def test_unsupported_element_types(tmp_path: Path, capsys: Capture) -> None:
    write_folder(tmp_path / "float8", dtype=torch.float8_e4m3fn)
    check(capsys, tmp_path, generate(tmp_path / "float8"), "element type", "got ")
    write_folder(tmp_path / "good")
    good = ["generate", str(tmp_path / "good"), "--prompt-ids", "1", "--device", "cpu"]
    check(capsys, tmp_path, [*good, "--dtype", "float8"], "--dtype", "float8", "bfloat16")
    config = write_config(tmp_path / "declared", torch_dtype="float64")
    check(capsys, tmp_path, ["explain", str(config), "--random-weights", "0"], "float64")


# --- the request


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A good folder, without a tokenizer, for contexts of up to 64 tokens."""
    write_folder(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--prompt", ""], ("the prompt is empty", "at least one token")),
        (["--prompt-ids", ""], ("the prompt is empty", "at least one token")),
        ([], ("either --prompt or --prompt-ids", "neither")),
        (["--prompt-ids", "1", "--prompt", "a"], ("either --prompt or --prompt-ids", "both")),
        (["--prompt-ids", "1;2"], ("--prompt-ids", "integers with commas between them")),
        (["--prompt-ids", "1,50"], ("outside the vocabulary", "expected 0 to 49, got 50")),
        (["--prompt-ids", ",".join("1" * 64)], ("longer than the context", "at most 63 tokens, got 64")),
        (["--prompt-ids", "1,2,3", "--max-context", "3"], ("longer than the context", "at most 2 tokens, got 3")),
        (["--prompt-ids", "1,2,3", "--max-new-tokens", "62"], ("longer than the context", "ask for at most 61 new tokens")),
        (["--prompt-ids", "1,2,3", "--max-new-tokens", "0"], ("--max-new-tokens",)),
        (["--prompt-ids", "1", "--max-context", "65"], ("max_context", "1 to 64", "got 65")),
        (["--prompt-ids", "1", "--temperature", "-1"], ("temperature", "at least 0", "got -1")),
        (["--prompt-ids", "1", "--temperature", "nan"], ("temperature", "got nan")),
        (["--prompt-ids", "1", "--top-p", "1.5"], ("top_p", "at most 1", "got 1.5")),
        (["--prompt-ids", "1", "--top-p", "0"], ("top_p", "above 0", "got 0")),
        (["--prompt-ids", "1", "--repetition-penalty", "0"], ("repetition_penalty", "above 0", "got 0")),
        (["--prompt-ids", "1", "--min-p", "2"], ("min_p", "from 0 to 1", "got 2")),
        (["--prompt-ids", "1", "--top-k", "-3"], ("top_k", "at least 0", "got -3")),
        (["--prompt-ids", "1", "--seed", "-1"], ("seed", "got -1")),
        (["--prompt", "Hello"], ("no tokenizer", "--prompt-ids")),
        (["--prompt-ids", "1", "--stop", "END"], ("stop strings need a tokenizer", "tokenizer.json")),
        (["--prompt-ids", "1", "--stop", ""], ("stop string is empty",)),
        (["--prompt-ids", "1", "--chat"], ("--chat needs text", "--prompt")),
        (["--prompt-ids", "1", "--tempreture", "1"], ("--tempreture", "--temperature")),
    ],
)
def test_bad_requests(model: Path, options: list[str], parts: tuple[str, ...], capsys: Capture) -> None:
    check(capsys, model, ["generate", str(model), "--device", "cpu", *options], *parts)


def test_requests_are_refused_before_weights_are_loaded(model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: object, **options: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("lamella.api.load", load)
    long = ",".join("1" * 64)
    for options in (
        ["--prompt-ids", long],
        ["--prompt-ids", "1", "--max-new-tokens", "64"],
        ["--prompt", "a"],
        ["--prompt-ids", "1", "--stop", "x"],
    ):
        refusal(capsys, model, cli.main, generate(model, *options))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("options", [["--device", "cuda"], ["--executor", "cuda"]])
def test_no_gpu(model: Path, options: list[str], capsys: Capture) -> None:
    check(capsys, model, ["generate", str(model), "--prompt-ids", "1", *options], "no CUDA GPU", "--device cpu")


def test_executor_and_device_that_do_not_fit(model: Path, capsys: Capture) -> None:
    check(capsys, model, ["generate", str(model), "--prompt-ids", "1", "--device", "cuda", "--executor", "reference"], "--device cpu")


# --- the output


def test_output_that_cannot_be_written(model: Path, tmp_path: Path, capsys: Capture) -> None:
    compile_ = ["compile", str(model), "--tokens", "1", "-o"]
    (tmp_path / "file").write_text("")
    check(capsys, tmp_path, [*compile_, str(tmp_path / "file" / "out")], "cannot write", str(tmp_path / "file" / "out"))
    check(capsys, tmp_path, [*compile_, str(tmp_path / "file")], "is a file")
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.tex").write_text("chapter one")
    check(capsys, tmp_path, [*compile_, str(taken)], "holds other files", "thesis.tex")
    assert (taken / "thesis.tex").read_text() == "chapter one"


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--until", "tile"], ("unknown stage 'tile'", "tiles")),
        (["--arch", "sm_89x"], ("architecture", "sm_90")),
        (["--arch", "gfx942"], ("architecture", "sm_90")),
        (["--tokens", "1,two"], ("--tokens", "integers with commas between them")),
        (["--tokens", "1,0"], ("--tokens", "each at least 1", "got '1,0'")),
        (["--tokens", ""], ("--tokens", "at least one")),
        (["--max-context", "65"], ("max_context", "1 to 64")),
        (["--dtype", "int3"], ("--dtype", "int3", "bfloat16")),
    ],
)
def test_a_refused_compilation_leaves_nothing(
    model: Path, tmp_path: Path, options: list[str], parts: tuple[str, ...], capsys: Capture
) -> None:
    check(capsys, tmp_path, ["compile", str(model), "-o", str(tmp_path / "out" / "deep"), *options], *parts)


# --- lamella-opt


@pytest.mark.parametrize(
    ("passes", "parts"),
    [
        ("fuse-region", ("unknown pass 'fuse-region'", "nearest: fuse-regions")),
        ("fuse-regions{depth=4}", ("fuse-regions", "depth")),
        ("specialize{tokens=many}", ("specialize", "tokens")),
        ("specialize{tokens=", ("does not parse",)),
    ],
)
def test_passes_and_options(tmp_path: Path, passes: str, parts: tuple[str, ...], capsys: Capture) -> None:
    (tmp_path / "a.mlir").write_text("func.func @f() {\n  func.return\n}\n")
    line = refusal(capsys, tmp_path, opt.main, [str(tmp_path / "a.mlir"), "-p", passes], "lamella-opt")
    for part in parts:
        assert part in line, line


def test_malformed_ir_is_located(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "a.mlir"
    file.write_text('func.func @f() {\n  %w = transformer.weight "embed" : tensor<4x\n  func.return\n}\n')
    line = refusal(capsys, tmp_path, opt.main, [str(file)], "lamella-opt")
    assert line.startswith((f"{file}:2:", f"{file}:3:")), line


# --- a process of its own


@pytest.mark.parametrize(
    ("module", "args", "text"),
    [
        ("lamella.tools.cli", ["generate", "nowhere", "--prompt", "a"], "lamella: error: nowhere: no such file or folder"),
        ("lamella.tools.opt", ["nowhere.mlir"], "lamella-opt: error: nowhere.mlir: cannot read"),
    ],
)
def test_exit_code_of_the_process(module: str, args: list[str], text: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", module, *args], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(text)
    assert files(tmp_path) == []
