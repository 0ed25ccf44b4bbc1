"""`lamella explain`: why a whole SwiGLU layer is not one kernel and a part of it is, what a pair of ops has to do with each other, two ledgers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lamella import api
from lamella.errors import ManifestError, PassError
from lamella.passes.fusion import Fusion
from lamella.passes.fusion_questions import Questions
from lamella.program import Program
from lamella.tools import cli
from lamella.tools.explain import explain
from lamella.tools.ledger_diff import Package, diff_text

MODELS = Path(__file__).resolve().parents[2] / "benchmarks" / "models"
WIDE = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
"num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-05,
"max_position_embeddings": 8192, "rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": false}"""
"""Llama-3.1-8B with two layers: each is like all others."""
TINY = str(MODELS / "tiny.json")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "config.json"
    path.write_text(WIDE)
    return path


@pytest.fixture(scope="module")
def program(wide: Path) -> Program:
    return api.compile(wide, random_weights=0, buckets=(1,), max_context=2048, until="plan")


@pytest.fixture(scope="module")
def fusion(wide: Path) -> Fusion:
    return api.decide_fusion(wide, random_weights=0, max_context=2048)


def test_explain_says_why_gate_up_and_the_activation_are_one_kernel(program: Program) -> None:
    (region,) = [r for r in program.ledger if r["verdict"] == "region" and "layers.1.ffn.gate" in r["ops"]]
    assert {"layers.1.ffn.gate", "layers.1.ffn.up", "layers.1.ffn.activation", "layers.1.ffn.gated"} <= set(region["ops"])
    assert "layers.1.ffn.down" not in region["ops"]
    text = explain(program.ledger)
    assert "contract at ffn.gate into contract at ffn.up: contractions on one x" in text
    assert "into map at ffn.gated: computed where its operands already are" in text


def test_explain_says_why_a_whole_swiglu_layer_is_not_one_kernel(program: Program) -> None:
    refused = [r for r in program.ledger if r["verdict"] == "refused" and "layers.1.ffn.down needs" in r["reason"]]
    assert [r["kind"] for r in refused] == ["anchors"]
    assert (
        "needs a whole row of x, 14336 columns, and no program of layers.1.ffn.gate holds more than a few of its 14336"
        in refused[0]["reason"]
    )
    assert "needs a whole row of x, 14336 columns" in explain(program.ledger)


def test_a_pair_in_one_launch(fusion: Fusion) -> None:
    answer = Questions(fusion).ask("ffn.gate", "ffn.up")
    assert answer.together and answer.first == "layers.1.ffn.gate"
    assert [e["kind"] for e in answer.recorded] == ["horizontal"]


def test_a_pair_in_two_launches(fusion: Fusion) -> None:
    answer = Questions(fusion).ask("layers.0.ffn.gate", "ffn.down")
    assert not answer.together and answer.second == "layers.0.ffn.down"
    (edge,) = answer.edges
    assert edge.kind == "anchors" and not edge.accepted and edge.benefit_us is None
    assert "14336 columns" in edge.reason


def test_the_order_of_the_names_does_not_matter(fusion: Fusion) -> None:
    assert Questions(fusion).ask("ffn.down", "ffn.gate").edges == Questions(fusion).ask("ffn.gate", "ffn.down").edges


def test_a_pair_far_apart_has_a_reason_for_each_step(fusion: Fusion) -> None:
    answer = Questions(fusion).ask("layers.0.attn.q", "layers.0.ffn.down")
    assert len(answer.edges) == 3
    assert all(edge.reason and not edge.accepted for edge in answer.edges)
    assert answer.alone.startswith("tile.attend") or answer.alone.startswith("contract: ")


def test_what_was_refused_for_its_price_says_what_it_would_lose(wide: Path) -> None:
    pointers = {"choose-implementation": {"descriptors": "off"}}
    fusion = api.decide_fusion(wide, random_weights=0, max_context=2048, bucket=512, library="off", pass_options=pointers)
    (edge,) = Questions(fusion).ask("attn_norm", "attn.q").edges
    assert edge.kind == "prologue" and edge.benefit_us is not None and edge.benefit_us < 0
    assert "every program of the contraction would recompute it" in edge.reason


def test_what_the_library_computes_takes_nothing_in(wide: Path) -> None:
    fusion = api.decide_fusion(wide, random_weights=0, max_context=2048, bucket=2048, library="on")
    (edge,) = Questions(fusion).ask("attn_norm", "attn.q").edges
    assert edge.kind == "prologue" and edge.reason == "library: it computes the product and what it adds, and no layers.1.attn_norm"


