"""What changed if something is compiled again, in words, for GT_DEBUG_COMPILE."""

from __future__ import annotations

from typing import Any

from gt.worker.hot.guard import INPUT_IN_USE, NUMBERS_CHANGED, ConstantNumbers, Strides
from gt.worker.hot.section import Section

#: Sections whose calls are remembered; the oldest is forgotten first.
MAX_REMEMBERED = 256


def describe_miss(
    why: str, section: Section, constants: ConstantNumbers, strides: Strides, inputs: list[Any], numbers: list[Any]
) -> str:
    """Why a run of compiled code or a graph was not possible."""
    if why == NUMBERS_CHANGED:
        changes = [_number(section, k, constants.value(k), numbers[k]) for k in sorted(constants.changed(numbers))]
        return "; ".join(changes)
    if why == INPUT_IN_USE:
        return "an input that a result would overwrite is in use"
    return describe_layout(strides, inputs)


def describe_layout(strides: Strides, inputs: list[Any]) -> str:
    """How the inputs differ from those that code was compiled for."""
    changes = [
        f"input {i} with shape {list(x.shape)} has the strides {list(x.stride())}, before {list(before)}"
        for i, (before, x) in enumerate(zip(strides, inputs, strict=True))
        if x.stride() != before
    ]
    return "; ".join(changes) or "an input shares memory that the section writes"


def _number(section: Section, k: int, before: Any, now: Any) -> str:
    call = next(call for call in section.calls if ~k in call.operands)
    return f"a number of {call.signature} is {now!r}, before {before!r}"


class CompiledCalls:
    """The calls of the sections that were compiled. The same ops with other shapes are compiled again."""

    def __init__(self) -> None:
        self._by_ops: dict[tuple[str, ...], tuple[str, ...]] = {}

    def change(self, section: Section) -> str:
        """The first call that differs from the last section with the same ops; empty if none does."""
        ops = tuple(call.signature.op.name for call in section.calls)
        calls = tuple(str(call.signature) for call in section.calls)
        before = self._by_ops.pop(ops, calls)
        self._by_ops[ops] = calls
        if len(self._by_ops) > MAX_REMEMBERED:
            del self._by_ops[next(iter(self._by_ops))]
        return next((f"{now}, before {then}" for now, then in zip(calls, before, strict=True) if now != then), "")
