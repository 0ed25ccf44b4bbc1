"""Level 2 to level 3: a function of fused regions on tensors goes in, the same regions on buffers leave, with a ledger of what is in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, FunctionType, MemRefType, ModuleOp, StringAttr
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from lamella.dialects import host
from lamella.dialects.attributes import Value, attributes_of, element_type_of, shaped
from lamella.dialects.messages import location, subject
from lamella.dialects.tile import CastOp, FusedOp, LedgerEntryAttr, YieldOp
from lamella.errors import PassError
from lamella.lowering.body import is_handle
from lamella.passes.in_place import misalignment, read_beside_update, updated_argument
from lamella.passes.schedules import row_schedule

UNASKED = "in-place did not run"


@dataclass(frozen=True)
class Bufferize(ModulePass):
    """Gives every value a buffer: an argument's, an input's that dies, or a new one.

    Before:
        %w = transformer.weight "embed" : tensor<4x8xf32>
        %y = tile.fused ins(%x, %w : tensor<1x8xf32>, tensor<4x8xf32>) {…} -> tensor<1x4xf32>
    After:
        %w = host.weight "embed" : memref<4x8xf32>
        %y = memref.alloc() : memref<1x4xf32>
        tile.fused ins(%x, %w : memref<1x8xf32>, memref<4x8xf32>) outs(%y : memref<1x4xf32>) {…}

    Expects functions that hold handles, `tile.fused` and `func.return` only. A result that `lamella.tied` ties to an argument is written
    to the argument's buffer, after all reads of its old value; a scattered-into cache is updated where it lies; any other input is
    overwritten only where the region's `in_place` says so, which is checked. A region without `in_place` (`in-place` did not run) overwrites
    nothing it reads but caches, and its ledger gets the records that it otherwise has from there: `in_place` or `not_in_place`.
    """

    name = "bufferize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                _Bufferization(function).run()


@dataclass(frozen=True)
class Copy:
    """A value that could not be written to the argument it is tied to, and has to be copied there after the argument's last read."""

    value: SSAValue
    argument: int
    after: int


