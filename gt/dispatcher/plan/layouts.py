"""Where a tensor lies: a mesh of workers and, for each of its axes, a placement.

Meshes, layouts and places are interned: equal ones are the same object, so plans are found by identity. A mesh of one
worker has no axes; an axis of one worker places everything everywhere.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import ClassVar
from weakref import WeakValueDictionary

from gt.ops.placement import Partial, Placement, R, Shard, bounds
from gt.types import Shape, TensorType


class Mesh:
    """Workers in rows and columns: the last axis runs fastest."""

    __slots__ = ("__weakref__", "_lines", "places", "shape", "workers")
    _known: ClassVar[WeakValueDictionary[tuple[Shape, Shape], Mesh]] = WeakValueDictionary()

    workers: tuple[int, ...]
    shape: Shape
    #: worker -> its coordinates
    places: dict[int, Shape]
    #: axis -> the other coordinates -> who has them
    _lines: dict[int, dict[Shape, tuple[int, ...]]]

    def __new__(cls, workers: tuple[int, ...], shape: Shape | None = None) -> Mesh:
        shape = tuple(n for n in ((len(workers),) if shape is None else shape) if n > 1)
        assert prod(shape) == len(workers) == len(set(workers)), f"{workers} are no mesh of {shape}"
        found = cls._known.get((workers, shape))
        if found is None:
            found = super().__new__(cls)
            found.workers, found.shape = workers, shape
            found.places = {w: _coordinates(i, shape) for i, w in enumerate(workers)}
            found._lines = {}
            cls._known[workers, shape] = found
        return found

    def line(self, axis: int, worker: int) -> tuple[int, ...]:
        """The workers along an axis through this one, in order."""
        if axis not in self._lines:
            lines: dict[Shape, list[int]] = {}
            for w, at in self.places.items():
                lines.setdefault(at[:axis] + at[axis + 1 :], []).append(w)
            self._lines[axis] = {others: tuple(line) for others, line in lines.items()}
        here = self.places[worker]
        return self._lines[axis][here[:axis] + here[axis + 1 :]]

    def __str__(self) -> str:
        told = ",".join(map(str, self.workers))
        return told if len(self.shape) < 2 else f"{told} as {'x'.join(map(str, self.shape))}"


def _coordinates(i: int, shape: Shape) -> Shape:
    found = []
    for n in reversed(shape):
        i, at = divmod(i, n)
        found.append(at)
    return tuple(reversed(found))


class Layout:
    """Interned, so compared by identity."""

    __slots__ = ("__weakref__", "mesh", "placements", "single", "worker", "workers")
    _known: ClassVar[WeakValueDictionary[tuple[Mesh, tuple[Placement, ...]], Layout]] = WeakValueDictionary()

    mesh: Mesh
    placements: tuple[Placement, ...]
    workers: tuple[int, ...]
    #: the first of its workers
    worker: int
    #: whole, on one worker
    single: bool

    def __new__(cls, mesh: Mesh, placements: tuple[Placement, ...] = ()) -> Layout:
        placements = placements or (R,) * len(mesh.shape)
        assert len(placements) == len(mesh.shape), f"{placements} do not fit a mesh of {mesh.shape}"
        found = cls._known.get((mesh, placements))
        if found is None:
            found = super().__new__(cls)
            found.mesh, found.placements, found.workers = mesh, placements, mesh.workers
            found.worker, found.single = mesh.workers[0], len(mesh.workers) == 1
            cls._known[mesh, placements] = found
        return found

    @property
    def whole(self) -> bool:
        """Does every worker have all of it?"""
        return all(p == R for p in self.placements)

    @property
    def terms(self) -> bool:
        """Are there terms to be combined?"""
        return any(isinstance(p, Partial) for p in self.placements)

    def block(self, shape: Shape, worker: int) -> tuple[Shape, Shape]:
        """Where a worker's block begins, and its sizes."""
        starts, sizes = [0] * len(shape), list(shape)
        for placement, n, rank in zip(self.placements, self.mesh.shape, self.mesh.places[worker], strict=True):
            if isinstance(placement, Shard):
                at, length = bounds(sizes[placement.dim], n, rank)
                starts[placement.dim] += at
                sizes[placement.dim] = length
        return tuple(starts), tuple(sizes)

    def local(self, t: TensorType, worker: int) -> TensorType:
        return TensorType(self.block(t.shape, worker)[1], t.dtype)

    def placed(self, axis: int, placement: Placement) -> Layout:
        """The same but for one axis."""
        return Layout(self.mesh, (*self.placements[:axis], placement, *self.placements[axis + 1 :]))

    def __str__(self) -> str:
        if self.single:
            return f"worker {self.worker}"
        return f"{' '.join(map(str, self.placements))} on workers {self.mesh}"


class Place:
    """What a tensor is and where: its type, its layout, and the layouts of its copies.

    Interned, so compared by identity: a plan found by the places of its operands is one for operands of these types.
    """

    __slots__ = ("__weakref__", "copies", "home", "layouts", "type", "workers")
    _known: ClassVar[WeakValueDictionary[tuple[TensorType, Layout, tuple[Layout, ...]], Place]] = WeakValueDictionary()

    type: TensorType
    home: Layout
    copies: tuple[Layout, ...]
    #: its own, and those of its copies
    layouts: tuple[Layout, ...]
    #: those of its own layout
    workers: tuple[int, ...]

    def __new__(cls, type: TensorType, home: Layout, copies: tuple[Layout, ...] = ()) -> Place:
        found = cls._known.get((type, home, copies))
        if found is None:
            found = super().__new__(cls)
            found.type, found.home, found.copies = type, home, copies
            found.layouts, found.workers = (home, *copies), home.workers
            cls._known[type, home, copies] = found
        return found


#: `Place`, in a tenth of the time for those asked for lately
placed = lru_cache(1 << 12)(Place)


class Lost:
    """Where a tensor was: what a read of it, or of anything made from it, is told."""

    __slots__ = ("text",)
    workers: ClassVar[tuple[int, ...]] = ()

    def __init__(self, text: str) -> None:
        self.text = text


Where = Place | Lost
