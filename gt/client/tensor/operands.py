"""The operands of an instruction: their types, and the words that stand for them."""

from __future__ import annotations

from typing import Any

from gt.client.stream.server_connection import SESSION_ENDS
from gt.client.stream.session import Session
from gt.client.tensor import foreign
from gt.client.tensor.tensor import Tensor
from gt.errors import ClusterError, DTypeError
from gt.ops import Op
from gt.types import INT, NUMBER_OF, OperandType, Scalar

#: the range of an integer on the wire
MIN_INT, MAX_INT = -(2**63), 2**63 - 1


def words_of(op: Op, session: Session, operands: tuple[Any, ...]) -> tuple[tuple[OperandType, ...], list[Any]]:
    """The types of the operands, and their words."""
    types: list[OperandType] = []
    words: list[Any] = []
    recorder = session.outbox.recorder
    for x in operands:
        if isinstance(x, Tensor):
            if x._view is not None:
                x._view.refresh(x)
            cell = x._cell
            if cell.session is not session:
                raise session_error(session, cell.session)
            if recorder is not None:
                recorder.note_use(cell)
            types.append(x._type)
            words.append(cell.id)
        else:
            types.append(number_type(op, x))
            words.append(x)
    return tuple(types), words


def number_type(op: Op, x: Any) -> Scalar:
    """The type of an operand that must be a number. Raises DTypeError for anything else."""
    scalar = NUMBER_OF.get(type(x))
    if scalar is None or (scalar is INT and not MIN_INT <= x <= MAX_INT):
        raise operand_error(op, x)
    return scalar


def session_of(op: Op, operands: tuple[Any, ...]) -> Session:
    """The session of the first tensor among the operands."""
    for x in operands:
        if isinstance(x, Tensor):
            return x._cell.session
    raise DTypeError(f"{op.name}: needs a tensor; make one with gt.tensor")


def operand_error(op: Op, x: Any) -> DTypeError:
    if isinstance(x, int):
        return DTypeError(f"{op.name}(…, {x}): an int has at most 64 bits; use a float")
    otherwise = f"an operand is a tensor or a number, not {type(x).__name__}"
    return DTypeError(f"{op.name}: {foreign.non_tensor_text(x, otherwise)}")


def session_error(session: Session, other: Session) -> ClusterError:
    one, two = session.connection, other.connection
    if one.ended is not None or two.ended is not None:
        return ClusterError(f"a tensor of a session that has ended cannot be used any more; {SESSION_ENDS}")
    return ClusterError(f"tensors of two sessions cannot be used together: {one.name} and {two.name}")
