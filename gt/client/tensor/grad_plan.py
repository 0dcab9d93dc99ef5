"""What a call keeps for its gradient. It follows from the signature and from which operands require a gradient, so it
is worked out once and kept beside the code (`gt.client.stream.signatures`); a node of the tape refers to it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from gt.ops import Attrs, Op, Signature
from gt.types import OperandType, Scalar, TensorType

if TYPE_CHECKING:
    import inspect


class GradPlan:
    """The part of a node that all calls of a signature share. Compared by identity."""

    __slots__ = (
        "_twin",
        "attrs",
        "frees",
        "op",
        "operands",
        "out_types",
        "results",
        "saved",
        "tracked",
        "without_rule",
    )

    def __init__(self, op: Op, attrs: Attrs, out_types: tuple[TensorType, ...]) -> None:
        self.op, self.attrs, self.out_types = op, attrs, out_types
        #: the operands to which no gradient goes although they are on the tape
        self.without_rule: tuple[int, ...] = ()
        #: for each result and operand its place among the values of the node; or its type, if it is not saved
        self.results: tuple[TensorType | int, ...] = ()
        self.operands: tuple[OperandType | int, ...] = ()
        #: the saved values in order: the number of the result and its edge (None stands for this node: a node that
        #: refers to itself is freed only when Python looks for cycles); then the numbers of operands
        self.saved: tuple[tuple[tuple[int, tuple[None, int]], ...], tuple[int, ...]] = (), ()
        #: the results that get a node: those of floating or complex dtype
        self.tracked: tuple[int, ...] = ()
        #: does a gradient use a saved value, so that a backward pass frees them all?
        self.frees = False
        self._twin: GradPlan | None = None

    def freeing(self) -> GradPlan:
        """The same plan for a node through which only one backward pass may go."""
        if self.frees:
            return self
        if self._twin is None:
            twin = GradPlan(self.op, self.attrs, self.out_types)
            twin.without_rule, twin.results, twin.operands = self.without_rule, self.results, self.operands
            twin.saved, twin.tracked, twin.frees = self.saved, self.tracked, True
            self._twin = twin
        return self._twin


#: the plan of calls that have no gradient
NO_PLAN = GradPlan(None, (), ())  # type: ignore[arg-type]


def plan_of(signature: Signature, tracked: int) -> GradPlan:
    """The plan of a call in which the operands with these bits are on the tape."""
    op, vjp = signature.op, signature.op.vjp
    if vjp is None:
        return NO_PLAN
    rules = vjp if isinstance(vjp, tuple) else None
    count = len(signature.ins)
    needs = tuple([bool(tracked >> k & 1) and (rules is None or rules[k] is not None) for k in range(count)])
    if True not in needs:
        return NO_PLAN
    outs = signature.outs
    plan = GradPlan(op, signature.attrs, outs)
    used_results, used_operands = needed_values(op, needs, len(outs))
    results = [i for i in range(len(outs)) if i in used_results]
    operands = [k for k, t in enumerate(signature.ins) if isinstance(t, Scalar) or k in used_operands]
    plan.without_rule = tuple([k for k in range(count) if tracked >> k & 1 and not needs[k]])
    plan.frees = bool(used_results or used_operands)
    plan.results = tuple([results.index(i) if i in used_results else t for i, t in enumerate(outs)])
    places: dict[int, OperandType | int] = {k: len(results) + n for n, k in enumerate(operands)}
    plan.operands = tuple([places.get(k, t) for k, t in enumerate(signature.ins)])
    plan.saved = tuple([(i, (None, i)) for i in results]), tuple(operands)
    plan.tracked = tuple([i for i, t in enumerate(outs) if t.dtype.kind in "fc"])
    return plan


@cache
def needed_values(op: Op, needs: tuple[bool, ...], count: int = 1) -> tuple[frozenset[int], frozenset[int]]:
    """Which of ``count`` results, and which operands, the gradients of these operands are computed from."""
    if isinstance(op.vjp, tuple):
        rules = [_parameters(rule) for rule, needed in zip(op.vjp, needs, strict=False) if needed]
    else:
        rules = [_parameters(op.vjp)[1:]]
    results: set[int] = set()
    operands: set[int] = set()
    for _, y, *rest in rules:
        if not y.name.startswith("_"):
            results.update(map(int, y.name.lstrip("y")) if y.name.strip("y").isdigit() else range(count))
        for k, p in enumerate(rest):
            if p.kind is p.VAR_POSITIONAL and not p.name.startswith("_"):
                operands.update(range(k, len(needs)))
            elif p.kind is p.POSITIONAL_OR_KEYWORD and not p.name.startswith("_"):
                operands.add(k)
    return frozenset(results), frozenset(operands)


def _parameters(rule: Any) -> list[inspect.Parameter]:
    import inspect  # would be a quarter of the time of `import gt`, where there is no torch

    return list(inspect.signature(rule).parameters.values())
