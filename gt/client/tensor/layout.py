"""Where a tensor lies, as a client sees it."""

from __future__ import annotations

from math import prod

from gt.client.tensor.emit import current
from gt.client.tensor.tensor import Tensor
from gt.wire.messages import Located


class TensorLayout:
    """``x.layout``: the workers, how they are arranged, and for each axis of that R, S(dim) or P(sum)."""

    def __init__(self, found: Located) -> None:
        self.workers, self.mesh, self.placements = tuple(found.workers), tuple(found.shape), tuple(found.placements)
        #: worker -> (where its block begins, its sizes)
        self.blocks = {worker: (tuple(starts), tuple(sizes)) for worker, starts, sizes in found.blocks}
        self.story = tuple(found.history)

    def __repr__(self) -> str:
        if not self.workers:
            return self.story[0]
        workers = ", ".join(map(str, self.workers))
        if len(self.workers) == 1:
            return f"worker {workers}"
        mesh = f" as {'x'.join(map(str, self.mesh))}" if len(self.mesh) > 1 else ""
        return f"{' '.join(self.placements)} on workers {workers}{mesh}"

    @property
    def sentence(self) -> str:
        return f"whole on {self!r}" if len(self.workers) == 1 else f"as {self!r}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorLayout):
            return NotImplemented
        return (self.workers, self.mesh, self.placements) == (other.workers, other.mesh, other.placements)

    def __hash__(self) -> int:
        return hash((self.workers, self.mesh, self.placements))


def layout(x: Tensor) -> TensorLayout:
    """Asked of the dispatcher: one round trip."""
    current(x)
    return TensorLayout(x._cell.session.locate(x._cell.id, x._type.shape))


def picture(x: Tensor) -> str:
    """The tensor's first two dims as a grid, each part with the workers that have it."""
    found = layout(x)
    head = f"{x._type} {found!r}"
    if not found.blocks or not prod(x._type.shape):
        return head
    rows = _cuts(found, 0)
    columns = _cuts(found, 1)
    cells = [[_holders(found, row, column) for column in columns] for row in rows]
    width = max(len(text) for text in (*(c for line in cells for c in line), *map(_range, columns))) + 2
    bar = "+" + "+".join("-" * width for _ in columns) + "+"
    lines = [head, "".join(f" {_range(c):^{width}}" for c in columns).rstrip() if x._type.ndim > 1 else "", bar]
    for row, line in zip(rows, cells, strict=True):
        lines += ["|" + "|".join(f"{cell:^{width}}" for cell in line) + f"|  {_range(row)}", bar]
    lines += [f"each has a term: {p} of them is the value" for p in found.placements if p.startswith("P")]
    if x._type.ndim > 2:
        lines.append(f"downwards dim 0, across dim 1; {_rest(found, x._type.ndim)}")
    return "\n".join(line for line in lines if line)


def _cuts(found: TensorLayout, dim: int) -> list[tuple[int, int]]:
    """The different stretches of a dim."""
    blocks = [(starts[dim], starts[dim] + sizes[dim]) for starts, sizes in found.blocks.values() if len(starts) > dim]
    return sorted({cut for cut in blocks if cut[0] < cut[1]}) or [(0, 1)]


def _holders(found: TensorLayout, row: tuple[int, int], column: tuple[int, int]) -> str:
    holders = []
    for worker, (starts, sizes) in found.blocks.items():
        at = [(starts[d], starts[d] + sizes[d]) for d in range(min(2, len(starts)))]
        if all(have == want for have, want in zip(at, (row, column), strict=False)):
            holders.append(str(worker))
    return ",".join(holders)


def _rest(found: TensorLayout, ndim: int) -> str:
    """What the picture does not show."""
    cut = [str(d) for d in range(2, ndim) if len(_cuts(found, d)) > 1]
    if cut:
        return f"also cut along dim {', '.join(cut)}, which is not shown"
    return "each part has all of the other dims"


def _range(cut: tuple[int, int]) -> str:
    return f"{cut[0]}:{cut[1]}"
