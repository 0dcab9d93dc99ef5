"""Where a tensor is placed: a mesh of workers and, for each axis of the mesh, a placement.

Meshes, layouts and tensor states are interned: equal ones are the same object, so plans are looked up by identity. A
mesh of one worker has no axes; an axis with one worker is left out.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from math import prod
from typing import ClassVar
from weakref import WeakValueDictionary

from gt.ops.placement import Partial, Placement, R, Shard, bounds
from gt.types import Shape, TensorType


class Mesh:
    """Workers on a grid; the last axis varies fastest."""

    __slots__ = ("__weakref__", "_lines", "coordinates", "shape", "workers")
    _interned: ClassVar[WeakValueDictionary[tuple[Shape, Shape], Mesh]] = WeakValueDictionary()

    workers: tuple[int, ...]
    shape: Shape
    #: worker -> its coordinates
    coordinates: dict[int, Shape]
    #: axis -> the other coordinates -> the workers that have them
    _lines: dict[int, dict[Shape, tuple[int, ...]]]

    def __new__(cls, workers: tuple[int, ...], shape: Shape | None = None) -> Mesh:
        shape = tuple(n for n in ((len(workers),) if shape is None else shape) if n > 1)
        assert prod(shape) == len(workers) == len(set(workers)), f"{workers} are no mesh of {shape}"
        mesh = cls._interned.get((workers, shape))
        if mesh is None:
            mesh = super().__new__(cls)
            mesh.workers, mesh.shape = workers, shape
            mesh.coordinates = {w: _coordinates(i, shape) for i, w in enumerate(workers)}
            mesh._lines = {}
            cls._interned[workers, shape] = mesh
        return mesh

    def line(self, axis: int, worker: int) -> tuple[int, ...]:
        """The workers on the line along ``axis`` through this worker, in order."""
        if axis not in self._lines:
            lines: dict[Shape, list[int]] = {}
            for w, at in self.coordinates.items():
                lines.setdefault(at[:axis] + at[axis + 1 :], []).append(w)
            self._lines[axis] = {others: tuple(line) for others, line in lines.items()}
        at = self.coordinates[worker]
        return self._lines[axis][at[:axis] + at[axis + 1 :]]

    def lines(self, axis: int) -> Collection[tuple[int, ...]]:
        """All lines along ``axis``."""
        self.line(axis, self.workers[0])
        return self._lines[axis].values()

    def __str__(self) -> str:
        workers = ",".join(map(str, self.workers))
        return workers if len(self.shape) < 2 else f"{workers} as {'x'.join(map(str, self.shape))}"


def _coordinates(i: int, shape: Shape) -> Shape:
    reverse = []
    for n in reversed(shape):
        i, at = divmod(i, n)
        reverse.append(at)
    return tuple(reversed(reverse))


class Layout:
    """A mesh and one placement for each of its axes. Interned, so compared by identity."""

    __slots__ = ("__weakref__", "mesh", "placements", "single", "worker", "workers")
    _interned: ClassVar[WeakValueDictionary[tuple[Mesh, tuple[Placement, ...]], Layout]] = WeakValueDictionary()

    mesh: Mesh
    placements: tuple[Placement, ...]
    workers: tuple[int, ...]
    #: the first of its workers
    worker: int
    #: the mesh is one worker, which has the whole tensor
    single: bool

    def __new__(cls, mesh: Mesh, placements: tuple[Placement, ...] = ()) -> Layout:
        placements = placements or (R,) * len(mesh.shape)
        assert len(placements) == len(mesh.shape), f"{placements} do not fit a mesh of {mesh.shape}"
        layout = cls._interned.get((mesh, placements))
        if layout is None:
            layout = super().__new__(cls)
            layout.mesh, layout.placements, layout.workers = mesh, placements, mesh.workers
            layout.worker, layout.single = mesh.workers[0], len(mesh.workers) == 1
            cls._interned[mesh, placements] = layout
        return layout

    @property
    def replicated(self) -> bool:
        """Every worker has the whole tensor."""
        return all(p == R for p in self.placements)

    @property
    def partial(self) -> bool:
        """The workers hold terms that still have to be combined."""
        return any(isinstance(p, Partial) for p in self.placements)

    def block(self, shape: Shape, worker: int) -> tuple[Shape, Shape]:
        """Where a worker's block begins, and its sizes."""
        starts, sizes = [0] * len(shape), list(shape)
        for placement, n, rank in zip(self.placements, self.mesh.shape, self.mesh.coordinates[worker], strict=True):
            if isinstance(placement, Shard):
                at, length = bounds(sizes[placement.dim], n, rank)
                starts[placement.dim] += at
                sizes[placement.dim] = length
        return tuple(starts), tuple(sizes)

    def is_even(self, shape: Shape) -> bool:
        """Whether the blocks of all workers have the same sizes."""
        sizes = list(shape)
        for placement, n in zip(self.placements, self.mesh.shape, strict=True):
            if isinstance(placement, Shard):
                sizes[placement.dim], rest = divmod(sizes[placement.dim], n)
                if rest:
                    return False
        return True

    def local(self, t: TensorType, worker: int) -> TensorType:
        """The type of a worker's block."""
        return TensorType(self.block(t.shape, worker)[1], t.dtype)

    def with_placement(self, axis: int, placement: Placement) -> Layout:
        """The same layout with another placement on one axis."""
        return Layout(self.mesh, (*self.placements[:axis], placement, *self.placements[axis + 1 :]))

    def combined(self) -> Layout:
        """The same layout with every partial placement replicated."""
        return Layout(self.mesh, tuple(R if isinstance(p, Partial) else p for p in self.placements))

    def __str__(self) -> str:
        if self.single:
            return f"worker {self.worker}"
        return f"{' '.join(map(str, self.placements))} on workers {self.mesh}"


class TensorState:
    """What the dispatcher knows of a tensor: its type, its layout, and the layouts of its cached copies.

    Interned, so compared by identity. A plan looked up by its operands' states therefore fits their types.
    """

    __slots__ = ("__weakref__", "copies", "home", "layouts", "type", "workers")
    _interned: ClassVar[WeakValueDictionary[tuple[TensorType, Layout, tuple[Layout, ...]], TensorState]] = (
        WeakValueDictionary()
    )

    type: TensorType
    home: Layout
    copies: tuple[Layout, ...]
    #: the home layout, then those of the copies
    layouts: tuple[Layout, ...]
    #: the workers of the home layout
    workers: tuple[int, ...]

    def __new__(cls, type: TensorType, home: Layout, copies: tuple[Layout, ...] = ()) -> TensorState:
        state = cls._interned.get((type, home, copies))
        if state is None:
            state = super().__new__(cls)
            state.type, state.home, state.copies = type, home, copies
            state.layouts, state.workers = (home, *copies), home.workers
            cls._interned[type, home, copies] = state
        return state


#: `TensorState` with a cache: ten times faster for states that were requested lately.
tensor_state = lru_cache(1 << 12)(TensorState)


class Lost:
    """The state of a tensor whose value is lost. A read of it, or of a result computed from it, gets this text."""

    __slots__ = ("text",)
    workers: ClassVar[tuple[int, ...]] = ()

    def __init__(self, text: str) -> None:
        self.text = text


AnyState = TensorState | Lost
