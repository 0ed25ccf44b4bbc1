"""lamella-opt's mistakes are one line and exit code 2; verification between passes finds what xDSL's verifier does not."""

import json
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from lamella import pipeline, registry
from lamella.errors import IRError, LamellaError, PassError
from lamella.frontends.decoder import build
from lamella.frontends.huggingface import read_config
from lamella.pipeline import Options, Stage
from lamella.tools.opt import main
from lamella.verification import name_of, verify, verify_dominance, verify_legality

GOOD = """func.func @f(%a: i32) -> i32 {
  %b = arith.addi %a, %a : i32
  %c = arith.addi %a, %a : i32
  %d = arith.muli %b, %c : i32
  func.return %d : i32
}
"""


def parse(text: str) -> ModuleOp:
    return Parser(registry.context(), text, "test.mlir").parse_module()


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.mlir"
    path.write_text(GOOD)
    return str(path)


def mistake(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that `lamella-opt args` prints on stderr; nothing on stdout, exit code 2."""
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("lamella-opt: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("lamella-opt: error: ").rstrip("\n")


def test_a_good_file_is_printed_and_prints_the_same_again(good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([good, "-p", "canonicalize,cse"]) == 0
    first = capsys.readouterr().out
    assert first.count("arith.addi") == 1
    again = tmp_path / "again.mlir"
    again.write_text(first)
    assert main([str(again)]) == 0
    assert capsys.readouterr().out == first


def test_unknown_pass_names_the_nearest(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert mistake([good, "-p", "fuse-region"], capsys) == "unknown pass 'fuse-region' (nearest: fuse-regions, split-reductions)"


def test_unknown_option_names_pass_option_and_known_options(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = mistake([good, "-p", "specialize{token=3}"], capsys)
    assert text.startswith("pass 'specialize': unknown option 'token' (known options: ")
    assert "longest-query" in text


def test_bad_option_value_says_what_was_expected(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = mistake([good, "-p", "specialize{tokens=many}"], capsys)
    assert text.startswith("pass 'specialize': bad value for option 'tokens', expected ")
    assert "got many" in text


@pytest.mark.parametrize("spec", ["cse{", "cse{x", "cse cse", "{}"])
def test_a_pipeline_that_does_not_parse(spec: str, good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert mistake([good, "-p", spec], capsys).startswith(f"pass pipeline '{spec}' does not parse: ")


def test_malformed_ir_gives_file_line_and_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.mlir"
    path.write_text(GOOD.replace("%a, %a : i32\n  %c", "%a, : i32\n  %c"))
    assert mistake([str(path)], capsys).startswith(f"{path}:2:23: ")


def test_an_unknown_op_gives_file_line_and_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.mlir"
    path.write_text(GOOD.replace("arith.muli", "arith.mull"))
    text = mistake([str(path)], capsys)
    assert text.startswith(f"{path}:4:")
    assert "arith.mull" in text


def test_ir_that_is_not_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "binary.mlir"
    path.write_bytes(b"\xff\xfe\x00func")
    assert mistake([str(path)], capsys) == f"{path}: is not UTF-8 text"


def test_missing_file_and_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mistake([str(tmp_path / "none.mlir")], capsys) == f"{tmp_path}/none.mlir: cannot read: No such file or directory"
    assert mistake([str(tmp_path)], capsys) == f"{tmp_path}: cannot read: Is a directory"


def test_output_that_cannot_be_written(good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mistake([good, "-o", str(tmp_path / "no" / "out.mlir")], capsys).startswith(f"{tmp_path}/no/out.mlir: cannot write: ")


def test_unknown_target_stage_and_flag(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert mistake([good, "-t", "tritn"], capsys) == "unknown target 'tritn' (nearest: triton)"
    assert mistake([good, "--until", "tile"], capsys).startswith("unknown stage 'tile' (stages: model, specialized, tiles")
    assert mistake([good, "--until", "tiles{tokns=1}"], capsys).startswith("stage 'tiles': unknown option 'tokns' (known options: ")
    assert mistake([good, "--nonsense"], capsys) == "unrecognized arguments: --nonsense"


def test_illegal_ops_are_named_with_their_stage(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = mistake([good, "--legal", "tiles"], capsys)
    assert text.startswith(f"{good}: arith.addi: illegal after stage tiles, expected only ")


def test_debug_shows_the_traceback(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([good, "-p", "nope", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_stdout_stays_empty_after_a_mistake_in_a_later_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "undefined.mlir"
    path.write_text("func.func @f() -> i32 {\n  %a = arith.addi %b, %b : i32\n  %b = arith.constant 1 : i32\n  func.return %a : i32\n}\n")
    assert mistake([str(path), "-p", "cse"], capsys) == f"{path}: arith.addi: operand 0 (%b) does not dominate its use"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("%x = arith.addi %y, %y : i32\n %y = arith.constant 1 : i32", "arith.addi: operand 0 (%y)"),
        (
            '%x = "scf.execute_region"() ({\n %y = arith.constant 1 : i32\n scf.yield %z : i32 }) : () -> i32\n%z = arith.constant 1 : i32',
            "%z",
        ),
        (
            "cf.br ^b\n^a:\n %x = arith.addi %y, %y : i32\n func.return\n^b:\n %y = arith.constant 1 : i32\n cf.cond_br %c, ^a, ^d\n^d:",
            None,
        ),
        ("cf.cond_br %c, ^a, ^b\n^a:\n %y = arith.constant 1 : i32\n cf.br ^b\n^b:\n %x = arith.addi %y, %y : i32", "operand 0 (%y)"),
    ],
)
def test_dominance(body: str, complaint: str | None) -> None:
    module = parse(f"func.func @f(%c: i1) {{\n{body}\n func.return\n}}")
    module.verify()
    if complaint is None:
        verify_dominance(module)
        return
    with pytest.raises(IRError) as error:
        verify_dominance(module)
    assert complaint in str(error.value)


def test_a_location_is_found_on_the_op_or_around_it() -> None:
    module = parse('func.func @f() attributes {loc = "model"} {\n %a = arith.constant {loc = "layers.3.attn.q"} 1 : i32\n func.return\n}')
    names = [name_of(op) for op in module.walk()]
    assert names == ["builtin.module", "func.func at model", "arith.constant at layers.3.attn.q", "func.return at model"]


def test_a_verifier_message_starts_with_the_op_and_its_location() -> None:
    text = '%a = "arith.constant"() {value = 1 : i64, loc = "layers.0"} : () -> i32\n'
    module = parse(f"func.func @f() {{\n {text} func.return\n}}")
    with pytest.raises(IRError) as error:
        verify(module)
    assert str(error.value).startswith("arith.constant at layers.0: ")
    assert "\n" not in str(error.value)


def test_legality_names_single_ops() -> None:
    module = parse(GOOD)
    verify_legality(module, {"builtin", "func", "arith.addi", "arith.muli"}, "x")
    with pytest.raises(IRError, match=r"arith.muli: illegal after stage x, expected only arith.addi, builtin, func"):
        verify_legality(module, {"builtin", "func", "arith.addi"}, "x")


class Breaker(ModulePass):
    """Moves the first constant behind its users, which no verifier of xDSL notices."""

    name = "breaker"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        first = next(o for o in op.walk() if o.name == "arith.addi")
        block = first.parent
        assert block is not None and block.last_op is not None
        first.detach()
        block.insert_op_before(first, block.last_op)


class Refuser(ModulePass):
    """Refuses every module."""

    name = "refuser"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        raise PassError("nothing to do")


def test_verification_runs_after_each_pass(good: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(registry, "PASSES", {**registry.PASSES, "breaker": lambda: Breaker, "refuser": lambda: Refuser})
    assert mistake([good, "-p", "breaker"], capsys) == (
        f"{good}: after pass 'breaker': arith.muli: operand 0 (%b) does not dominate its use"
    )
    assert mistake([good, "-p", "refuser"], capsys) == "nothing to do"
    assert main([good, "-p", "breaker", "--disable-verify"]) == 0


STAGES = (
    Stage("first", (pipeline.PassSpec("canonicalize"),), frozenset({"builtin", "func", "arith"})),
    Stage("second", (pipeline.PassSpec("cse"), pipeline.PassSpec("dce")), frozenset({"builtin", "func"})),
)


def test_run_times_dumps_and_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "STAGES", STAGES)
    timing, snapshots = pipeline.Timing(), pipeline.Snapshots()
    module = pipeline.run(parse(GOOD), Options(), until="first", instruments=(timing, snapshots, pipeline.DumpDir(tmp_path)))
    assert [name for name, _ in timing.passes] == ["canonicalize"]
    assert [p.name for p in tmp_path.iterdir()] == ["01-first.mlir"]
    assert (tmp_path / "01-first.mlir").read_text() == snapshots.ir["first"] == pipeline.text(module)
    with pytest.raises(IRError, match="illegal after stage second"):
        pipeline.run(module, Options(), after="first", instruments=(timing,))
    assert [name for name, _ in timing.passes] == ["canonicalize", "cse", "dce"]
    with pytest.raises(IRError, match="illegal after stage second"):
        pipeline.run(parse(GOOD), Options(), verify_each=True, instruments=(timing,))
    assert [name for name, _ in timing.passes[3:]] == ["canonicalize", "cse"]


def test_run_refuses_unknown_and_backward_stages() -> None:
    with pytest.raises(PassError, match="unknown stage 'tile'"):
        pipeline.run(parse(GOOD), Options(), until="tile")
    with pytest.raises(PassError, match="stage 'model' comes before stage 'tiles'"):
        pipeline.run(parse(GOOD), Options(), after="tiles", until="model")


def test_every_option_of_a_stage_is_a_field_of_options() -> None:
    for stage in pipeline.STAGES:
        for spec in stage.passes:
            assert spec.build(Options()).name == spec.name


def test_lamella_opt_reaches_the_stages_that_the_api_reaches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 48}
    config_file = tmp_path / "config.json"
    config_file.write_text(json.dumps({"model_type": "llama", "vocab_size": 64, "max_position_embeddings": 64, **facts}))
    module = build(read_config(config_file)[0], dtype="f32", block=16)
    source = tmp_path / "input.mlir"
    source.write_text(pipeline.text(module))
    snapshots = pipeline.Snapshots()
    options = Options(tokens=3, longest_query=3, blocks=4, length=64)
    pipeline.run(module, options, verify_each=True, instruments=(snapshots,))
    given = "{tokens=3 longest-query=3 blocks=4 length=64}"
    for stage in pipeline.stage_names():
        assert main([str(source), "--until", stage + given]) == 0
        assert capsys.readouterr().out == snapshots.ir[stage]
    regions = tmp_path / "regions.mlir"
    regions.write_text(snapshots.ir["regions"])
    assert main([str(regions), "--legal", "regions", "--stage", "buffers"]) == 0
    assert capsys.readouterr().out == snapshots.ir["buffers"]


def test_errors_are_one_line() -> None:
    assert str(LamellaError("a\nb", where="w", expected="x", got="y", remedy="z")) == "w: a b, expected x, got y (z)"
