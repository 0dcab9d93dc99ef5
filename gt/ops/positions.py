"""Which operands of an op are positions, and which positions there are.

Kernels look for themselves, and raise. Compiled code on a CPU cannot: what it raises among several threads ends the
process. There positions are looked at beside the kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gt.types import OperandType, Shape, TensorType


class Positions(NamedTuple):
    #: the operand that holds them
    operand: int
    #: they are 0 to size - 1
    size: int
    #: -size to -1 count from the end
    from_end: bool = False
    #: a value that is no position and is passed over
    ignored: int | None = None


def in_dim(x: TensorType, *_rest: OperandType, dim: int, **_attrs: Any) -> tuple[Positions, ...]:
    """The second operand, along a dim of the first; a tensor of no dims is a row of one."""
    return (Positions(1, (x.shape or (1,))[dim]),)


def in_dims(shape: Shape, dims: tuple[int, ...], first: int) -> tuple[Positions, ...]:
    """One operand a dim, from the ``first`` on. In a tensor without elements nothing is looked up."""
    return tuple(Positions(first + i, shape[d], from_end=True) for i, d in enumerate(dims)) if 0 not in shape else ()
