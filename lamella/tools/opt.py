"""IR text goes in, passes run over it, IR text (or a target's output) leaves: `lamella-opt FILE -p 'a,b{x=1}'`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
import traceback
from collections.abc import Sequence
from io import StringIO
from typing import IO

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass, PassPipeline
from xdsl.utils.arg_spec import ArgSpec, parse_spec
from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException, ParseError
from xdsl.utils.target import Target
from xdsl.xdsl_opt_main import xDSLOptMain

from lamella import pipeline, registry
from lamella.errors import IRError, LamellaError, OutputError, PassError, nearest
from lamella.verification import verify

SEPARATOR = "// -----"


class Arguments(argparse.ArgumentParser):
    """An argument parser that reports a mistake as one line, without the usage text."""

    def error(self, message: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise PassError(message)


@dataclasses.dataclass(frozen=True)
class Step:
    """A pass, and the stage whose legality is checked after it (None: a pass given with -p)."""

    built: ModulePass
    stage: pipeline.Stage | None = None


class LamellaOpt(xDSLOptMain):
    """xDSL's driver with Lamella's registry, dominance checks between passes, and one-line errors."""

    version_format = "lamella-opt on xDSL {xdsl_version}"

    def __init__(self, args: Sequence[str] | None = None) -> None:
        self.available_frontends = {}
        self.available_passes = dict(registry.PASSES)
        self.available_targets = {"mlir": registry.Lazy[type[Target]]("xdsl.targets.mlir", "MLIRTarget"), **registry.TARGETS}
        self.ctx = registry.context()
        self.register_all_frontends()
        parser = Arguments(prog="lamella-opt", description="Runs passes over IR text and prints the result.")
        self.register_all_arguments(parser)
        self.args = parser.parse_args(args)
        self.ctx.allow_unregistered = self.args.allow_unregistered_dialect
        self.setup_target()
        self.setup_pipeline()

    def register_all_frontends(self) -> None:
        from xdsl.frontend import get_all_frontends

        self.available_frontends = dict(get_all_frontends())

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        super().register_all_arguments(arg_parser)
        stages = ", ".join(pipeline.stage_names())
        arg_parser.add_argument("--stage", help=f"after -p, run the passes of one stage, as 'tiles' or 'specialized{{tokens=8}}': {stages}")
        arg_parser.add_argument("--until", help="after -p, run every stage up to this one, as 'kernels{tokens=8 arch=sm_90}'")
        arg_parser.add_argument("--legal", metavar="STAGE", help="check the input against the dialects that are legal after a stage")
        arg_parser.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def setup_target(self) -> None:
        """Check -t before any input is read."""
        spec = _parse(self.args.target, "target")
        if spec.name not in self.available_targets:
            raise PassError(f"unknown target '{spec.name}'", remedy=nearest(spec.name, self.available_targets))

    def setup_pipeline(self) -> None:
        steps = [Step(built) for built in registry.parse_passes(self.args.passes)]
        if self.args.stage:
            steps += self.stage_steps(self.args.stage, alone=True)
        if self.args.until:
            steps += self.stage_steps(self.args.until, alone=False)
        self.steps = tuple(steps)
        self.pipeline = PassPipeline(tuple(step.built for step in steps))

    def stage_steps(self, text: str, alone: bool) -> list[Step]:
        """The passes of the stage that `text` names, or (not `alone`) of all stages up to it."""
        spec = _parse(text, "stage")
        number = pipeline.stage_number(spec.name)
        named = ArgSpec(pipeline.Options.name, spec.parameters)
        registry.check_options(pipeline.Options, named, f"stage '{spec.name}'")
        options = pipeline.Options.from_spec(named)
        stages = pipeline.STAGES[number - 1 if alone else 0 : number]
        return [Step(one.build(options), stage) for stage in stages for one in stage.passes]

    def run(self) -> None:
        """Process each chunk of the input. With --verify-diagnostics a chunk's mistake is printed in place of its result."""
        output = self.prepare_output()
        try:
            chunks, extension = self.prepare_input()
            for index, (chunk, offset) in enumerate(chunks):
                if index > 0:
                    output.write(f"{SEPARATOR}\n")
                with chunk:
                    output.write(self.chunk_result(chunk, extension, offset))
                output.flush()
        finally:
            if output is not sys.stdout:
                output.close()

    def chunk_result(self, chunk: IO[bytes], extension: str, offset: int) -> str:
        """What one chunk prints. Raises LamellaError unless --verify-diagnostics or --parsing-diagnostics asks for its text."""
        try:
            module = self.parse_chunk(chunk, extension, offset)
            assert module is not None
            self.apply_passes(module)
            return self.output_resulting_program(module)
        except ParseError as error:
            error.span = dataclasses.replace(error.span, line_offset=offset)
            mistake = IRError(error.msg, where=str(error.span.get_location()))
            if self.args.parsing_diagnostics or self.args.verify_diagnostics:
                return f"{mistake}\n"
            raise mistake from error
        except UnicodeDecodeError as error:
            raise IRError("is not UTF-8 text", where=self.get_input_name()) from error
        except (DiagnosticException, LamellaError) as error:
            mistake = error if isinstance(error, LamellaError) else IRError(str(error))
            if self.args.verify_diagnostics:
                return f"{mistake}\n"
            if isinstance(mistake, IRError):
                mistake = IRError(str(mistake), where=self.get_input_name())
            raise mistake from error

    def apply_passes(self, prog: ModuleOp) -> None:
        if not self.args.disable_verify:
            legal = pipeline.STAGES[pipeline.stage_number(self.args.legal) - 1] if self.args.legal else None
            verify(prog, legal and legal.legal, legal.name if legal else "")
        for step in self.steps:
            start = time.perf_counter()
            pipeline.apply(self.ctx, prog, step.built)
            if self.args.time_passes:
                print(f"{step.built.name}: {time.perf_counter() - start:.3f} s", file=sys.stderr)
            if not self.args.disable_verify:
                self.verify_after(prog, step)
            if self.args.print_between_passes and step is not self.steps[-1]:
                print(f"// IR after {step.built.name}:\n{pipeline.text(prog)}")

    def verify_after(self, prog: ModuleOp, step: Step) -> None:
        """Verify `prog` after a step. Raises IRError that names the pass."""
        try:
            verify(prog, step.stage and step.stage.legal, step.stage.name if step.stage else "")
        except IRError as error:
            raise IRError(str(error), where=f"after pass '{step.built.name}'") from error

    def output_resulting_program(self, prog: ModuleOp) -> str:
        spec = _parse(self.args.target, "target")
        cls = registry.TARGETS[spec.name]() if spec.name in registry.TARGETS else None
        if cls is None:
            return super().output_resulting_program(prog).rstrip("\n") + "\n"
        registry.check_options(cls, spec, f"target '{spec.name}'")
        out = StringIO()
        cls.from_spec(spec).emit(self.ctx, prog, out)
        return out.getvalue()

    def prepare_output(self) -> IO[str]:
        try:
            return super().prepare_output()
        except OSError as error:
            raise OutputError(f"cannot write: {error.strerror}", where=self.args.output_file) from error

    def get_input_stream(self) -> tuple[IO[bytes], str]:
        if self.args.input_file in (None, "-"):
            return sys.stdin.buffer, "mlir"
        try:
            return super().get_input_stream()[0], "mlir"
        except OSError as error:
            raise IRError(f"cannot read: {error.strerror}", where=self.args.input_file) from error


def _parse(text: str, what: str) -> ArgSpec:
    """`name{key=value …}` as a spec. Raises PassError."""
    try:
        return parse_spec(text)
    except ArgSpecParseError as error:
        raise PassError(f"{what} '{text}' does not parse: {str(error).strip().splitlines()[-1].strip()}") from error


def main(args: Sequence[str] | None = None) -> int:
    """Run the driver. Returns 0, 2 after a user's mistake or 1 after a fault of a pass, each reported in one line on stderr."""
    debug = "--debug" in (sys.argv[1:] if args is None else args)
    try:
        LamellaOpt(args).run()
    except LamellaError as error:
        if debug:
            traceback.print_exc()
        print(f"lamella-opt: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
    except Exception as error:
        if debug:
            raise
        print(f"lamella-opt: internal error: {type(error).__name__}: {' '.join(str(error).split())} (--debug shows where)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
