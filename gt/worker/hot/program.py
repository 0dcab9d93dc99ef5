"""A section as one function of its inputs and of the numbers that change from run to run.

Numbers that do not change are constants of the program: `constants` checks them before each run. The others are passed
in cells of 8 bytes, as two tensors that view the cells as float64 and as int64; `cell_values` gives their contents.
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
from gt.worker.hot.donation import memory_roots
from gt.worker.hot.guard import ConstantNumbers
from gt.worker.hot.section import KernelCall, Section


class NotTranslatable(Exception):
    """Why a section stays interpreted."""


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """A `KernelCall` with its constant numbers bound. ``run`` takes the tensors, then the numbers that change."""

    run: Callable[..., Any]
    #: the registers of its tensors, in the order of the operands
    registers: tuple[int, ...]
    #: (whether it is a float, its cell) of each number after the tensors
    numbers: tuple[tuple[bool, int], ...]
    results: tuple[int, ...]
    #: registers that are not used after this call
    last_used: tuple[int, ...]
    into: bool
    #: positions to check before the call; `Positions.operand` is an index into ``registers``
    positions: tuple[Positions, ...] = ()


class Program:
    """A section as a function: ``program(inputs, floats, ints)`` returns its results. Raises NotTranslatable."""

    def __init__(
        self,
        section: Section,
        numbers: list[Any],
        varying: frozenset[int],
        device: Any,
        compiled: bool,
        donated: dict[int, int] | None = None,
    ) -> None:
        """``numbers``: those of an example run; ``varying``: the indices of those that change; ``compiled``: for
        compiled code, not for a graph; ``donated``: index of a result -> the input whose memory it takes."""
        self.section, self.device = section, device
        self.donated = donated or {}
        self.mutated = mutated(section) | frozenset(self.donated.values())
        #: (indices of numbers of a run, the function that computes cell values from them)
        self._derived: list[tuple[tuple[int, ...], Any]] = []
        self._cell_kinds: list[str] = []
        #: index -> value of the numbers that are constants
        fixed: dict[int, Any] = {}
        last_uses = _last_uses(section)
        self.calls = [
            self._translate(call, numbers, varying, compiled, fixed, last_used)
            for call, last_used in zip(section.calls, last_uses, strict=True)
        ]
        #: whether the last result is a flag that a position was out of range (see `gt.ops.positions`)
        self.checks_positions = (
            compiled and device.type == "cpu" and any(call.signature.op.positions for call in section.calls)
        )
        if self.checks_positions:
            pairs = zip(self.calls, section.calls, strict=True)
            self.calls = [replace(translated, positions=_positions(call)) for translated, call in pairs]
        self.constants = ConstantNumbers(tuple(fixed), list(fixed.values()))
        #: packs the values of the cells into memory
        self.cells = struct.Struct("".join(self._cell_kinds))
        self.cell_count = len(self._cell_kinds)

    def _translate(
        self,
        call: KernelCall,
        numbers: list[Any],
        varying: frozenset[int],
        compiled: bool,
        fixed: dict[int, Any],
        last_used: tuple[int, ...],
    ) -> ProgramCall:
        """Translate a call. Adds its changing numbers to the cells, and its constant ones to ``fixed``."""
        signature = call.signature
        if reason := unfit(signature, self.device.type == "cuda", compiled):
            raise NotTranslatable(reason)
        indices = tuple(~k for k in call.operands if k < 0)
        values = tuple(numbers[k] for k in indices)
        changing = always(signature, compiled) | {i for i, k in enumerate(indices) if k in varying}
        registers = tuple(k for k in call.operands if k >= 0)
        if not changing:
            fixed.update(zip(indices, values, strict=True))
            return ProgramCall(_bind_numbers(call, values), registers, (), call.results, last_used, signature.into)
        variant = vary(signature, values, frozenset(changing), self.device, compiled)
        if variant is None:
            name = signature.op.name
            raise NotTranslatable(f"a number {name} is called with changes, which its kernel takes as a constant")
        derived = variant.derive(values)
        # the variant uses the other numbers as constants
        if len(changing) < len(indices):
            fixed.update((k, numbers[k]) for i, k in enumerate(indices) if i not in changing)
        self._derived.append((indices, variant.derive))
        cells = tuple(map(self._add_cell, derived))
        return ProgramCall(variant.run, registers, cells, call.results, last_used, signature.into)

    def _add_cell(self, value: Any) -> tuple[bool, int]:
        """Add a cell for a number like ``value``: whether it is a float, and the cell's index."""
        is_float = isinstance(value, float)
        self._cell_kinds.append("d" if is_float else "q")
        return is_float, len(self._cell_kinds) - 1

    def cell_values(self, numbers: list[Any]) -> list[Any]:
        """The contents of the cells for a run with these numbers. Raises an op's error if it does not accept them."""
        return [n for indices, derive in self._derived for n in derive(tuple([numbers[k] for k in indices]))]

    def __call__(self, inputs: list[Any], floats: Any, ints: Any) -> list[Any]:
        values: list[Any] = [*inputs, *[None] * (self.section.registers - self.section.inputs)]
        out_of_range = []
        for call in self.calls:
            operands = [values[k] for k in call.registers]
            for p in call.positions:
                operands[p.operand], bad = _replace_bad(operands[p.operand], p)
                out_of_range.append(bad.any())
            outputs = call.run(*operands, *[(floats if f else ints)[k] for f, k in call.numbers])
            _store(values, call.into, call.results, outputs)
            for k in call.last_used:
                values[k] = None
        results = [values[k] for k in self.section.results]
        for index, i in self.donated.items():
            results[index] = inputs[i].copy_(results[index])
        return [*results, torch.stack(out_of_range).any()] if self.checks_positions else results