def test_tiles_of_descriptors_take_no_norm_in(wide: Path) -> None:
    fusion = api.decide_fusion(wide, random_weights=0, max_context=2048, bucket=2048)
    (edge,) = Questions(fusion).ask("attn_norm", "attn.q").edges
    assert edge.kind == "prologue" and edge.reason.startswith("contract: tiles come through descriptors, and each program would read")


def test_options_reach_the_pass(wide: Path) -> None:
    fusion = api.decide_fusion(wide, random_weights=0, max_context=2048, pass_options={"fuse-regions": {"horizontal": False}})
    answer = Questions(fusion).ask("ffn.gate", "ffn.up")
    assert not answer.together
    with pytest.raises(PassError, match=r"unknown option 'horizontl' \(known options: "):
        api.decide_fusion(wide, random_weights=0, max_context=2048, pass_options={"fuse-regions": {"horizontl": False}})
    with pytest.raises(PassError, match=r"no pass 'fuse' in the pipeline"):
        api.decide_fusion(wide, random_weights=0, max_context=2048, pass_options={"fuse": {"horizontal": False}})


def test_an_unknown_op_names_the_nearest(fusion: Fusion) -> None:
    with pytest.raises(PassError, match=r"no op 'ffn.gatee' \(nearest: .*ffn\.gate"):
        Questions(fusion).ask("ffn.gatee", "ffn.up")


def test_kinds_and_op_names_are_names_too(fusion: Fusion) -> None:
    assert {op.name for op in Questions(fusion).find("silu")} == {"tile.map"}
    assert {op.name for op in Questions(fusion).find("tile.attend")} == {"tile.attend"}


def test_the_commands_answer(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["explain", TINY, "--random-weights", "0", "--why-not", "ffn.gate", "ffn.down"]
    assert cli.main(given) == 0
    text = capsys.readouterr().out
    assert text.startswith("layers.1.ffn.gate and layers.1.ffn.down run in different launches\n")
    assert "because" in text and "whole row of x, 200 columns" in text
    assert cli.main([*given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["together"] is False
    assert cli.main([*given, "--set", "fuse-regions.max-depth=0"]) == 0
    assert "max-depth is 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain"], "no model, expected MODEL, or --diff DIR_A DIR_B"),
        (["explain", TINY, "--random-weights", "0", "--why-not", "ffn.gate", "ffn.dwn"], "no op 'ffn.dwn' (nearest: "),
        (["explain", TINY, "--random-weights", "0", "--set", "max-depth=2"], "--set: bad option of a pass, expected PASS.OPTION=VALUE"),
        (["explain", TINY, "--random-weights", "0", "--why-not", "a", "b", "--tokens", "1,16"], "--tokens: too many buckets"),
        (["explain", "--diff", "/nowhere", "/nowhere"], "/nowhere: no ledger.json, expected a folder that lamella compile wrote"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_what_matched_nothing_is_told(program: Program) -> None:
    notes = {(r["kind"], r["what"]): r["reason"] for r in program.ledger if r["verdict"] == "idle"}
    assert notes["split-linears", ""] == "no slice of a linear's columns"
    assert ("fuse-regions", "shared") in notes
    assert "on, but matched nothing" in explain(program.ledger)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The tiny model three times, the second without prologues."""
    folders: list[Path] = []
    for name, options in (("a", {}), ("b", {"fuse-regions": {"prologue": False}}), ("c", {})):
        folder = tmp_path_factory.mktemp("packages") / name
        folder.mkdir()
        api.compile(TINY, random_weights=0, buckets=(1,), pass_options=options).save(folder)
        folders.append(folder)
    return folders[0], folders[1], folders[2]


def test_equal_packages_do_not_differ(packages: tuple[Path, Path, Path]) -> None:
    text = diff_text(Package.read(packages[0]), Package.read(packages[2]))
    assert text == f"{packages[0]} and {packages[2]}: the same launches, decisions and kernels"


def test_packages_that_differ_say_where(packages: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--diff", str(packages[0]), str(packages[1])]) == 0
    text = capsys.readouterr().out
    first, second = (len(json.loads((p / "manifest.json").read_text())["buckets"][0]["launches"]) for p in packages[:2])
    assert first < second
    assert text.startswith(f"Bucket t1: {first} -> {second} launches\n")
    assert "refused: prologue is off" in text
    assert "\nLaunches\n" in text and "\nDecisions\n" in text and "\nKernels\n" in text


def test_a_broken_ledger_is_a_mistake(tmp_path: Path) -> None:
    for content, message in (("{", "is no JSON"), ('{"a": 1}', "holds no list of records")):
        (tmp_path / "ledger.json").write_text(content)
        with pytest.raises(ManifestError, match=message):
            Package.read(tmp_path)
