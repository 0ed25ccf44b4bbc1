"""`lamella quantize` and `lamella perplexity` on tiny checkpoints: what is written, what it means, and what is left behind by a failure."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import lamella
from lamella.checkpoints import PackedSource
from lamella.checkpoints.own import ShardWriter
from lamella.errors import LamellaError
from lamella.frontends import open_model
from lamella.frontends.decoder import source_names
from lamella.program import Shape, step_body
from lamella.runtime import quantizer
from lamella.runtime.perplexity import perplexity
from lamella.runtime.quantizer import Moments, Recipe, quantize, relative_error
from lamella.runtime.walk import walk
from lamella.tools import cli
from lamella.tools.quantize_checkpoint import Settings, quantize_checkpoint
from lamella.tools.quantize_report import report_text
from tests.models.gguf_writer import FILES, write
from tests.models.model_files import write_folder
from tests.models.tiny_families import CASES, Case

FAMILIES = ["llama", "gpt2", "gpt_neox", "phi3", "gemma", "qwen3", "mixtral", "qwen2_moe", "granite", "cohere", "bloom"]
WIDE = Case("Llama", {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2})
TEXTS = [[5, 9, 2, 7, 1, 90, 33, 12, 40, 41, 17, 88], [3, 3, 96, 50, 61]]
IDS = [token for text in TEXTS for token in text]
PROMPT = [5, 9, 2, 7, 1, 90]


def quantized_folder(folder: Path, case: Case, **settings: Any) -> Path:
    """A tiny model, saved and quantized."""
    case.save(folder / "floats")
    made = folder / "packed"
    made.mkdir()
    quantize_checkpoint(open_model(folder / "floats"), made, Settings(**settings), IDS)
    return made


def logits(folder: Path, prompt: list[int], executor: str = "reference") -> torch.Tensor:
    """Of every token of a prompt: the reference takes one after the other, kernels all at once."""
    count = len(prompt) if executor == "interpret" else 1
    buckets = [1, 8] if count == 1 else [Shape(count, 1, count, count)]
    model = lamella.load(folder, device="cpu", dtype="float32", executor=executor, max_context=32, buckets=buckets)
    return model.session.forward_logits(prompt, range(len(prompt)))


def parameter_of(peer: torch.nn.Module, weight: str, stored: str) -> torch.Tensor:
    """What `transformers` has under the name of a weight in a checkpoint; it holds all experts of a layer together, gate and up in one."""
    if ".experts." not in weight:
        return peer.get_parameter(stored.replace("embed_out", "lm_head"))
    number, projection = weight.rpartition(".experts.")[2].split(".")
    experts = peer.get_submodule(f"model.layers.{weight.split('.')[1]}.mlp.experts")
    if projection == "down_proj":
        return experts.down_proj[int(number)]
    return experts.gate_up_proj[int(number)].chunk(2)[projection == "up_proj"]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_folder_means_the_model_with_its_weights_rounded(name: str, tmp_path: Path) -> None:
    """The logits are those of `transformers` whose weights are what the packed ones stand for; these are near the floats."""
    case = CASES[name]
    made = quantized_folder(tmp_path, case, kind="int8")
    opened = open_model(made)
    assert isinstance(opened.source, PackedSource)
    assert opened.config.packed
    peer, places = case.model(), source_names(opened.config)
    with torch.no_grad():
        for weight in opened.source.weights:
            parameter = parameter_of(peer, weight, places[weight])
            rounded = opened.source.load(weight)
            rounded = rounded.T if opened.config.transposed and weight.startswith("layers.") else rounded
            assert (rounded - parameter).norm() < 0.03 * parameter.norm()
            parameter.copy_(rounded)
        expected = peer(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits(made, PROMPT), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["int4", "fp8", "int8"])
def test_kinds_in_interpreted_kernels(kind: str, tmp_path: Path) -> None:
    """The reference and the printed kernels agree on a packed folder, one token and several, and bytes shrink."""
    made = quantized_folder(tmp_path, WIDE, kind=kind, head=kind)
    packed = open_model(made).config.packed
    assert {p.kind for p in packed.values()} == {kind}
    assert "lm_head" in packed
    for count in (1, 3):
        torch.testing.assert_close(logits(made, PROMPT[:count], "interpret"), logits(made, PROMPT[:count]), rtol=1e-4, atol=1e-4)
    size = sum(f.stat().st_size for f in made.glob("*.safetensors"))
    assert size < (0.55 if kind != "int4" else 0.45) * (tmp_path / "floats" / "model.safetensors").stat().st_size


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "gemma", "mixtral", "qwen2_moe"])
def test_a_walk_feeds_linears_what_transformers_feeds_them(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    peer = case.save(tmp_path)
    opened = open_model(tmp_path)
    places = source_names(opened.config)
    fed: dict[str, torch.Tensor] = {}

    def listen(module: str, layer: torch.nn.Module) -> None:
        def hear(_: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            fed[module] = given[0].flatten(0, -2)

        layer.register_forward_pre_hook(hear)

    for module, layer in peer.named_modules():
        if type(layer).__name__ in ("Linear", "Conv1D"):
            listen(module, layer)
    with torch.no_grad():
        peer(torch.tensor([TEXTS[0]]))
    found: dict[str, torch.Tensor] = {}
    step, config = step_body(opened.config), opened.config
    walk(
        step.body,
        step.inputs,
        step.weights,
        step.locations,
        source=opened.source,
        cache=(config.kv_heads, config.head_dim),
        texts=[TEXTS[1], TEXTS[0]],
        linear=lambda place, weight, x: found.setdefault(weight, x),
    )
    # Routers and experts are no linears there; what the layer behind them is fed shows what became of them.
    names = [weight for weight in found if weight.startswith("layers.") and not any(part in weight for part in (".router", ".experts."))]
    assert len(names) >= 8
    for weight in names:
        expected = fed[places[weight].removesuffix(".weight")]
        torch.testing.assert_close(found[weight][len(TEXTS[1]) :], expected, rtol=1e-4, atol=1e-4)


def test_the_report_measures_products(tmp_path: Path) -> None:
    """Every linear is there, errors are those of the products, and searching ranges lowers them."""
    WIDE.save(tmp_path / "floats")
    opened = open_model(tmp_path / "floats")
    means = {}
    for clip in (False, True):
        folder = tmp_path / f"packed {clip}"
        folder.mkdir()
        report = quantize_checkpoint(opened, folder, Settings(kind="int4", clip=clip, skip="*.down layers.1.attn.o"), IDS)
        by_name = {each.weight: each for each in report.linears}
        assert len(by_name) == 15
        assert by_name["layers.0.ffn.down_proj"].reason == "--skip *.down"
        assert by_name["layers.1.attn.o_proj"].reason == "--skip layers.1.attn.o"
        assert by_name["lm_head"].kind == "int8"
        errors = [each.error for each in report.linears if each.kind == "int4"]
        assert all(error is not None and 0.01 < error < 0.3 for error in errors)
        means[clip] = sum(errors) / len(errors)
        assert json.loads(json.dumps(report.json()))["calibration_tokens"] == len(IDS)
    assert means[True] < 0.9 * means[False]


MIXTURE = replace(
    CASES["mixtral"],
    changes={**CASES["mixtral"].changes, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16},
)


def test_experts_are_quantized_one_by_one(tmp_path: Path) -> None:
    """Each is fed the tokens that chose it, and its down projection what it made of them; the printed table has their mean."""
    MIXTURE.save(tmp_path / "floats")
    (tmp_path / "packed").mkdir()
    report = quantize_checkpoint(open_model(tmp_path / "floats"), tmp_path / "packed", Settings(kind="int4"), IDS[:3])
    experts = [each for each in report.linears if ".experts." in each.weight]
    layers = open_model(tmp_path / "floats").config.layers
    assert len(experts) == layers * 5 * 3
    assert {each.kind for each in experts} == {"int4"}
    # Three tokens choose two of five experts each: some are fed, and of those that nobody chose there is nothing to measure.
    measured = [each.error for each in experts if each.error is not None]
    assert layers * 2 * 3 <= len(measured) < len(experts)
    assert all(0.001 < error < 0.3 for error in measured)
    assert {each.weight for each in report.linears if each.reason} == {f"layers.{n}.ffn.router" for n in range(layers)}
    text = report_text(report)
    assert all(f"experts' {projection}" in text for projection in ("gate", "up", "down"))
    packed = open_model(tmp_path / "packed").config.packed
    assert {each.weight for each in experts} <= packed.keys()
    assert logits(tmp_path / "packed", PROMPT).isfinite().all()


def test_experts_in_one_tensor_are_quantized_as_one(tmp_path: Path) -> None:
    """A GGUF file of floats: what `lamella quantize` makes of it stays stacked, and is near it."""
    made = next(made for made in FILES if made.case == "qwen3_moe")
    changes = {**CASES["qwen3_moe"].changes, **made.changes, "hidden_size": 64, "moe_intermediate_size": 32, "num_attention_heads": 4}
    write(made, replace(CASES["qwen3_moe"], changes=changes).model(), tmp_path / "m.gguf")
    (tmp_path / "packed").mkdir()
    report = quantize_checkpoint(open_model(tmp_path / "m.gguf"), tmp_path / "packed", Settings(kind="int8"), IDS)
    found = {each.weight: each for each in report.linears}
    down = found["layers.0.ffn.experts.down_proj"]
    assert down.kind == "int8" and down.error is not None and 0.0005 < down.error < 0.03
    opened = open_model(tmp_path / "packed")
    assert opened.config.experts_stacked and "layers.0.ffn.experts.down_proj" in opened.config.packed
    expected = logits(tmp_path / "m.gguf", PROMPT)
    assert (logits(tmp_path / "packed", PROMPT) - expected).norm() < 0.05 * expected.norm()


def test_errors_are_relative_to_products() -> None:
    generator = torch.Generator().manual_seed(1)
    w, x = torch.randn(21, 96, generator=generator), torch.randn(7, 96, generator=generator)
    made = quantize(w, Recipe("int8", clip=False))
    rounded = made.rows(0, 21)
    expected = (x @ (rounded - w).T).norm() / (x @ w.T).norm()
    assert relative_error(w, made, x) == pytest.approx(float(expected), rel=1e-4)
    assert relative_error(torch.zeros(3, 32), quantize(torch.zeros(3, 32), Recipe("int4", 32, True)), x[:, :32]) == 0


@pytest.mark.parametrize(
    "recipe", [Recipe("int4", 32, True), Recipe("int4", 0), Recipe("int4", 64), Recipe("fp8")], ids=["32, mins", "rows", "64", "fp8"]
)
def test_columns_take_over_errors(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where columns of x depend on one another, products lose less than by rounding each weight for itself; in blocks of any size."""
    w, x = dependent()
    plain = relative_error(w, quantize(w, replace(recipe, clip=False), dtype=torch.float16), x)
    errors = []
    for block, band in ((2048, 1 << 21), (128, 192 * 7)):
        monkeypatch.setattr(quantizer, "BLOCK", block)
        monkeypatch.setattr(quantizer, "BAND", band)
        given = w.clone()
        made = quantize(given, recipe, Moments(x), torch.float16)
        assert torch.equal(given, w)
        errors.append(relative_error(w, made, x))
    assert errors[0] < 0.6 * plain
    assert errors[1] < 0.8 * plain