def interpret(section: Section, inputs: list[Any], numbers: list[Any]) -> list[Any]:
    """Run a section without a faster level; returns its results. All levels must give the same values."""
    values: list[Any] = [*inputs, *[None] * (section.registers - section.inputs)]
    for call, last_used in zip(section.calls, _last_uses(section), strict=True):
        outputs = call.run(*[values[k] if k >= 0 else numbers[~k] for k in call.operands])
        _store(values, call.signature.into, call.results, outputs)
        for k in last_used:
            values[k] = None
    return [values[k] for k in section.results]


def _store(values: list[Any], into: bool, registers: tuple[int, ...], outputs: Any) -> None:
    if into:
        return
    for k, value in zip(registers, outputs if len(registers) > 1 else (outputs,), strict=True):
        values[k] = value


def _bind_numbers(call: KernelCall, numbers: tuple[Any, ...]) -> Callable[..., Any]:
    """The kernel as a function of its tensors only."""
    if not numbers:
        return call.run
    is_number = [isinstance(t, Scalar) for t in call.signature.ins]

    def run(*tensors: Any) -> Any:
        next_tensor, next_number = iter(tensors), iter(numbers)
        return call.run(*(next(next_number) if n else next(next_tensor) for n in is_number))

    return run


def _positions(call: KernelCall) -> tuple[Positions, ...]:
    """The positions to check, with operands counted among the tensors only."""
    op, ins = call.signature.op, call.signature.ins
    positions = op.positions(*ins, **dict(call.signature.attrs)) if op.positions is not None else ()
    if any(not p.size and ins[p.operand].numel for p in positions):  # type: ignore[union-attr]
        raise NotTranslatable(f"{op.name} indexes a dim of size 0")
    return tuple(p._replace(operand=sum(not isinstance(t, Scalar) for t in ins[: p.operand])) for p in positions)


def _replace_bad(index: Any, p: Positions) -> tuple[Any, Any]:
    """The index with 0 in place of bad positions, and the mask of bad positions."""
    bad = (index < (-p.size if p.from_end else 0)) | (index >= p.size)
    if p.ignored is not None:
        bad &= index != p.ignored
    return index.masked_fill(bad, 0), bad


def _last_uses(section: Section) -> list[tuple[int, ...]]:
    """For each call the created registers that are not used after it."""
    used_later, uses = set(section.results), []
    for call in reversed(section.calls):
        last = {k for k in (*call.operands, *call.results) if k >= section.inputs} - used_later
        used_later |= last
        uses.append(tuple(last))
    return uses[::-1]


def mutated(section: Section) -> frozenset[int]:
    """The inputs that a section writes in place."""
    roots = memory_roots(section)
    written = {roots[k] for call in section.calls if call.signature.into for k in call.results}
    return frozenset(k for k in written if k < section.inputs)
