"""One `Op` states everything about an operation: no other file states a fact about an op.

An op is a pure function of its operands (tensors, and Python numbers that may change from call to call) and its
attributes (what the type of its result depends on). A function that calls an op fills in what its caller left out, such
as ``dim=None``, so an op's attributes are complete, normalised and hashable.

The client, the dispatcher and the workers read the entries. The plain Python functions (``gt.exp``), the methods
(``x.exp()``, ``x.exp_()``), the aliases and the names in ``gt.special`` are derived from them by `gt.functions.derive`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from gt.errors import DimError, DTypeError, ShapeError
from gt.ops.positions import Positions
from gt.ops.split import Apart, Share, Split
from gt.types import DTYPES, DType, OperandType, Scalar, TensorType

#: ``(("dim", 1), ("keepdim", False))``: in the order of the op's signature
Attrs = tuple[tuple[str, Any], ...]
Types = tuple[TensorType, ...]

#: In `Op.operands`: a number; a tensor or a number.
NUMBER, EITHER = "[ifb]", "[tifb]"
#: The letter of an operand that is not a tensor.
LETTERS = {"int": "i", "float": "f", "bool": "b", "bytes": "B"}
#: The bytes of the largest result. Sizes of 0 count as 1: torch and numpy multiply all sizes to get strides.
MAX_NBYTES = 1 << 62

#: The values of `Op.autocast`.
AUTOCAST = ("", "lower", "float32", "float32_result", "widest")
#: The values of `Op.complex`.
COMPLEX = ("", "rule", "holomorphic")
#: The values of `Op.function`: what the Python function takes, a letter for each argument. t: a tensor; e: a tensor or
#: a number, but not numbers alone.
FUNCTIONS = ("", "t", "tt", "te", "ee")


class NumberRule(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """How an op computes with numbers that are 0-d tensors in memory. `gt.ops.varying` says why and calls it."""

    #: (signature, device) -> (*operands) -> the result; a number that changes is a 0-d tensor of float64 or int64
    run: Callable[..., Any]
    #: the numbers (the first is 0) that may change; None: all
    may_change: tuple[int, ...] | None = None
    #: the numbers that are treated as changing from the first run on, such as a learning rate
    always: tuple[int, ...] = ()
    #: (signature) -> a function of the call's numbers that raises if a kernel could not take them; or None
    check: Callable[..., Any] | None = None
    #: (the call's numbers) -> those that are put into memory, where these are not the changing ones themselves
    derive: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
    #: In compiled code, in place: (signature, the call's numbers) -> (*operands) -> the result. A formula fuses with
    #: the code around it; the kernel of `run` is torch's fused one, and reads numbers in memory in single precision.
    formula: Callable[..., Any] | None = None
    #: (the call's numbers) -> what the formula reads from memory
    formula_numbers: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
    #: the numbers that are constants in the formula
    formula_constants: frozenset[int] = frozenset()


# Not a dataclass: without torch, only that would import `inspect`, which takes a quarter of the time of `import gt`.
class Op(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    name: str
    #: the file that declares it, without folder and ending
    file: str = ""

    # -- types --
    #: (*operand types, **attrs) -> the result's type, or a tuple of them; raises ShapeError, DimError or
    #: DTypeError.
    infer: Callable[..., TensorType | Types]
    #: Which operands it takes, a regular expression with a letter for each: t a tensor, i an int, f a float, b a bool,
    #: B bytes.
    operands: str = "t+"

    #: Whether it computes with complex numbers. "": it refuses them. "holomorphic": its ``vjp`` is written for real
    #: numbers, and the tape conjugates what goes in and what comes out. "rule": its ``vjp``, if any, is right as it is:
    #: it only moves, adds and subtracts values, or is written for complex numbers.
    complex: str = ""

    # -- computing --
    #: (xp, *arrays and numbers, **attrs) -> array(s); ``xp`` is torch or numpy with array-API names. In an entry that
    #: has ``torch`` too, this is the kernel for numpy alone, and ``xp`` is numpy itself.
    kernel: Callable[..., Any]
    #: Used instead of ``kernel`` on one engine; called with that library itself as ``xp``.
    torch: Callable[..., Any] | None = None
    numpy: Callable[..., Any] | None = None
    #: (*operand types, **attrs) -> the dtype all operands are cast to first; numpy's own promotion is not torch's.
    common: Callable[..., DType] | None = None
    #: The result shares memory with the first operand. The result of every other op is fresh memory.
    view: bool = False
    #: (xp, *operands, **attrs) writes its result into the first operand. Without it, the result is computed and copied.
    inplace: Callable[..., Any] | None = None
    #: No operand says which device to use: the kernel takes ``device=``.
    creates: bool = False
    #: The kernel takes ``out=``, the tuple of result types, because the attributes do not determine them.
    wants_out: bool = False
    #: (*operand types, **attrs) -> arithmetic operations, for ops that do many per element.
    flops: Callable[..., int] | None = None

    # -- gradients --
    #: One rule per operand, (g, y, *operands, **attrs) -> its gradient, or None where there is none; or one rule for
    #: all, (needs, g, y, *operands, **attrs) -> a gradient each. See `gt.client.tensor.tape`.
    vjp: tuple[Callable[..., Any] | None, ...] | Callable[..., Any] | None = None
    #: Why it has no ``vjp``; a test requires one of the two.
    no_gradient: str = ""
    #: "lower": autocast casts its operands to the lower precision; "float32": to float32; "float32_result": its result
    #: is float32 unless the call names a dtype; "widest": its operands get the widest dtype among them. "": unchanged.
    autocast: str = ""

    # -- many workers --
    #: (*operand types, **attrs) -> how it may be split across workers; where it returns None, operands are gathered.
    split: Callable[..., Split | Apart | None] | None = None
    #: Why it has no ``split``: it cannot be split, so its operands are gathered first. A test requires one of the two.
    whole: str = ""
    #: (attrs, share) -> the attributes for one worker's share, where they depend on it: a shape, a position.
    local: Callable[[dict[str, Any], Share], dict[str, Any]] | None = None
    #: The workers that hold its tensor run it, each on its own block; ``local`` says which that is. If it writes the
    #: tensor in place, the layout stays; otherwise every element is in the block of one worker only.
    own_blocks: bool = False
    #: It changes nothing but the placement of its operand, which its signal gives, as for tensors that are created.
    places: bool = False

    # -- replay, graphs and compiled code --
    #: It does something outside the workers' memory, so it must run once per request and is never part of a graph.
    effects: bool = False
    #: Its first two numbers are the key of a random draw: a seed and a stream.
    draws: bool = False
    #: It is a step of an optimizer: the optimizer passes new numbers on each call.
    steps: bool = False
    #: Its kernel reads values (a shape, a loop or a wait depends on them), so no graph may hold it: "always", or "cpu"
    #: for the kernel on a CPU only. Or a function of its operands' types that says which.
    reads_values: str | Callable[..., str] = ""
    #: Its kernel cannot be traced by the compiler. A graph may hold it.
    opaque: bool = False
    #: With integers on a CPU it stops at a division by zero, which compiled code would not.
    stops_at_zero: bool = False
    #: How it computes with numbers in memory. Without it, an op with a ``common`` dtype casts them to that dtype.
    varying: NumberRule | None = None
    #: (*operand types, **attrs) -> which operands are positions, and in what.
    positions: Callable[..., tuple[Positions, ...]] | None = None

    # -- in Python --
    #: The Python function is just the op: what it takes, see `FUNCTIONS`. "": it is written out in `gt/functions` or
    #: `gt/nn`, or there is none. The function is published wherever torch has a function or method of that name.
    function: str = ""
    #: One line that says what the function computes, as its docstring.
    doc: str = ""
    #: torch's other names for the function: ``absolute`` for ``abs``.
    aliases: tuple[str, ...] = ()
    #: The overloads of ATen, torch's instruction set, that are just this op: "gelu_backward", "mm". An op with a
    #: ``function`` is those of its own names too.
    aten: tuple[str, ...] = ()
    #: The names of several results: the function returns a named tuple.
    results: tuple[str, ...] = ()

    def result_types(self, types: tuple[OperandType, ...], attrs: Attrs) -> Types:
        """The types of the results; raises an error that names the call if it is not legal."""
        try:
            self._check_operands(types)
            _check_integers(attrs)
            if not self.complex:
                _refuse_complex(*types)
            inferred = self.infer(*types, **dict(attrs))
            results = inferred if isinstance(inferred, tuple) else (inferred,)
            for t in results:
                _check_sizes(t)
            if not self.complex:
                _refuse_complex(*results)
        except (ShapeError, DimError, DTypeError) as problem:
            raise type(problem)(f"{self.call(types, attrs)}: {problem}") from None
        return results

    def _check_operands(self, types: tuple[OperandType, ...]) -> None:
        letters = "".join([LETTERS[t.name] if isinstance(t, Scalar) else "t" for t in types])
        if re.fullmatch(self.operands, letters) is None:
            raise DTypeError(
                "takes only tensors, at least one"
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
    """Refuses ints that no kernel takes."""
    for value in attrs:
        if isinstance(value, tuple):
            _check_integers(value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise DTypeError(f"{value} does not fit into 64 bits")


def _check_sizes(result: TensorType) -> None:
    """Refuses sizes that no tensor can have, whatever `infer` computed them from."""
    nbytes = result.dtype.itemsize
    for n in result.shape:
        if type(n) is not int or n < 0:
            raise ShapeError(f"{n} is not a valid size")
        nbytes *= n or 1
    if nbytes > MAX_NBYTES:
        raise ShapeError("the result is larger than any memory")


def _refuse_complex(*types: OperandType) -> None:
    for t in types:
        if t.dtype.kind == "c":
            raise DTypeError(f"not defined for {t.dtype.name}; use x.real, x.imag or abs(x)")


OPS: dict[str, Op] = {}


def op(name: str, **fields: Any) -> Op:
    """Declare one op. Declaring a name twice is an error."""
    if name in OPS:
        raise ValueError(f"op {name!r} is declared twice")
    file = sys._getframe(1).f_globals["__name__"].rpartition(".")[2]
    entry = Op(name=name, file=file, **fields)
    _check_entry(entry)
    OPS[name] = entry
    return entry


def _check_entry(entry: Op) -> None:
    """Refuses an entry that contradicts itself. That each op has a gradient or a reason is tested, not checked here."""
    problem = ""
    if entry.no_gradient and entry.vjp is not None:
        problem = "has a vjp, so no_gradient is wrong"
    if entry.whole and entry.split is not None:
        problem = "has a split, so whole is wrong"
    if entry.autocast not in AUTOCAST:
        problem = f"autocast is one of {AUTOCAST}"
    if entry.complex not in COMPLEX:
        problem = f"complex is one of {COMPLEX}"
    if entry.function not in FUNCTIONS:
        problem = f"function is one of {FUNCTIONS}"
    if entry.function and not entry.doc.endswith("."):
        problem = "its function needs a doc, one line that ends in a full stop"
    if problem:
        raise ValueError(f"op {entry.name!r}: {problem}")


def dtype_named(name: str) -> DType:
    """Attributes hold a dtype as its name, because they are sent on the wire."""
    try:
        return DTYPES[name]
    except KeyError:
        raise DTypeError(f"no dtype is named {name!r}") from None
