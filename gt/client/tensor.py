"""The tensor a user holds: a number for something on a worker, its type, and how it may be read and changed.

Ops are pure. What PyTorch calls in-place is, on the wire, an op whose result is written *into* an existing tensor.
Views are recipes: a view remembers the tensor it looks at and the way there. When that tensor is written, the view's
own value is out of date, and is made anew when next used; when a view is written, the recipe says where in the base
the values go. So aliasing works as in torch wherever the pieces of a tensor may lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from gt.client import sites
from gt.client.session import BATCH, Session
from gt.errors import ClusterError, DimError, DTypeError, ShapeError
from gt.ops import OPS, Attrs, Op
from gt.types import BYTES, INT, NUMBER_OF, DType, OperandType, Size, TensorType

if TYPE_CHECKING:
    import numpy as np

    from gt.client.declared import Declared
else:
    Declared = object

#: what an integer on the wire holds
MIN_INT, MAX_INT = -(2**63), 2**63 - 1

#: (view op, its attributes, its scalar operands): one step from a base to a view
Step = tuple[Op, Attrs, tuple[int, ...]]


class View:
    """How a tensor looks at another."""

    __slots__ = ("base", "chain", "version")

    def __init__(self, base: Tensor, chain: tuple[Step, ...]) -> None:
        self.base, self.chain, self.version = base, chain, base._version


class Tensor(Declared):
    """See `torch.Tensor`; methods are attached by `gt.client.methods`."""

    __slots__ = ("__weakref__", "_id", "_session", "_type", "_version", "_view")
    #: numpy must leave ``array + tensor`` to the tensor
    __array_ufunc__ = None

    def __init__(self, id: int, type: TensorType, session: Session) -> None:
        self._id, self._type, self._session = id, type, session
        self._view: View | None = None
        #: counts in-place changes
        self._version = 0

    def __del__(self) -> None:
        try:  # noqa: SIM105, a context manager would cost more than all the rest
            self._session.dropped.append(self._id)
        except AttributeError:  # never got as far as an id
            pass

    # -- what it is ----------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        return Size(self._type.shape)

    @property
    def dtype(self) -> DType:
        return self._type.dtype

    @property
    def ndim(self) -> int:
        return self._type.ndim

    @property
    def data(self) -> Tensor:
        return self

    @property
    def itemsize(self) -> int:
        return self._type.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self._type.nbytes

    def dim(self) -> int:
        return self._type.ndim

    def element_size(self) -> int:
        return self._type.dtype.itemsize

    def size(self, dim: int | None = None) -> Any:
        if dim is None:
            return self.shape
        if not -self._type.ndim <= dim < self._type.ndim:
            raise DimError(f"size({self._type}, {dim}): there are {self._type.ndim} dims")
        return self._type.shape[dim]

    # -- its value -----------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """The value, in memory of its own. One round trip."""
        import numpy as np

        if self._type.dtype.name == "bfloat16":
            raise DTypeError("numpy has no bfloat16; cast first: x.float().numpy()")
        current(self)
        data = self._session.read(self._id, self._type)
        return np.frombuffer(data, dtype=self._type.dtype.name).reshape(self._type.shape)

    def _readable(self) -> np.ndarray[Any, Any]:
        """The same with a bfloat16 as float32."""
        if self._type.dtype.name == "bfloat16":
            return call(OPS["to"], (self,), (("dtype", "float32"),)).numpy()
        return self.numpy()

    def item(self) -> Any:
        if self._type.numel != 1:
            raise ShapeError(f"item(): a tensor of {self._type.numel} elements is no single number")
        return self._readable().item()

    def tolist(self) -> Any:
        return self._readable().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        """A copy on this host, for any library that takes DLPack."""
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __bool__(self) -> bool:
        if self._type.numel != 1:
            raise ShapeError(f"the truth of a tensor with {self._type.numel} elements is ambiguous; use any() or all()")
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if self._type.dtype.kind == "f":
            raise TypeError("only an integer tensor of one element can be an index")
        return int(self.item())

    def __len__(self) -> int:
        if not self._type.ndim:
            raise TypeError("len() of a 0-d tensor")
        return self._type.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self._type.ndim:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind())

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if not self._type.ndim else object.__format__(self, spec)

    def __repr__(self) -> str:
        from gt.client.printing import shown

        return shown(self)

    # ``==`` compares elements, so two tensors are the same thing only if they are one object
    __hash__ = object.__hash__

    def __copy__(self) -> Tensor:
        return call(OPS["clone"], (self,))

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        made = memo[id(self)] = call(OPS["clone"], (self,))
        return made

    def __reduce__(self) -> NoReturn:
        raise TypeError("a tensor lives on a worker and cannot be pickled; save its .numpy()")


# -- emitting ----------------------------------------------------------------------------


def call(op: Op, operands: tuple[Any, ...], attrs: Attrs = ()) -> Tensor:
    """Emit one instruction with one result. The hot path: every step here is counted in nanoseconds."""
    session = _session_of(op, operands)
    key: list[Any] = [op, attrs, False]
    words: list[Any] = []
    for x in operands:
        if isinstance(x, Tensor):
            if x._view is not None:
                current(x)
            if x._session is not session:
                raise _strangers(session, x._session)
            key.append(x._type)
            words.append(x._id)
        else:
            scalar = NUMBER_OF.get(type(x))
            if scalar is None or (scalar is INT and not MIN_INT <= x <= MAX_INT):
                raise _no_operand(op, x)
            key.append(scalar)
            words.append(x)
    found = session.signatures.get(tuple(key))
    if found is None:
        found = session.define(op, attrs, tuple(key[3:]), False)
    if session.dropped:
        session.free()
    id = session.next_id()
    session.extend((found[0], sites.here(), id, *words))
    if len(session.words) >= BATCH:
        session.flush()
    return Tensor(id, found[1], session)


def binary(op: Op, a: Tensor, b: Any, attrs: Attrs = ()) -> Tensor:
    """`call` for two operands, of which the first is a tensor. A KeyError says that the second is no operand."""
    session = a._session
    if a._view is not None:
        current(a)
    if isinstance(b, Tensor):
        if b._view is not None:
            current(b)
        if b._session is not session:
            raise _strangers(session, b._session)
        type_b: OperandType = b._type
        word_b = b._id
    else:
        type_b = NUMBER_OF[type(b)]
        if type_b is INT and not MIN_INT <= b <= MAX_INT:
            raise _no_operand(op, b)
        word_b = b
    found = session.signatures.get((op, attrs, False, a._type, type_b))
    if found is None:
        found = session.define(op, attrs, (a._type, type_b), False)
    if session.dropped:
        session.free()
    id = session.next_id()
    session.extend((found[0], sites.here(), id, a._id, word_b))
    if len(session.words) >= BATCH:
        session.flush()
    return Tensor(id, found[1], session)


def call_many(op: Op, operands: tuple[Any, ...], attrs: Attrs = ()) -> tuple[Tensor, ...]:
    """`call` for an op with several results."""
    session = _session_of(op, operands)
    types, words = _operands(op, session, operands)
    _, _, signature = found = session.signatures.get((op, attrs, False, *types)) or session.define(
        op, attrs, types, False
    )
    session.free()
    ids = [session.next_id() for _ in signature.outs]
    session.extend((found[0], sites.here(), *ids, *words))
    if len(session.words) >= BATCH:
        session.flush()
    return tuple(Tensor(id, t, session) for id, t in zip(ids, signature.outs, strict=True))


def call_into(op: Op, target: Tensor, rest: tuple[Any, ...], attrs: Attrs = ()) -> Tensor:
    """Emit an op whose first operand is ``target`` and whose result is written into it."""
    if target._view is not None:
        _write_through(target._view, op, target, rest, attrs)
        return target
    session = target._session
    types, words = _operands(op, session, (target, *rest))
    found = session.signatures.get((op, attrs, True, *types)) or session.define(op, attrs, types, True)
    session.free()
    session.extend((found[0], sites.here(), target._id, *words))
    target._version += 1
    if len(session.words) >= BATCH:
        session.flush()
    return target


def create(op: Op, operands: tuple[Any, ...], attrs: Attrs, session: Session) -> Tensor:
    """Emit an op without tensor operands."""
    types = tuple(NUMBER_OF[type(x)] for x in operands)
    return _created(op, operands, attrs, session, types)


def upload(data: memoryview, type: TensorType, session: Session) -> Tensor:
    """A tensor of these bytes; they may change as soon as this returns."""
    attrs = (("shape", type.shape), ("dtype", type.dtype.name))
    return _created(OPS["upload"], (session.upload(data),), attrs, session, (BYTES,))


def _created(
    op: Op, operands: tuple[Any, ...], attrs: Attrs, session: Session, types: tuple[OperandType, ...]
) -> Tensor:
    found = session.signatures.get((op, attrs, False, *types)) or session.define(op, attrs, types, False)
    session.free()
    id = session.next_id()
    session.extend((found[0], sites.here(), id, *operands))
    if len(session.words) >= BATCH:
        session.flush()
    return Tensor(id, found[1], session)


def _operands(op: Op, session: Session, operands: tuple[Any, ...]) -> tuple[tuple[OperandType, ...], list[Any]]:
    types: list[OperandType] = []
    words: list[Any] = []
    for x in operands:
        if isinstance(x, Tensor):
            current(x)
            if x._session is not session:
                raise _strangers(session, x._session)
            types.append(x._type)
            words.append(x._id)
        else:
            scalar = NUMBER_OF.get(type(x))
            if scalar is None or (scalar is INT and not MIN_INT <= x <= MAX_INT):
                raise _no_operand(op, x)
            types.append(scalar)
            words.append(x)
    return tuple(types), words


def _session_of(op: Op, operands: tuple[Any, ...]) -> Session:
    for x in operands:
        if isinstance(x, Tensor):
            return x._session
    raise DTypeError(f"{op.name}: needs a tensor; make one with gt.tensor")


def _no_operand(op: Op, x: Any) -> DTypeError:
    if isinstance(x, int):
        return DTypeError(f"{op.name}(…, {x}): an int has at most 64 bits; use a float")
    return DTypeError(f"{op.name}: an operand is a tensor or a number, not {type(x).__name__}")


def _strangers(one: Session, other: Session) -> ClusterError:
    if one.ended is not None or other.ended is not None:
        return ClusterError("a tensor of a session that has ended cannot be used any more")
    return ClusterError(f"tensors of two sessions cannot meet: {one.name} and {other.name}")


# -- views -------------------------------------------------------------------------------


def view_of(x: Tensor, op: Op, attrs: Attrs, scalars: tuple[int, ...] = ()) -> Tensor:
    """A view of x, by one more step."""
    made = call(op, (x, *scalars), attrs)
    look_at(made, x, (op, attrs, scalars))
    return made


def look_at(made: Tensor, x: Tensor, step: Step) -> None:
    """``made`` holds what the step makes of x: let it be a view from now on."""
    made._view = View(x, (step,)) if x._view is None else View(x._view.base, (*x._view.chain, step))


def current(x: Tensor) -> None:
    """If x is a view of something that was written since, make its value anew."""
    view = x._view
    if view is None or view.version == view.base._version:
        return
    made = view.base
    for op, attrs, scalars in view.chain:
        made = call(op, (made, *scalars), attrs)
    x._id, made._id = made._id, x._id  # the old value goes where the helper goes
    view.version = view.base._version


def _write_through(view: View, op: Op, target: Tensor, rest: tuple[Any, ...], attrs: Attrs) -> None:
    """In place on a view: compute its new value, and put that into the base."""
    session = target._session
    types, _ = _operands(op, session, (target, *rest))
    # refused as a whole or not at all: both signatures are looked at before anything is emitted
    session.signatures.get((op, attrs, True, *types)) or session.define(op, attrs, types, True)
    _check_writable(view.base, view.chain, target._type)
    value = call(op, (target, *rest), attrs)
    put(view.base, view.chain, value)


def put(x: Tensor, steps: tuple[Step, ...], value: Any) -> None:
    """Write a value into what the steps make of x."""
    base, steps = (x, steps) if x._view is None else (x._view.base, (*x._view.chain, *steps))
    chain, starts = _as_attribute(steps)
    call_into(OPS["put_view"], base, (value, *starts), (("chain", chain),))


def _as_attribute(steps: tuple[Step, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    return tuple((op.name, attrs) for op, attrs, _ in steps), tuple(s for _, _, scalars in steps for s in scalars)


def _check_writable(base: Tensor, steps: tuple[Step, ...], value: TensorType) -> None:
    chain, starts = _as_attribute(steps)
    op, attrs, types = OPS["put_view"], (("chain", chain),), (base._type, value, *(INT,) * len(starts))
    base._session.signatures.get((op, attrs, True, *types)) or base._session.define(op, attrs, types, True)
