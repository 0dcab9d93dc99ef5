"""The tensor a user holds: a number for something on a worker, its type, and how it may be read.

A `Cell` owns the number, and frees it when nobody looks any more; a tensor looks at a cell. Two tensors on one cell
share their value, as ``x`` and ``x.detach()`` do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from gt.client.compile import recording
from gt.client.stream.session import Session
from gt.client.tensor.foreign import torch_function
from gt.errors import DimError, DTypeError, ShapeError
from gt.types import DType, Size, TensorType
from gt.wire.messages import MAX_WORDS

#: If there are fewer words to be sent, what is let go is one of them at once.
FEW = MAX_WORDS // 2

if TYPE_CHECKING:
    import numpy as np

    from gt.client.tensor.declared import Declared
    from gt.client.tensor.emit import View
    from gt.client.tensor.tape import Node
else:
    Declared = object


class Cell:
    """What a tensor id stands for on the workers."""

    __slots__ = ("__weakref__", "id", "session", "version")

    def __init__(self, id: int, session: Session) -> None:
        self.id, self.session = id, session
        #: counts in-place changes
        self.version = 0

    def __del__(self) -> None:
        """An interrupt may come at any call in here, and nowhere else. The tensor is freed without a call, as the last
        step: what an interrupt ends can be done again (`gt.client.tensor.interrupts`)."""
        try:
            session = self.session
            words = session.words
            if not words and session.fragments.empty:
                session.ahead += (self.id,)
            elif len(words) < FEW:
                words += (-self.id,)
            else:
                session.dropped += (self.id,)
        except AttributeError:  # never got as far as an id
            pass


class Tensor(Declared):
    """See `torch.Tensor`; methods are attached by `gt.functions.methods`."""

    __slots__ = ("__dict__", "__weakref__", "_cell", "_node", "_type", "_view")
    #: numpy must leave ``array + tensor`` to the tensor
    __array_ufunc__ = None
    #: and torch must say what to do with one
    __torch_function__: Any = classmethod(torch_function)

    # what few tensors have is a class's default and an instance's exception
    #: which of its node's results it is
    _index = 0
    _grad: Tensor | None = None

    def __init__(self, cell: Cell, type: TensorType) -> None:
        self._cell, self._type = cell, type
        self._view: View | None = None
        #: where it comes from, if gradients are to go there
        self._node: Node | None = None

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

    @property
    def grad(self) -> Tensor | None:
        if recording.active is not None:
            recording.active.grad_set(self)
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise TypeError(f"assigned grad expected to be a Tensor or None but got {type(value).__name__}")
            if value._type is not self._type:
                raise ShapeError(f"a gradient of {self._type} is no {value._type}")
        if recording.active is not None:
            recording.active.grad_set(self)
        self._grad = value

    # -- its value -----------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """The value, in memory of its own. One round trip."""
        if self._type.dtype.name == "bfloat16":
            raise DTypeError("numpy has no bfloat16; cast first: x.float().numpy()")
        if self._node is not None:
            raise DTypeError("a tensor that requires grad has no numpy(); use x.detach().numpy()")
        return self._read()

    def _read(self) -> np.ndarray[Any, Any]:
        import numpy as np

        from gt.client.tensor.emit import current

        current(self)
        data = self._cell.session.read(self._cell.id, self._type)
        return np.frombuffer(data, dtype=self._type.dtype.name).reshape(self._type.shape)

    def _readable(self) -> np.ndarray[Any, Any]:
        """The same with a bfloat16 as float32."""
        return self.detach().float()._read() if self._type.dtype.name == "bfloat16" else self._read()

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
        from gt.client.tensor.printing import shown

        return shown(self)

    # ``==`` compares elements, so two tensors are the same thing only if they are one object
    __hash__ = object.__hash__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a tensor lives on a worker and cannot be pickled; save its .numpy()")


def fresh(id: int, session: Session, type: TensorType) -> Tensor:
    """``Tensor(Cell(id, session), type)``, in two thirds of the time: a call of a class is not a step but a way."""
    cell = _new(Cell)
    cell.id, cell.session, cell.version = id, session, 0
    made: Tensor = _new(Tensor)
    made._cell, made._type, made._view, made._node = cell, type, None, None
    return made


_new: Any = object.__new__
