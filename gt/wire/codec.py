"""Encodes messages and decodes frames. Decoding checks types: a frame that does not fit raises `BadFrame`."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from gt.errors import ShapeError
from gt.ops import Attrs, Signature
from gt.ops.signature import signature_from
from gt.types import DTYPES, MAX_DIMS, SCALARS, OperandType, Scalar, TensorType
from gt.wire.messages import ToClient, ToDispatcher, ToWorker
from gt.wire.structures import Definition, Fragment, WireType
from gt.wire.words import FIRST_CODE, MAX_DEFINITION_BYTES, MAX_INSTRUCTION_WORDS

#: How deep lists in attributes may be nested; the most bytes of a tensor.
MAX_ATTRIBUTE_DEPTH, MAX_TENSOR_BYTES = 16, 1 << 62


class BadFrame(Exception):
    """A peer sent an invalid frame. It loses its connection."""


encode = msgspec.msgpack.Encoder().encode
_RECEIVED = {"dispatcher": ToDispatcher, "client": ToClient, "worker": ToWorker}


@cache
def _decoder(role: str) -> msgspec.msgpack.Decoder[Any]:
    """Made at its first use: a role needs only its own."""
    return msgspec.msgpack.Decoder(_RECEIVED[role])


class Decode:
    """``Decode("client")(data)`` decodes a message that a client may receive. Raises BadFrame."""

    __slots__ = ("_decode",)

    def __init__(self, role: str) -> None:
        self._decode = _decoder(role).decode

    def __call__(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except Exception as error:  # a frame can also exceed the recursion limit or the memory
            raise BadFrame(f"{type(error).__name__}: {error}") from None


def definition(code: int, signature: Signature, signal: str = "") -> Definition:
    """The definition of a signature. Raises ShapeError if it is too large for a dispatcher to accept."""
    ins = [to_wire(t) for t in signature.ins]
    result = Definition(code, signature.op.name, list(signature.attrs), ins, signature.into, signal)
    if problem := _too_large(signature, result):
        raise ShapeError(f"{str(signature)[:400]}: {problem}")
    return result


def _too_large(signature: Signature, definition: Definition) -> str:
    """What is too large in it; empty if nothing is. The limits protect the dispatcher and the workers."""
    if signature.width > MAX_INSTRUCTION_WORDS or _leaves(signature.attrs) > MAX_INSTRUCTION_WORDS:
        return f"more than {MAX_INSTRUCTION_WORDS} operands and results in one instruction; do it in several"
    if any(t.ndim > MAX_DIMS for t in signature.outs):
        return f"a result of more than {MAX_DIMS} dims"
    if any(t.nbytes > MAX_TENSOR_BYTES for t in signature.outs):
        return "a result larger than any memory"
    if len(encode(definition)) > MAX_DEFINITION_BYTES:
        return f"shapes and attributes of more than {MAX_DEFINITION_BYTES} bytes"
    return ""


def announced_weight(definitions: list[Definition], fragments: list[Fragment]) -> int:
    """What the announcements of a submission weigh, in words: checking a byte of a definition takes a dispatcher about
    as long as forwarding a word, and a byte of a fragment a quarter of it."""
    return sum([len(encode(d)) for d in definitions]) + sum([len(encode(f)) for f in fragments]) // 4


def bytes_weight(words: list[Any]) -> int:
    """What bytes among these words weigh beyond a word each. `sum` is the quickest way to see that there are none."""
    try:
        sum(words)
    except TypeError:
        return sum([len(word) >> 3 for word in words if type(word) is bytes])
    return 0


def signature_of(definition: Definition) -> Signature:
    """The signature that a definition describes. Raises BadFrame if it is not valid.

    The result types are inferred here; the peer does not send them.
    """
    try:
        if definition.code < FIRST_CODE:
            raise ValueError(f"code {definition.code} is a control word")
        attrs: Attrs = tuple((name, _attribute(value, MAX_ATTRIBUTE_DEPTH)) for name, value in definition.attrs)
        if _leaves(attrs) > MAX_INSTRUCTION_WORDS:  # checked before inference multiplies them
            raise ValueError(f"more than {MAX_INSTRUCTION_WORDS} attributes")
        signature = signature_from(definition.op, attrs, tuple(map(from_wire, definition.ins)), definition.into)
        if not signature.offsets and not signature.op.creates:
            # without a tensor, Python itself computes the op, and 9 ** 9 ** 9 would block the worker
            raise ValueError("no operand is a tensor")
        if problem := _too_large(signature, definition):
            raise ValueError(problem)
        return signature
    except Exception as error:  # any error of inference means that the definition is wrong
        raise BadFrame(f"definition of {definition.op[:40]!r}: {type(error).__name__}: {str(error)[:200]}") from None


def _attribute(value: Any, depth: int) -> Any:
    """Convert lists to tuples. Raises if the value is not plain data or is nested too deep."""
    if isinstance(value, list | tuple):
        if not depth:
            raise ValueError(f"attributes nested more than {MAX_ATTRIBUTE_DEPTH} deep")
        return tuple(_attribute(item, depth - 1) for item in value)
    if value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(f"an attribute cannot be a {type(value).__name__}")
    return value


def _leaves(value: Any) -> int:
    """The number of values in nested tuples."""
    return sum(map(_leaves, value)) if isinstance(value, tuple) else 1


def to_wire(t: OperandType) -> WireType:
    """The type as it stands in a message; see `gt.wire.structures.WireType`."""
    return (t.name, None) if isinstance(t, Scalar) else (t.dtype.name, t.shape)


def from_wire(wire: WireType) -> OperandType:
    """The inverse of `to_wire`. Raises KeyError or ValueError if it is not a type."""
    name, shape = wire
    if shape is None:
        return SCALARS[name]
    if len(shape) > MAX_DIMS or any(n < 0 for n in shape):
        raise ValueError(f"{str(shape)[:100]} is not a shape")
    return TensorType(shape, DTYPES[name])


__all__ = ["BadFrame", "Decode", "announced_weight", "definition", "encode", "from_wire", "signature_of", "to_wire"]
