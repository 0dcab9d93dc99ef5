"""Bytes to messages and back. Decoding is typed: what does not fit the types raises `BadFrame` and runs nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from gt.ops import Attrs, Signature, frozen
from gt.ops.signature import signature_from
from gt.types import DTYPES, SCALARS, OperandType, Scalar, TensorType
from gt.wire.messages import FIRST_CODE, Definition, Message, ToClient, ToDispatcher, ToWorker, WireType


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
        # a recursion limit or a memory limit reached by decoding is the frame's fault too
        except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as error:
            raise BadFrame(f"{type(error).__name__}: {error}") from None


def definition(code: int, signature: Signature) -> Definition:
    return Definition(
        code, signature.op.name, list(signature.attrs), [_to_wire(t) for t in signature.ins], signature.into
    )


def signature_of(definition: Definition) -> Signature:
    """The signature a definition describes, inferred anew: nobody's word is taken for a result type."""
    attrs: Attrs = tuple((name, frozen(value)) for name, value in definition.attrs)
    try:
        if definition.code < FIRST_CODE:
            raise ValueError(f"code {definition.code} is a control word")
        hash(attrs)
        return signature_from(definition.op, attrs, tuple(map(_from_wire, definition.ins)), definition.into)
    except Exception as error:  # whatever inference trips over, the definition is what is wrong
        raise BadFrame(f"definition of {definition.op!r}: {type(error).__name__}: {error}") from None


def _to_wire(t: OperandType) -> WireType:
    return (t.name, None) if isinstance(t, Scalar) else (t.dtype.name, t.shape)


def _from_wire(wire: WireType) -> OperandType:
    name, shape = wire
    if shape is None:
        return SCALARS[name]
    if any(n < 0 for n in shape):
        raise ValueError(f"a shape cannot hold {min(shape)}")
    return TensorType(shape, DTYPES[name])


__all__ = ["BadFrame", "Decode", "Message", "definition", "encode", "signature_of"]
