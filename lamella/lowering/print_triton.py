"""Prints a `kernel.func` as one importable Python file of Triton source: one op, one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial, singledispatchmethod
from typing import IO, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.target import Target

from lamella.dialects import kernel
from lamella.dialects.kernel.types import DescriptorType, PointerType, element, shape
from lamella.errors import PassError
from lamella.lowering.triton_bytes import BYTES, functions
from lamella.lowering.triton_expressions import SIGNATURE_TYPES, expression, literal, policies, reduce_arguments, takes_literal
from lamella.lowering.triton_names import coalesce, hint, parameter_names, reserved_names, unique


def print_module(module: ModuleOp, func: kernel.FuncOp | str) -> str:
    """The Triton file of one kernel of `module`, given as op or by name. Raises PassError for a kernel or op it does not know."""
    kernels = {op.sym_name.data: op for op in module.walk() if isinstance(op, kernel.FuncOp)}
    name = func if isinstance(func, str) else func.sym_name.data
    if name not in kernels:
        raise PassError("no such kernel in the module", where=f"@{name}", expected=", ".join(sorted(kernels)) or "a module with kernels")
    return print_kernel(kernels[name])


def print_kernel(func: kernel.FuncOp) -> str:
    """The Triton file of `func`: SIGNATURE, NUM_WARPS, NUM_STAGES and, if it has one, MAX_REGISTERS as data, combination functions, and the kernel itself."""
    names, reserved = parameter_names(func), reserved_names(func)
    printer = _Printer(reserved, reserved | set(names), coalesce(func), dict(zip(func.body.block.args, names, strict=True)))
    printer.write(f"def {func.sym_name.data}({', '.join([*names, *_switches(func)])}):")
    printer.block(func.body.block)
    return "\n".join(
        [*_header(func, names), *functions(list(func.walk())), *printer.combinations, "", "", "@triton.jit", *printer.lines, ""]
    )


@dataclass(frozen=True)
class TritonTarget(Target):
    """`-t triton`: every kernel of the module, each as the file that a compiled model would hold."""

    name: ClassVar[str] = "triton"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        output.write("\n\n".join(print_kernel(op) for op in module.walk() if isinstance(op, kernel.FuncOp)))


def _header(func: kernel.FuncOp, names: Sequence[str]) -> list[str]:
    warps, stages = func.num_warps.value.data, func.num_stages.value.data
    entries = (f'"{name}": "{_signature_type(value)}"' for name, value in zip(names, func.body.block.args, strict=True))
    return [
        f'"""Kernel {func.sym_name.data}, printed by Lamella: {warps} warp{"s" * (warps > 1)}, {stages} stage{"s" * (stages > 1)}."""',
        "",
        "import triton",
        "import triton.language as tl",
        "",
        f"SIGNATURE = {{{', '.join(entries)}}}",
        f"NUM_WARPS = {warps}",
        f"NUM_STAGES = {stages}",
        *([f"MAX_REGISTERS = {func.max_registers.value.data}"] if func.max_registers is not None else []),
    ]


def _signature_type(value: SSAValue) -> str:
    """`*bf16` for a pointer, `tensordesc<bf16[128, 64]>` for a descriptor, `i32` for a number."""
    if isinstance(value.type, DescriptorType):
        return f"tensordesc<{SIGNATURE_TYPES[element(value.type.element)]}{list(value.type.block)}>"
    if isinstance(value.type, PointerType):
        return "*" + SIGNATURE_TYPES[element(value.type.element)]
    return SIGNATURE_TYPES[element(value)]


def _switches(func: kernel.FuncOp) -> list[str]:
    """The constexpr parameters that let one text run everywhere."""
    switches: list[str] = []
    ops = list(func.walk())
    if any(isinstance(op, kernel.DotOp) and element(op.a) == "bf16" for op in ops):
        # Triton's interpreter multiplies the raw bits of bf16 operands: the interpret executor passes tl.float32 here.
        switches.append("DOT: tl.constexpr = tl.bfloat16")
    if any(isinstance(op, BYTES) for op in ops):
        switches.append("ASM: tl.constexpr = True")
    if any(isinstance(op, kernel.LaunchDependentsOp | kernel.WaitPrerequisitesOp) for op in ops):
        switches.append("PDL: tl.constexpr = False")
    return switches


@dataclass
class _Printer:
    """The lines of one function, and the names given so far."""

    reserved: set[str]
    taken: set[str]
    shared: dict[SSAValue, SSAValue]
    names: dict[SSAValue, str]
    lines: list[str] = field(default_factory=list[str])
    combinations: list[str] = field(default_factory=list[str])
    depth: int = 0

    def write(self, text: str, op: Operation | None = None) -> None:
        """One line, and the source of `op` as its comment."""
        source = op.attributes.get("source") if op is not None else None
        comment = f"  # {source.data}" if isinstance(source, StringAttr) else ""
        self.lines.append("    " * self.depth + text + comment)

    def define(self, value: SSAValue) -> str:
        """The variable of `value`: that of the value it is shared with, or a new one."""
        if value not in self.names:
            shared = self.shared.get(value)
            self.names[value] = self.define(shared) if shared is not None else unique(hint(value), self.taken)
        return self.names[value]

    def use(self, op: Operation, value: SSAValue) -> str:
        """`value` as an operand of `op`: a variable, or a literal where Triton gives it the right type."""
        owner = value.owner
        if isinstance(owner, kernel.ConstantOp) and takes_literal(value, op):
            return literal(owner)
        return self.names[value]

    def block(self, block: Block, closing: Sequence[tuple[SSAValue, SSAValue]] = ()) -> None:
        """The ops of a block, indented, and the assignments `closing` at its end."""
        self.depth += 1
        start = len(self.lines)
        for op in block.ops:
            self.statement(op)
        if block.last_op is not None:
            self.assign(closing, block.last_op)
        if len(self.lines) == start:
            self.write("pass")
        self.depth -= 1

    @singledispatchmethod
    def statement(self, op: Operation) -> None:
        """The line of an op: an assignment of its results, unless another rule is registered."""
        text = expression(op, partial(self.use, op))
        self.write(f"{', '.join([self.define(result) for result in op.results])} = {text}", op)

    @statement.register(kernel.ReturnOp | kernel.YieldOp)
    def _(self, op: kernel.ReturnOp | kernel.YieldOp) -> None:
        """Ends are printed with what they end."""

    @statement.register
    def _(self, op: kernel.ConstantOp) -> None:
        if shape(op.result) or not all(takes_literal(op.result, use.operation) for use in op.result.uses):
            self.write(f"{self.define(op.result)} = {expression(op, partial(self.use, op))}", op)

    @statement.register
    def _(self, op: kernel.ReduceOp) -> None:
        use = partial(self.use, op)
        text = expression(op, use)
        if op.combine is not None:
            text = f"tl.reduce({reduce_arguments(op, use, self.combination(op.combine.block))})"
        self.write(f"{self.define(op.result)} = {text}", op)

    def combination(self, block: Block) -> str:
        """Writes the function that combines two elements, to stand before the kernel, and returns its name."""
        name = unique("combine", self.taken)
        inner = _Printer(self.reserved, self.reserved | {name}, {}, {})
        inner.write(f"def {name}({', '.join(inner.define(value) for value in block.args)}):")
        inner.depth = 1
        for op in block.ops:
            inner.statement(op)
        last = block.last_op
        assert isinstance(last, kernel.YieldOp)
        inner.write(f"return {inner.use(last, last.arguments[0])}")
        self.combinations += ["", "", "@triton.jit", *inner.lines]
        return name

    @statement.register
    def _(self, op: kernel.StoreOp) -> None:
        words = [f"{self.use(op, op.pointer)} + {self.use(op, op.offsets)}", self.use(op, op.value)]
        if op.mask is not None:
            words.append(f"mask={self.use(op, op.mask)}")
        self.write(f"tl.store({', '.join(words + policies(op))})", op)

    @statement.register
    def _(self, op: kernel.AtomicAddOp) -> None:
        used = f"{self.define(op.result)} = " if any(op.result.uses) else ""
        self.write(used + expression(op, partial(self.use, op)), op)

    @statement.register
    def _(self, op: kernel.ForOp) -> None:
        block = op.body.block
        index, *carried = block.args
        self.assign(list(zip(carried, op.inits, strict=True)), op)
        low, high, step = (self.use(op, bound) for bound in (op.low, op.high, op.step))
        bounds = f"{low}, {high}" + ("" if step == "1" else f", {step}")
        stages = f", num_stages={op.num_stages.value.data}" if op.num_stages is not None else ""
        call = "tl.static_range" if op.unroll is not None else "tl.range" if stages else "range"
        self.write(f"for {self.define(index)} in {call}({bounds}{stages}):", op)
        last = block.last_op
        assert isinstance(last, kernel.YieldOp)
        self.block(block, list(zip(carried, last.arguments, strict=True)))
        for result, value in zip(op.res, carried, strict=True):
            self.names[result] = self.names[value]

    def assign(self, pairs: Sequence[tuple[SSAValue, SSAValue]], op: Operation) -> None:
        """`targets = values`, all at once: a value that would be overwritten before it is read is kept in a temporary."""
        named = [(self.define(target), self.use(op, value)) for target, value in pairs]
        waiting: list[tuple[str, str]] = [(target, value) for target, value in named if target != value]
        while waiting:
            ready = next((pair for pair in waiting if all(pair[0] != value for _, value in waiting)), None)
            if ready is not None:
                self.write(f"{ready[0]} = {ready[1]}", op)
                waiting.remove(ready)
                continue
            kept = waiting[0][0]
            temporary = unique(f"{kept}_before", self.taken)
            self.write(f"{temporary} = {kept}", op)
            waiting = [(target, temporary if value == kept else value) for target, value in waiting]

    @statement.register
    def _(self, op: kernel.IfOp) -> None:
        self.branch(op, "if")

    def branch(self, op: kernel.IfOp, word: str) -> None:
        """An `if` or `elif`; a branch that holds nothing but another one continues the chain."""
        self.write(f"{word} {self.use(op, op.condition)}:", op)
        self.block(op.then.block)
        if op.otherwise is None:
            return
        first = op.otherwise.block.first_op
        if isinstance(first, kernel.IfOp) and isinstance(first.next_op, kernel.YieldOp):
            self.branch(first, "elif")
            return
        self.write("else:")
        self.block(op.otherwise.block)

    @statement.register
    def _(self, op: kernel.BarrierOp) -> None:
        self.write("tl.debug_barrier()", op)

    @statement.register
    def _(self, op: kernel.LaunchDependentsOp) -> None:
        self.write("if PDL:", op)
        self.write("    tl.extra.cuda.gdc_launch_dependents()")

    @statement.register
    def _(self, op: kernel.WaitPrerequisitesOp) -> None:
        self.write("if PDL:", op)
        self.write("    tl.extra.cuda.gdc_wait()")