@dataclass
class _Bufferization:
    """The state of one function: what was, what is, and who holds which buffer."""

    function: func.FuncOp
    old: Block = field(init=False)
    new: Block = field(init=False)
    buffers: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """Tensor -> the memref that holds it."""
    holders: dict[SSAValue, list[SSAValue]] = field(default_factory=dict[SSAValue, list[SSAValue]])
    """Memref -> the tensors it has held, oldest first."""
    last_use: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    """Tensor -> index of the last op that reads it."""
    tied: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    """Result of a region -> index of the argument whose buffer takes it."""
    constants: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """Op and attributes of a table -> its name."""
    copies: list[Copy] = field(default_factory=list[Copy])
    last: int = -1
    """Index of func.return."""
    local: set[SSAValue] = field(default_factory=set[SSAValue])
    """Memrefs allocated here."""

    def run(self) -> None:
        """Replaces the body of the function."""
        self.old = self.function.body.block
        self.new = Block(arg_types=[buffer_type(a.type) for a in self.old.args])
        for argument, buffer in zip(self.old.args, self.new.args, strict=True):
            buffer.name_hint = argument.name_hint
            self.hold(buffer, argument)
        ops = list(self.old.ops)
        for index, op in enumerate(ops):
            for operand in op.operands:
                self.last_use[operand] = index
        self.last = len(ops) - 1
        terminator = ops[-1] if ops else None
        if not isinstance(terminator, func.ReturnOp):
            raise PassError("the function does not end with func.return", where=self.function.sym_name.data)
        self.read_ties(terminator)
        for index, op in enumerate(ops[:-1]):
            self.convert(op, index)
            for copy in [c for c in self.copies if c.after == index]:
                self.copy(copy, op)
        results = [self.buffers[v] for v in terminator.operands]
        self.new.add_op(func.ReturnOp(*results))
        self.function.properties["function_type"] = FunctionType.from_lists([a.type for a in self.new.args], [v.type for v in results])
        self.function.detach_region(self.function.body)
        self.function.add_region(Region(self.new))

    def hold(self, buffer: SSAValue, value: SSAValue) -> None:
        """From now on `buffer` holds `value`."""
        self.buffers[value] = buffer
        self.holders.setdefault(buffer, []).append(value)

    def read_ties(self, terminator: func.ReturnOp) -> None:
        """Which results take over the buffer of which argument. Raises PassError for ties that cannot be."""
        ties = self.function.attributes.get("lamella.tied")
        where = f"func.func @{self.function.sym_name.data}"
        numbers = [int(n) for n in ties.get_values()] if isinstance(ties, DenseArrayBase) else [-1] * len(terminator.operands)
        if len(numbers) != len(terminator.operands):
            raise PassError("lamella.tied has another length", where=where, expected=str(len(terminator.operands)), got=str(len(numbers)))
        for index, (value, argument) in enumerate(zip(terminator.operands, numbers, strict=True)):
            if argument == -1 or (isinstance(value, BlockArgument) and value.index == argument):
                continue
            if not 0 <= argument < len(self.old.args):
                raise PassError(f"result {index} is tied to argument {argument}", where=where, expected=f"one of {len(self.old.args)}")
            if isinstance(value, BlockArgument) or value in self.tied or numbers.count(argument) > 1:
                raise PassError(f"result {index} cannot take over argument {argument}", where=where, expected="one value of its own a tie")
            if value.type != self.old.args[argument].type:
                expected = str(self.old.args[argument].type)
                raise PassError(f"result {index} is tied to argument {argument}", where=where, expected=expected, got=str(value.type))
            self.tied[value] = argument

    def convert(self, op: Operation, index: int) -> None:
        """The buffer form of `op`. Raises PassError for an op that no region holds."""
        match op:
            case FusedOp():
                self.fused(op, index)
            case Operation(name="transformer.weight"):
                name = op.properties["name"]
                assert isinstance(name, StringAttr)
                self.handle(op, host.WeightOp(name.data, buffer_type(op.results[0].type)))
            case Operation(results=(result,)) if is_handle(op):
                arguments = attributes_of(op)
                self.handle(op, host.ConstantOp(self.constant_name(op, arguments), op.name, arguments, buffer_type(result.type)))
            case _:
                raise PassError("is outside of every region", where=subject(op), expected="tile.fused", remedy="run fuse-regions first")

    def handle(self, op: Operation, handle: host.WeightOp | host.ConstantOp) -> None:
        """Storage outside the program."""
        handle.result.name_hint = op.results[0].name_hint
        self.new.add_op(handle)
        self.hold(handle.result, op.results[0])

    def constant_name(self, op: Operation, arguments: dict[str, Value]) -> str:
        """`rope_table`, and `rope_table_1` for a second one that differs."""
        key = (op.name, str(arguments))
        if key not in self.constants:
            number = sum(name == op.name for name, _ in self.constants)
            stem = op.name.rpartition(".")[2]
            self.constants[key] = f"{stem}_{number}" if number else stem
        return self.constants[key]

    def fused(self, op: FusedOp, index: int) -> None:
        """The region with buffers: `outs` are chosen one by one, then the body moves over."""
        entries: list[LedgerEntryAttr] = []
        outs: list[SSAValue] = []
        for number, result in enumerate(op.results):
            buffer, entry = self.choose(op, index, number, outs)
            outs.append(buffer)
            entries.append(entry)
            if buffer in self.local and result.name_hint and buffer.name_hint is None:
                buffer.name_hint = result.name_hint
        ins = [self.buffers[v] for v in op.ins]
        for buffer, result in zip(outs, op.results, strict=True):
            self.hold(buffer, result)
        body = op.body
        op.detach_region(body)
        ledger = [*(op.ledger.data if op.ledger else ()), *(entries if op.in_place is None else ())]
        fused = FusedOp(ins, outs, [], body, schedule=op.schedule, ledger=ledger)
        fused.attributes.update({name: value for name, value in op.attributes.items() if name != "in_place"})
        self.new.add_op(fused)

    def choose(self, op: FusedOp, index: int, number: int, taken: Sequence[SSAValue]) -> tuple[SSAValue, LedgerEntryAttr]:
        """The buffer of result `number` and the record of the choice."""
        value = op.terminator.values[number]
        argument = updated_argument(value)
        if argument is not None:
            return self.updated(op, index, number, argument)
        if op.results[number] in self.tied:
            return self.taken_over(op, index, number)
        position = overwritten(op, number)
        if position < 0:
            return self.allocate(op, op.results[number].type), LedgerEntryAttr.of("not_in_place", {"out": number, "reason": UNASKED})
        self.check_overwrite(op, index, number, position, taken)
        entry = LedgerEntryAttr.of("in_place", {"out": number, "input": position, "reason": "the input dies here"})
        return self.buffers[op.ins[position]], entry

    def check_overwrite(self, op: FusedOp, index: int, number: int, position: int, taken: Sequence[SSAValue]) -> None:
        """Whether result `number` may overwrite input `position` as it was told to. Raises PassError with the reason why not."""
        source = op.ins[position]
        buffer = self.buffers[source]
        where, what = subject(op), f"result {number} cannot overwrite input {position}"
        if buffer not in self.local:
            raise PassError(f"{what}: it is storage from outside the function", where=where)
        if buffer in taken:
            raise PassError(f"{what}: another result does", where=where)
        if self.last_use[source] > index:
            raise PassError(f"{what}: it is read later", where=where)
        if reason := self.misaligned(op, buffer, number):
            raise PassError(f"{what}: {reason}", where=where)

    def updated(self, op: FusedOp, index: int, number: int, argument: BlockArgument) -> tuple[SSAValue, LedgerEntryAttr]:
        """A scatter's buffer is that of the cache it scatters into. Raises PassError where the old cache is still needed."""
        source = op.ins[argument.index]
        buffer = self.buffers[source]
        reader = read_beside_update(argument)
        if reader is not None or list(op.ins).count(source) > 1:
            by = f"{subject(reader)}" if reader is not None else "another argument"
            raise PassError(f"input {argument.index} is updated in place but also read by {by}", where=subject(op))
        if self.last_use[source] > index:
            raise PassError(f"input {argument.index} is updated in place but its old value is read later", where=subject(op))
        result = op.results[number]
        if isinstance(buffer, BlockArgument):
            if buffer.index not in self.tied.values() or self.tied.get(result, buffer.index) != buffer.index:
                raise PassError(
                    f"result {number} updates argument {buffer.index} of the function, which is not tied to it",
                    where=subject(op),
                    remedy="lamella.tied names the argument of each result",
                )
        elif buffer not in self.local or result in self.tied:
            raise PassError(f"result {number} updates a buffer that is not its own", where=subject(op), remedy="tie the cache to a result")
        return buffer, LedgerEntryAttr.of("in_place", {"out": number, "input": argument.index, "reason": "a scatter updates its cache"})

    def taken_over(self, op: FusedOp, index: int, number: int) -> tuple[SSAValue, LedgerEntryAttr]:
        """A tied result goes to its argument's buffer, at once or (where the old value is still read) by a copy after the last read."""
        result = op.results[number]
        argument = self.tied[result]
        buffer = self.new.args[argument]
        last = max((self.last_use.get(v, -1) for v in self.holders[buffer]), default=-1)
        reads = [position for position, source in enumerate(op.ins) if self.buffers[source] is buffer]
        allowed = not reads or overwritten(op, number) in reads
        reason = "its argument is read later" if last > index else self.misaligned(op, buffer, number) if allowed else UNASKED
        if not reason:
            return buffer, LedgerEntryAttr.of("in_place", {"out": number, "argument": argument, "reason": "the result is tied"})
        if last == self.last:
            raise PassError(f"result {number} overwrites argument {argument}, whose old value is returned", where=subject(op))
        self.copies.append(Copy(result, argument, max(last, index)))
        return self.allocate(op, result.type), LedgerEntryAttr.of("not_in_place", {"out": number, "reason": reason})

    def misaligned(self, op: FusedOp, buffer: SSAValue, number: int) -> str:
        """Why `op` may not write its result `number` over what it reads from `buffer`; empty when it may."""
        block = op.body.block
        readers = (argument for argument, source in zip(block.args, op.ins, strict=True) if self.buffers[source] is buffer)
        return next(filter(None, (misalignment(block, argument, number) for argument in readers)), "")

    def allocate(self, op: FusedOp, type: Attribute) -> SSAValue:
        """A new buffer, placed before `op`. Raises PassError for a type without a static shape."""
        buffer_type_ = buffer_type(type)
        if DYNAMIC_INDEX in shaped(buffer_type_).get_shape():
            raise PassError("a buffer of dynamic shape", where=subject(op), got=str(type), remedy="run specialize first")
        alloc = memref.AllocOp([], [], buffer_type_)
        self.new.add_op(alloc)
        self.local.add(alloc.memref)
        return alloc.memref

    def copy(self, copy: Copy, origin: Operation) -> None:
        """The launch that moves a tied value into its argument's buffer."""
        source, target = self.buffers[copy.value], self.new.args[copy.argument]
        block = Block(arg_types=[copy.value.type])
        same = CastOp(block.args[0], element_type_of(copy.value))
        block.add_ops([same, YieldOp([same.result])])
        entry = LedgerEntryAttr.of("copied", {"argument": copy.argument, "reason": "tied, but its argument was still read"})
        self.new.add_op(FusedOp([source], [target], [], block, schedule=row_schedule([same]), ledger=[entry], loc=location(origin)))
        self.hold(target, copy.value)


def overwritten(op: FusedOp, number: int) -> int:
    """The input that `in-place` lets result `number` overwrite; -1 for none."""
    return -1 if op.in_place is None else int(op.in_place.get_values()[number])


def buffer_type(type: Attribute) -> Attribute:
    """The memref of a tensor's shape and element type."""
    tensor = shaped(type)
    return MemRefType(tensor.element_type, tensor.get_shape())
