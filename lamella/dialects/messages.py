"""The head of every verifier message: the op, and where in the model it comes from."""

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation


def location(op: Operation) -> str:
    """The model location of `op`, such as `layers.3.attn.q`, or the empty string."""
    loc = op.attributes.get("loc")
    return loc.data if isinstance(loc, StringAttr) else ""


def subject(op: Operation) -> str:
    """`tile.contract at layers.3.attn.q`, the head of a message about `op`."""
    where = location(op)
    return f"{op.name} at {where}" if where else op.name
