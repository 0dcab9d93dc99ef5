"""One `Op` is the whole truth about an operation; nothing outside `gt/ops` mentions an op by name.

An op is a pure function of its operands (tensors, and Python numbers that may change from call to call) and its
attributes (what its result type depends on). What a caller may leave out, such as ``dim=None``, is settled before an
op is made: attributes are complete, normalised and hashable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from gt.errors import DimError, DTypeError, ShapeError
from gt.ops.positions import Positions
from gt.ops.split import Apart, Cut, Split
from gt.types import DTYPES, DType, OperandType, Scalar, TensorType

#: ``(("dim", 1), ("keepdim", False))``: sorted by nothing, written in the order of the op's signature
Attrs = tuple[tuple[str, Any], ...]
Types = tuple[TensorType, ...]

#: In `Op.operands`: a number, and a tensor or a number.
NUMBER, EITHER = "[ifb]", "[tifb]"
#: The letter of an operand that is no tensor.
LETTERS = {"int": "i", "float": "f", "bool": "b", "bytes": "B"}
#: The bytes of the largest result. Sizes of 0 count as 1: torch and numpy multiply all sizes to get strides.
MAX_NBYTES = 1 << 62


# no dataclass: on a machine without torch only that would bring `inspect`, a quarter of what `import gt` takes
class Op(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    name: str
    #: (*operand types, **attrs) -> the result's type, or a tuple of them; raises one of the three errors above.
    infer: Callable[..., TensorType | Types]
    #: Which operands it takes, a regular expression with a letter for each: t a tensor, i an int, f a float, b a bool,
    #: B bytes.
    operands: str = "t+"
    #: (xp, *arrays and numbers, **attrs) -> array(s); ``xp`` is torch or numpy with array-API names.
    kernel: Callable[..., Any]
    #: Used instead of ``kernel`` on one engine; called with that library itself as ``xp``.
    torch: Callable[..., Any] | None = None
    numpy: Callable[..., Any] | None = None
    #: (*operand types, **attrs) -> the dtype all operands are brought to first; numpy's own promotion is not torch's.
    common: Callable[..., DType] | None = None
    #: The result shares memory with the first operand. Every other op makes fresh memory.
    view: bool = False
    #: (xp, *operands, **attrs) writes its result into the first operand; else the result is computed and copied.
    inplace: Callable[..., Any] | None = None
    #: How gradients go back: one (g, y, *operands, **attrs) -> gradient an operand, None where there is none; or one
    #: (needs, g, y, *operands, **attrs) -> a gradient each, for all together. See `gt.client.tensor.tape`. Without it, no
    #: gradient goes through the op.
    vjp: tuple[Callable[..., Any] | None, ...] | Callable[..., Any] | None = None
    #: (*operand types, **attrs) -> how it may be cut across workers; None, or none, and they gather, and say so.
    split: Callable[..., Split | Apart | None] | None = None
    #: (attrs, cut) -> the attributes for one worker's share, where they depend on it: a shape, a position.
    local: Callable[[dict[str, Any], Cut], dict[str, Any]] | None = None
    #: (*operand types, **attrs) -> arithmetic operations, for ops that do many an element.
    flops: Callable[..., int] | None = None
    #: (*operand types, **attrs) -> which operands are positions, and in what.
    positions: Callable[..., tuple[Positions, ...]] | None = None
    #: It does something outside the workers' memory: it must run once for each time it is asked for.
    effects: bool = False
    #: There is no operand to tell the device from: the kernel takes ``device=``.
    creates: bool = False
    #: It changes nothing but where its operand lies: that its signal says, as for what is created.
    places: bool = False
    #: The kernel takes ``out=``, the tuple of result types: its attributes alone do not tell them.
    wants_out: bool = False

    def result_types(self, types: tuple[OperandType, ...], attrs: Attrs) -> Types:
        try:
            self._check_operands(types)
            _check_integers(attrs)
            made = self.infer(*types, **dict(attrs))
            results = made if isinstance(made, tuple) else (made,)
            for t in results:
                _check_sizes(t)
        except (ShapeError, DimError, DTypeError) as problem:
            raise type(problem)(f"{self.call(types, attrs)}: {problem}") from None
        return results

    def _check_operands(self, types: tuple[OperandType, ...]) -> None:
        letters = "".join([LETTERS[t.name] if isinstance(t, Scalar) else "t" for t in types])
        if re.fullmatch(self.operands, letters) is None:
            raise DTypeError(
                "takes tensors only, one at least"
                if self.operands == "t+"
                else f"takes the operands {self.operands} (t: a tensor, i: an int, f: a float, b: a bool, B: bytes)"
            )

    def call(self, types: tuple[OperandType, ...], attrs: Attrs) -> str:
        """``sum(float32[8,4], dim=(1,))``: how errors and logs name one use of this op."""
        shown = [*map(str, types), *(f"{k}={v}" for k, v in attrs)]
        return f"{self.name}({', '.join(shown)})"

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def _check_integers(attrs: Any) -> None:
    """Refuses what no kernel takes."""
    for value in attrs:
        if isinstance(value, tuple):
            _check_integers(value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise DTypeError(f"{value} does not fit into 64 bits")


def _check_sizes(result: TensorType) -> None:
    """Whatever an `infer` computes sizes from, they are sizes of a tensor that could exist."""
    nbytes = result.dtype.itemsize
    for n in result.shape:
        if type(n) is not int or n < 0:
            raise ShapeError(f"{n} is no size of a result")
        nbytes *= n or 1
    if nbytes > MAX_NBYTES:
        raise ShapeError("a result larger than any memory")


OPS: dict[str, Op] = {}


def op(name: str, **fields: Any) -> Op:
    """Declare one op. Declaring a name twice is an error."""
    if name in OPS:
        raise ValueError(f"op {name!r} is declared twice")
    OPS[name] = made = Op(name=name, **fields)
    return made


def dtype_named(name: str) -> DType:
    """Attributes hold a dtype by its name: they go on the wire."""
    try:
        return DTYPES[name]
    except KeyError:
        raise DTypeError(f"no dtype is called {name!r}") from None
