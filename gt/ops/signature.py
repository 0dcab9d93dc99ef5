"""A signature is one way of calling one op: the op, its attributes and the types of its operands.

A program repeats the same few hundred calls. The client numbers each signature once and sends its definition once.
After that, an instruction is a few numbers in a flat stream:

    code, site, outputs…, operands…

``code`` is the signature's number; ``site`` the client's number for the source line; an output or a tensor operand
is a tensor id; a scalar operand is the number itself. The signature determines how many words follow. Below
``FIRST_CODE`` a code is a control word, and a negative word ``-id`` frees a tensor (see `gt.wire.words`).
"""

from __future__ import annotations

from gt.errors import DTypeError, ShapeError
from gt.ops.op import OPS, Attrs, Op, Types
from gt.types import OperandType, Scalar, TensorType

#: words before the outputs: code and site
HEAD = 2

#: in place, a result may lose precision but not kind
KINDS = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


class Signature:
    """Immutable. Everything that does not change from call to call is computed here, once."""

    __slots__ = ("attrs", "ins", "into", "offsets", "op", "outs", "plain", "start", "width")

    def __init__(self, op: Op, attrs: Attrs, ins: tuple[OperandType, ...], outs: Types, into: bool) -> None:
        self.op, self.attrs, self.ins, self.outs = op, attrs, ins, outs
        #: The outputs are the first operands, and the results are written into their storage.
        self.into = into
        #: where the operands start, counted from the code
        self.start = HEAD + len(outs)
        self.width = self.start + len(ins)
        #: where the tensor ids among the operands are, counted from the code
        self.offsets = tuple(self.start + i for i, t in enumerate(ins) if not isinstance(t, Scalar))
        #: the number of operands if all are tensors and there is one fresh output, else -1: the common, fast case
        self.plain = len(ins) if len(outs) == 1 and not into and len(self.offsets) == len(ins) else -1

    def __str__(self) -> str:
        mark = "_" if self.into else ""
        return self.op.call(self.ins, self.attrs).replace("(", f"{mark}(", 1)


def sign(op: Op, attrs: Attrs, ins: tuple[OperandType, ...], into: bool = False) -> Signature:
    """Infer the results of a call; raises if it is not legal."""
    outs = op.result_types(ins, attrs)
    if into:
        outs = tuple(_target(op, attrs, ins, i, result) for i, result in enumerate(outs))
    return Signature(op, attrs, ins, outs, into)


def _target(op: Op, attrs: Attrs, ins: tuple[OperandType, ...], i: int, result: TensorType) -> TensorType:
    """In place, a result goes into the operand of the same number, which keeps its shape and dtype."""
    target = ins[min(i, len(ins) - 1)]
    if i >= len(ins) or isinstance(target, Scalar) or result.shape != target.shape:
        raise ShapeError(f"{op.call(ins, attrs)}: in place, the result {result} does not fit into {target}")
    if result.dtype.kind == "f" and target.dtype.kind == "c":
        raise DTypeError(f"{op.call(ins, attrs)}: in place, not defined for {target.dtype.name}: its result is real")
    if KINDS[result.dtype.kind] > KINDS[target.dtype.kind]:
        raise DTypeError(f"{op.call(ins, attrs)}: in place, {result.dtype.name} does not fit into {target.dtype.name}")
    return target


def signature_from(name: str, attrs: Attrs, ins: tuple[OperandType, ...], into: bool) -> Signature:
    """The same for a definition from the wire: an unknown op is a KeyError."""
    return sign(OPS[name], attrs, ins, into)
