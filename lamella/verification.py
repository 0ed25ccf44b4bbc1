"""A module goes in; it comes out unharmed, or an IRError says in one line which op breaks which rule."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.irdl.dominance import DominanceInfo
from xdsl.traits import IsolatedFromAbove
from xdsl.utils.exceptions import VerifyException

from lamella.errors import IRError


def verify(module: ModuleOp, legal: Collection[str] | None = None, stage: str = "") -> None:
    """Verify the ops of `module`, then SSA dominance, then (where `legal` is given) that only legal ops remain. Raises IRError."""
    verify_ops(module)
    verify_dominance(module)
    if legal is not None:
        verify_legality(module, legal, stage)


def name_of(op: Operation) -> str:
    """`transformer.rms_norm at layers.3.attn`: the op's name, and the location of it or of the nearest op around it."""
    around: Operation | None = op
    while around is not None:
        location = around.attributes.get("loc", around.properties.get("loc"))
        if isinstance(location, StringAttr) and location.data:
            return f"{_plain_name(op)} at {location.data}"
        around = around.parent_op()
    return _plain_name(op)


def verify_ops(module: ModuleOp) -> None:
    """Run xDSL's verifiers. Raises IRError whose message starts with the op's name and location."""
    try:
        module.verify()
    except (VerifyException, ValueError) as error:
        raise IRError(_complaint(module, error)) from error


def verify_dominance(module: ModuleOp) -> None:
    """Check that every operand is defined before its use, on every path to it. xDSL has no such check. Raises IRError."""
    for complaint in _misplaced(module.body, set()):
        raise IRError(complaint)


def verify_legality(module: ModuleOp, legal: Collection[str], stage: str) -> None:
    """Check that each op, or its dialect, is named in `legal`. Raises IRError that names op, location and stage."""
    for op in module.walk():
        name = _plain_name(op)
        if name not in legal and name.split(".", 1)[0] not in legal:
            after = f" after stage {stage}" if stage else ""
            raise IRError(f"{name_of(op)}: illegal{after}", expected=f"only {', '.join(sorted(legal))}")


def _misplaced(region: Region, outside: set[SSAValue]) -> Iterator[str]:
    """A complaint for each operand that is visible neither from `outside` nor earlier in a dominating block."""
    dominance = DominanceInfo(region) if len(region.blocks) > 1 else None
    for block in region.blocks:
        visible = outside | set(block.args)
        if dominance is not None:
            visible.update(*(_defined(other) for other in region.blocks if dominance.strictly_dominates(other, block)))
        for op in block.ops:
            for index, operand in enumerate(op.operands):
                if operand not in visible:
                    hint = f" (%{operand.name_hint})" if operand.name_hint else ""
                    yield f"{name_of(op)}: operand {index}{hint} does not dominate its use"
            isolated = op.has_trait(IsolatedFromAbove, value_if_unregistered=False)
            for inner in op.regions:
                yield from _misplaced(inner, set() if isolated else visible)
            visible.update(op.results)


def _defined(block: Block) -> Iterator[SSAValue]:
    yield from block.args
    for op in block.ops:
        yield from op.results


def _plain_name(op: Operation) -> str:
    """The name as written: an op of an unregistered dialect keeps it in an attribute."""
    original = op.attributes.get("op_name__")
    return original.data if isinstance(original, StringAttr) else op.name


def _complaint(module: ModuleOp, error: Exception) -> str:
    """The message of `error`, led by the op that raised it: the first whose own verifier fails with the same words."""
    text = " ".join(str(error).split())
    for op in module.walk():
        try:
            op.verify(verify_nested_ops=False)
        except (VerifyException, ValueError) as own:
            if str(own) == str(error):
                return text if text.startswith(op.name) else f"{name_of(op)}: {text}"
    return text
