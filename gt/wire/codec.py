"""Bytes to messages and back. Decoding is typed: what does not fit the types raises `BadFrame` and runs nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from gt.errors import ShapeError
from gt.ops import Attrs, Signature
from gt.ops.signature import signature_from
from gt.types import DTYPES, MAX_DIMS, SCALARS, OperandType, Scalar, TensorType
from gt.wire.messages import (
    FIRST_CODE,
    MAX_DEFINITION,
    MAX_WIDTH,
    Definition,
    Message,
    ToClient,
    ToDispatcher,
    ToWorker,
    WireType,
)

#: How deep lists in attributes may be nested; the bytes of the largest tensor there can be.
DEPTH, MAX_NBYTES = 16, 1 << 62


class BadFrame(Exception):
    """A peer sent what is no message; it loses its connection."""


encode = msgspec.msgpack.Encoder().encode
_decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "dispatcher": msgspec.msgpack.Decoder(ToDispatcher),
    "client": msgspec.msgpack.Decoder(ToClient),
    "worker": msgspec.msgpack.Decoder(ToWorker),
}


class Decode:
    """``Decode("client")(data)``: the messages that one role may receive."""

    __slots__ = ("_decode",)

    def __init__(self, role: str) -> None:
        self._decode = _decoders[role].decode

    def __call__(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except Exception as error:  # a recursion limit or a memory limit reached by decoding is the frame's fault too
            raise BadFrame(f"{type(error).__name__}: {error}") from None


def definition(code: int, signature: Signature, signal: str = "") -> Definition:
    """Raises ShapeError, at the caller, for what no dispatcher would take."""
    ins = [_to_wire(t) for t in signature.ins]
    made = Definition(code, signature.op.name, list(signature.attrs), ins, signature.into, signal)
    if problem := _too_large(signature, made):
        raise ShapeError(f"{str(signature)[:400]}: {problem}")
    return made


def _too_large(signature: Signature, definition: Definition) -> str:
    """What is too large about it, if anything: nobody may make the others handle monsters."""
    if signature.width > MAX_WIDTH or _leaves(signature.attrs) > MAX_WIDTH:
        return f"more than {MAX_WIDTH} operands and results in one instruction; do it in several"
    if any(t.ndim > MAX_DIMS for t in signature.outs):
        return f"a result of more than {MAX_DIMS} dims"
    if any(t.nbytes > MAX_NBYTES for t in signature.outs):
        return "a result larger than any memory"
    if len(encode(definition)) > MAX_DEFINITION:
        return f"shapes and attributes of more than {MAX_DEFINITION} bytes"
    return ""


def signature_of(definition: Definition) -> Signature:
    """The signature a definition describes, inferred anew: nobody's word is taken for a result type."""
    try:
        if definition.code < FIRST_CODE:
            raise ValueError(f"code {definition.code} is a control word")
        attrs: Attrs = tuple((name, _attribute(value, DEPTH)) for name, value in definition.attrs)
        if _leaves(attrs) > MAX_WIDTH:  # before anybody multiplies them
            raise ValueError(f"more than {MAX_WIDTH} attributes")
        found = signature_from(definition.op, attrs, tuple(map(_from_wire, definition.ins)), definition.into)
        if not found.offsets and not found.op.creates:
            # among Python numbers alone an op is Python's own, and 9 ** 9 ** 9 would take its worker for ever
            raise ValueError("no operand is a tensor")
        if problem := _too_large(found, definition):
            raise ValueError(problem)
        return found
    except Exception as error:  # whatever inference trips over, the definition is what is wrong
        raise BadFrame(f"definition of {definition.op[:40]!r}: {type(error).__name__}: {str(error)[:200]}") from None


def _attribute(value: Any, depth: int) -> Any:
    """Lists from the wire as the tuples attributes are made of, if they are plain and not nested without end."""
    if isinstance(value, list | tuple):
        if not depth:
            raise ValueError(f"attributes nested more than {DEPTH} deep")
        return tuple(_attribute(item, depth - 1) for item in value)
    if value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(f"an attribute cannot be a {type(value).__name__}")
    return value


def _leaves(value: Any) -> int:
    return sum(map(_leaves, value)) if isinstance(value, tuple) else 1


def _to_wire(t: OperandType) -> WireType:
    return (t.name, None) if isinstance(t, Scalar) else (t.dtype.name, t.shape)


def _from_wire(wire: WireType) -> OperandType:
    name, shape = wire
    if shape is None:
        return SCALARS[name]
    if len(shape) > MAX_DIMS or any(n < 0 for n in shape):
        raise ValueError(f"{str(shape)[:100]} is no shape")
    return TensorType(shape, DTYPES[name])


__all__ = ["BadFrame", "Decode", "Message", "definition", "encode", "signature_of"]
