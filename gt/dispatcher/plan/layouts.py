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

from gt.ops.placement import Partial, Parts, Placement, R, Shard, bounds, count, largest_rank, normalized
from gt.types import Shape, TensorType


class Mesh:
    """Workers on a grid; the last axis varies fastest. An axis may have weights: then its blocks follow them."""

    __slots__ = ("__weakref__", "_lines", "coordinates", "largest", "parts", "shape", "workers")
    _interned: ClassVar[WeakValueDictionary[tuple[Shape, tuple[Parts, ...]], Mesh]] = WeakValueDictionary()

    workers: tuple[int, ...]
    shape: Shape
    #: the shape, with the weights of the axes that have any
    parts: tuple[Parts, ...]
    #: a worker that has no smaller block than the others
    largest: int
    #: worker -> its coordinates
    coordinates: dict[int, Shape]
    #: axis -> the other coordinates -> the workers that have them
    _lines: dict[int, dict[Shape, tuple[int, ...]]]

    def __new__(cls, workers: tuple[int, ...], parts: tuple[Parts, ...] | None = None) -> Mesh:
        parts = tuple(normalized(p) for p in ((len(workers),) if parts is None else parts) if count(p) > 1)
        shape = tuple(map(count, parts))
        assert prod(shape) == len(workers) == len(set(workers)), f"{workers} are no mesh of {shape}"
        mesh = cls._interned.get((workers, parts))
        if mesh is None:
            mesh = super().__new__(cls)
            mesh.workers, mesh.shape, mesh.parts = workers, shape, parts
            mesh.coordinates = {w: _coordinates(i, shape) for i, w in enumerate(workers)}
            longest = tuple(map(largest_rank, parts))
            mesh.largest = next(w for w, at in mesh.coordinates.items() if at == longest)
            mesh._lines = {}
            cls._interned[workers, parts] = mesh
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
        grid = f" as {'x'.join(map(str, self.shape))}" if len(self.shape) > 1 else ""
        weights = " and ".join(":".join(map(str, p)) if isinstance(p, tuple) else "even" for p in self.parts)
        return f"{workers}{grid} weighted {weights}" if self.parts != self.shape else f"{workers}{grid}"


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
        for placement, parts, rank in zip(self.placements, self.mesh.parts, self.mesh.coordinates[worker], strict=True):
            if isinstance(placement, Shard):
                at, length = bounds(sizes[placement.dim], parts, rank)
                starts[placement.dim] += at
                sizes[placement.dim] = length
        return tuple(starts), tuple(sizes)

    def is_even(self, shape: Shape) -> bool:
        """Whether the blocks of all workers have the same sizes."""
        sizes = list(shape)
        for placement, parts in zip(self.placements, self.mesh.parts, strict=True):
            if isinstance(placement, Shard):
                if not isinstance(parts, int):
                    return False
                sizes[placement.dim], rest = divmod(sizes[placement.dim], parts)
                if rest:
                    return False
        return True

    def local(self, t: TensorType, worker: int) -> TensorType:
        """The type of a worker's block."""
        return TensorType(self.block(t.shape, worker)[1], t.dtype)

    def largest(self, t: TensorType) -> TensorType:
        """The type of a block that is no smaller than the others."""
        return self.local(t, self.mesh.largest)

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
