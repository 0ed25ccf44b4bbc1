"""Which ops run together: groups of tile ops become `tile.fused` regions, each one launch."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from lamella.passes.device import device
from lamella.passes.fusion import STEPS, Fusion, Limits
from lamella.passes.fusion_policy import Policy
from lamella.passes.outline import outline


@dataclass(frozen=True)
class FuseRegions(ModulePass):
    """Groups the ops of a function into regions, and records each decision with its reason.

    Before:
        %c = tile.contract %x, %w : tensor<1x8xf32>, tensor<4x8xf32> -> tensor<1x4xf32>
        %y = tile.map "add"(%c, %r) : tensor<1x4xf32>, tensor<1x4xf32> -> tensor<1x4xf32>
    After:
        %y = tile.fused ins(%x, %w, %r : …) ledger [#tile.ledger<joined, {kind = "epilogue", …}>] {
        ^bb0(%0 : tensor<1x8xf32>, %1 : tensor<4x8xf32>, %2 : tensor<1x4xf32>):
          %c = tile.contract %0, %1 : …
          %y = tile.map "add"(%c, %2) : …
          tile.yield %y : tensor<1x4xf32>
        } -> tensor<1x4xf32>

    Regions grow in topological order, in six steps: chains of maps and reductions join (`vertical`); contractions on one x join
    (`horizontal`); a chain after a contraction or attention joins it (`epilogue`: nothing is computed twice; of several anchors the one
    with the largest benefit; of a chain that does not fit, the first ops); a chain before one joins it where that pays (`prologue`: every
    program recomputes it); a value that several regions use becomes an extra result of one of them, or each computes it (`shared`); row
    regions that need nothing of each other join at the start and the end of the function, and behind one anchor (`siblings`): they divide
    the programs of the launch. Constants and widening casts are always computed by each user.

    Every join passes one gate: the policy, cycles, the oracle `feasible_schedules`, `max-depth` (ops on the longest path of a region; 0
    keeps every op by itself), `max-registers` (an estimate, `passes/registers.py`) and the benefit in microseconds (`fusion_cost.py`):
    bytes kept on chip / bandwidth + launches saved × launch cost - recomputation - lost parallelism - compile cost. Each decision is an
    entry of a region's ledger: `joined` with these terms, or one `refused` for each edge between two regions, with the reason. A step that
    is on but joins nothing says so in the function's `lamella.idle`, with what came nearest.

    `policy` names a JSON file of rules, `[{"action": "forbid" or "force", "producer": PATTERN, "consumer": PATTERN}, …]`, or is such a text,
    over op names, kinds and locations; a forced pair joins whatever it costs, and is an error where the oracle finds no schedule.

    Expects static tile ops (`transformer-to-tile`); leaves only handles, `tile.fused` and the terminator.
    """

    name = "fuse-regions"

    arch: str = "sm_90"
    vertical: bool = True
    horizontal: bool = True
    epilogue: bool = True
    prologue: bool = True
    shared: bool = True
    siblings: bool = True
    max_depth: int | None = None
    max_registers: int = 255
    policy: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        policy = Policy.read(self.policy)
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                fusion = self.decide(function, policy)
                fusion.record_idle()
                outline(fusion.graph)

    def decide(self, function: func.FuncOp, policy: Policy | None = None) -> Fusion:
        """The groups of a function and their ledgers, before they become regions. Raises PassError for a policy that cannot be kept."""
        on = frozenset(step for step in STEPS if getattr(self, step))
        limits = Limits(on, max_depth=self.max_depth, max_registers=self.max_registers)
        fusion = Fusion(function, device(self.arch), limits, Policy.read(self.policy) if policy is None else policy)
        fusion.run()
        return fusion