@pytest.mark.parametrize("recipe", [Recipe("int8"), Recipe("int8", 32), Recipe("fp8")], ids=["rows", "32", "fp8"])
def test_ranges_count_errors_by_what_is_multiplied(recipe: Recipe) -> None:
    """A weight so large that its row loses all else, at a column of x that is nearly 0: the search leaves it out."""
    w, x = dependent()
    w[:, 5], x[:, 5] = 40, 1e-4
    plain = relative_error(w, quantize(w, replace(recipe, clip=False), dtype=torch.float16), x)
    searched = relative_error(w, quantize(w, recipe, Moments(x), torch.float16), x)
    assert searched < 0.95 * plain


def dependent() -> tuple[torch.Tensor, torch.Tensor]:
    """A weight [40, 192] and what it multiplies: 400 rows, whose columns depend on one another."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(400, 24, generator=generator) @ torch.randn(24, 192, generator=generator)
    return torch.randn(40, 192, generator=generator), x + 0.1 * torch.randn(400, 192, generator=generator)


def test_strange_weights_stay_finite() -> None:
    """Zeros, equal numbers and columns that x never fills."""
    w = torch.cat((torch.zeros(2, 64), torch.full((2, 64), 0.3), torch.randn(2, 64)))
    x = torch.zeros(5, 64)
    x[:, 0] = 3
    for recipe in (Recipe("int4", 32, True), Recipe("int4", 32), Recipe("int8"), Recipe("fp8")):
        for moments in (None, Moments(x), Moments(torch.zeros(1, 64))):
            rounded = quantize(w, recipe, moments, torch.float16).rows(0, 6)
            assert rounded.isfinite().all()
            assert torch.equal(rounded[:2], w[:2])
            torch.testing.assert_close(rounded[2:4], w[2:4], rtol=0.02, atol=1e-3)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main(list(arguments))
    text = capsys.readouterr()
    return code, text.out, text.err


def test_commands_open_what_quantize_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command itself, its report, and generate, compile, inspect and explain on its folder; the floats are gone."""
    WIDE.save(tmp_path / "floats")
    folder, report = tmp_path / "packed", tmp_path / "report.json"
    code, out, err = run(
        capsys, "quantize", str(tmp_path / "floats"), "-o", str(folder), "--kind", "int4", "--group", "32", "--report", str(report)
    )
    assert (code, err) == (0, "")
    assert "int4" in out and "No text was given" in out and f"wrote {folder}" in out
    assert {each["kind"] for each in json.loads(report.read_text())["linears"]} == {"int4", "int8"}
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"] == "lamella"
    for file in (tmp_path / "floats").iterdir():
        file.unlink()
    code, out, err = run(
        capsys, "generate", str(folder), "--prompt-ids", "5,9,2", "--max-new-tokens", "3", "--ignore-eos", "--device", "cpu"
    )
    assert (code, err) == (0, "")
    assert len(out.strip().split(",")) == 3
    code, out, _ = run(capsys, "compile", str(folder), "-o", str(tmp_path / "program"), "--tokens", "1")
    assert code == 0
    assert "dequantize" in out
    code, out, _ = run(capsys, "inspect", str(folder))
    assert code == 0
    assert "lamella quantize" in out
    code, out, err = run(capsys, "quantize", str(folder), "-o", str(tmp_path / "again"))
    assert code == 2
    assert "quantized already" in err
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--group", "24"], "bad --group"),
        (["--group", "32", "--kind", "fp8"], "fp8 takes no --group"),
        (["--calibration", "nowhere.txt"], "has no tokenizer"),
        (["--report", "nowhere/report.json"], "no such folder"),
    ],
)
def test_bad_settings_are_one_line_and_leave_nothing(
    arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    WIDE.save(tmp_path / "floats")
    code, out, err = run(capsys, "quantize", "floats", "-o", "packed", *arguments)
    assert (code, out) == (2, "")
    assert expected in err and err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["floats"]


def test_a_failure_halfway_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk in the middle of the weights."""
    WIDE.save(tmp_path / "floats")
    written: list[str] = []
    write = ShardWriter.write

    def full(self: ShardWriter, name: str, tensor: torch.Tensor) -> None:
        written.append(name)
        if len(written) == 9:
            raise OSError(28, "No space left on device")
        write(self, name, tensor)

    monkeypatch.setattr(ShardWriter, "write", full)
    code, _, err = run(capsys, "quantize", str(tmp_path / "floats"), "-o", str(tmp_path / "packed"))
    assert code == 2
    assert "No space left on device" in err
    assert [p.name for p in tmp_path.iterdir()] == ["floats"]


def test_shards_and_their_index(tmp_path: Path) -> None:
    """Tensors are put into their places in any order; each file is one that safetensors reads; what is left out is noticed."""
    tensors = {f"t{i}": torch.randn(5, 3 + i) for i in range(6)} | {
        "f8": torch.randn(4, 4).to(torch.float8_e4m3fn),
        "w": torch.arange(6).int(),
    }
    kinds = {torch.float32: "f32", torch.float8_e4m3fn: "f8", torch.int32: "i32"}
    writer = ShardWriter(tmp_path, {name: (kinds[t.dtype], tuple(t.shape)) for name, t in tensors.items()}, most=200)
    with writer:
        for name in reversed(tensors):
            writer.write(name, tensors[name])
        writer.check()
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    for name, file in index["weight_map"].items():
        found = load_file(tmp_path / file)[name]
        assert torch.equal(found.view(torch.uint8), tensors[name].view(torch.uint8))
    (tmp_path / "again").mkdir()
    with ShardWriter(tmp_path / "again", {"a": ("f32", (2,))}) as again:
        with pytest.raises(ValueError, match="announced once as f32"):
            again.write("a", torch.zeros(3))
        with pytest.raises(ValueError, match="a was not written"):
            again.check()


def test_perplexity_is_that_of_transformers(tmp_path: Path) -> None:
    """Windows know nothing of one another, and a last one of one token predicts none."""
    peer = WIDE.save(tmp_path)
    model = lamella.load(tmp_path, device="cpu", dtype="float32", max_context=8, buckets=[Shape.decode(), Shape(8, 1, 8, 8)])
    ids = [*IDS, 11, 12][:17]
    found = perplexity(model.session, ids, 8)
    total = 0.0
    with torch.no_grad():
        for start in (0, 8):
            part = torch.tensor(ids[start : start + 8])
            scores = peer(part[None]).logits[0, :-1].log_softmax(-1)
            total -= float(scores[torch.arange(7), part[1:]].sum())
    assert (found.predicted, found.windows) == (14, 2)
    assert found.value == pytest.approx(math.exp(total / 14), rel=1e-5)
    with pytest.raises(LamellaError, match="the text is too short"):
        perplexity(model.session, ids[:1], 8)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "cannot be read"), (b"\xff\xfe", "no UTF-8"), (b"", "the text is empty"), (b"hello", "has no tokenizer")],
)
def test_perplexity_of_what_is_no_text(content: bytes | None, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    WIDE.save(tmp_path / "floats")
    text = tmp_path / "text.txt"
    if content is not None:
        text.write_bytes(content)
    code, _, err = run(capsys, "perplexity", str(tmp_path / "floats"), "--text", str(text))
    assert code == 2
    assert expected in err and err.count("\n") == 1


def test_memory_holds_one_layer_and_the_output_at_most(tmp_path: Path) -> None:
    """Of a model of 12 layers, of which the floats take twelve times as much as one: 1.2 layers beside the bytes that are written."""
    sizes = {"vocab_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8}
    write_folder(tmp_path / "small", dtype=torch.bfloat16, hidden_size=64, intermediate_size=96, **sizes)
    write_folder(tmp_path / "large", dtype=torch.bfloat16, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, **sizes)
    layer = 2 * (4 * 768 * 768 + 3 * 768 * 2048)
    command = [sys.executable, "-m", "tests.models.quantize_in_process", *(str(tmp_path / name) for name in ("small", "large", "out"))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert ran.returncode == 0, ran.stderr
    output = sum(f.stat().st_size for f in (tmp_path / "out" / "b").glob("*.safetensors"))
    assert output > 0.45 * 12 * layer
    assert json.loads(ran.stdout) < 1.2 * layer + output


def test_a_configuration_of_ours_that_somebody_edited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every field is checked: one line says which is wrong."""
    made = quantized_folder(tmp_path, WIDE)
    content = json.loads((made / "config.json").read_text())
    wrong = {
        "layers": [0, -1, 10**9, "2", None, 1.5],
        "norm_eps": ["small", None, True],
        "layer_kinds": [{}, [{"window": -1}], [{"window": 1}], [{"what": 1}]],
        "family": ["nothing", 3],
        "experts": [[], {"count": 2}],
        "eos": [5, ["a"]],
        "rope_scaling": [[], {"factor": {}}],
        "dtype": ["f64"],
        "strange": [1],
    }
    for name, values in wrong.items():
        for value in values:
            (made / "config.json").write_text(json.dumps({**content, "lamella_config": {**content["lamella_config"], name: value}}))
            code, _, err = run(capsys, "generate", str(made), "--prompt-ids", "1", "--device", "cpu")
            assert code == 2, (name, value, err)
            assert err.startswith("lamella: error: ") and err.count("\n") == 1
    assert code == 2
