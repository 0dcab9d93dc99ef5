"""A piece as one function: of its inputs, and of the numbers that change from run to run.

Numbers that do not change are constants of it, and ``fixed`` says which they are: whoever runs it compares. The others
come in cells of 8 bytes, given as two tensors that show them as float64 and as int64; `numbers` makes their contents.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gt.ops.positions import Positions
from gt.ops.varying import always, unfit, vary
from gt.types import Scalar
from gt.worker.hot.donated import roots
from gt.worker.hot.piece import Piece, Step


class Unfit(Exception):
    """Why a piece goes on being run step by step."""


@dataclass(frozen=True, slots=True)
class Call:
    run: Callable[..., Any]
    #: slots, in the order of the operands
    slots: tuple[int, ...]
    #: (is it a float, its cell): the numbers behind them
    numbers: tuple[tuple[bool, int], ...]
    results: tuple[int, ...]
    #: slots nobody needs from here on
    done: tuple[int, ...]
    into: bool
    #: positions to check before the call; `Positions.operand` is an index into ``slots``
    positions: tuple[Positions, ...] = ()


class Program:
    def __init__(
        self,
        piece: Piece,
        numbers: list[Any],
        varying: frozenset[int],
        device: Any,
        compiled: bool,
        donated: dict[int, int] | None = None,
    ) -> None:
        """``donated``: results that take an input's place."""
        self.piece, self.device = piece, device
        self.donated = donated or {}
        self.mutated = mutated(piece) | frozenset(self.donated.values())
        #: (their places among the numbers of a run, what makes of them the ones that are kept in memory)
        self._derived: list[tuple[tuple[int, ...], Any]] = []
        self._kinds: list[str] = []
        fixed: dict[int, Any] = {}
        ends = _last_uses(piece)
        self.calls = [
            self._call(step, numbers, varying, compiled, fixed, ends[at]) for at, step in enumerate(piece.steps)
        ]
        #: the last result is a flag: some position was out of range (see `gt.ops.positions`)
        self.checks_positions = (
            compiled and device.type == "cpu" and any(step.signature.op.positions for step in piece.steps)
        )
        if self.checks_positions:
            self.calls = [replace(c, positions=_positions(s)) for c, s in zip(self.calls, piece.steps, strict=True)]
        self.fixed_at, self.fixed = tuple(fixed), list(fixed.values())
        #: what writes the numbers into their cells
        self.cells = struct.Struct("".join(self._kinds))
        self.count = len(self._kinds)

    def _call(
        self, step: Step, given: list[Any], varying: frozenset[int], compiled: bool, fixed: dict[int, Any], done: Any
    ) -> Call:
        signature = step.signature
        if reason := unfit(signature, self.device.type == "cuda"):
            raise Unfit(reason)
        at = tuple(~k for k in step.operands if k < 0)
        values = tuple(given[k] for k in at)
        changing = always(signature, compiled) | {i for i, k in enumerate(at) if k in varying}
        slots = tuple(k for k in step.operands if k >= 0)
        if not changing:
            fixed.update(zip(at, values, strict=True))
            return Call(_bound(step, values), slots, (), step.results, done, signature.into)
        made = vary(signature, values, frozenset(changing), self.device, compiled)
        if made is None:
            raise Unfit(f"a number {signature.op.name} is called with changes, which its kernel takes as a constant")
        # what the call makes of its other numbers is a constant of it, unless it asks for them all
        taken = made.derive(values)
        if len(changing) < len(at):
            fixed.update((k, given[k]) for i, k in enumerate(at) if i not in changing)
        self._derived.append((at, made.derive))
        return Call(made.run, slots, tuple(map(self._place, taken)), step.results, done, signature.into)

    def _place(self, value: Any) -> tuple[bool, int]:
        is_float = isinstance(value, float)
        self._kinds.append("d" if is_float else "q")
        return is_float, len(self._kinds) - 1

    def numbers(self, given: list[Any]) -> list[Any]:
        """What is to be in the cells for this run; raises what an op raises that cannot take them."""
        return [n for at, derive in self._derived for n in derive(tuple([given[k] for k in at]))]

    def __call__(self, inputs: list[Any], floats: Any, ints: Any) -> list[Any]:
        values: list[Any] = [*inputs, *[None] * (self.piece.slots - self.piece.inputs)]
        outside = []
        for call in self.calls:
            operands = [values[k] for k in call.slots]
            for p in call.positions:
                operands[p.operand], bad = _without_bad(operands[p.operand], p)
                outside.append(bad.any())
            made = call.run(*operands, *[(floats if f else ints)[k] for f, k in call.numbers])
            _keep(values, call.into, call.results, made)
            for k in call.done:
                values[k] = None
        made = [values[k] for k in self.piece.results]
        for at, i in self.donated.items():
            made[at] = inputs[i].copy_(made[at])
        return [*made, torch.stack(outside).any()] if self.checks_positions else made


def by_steps(piece: Piece, inputs: list[Any], numbers: list[Any]) -> list[Any]:
    """As the worker runs it: what every other way of running it is measured by."""
    values: list[Any] = [*inputs, *[None] * (piece.slots - piece.inputs)]
    for step, done in zip(piece.steps, _last_uses(piece), strict=True):
        made = step.run(*[values[k] if k >= 0 else numbers[~k] for k in step.operands])
        _keep(values, step.signature.into, step.results, made)
        for k in done:
            values[k] = None
    return [values[k] for k in piece.results]


def _keep(values: list[Any], into: bool, results: tuple[int, ...], made: Any) -> None:
    if into:
        return
    for k, value in zip(results, made if len(results) > 1 else (made,), strict=True):
        values[k] = value


def _bound(step: Step, numbers: tuple[Any, ...]) -> Callable[..., Any]:
    """The step's own kernel with its numbers where they belong."""
    if not numbers:
        return step.run
    is_number = [isinstance(t, Scalar) for t in step.signature.ins]

    def run(*tensors: Any) -> Any:
        rest, given = iter(tensors), iter(numbers)
        return step.run(*(next(given) if n else next(rest) for n in is_number))

    return run


def _positions(step: Step) -> tuple[Positions, ...]:
    """The step's positions, with operands counted among its tensors only."""
    op, ins = step.signature.op, step.signature.ins
    positions = op.positions(*ins, **dict(step.signature.attrs)) if op.positions is not None else ()
    if any(not p.size and ins[p.operand].numel for p in positions):  # type: ignore[union-attr]
        raise Unfit(f"{op.name} indexes a dim of size 0")
    return tuple(p._replace(operand=sum(not isinstance(t, Scalar) for t in ins[: p.operand])) for p in positions)


def _without_bad(index: Any, p: Positions) -> tuple[Any, Any]:
    """The index with 0 in place of bad positions, and the mask of bad positions."""
    bad = (index < (-p.size if p.from_end else 0)) | (index >= p.size)
    if p.ignored is not None:
        bad &= index != p.ignored
    return index.masked_fill(bad, 0), bad


def _last_uses(piece: Piece) -> list[tuple[int, ...]]:
    """For each step the slots made by the piece that nobody needs after it."""
    seen, found = set(piece.results), []
    for step in reversed(piece.steps):
        mine = {k for k in (*step.operands, *step.results) if k >= piece.inputs} - seen
        seen |= mine
        found.append(tuple(mine))
    return found[::-1]


def mutated(piece: Piece) -> frozenset[int]:
    """The inputs it writes to."""
    shown = roots(piece)
    written = {shown[k] for step in piece.steps if step.signature.into for k in step.results}
    return frozenset(k for k in written if k < piece.inputs)
