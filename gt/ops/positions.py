"""Which operands of an op are positions, and which positions are valid.

Kernels check positions themselves and raise. Compiled code on a CPU must not raise: an exception in one of several
OpenMP threads ends the process. So it checks positions outside the loops.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gt.types import OperandType, Shape, TensorType


class Positions(NamedTuple):
    #: the operand that holds them
    operand: int
    #: valid positions are 0 to size - 1
    size: int
    #: -size to -1 are valid too, and count from the end
    from_end: bool = False
    #: a value that is accepted and skipped, such as ignore_index
    ignored: int | None = None


def in_dim(x: TensorType, *_rest: OperandType, dim: int, **_attrs: Any) -> tuple[Positions, ...]:
    """The second operand holds positions along a dim of the first. A 0-d tensor counts as one element."""
    return (Positions(1, (x.shape or (1,))[dim]),)


def in_dims(shape: Shape, dims: tuple[int, ...], first: int) -> tuple[Positions, ...]:
    """One operand per dim, starting with operand ``first``. An empty tensor is never indexed."""
    return tuple(Positions(first + i, shape[d], from_end=True) for i, d in enumerate(dims)) if 0 not in shape else ()
