"""The tensor a user holds: the id of a value on the workers, its type, and how it is read.

A `Cell` owns the id, and frees the value when the last tensor on it is gone. Two tensors on one cell share their value,
as ``x`` and ``x.detach()`` do. Most methods are attached by `gt.functions.methods`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from gt.client.stream import recorder
from gt.client.stream.session import Session
from gt.client.tensor.foreign import torch_function
from gt.errors import DimError, DTypeError, ShapeError
from gt.missing import Missing
from gt.ops import Attrs, Op
from gt.types import DType, Shape, Size, TensorType
from gt.wire.interrupts import deferred
from gt.wire.words import MAX_SUBMIT_WORDS

#: With fewer words in the outbox, a freed tensor becomes one of them at once.
INLINE_FREE_LIMIT = MAX_SUBMIT_WORDS // 2

if TYPE_CHECKING:
    import numpy as np

    from gt.client.tensor.declared import Declared
    from gt.client.tensor.tape import Node
else:
    Declared = object

#: (view op, its attributes, its scalar operands): one step from a base to a view
ViewStep = tuple[Op, Attrs, tuple[int, ...]]


class View(Protocol):
    """What a view knows of its base; see `gt.client.tensor.emit.ViewRecipe`."""

    base: Tensor
    chain: tuple[ViewStep, ...]
    version: int

    def refresh(self, x: Tensor) -> None: ...
    def element(self, x: Tensor) -> Any: ...


class Cell:
    """A value on the workers."""

    __slots__ = ("__weakref__", "id", "session", "version")

    def __init__(self, id: int, session: Session) -> None:
        self.id, self.session = id, session
        #: how often it was written in place
        self.version = 0

    @deferred
    def __del__(self) -> None:
        """Free the value."""
        try:
            outbox = self.session.outbox
            words = outbox.words
            if not words and outbox.templates.empty:
                outbox.freed_between += (self.id,)
            elif len(words) < INLINE_FREE_LIMIT:
                words += (-self.id,)
            else:
                outbox.freed_late += (self.id,)
        except AttributeError:  # the constructor was interrupted
            pass


class Tensor(Declared):
    """An array on the workers, with torch's methods.

    See `torch.Tensor`; `gt.functions.methods` attaches most methods.
    """

    __slots__ = ("__dict__", "__weakref__", "_cell", "_node", "_type", "_view")
    #: makes numpy leave ``array + tensor`` to the tensor
    __array_ufunc__ = None
    #: called by torch when one of its functions gets a tensor of GT
    __torch_function__: Any = classmethod(torch_function)

    # Few tensors have these, so the class holds the default.
    #: which result of its node it is
    _index = 0
    _grad: Tensor | None = None
    #: the node it had before `requires_grad` was switched off, with its hooks
    _former_leaf: Any = None
    #: the distances in memory between its elements, if they are not in the order of its dims; of no view
    _strides: Shape | None = None

    _cell: Cell
    _type: TensorType
    _view: View | None
    #: its node on the tape, if it requires a gradient
    _node: Node | None

    if TYPE_CHECKING:  # `gt.functions.methods` attaches `__new__`

        def __init__(self, *data: Any, device: Any = None) -> None: ...

    # -- what it is ----------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        """The sizes of all dims."""
        return Size(self._type.shape)

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._type.dtype

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return self._type.ndim

    @property
    def itemsize(self) -> int:
        """The size of one element in bytes."""
        return self._type.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes."""
        return self._type.nbytes

    def dim(self) -> int:
        """The number of dims."""
        return self._type.ndim

    def element_size(self) -> int:
        """The size of one element in bytes."""
        return self._type.dtype.itemsize

    def size(self, dim: int | None = None) -> Any:
        """The sizes of all dims, or of one dim."""
        if dim is None:
            return self.shape
        if not -self._type.ndim <= dim < self._type.ndim:
            raise DimError(f"size({self._type}, {dim}): there are {self._type.ndim} dims")
        return self._type.shape[dim]

    @property
    def grad(self) -> Tensor | None:
        """The gradient, or None before the first `backward`."""
        if recorder.active is not None:
            recorder.active.note_grad(self)
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise TypeError(f"assigned grad expected to be a Tensor or None but got {type(value).__name__}")
            if value._type is not self._type:
                raise ShapeError(f"the gradient of {self._type} must have the same type, not {value._type}")
        if recorder.active is not None:
            recorder.active.note_grad(self)
        self._grad = value

    # -- its value -----------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy of the values as a numpy array. Waits for the workers: one round trip."""
        if self._type.dtype.name == "bfloat16":
            raise DTypeError("numpy has no bfloat16; cast first: x.float().numpy()")
        if self._node is not None:
            raise DTypeError("a tensor that requires grad has no numpy(); use x.detach().numpy()")
        return self._read()

    def _read(self) -> np.ndarray[Any, Any]:
        import numpy as np

        if self._view is not None:
            self._view.refresh(self)
        cell = self._cell
        read = cell.session.read if cell.version else cell.session.read_result
        data = read(cell.id, self._type)
        return np.frombuffer(data, dtype=self._type.dtype.name).reshape(self._type.shape)

    def _readable(self) -> np.ndarray[Any, Any]:
        """`_read`, with bfloat16 converted to float32, which numpy has."""
        return self.detach().float()._read() if self._type.dtype.name == "bfloat16" else self._read()

    def item(self) -> Any:
        """The value of a tensor of one element, as a Python number. Waits for the workers."""
        if self._type.numel != 1:
            raise ShapeError(f"item(): a tensor of {self._type.numel} elements is no single number")
        if self._view is not None and (value := self._view.element(self)) is not None:
            return value.item()
        return self._readable().item()

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers. Waits for the workers."""
        return self._readable().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """A copy on this host, for any library that takes DLPack."""
        # keywords, because "copy" as a text would be the name of an op
        options = dict(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)  # noqa: C408
        return self.numpy().__dlpack__(**{name: value for name, value in options.items() if value is not None})

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __bool__(self) -> bool:
        if self._type.numel != 1:
            raise ShapeError(f"the truth of a tensor with {self._type.numel} elements is ambiguous; use any() or all()")
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if self._type.dtype.kind in "fc":
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

    def __dir__(self) -> list[str]:
        """The names that exist, for tab completion: without those that only raise an error."""
        missing = {name for kind in type(self).__mro__ for name, x in vars(kind).items() if isinstance(x, Missing)}
        return [name for name in super().__dir__() if name not in missing]

    # ``==`` compares elements, so a tensor is hashed by its identity
    __hash__ = object.__hash__

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a tensor lives on a worker and cannot be pickled; gt.save saves it, a state_dict or a module, "
            "and .numpy() gives an array"
        )


def fresh(id: int, session: Session, type: TensorType) -> Tensor:
    """A tensor on a new cell. It skips `type.__call__`, and so is about a third faster."""
    cell = _new(Cell)
    cell.id, cell.session, cell.version = id, session, 0
    tensor: Tensor = _new(Tensor)
    tensor._cell, tensor._type, tensor._view, tensor._node = cell, type, None, None
    return tensor


def on_cell(cell: Cell, type: TensorType) -> Tensor:
    """A tensor that shares the value of a cell."""
    tensor: Tensor = _new(Tensor)
    tensor._cell, tensor._type, tensor._view, tensor._node = cell, type, None, None
    return tensor


_new: Any = object.__new__
