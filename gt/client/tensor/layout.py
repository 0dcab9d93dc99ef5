"""``x.layout`` and its picture: how the dispatcher has placed a tensor."""

from __future__ import annotations

from math import prod

from gt.client.tensor.emit import current
from gt.client.tensor.tensor import Tensor
from gt.wire.messages import Located


class TensorLayout:
    """``x.layout``: the workers, the shape of their mesh, and for each axis of the mesh R, S(dim) or P(sum)."""

    def __init__(self, m: Located) -> None:
        self.workers, self.mesh, self.placements = tuple(m.workers), tuple(m.shape), tuple(m.placements)
        #: worker -> (starts, sizes) of its block
        self.blocks = {worker: (tuple(starts), tuple(sizes)) for worker, starts, sizes in m.blocks}
        #: sentences that say why it has this layout
        self.story = tuple(m.history)

    def __repr__(self) -> str:
        if not self.workers:
            return self.story[0]
        workers = ", ".join(map(str, self.workers))
        if len(self.workers) == 1:
            return f"worker {workers}"
        mesh = f" as {'x'.join(map(str, self.mesh))}" if len(self.mesh) > 1 else ""
        return f"{' '.join(self.placements)} on workers {workers}{mesh}"

    def _repr_html_(self) -> str:
        from gt.client.tensor.html import layout_html

        return layout_html(self)

    @property
    def sentence(self) -> str:
        """The layout in words, for `gt.debug.explain`."""
        return f"whole on {self!r}" if len(self.workers) == 1 else f"as {self!r}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorLayout):
            return NotImplemented
        return (self.workers, self.mesh, self.placements) == (other.workers, other.mesh, other.placements)

    def __hash__(self) -> int:
        return hash((self.workers, self.mesh, self.placements))


def layout(x: Tensor) -> TensorLayout:
    """The placement of the tensor on the workers. Waits for the dispatcher: one round trip."""
    current(x)
    return TensorLayout(x._cell.session.locate(x._cell.id, x._type.shape))


def picture(x: Tensor) -> str:
    """The tensor's first two dims as a grid of blocks, each with the workers that hold it."""
    placed = layout(x)
    head = f"{x._type} {placed!r}"
    if not placed.blocks or not prod(x._type.shape):
        return head
    rows, columns, grid = block_grid(placed)
    cells = [[",".join(map(str, holders)) for holders in line] for line in grid]
    width = max(len(text) for text in (*(c for line in cells for c in line), *map(_range_text, columns))) + 2
    bar = "+" + "+".join("-" * width for _ in columns) + "+"
    lines = [head, "".join(f" {_range_text(c):^{width}}" for c in columns).rstrip() if x._type.ndim > 1 else "", bar]
    for row, line in zip(rows, cells, strict=True):
        lines += ["|" + "|".join(f"{cell:^{width}}" for cell in line) + f"|  {_range_text(row)}", bar]
    lines += [
        f"each worker holds one term; {p} of all terms is the value" for p in placed.placements if p.startswith("P")
    ]
    if x._type.ndim > 2:
        lines.append(f"dim 0 goes down, dim 1 across; {_rest(placed, x._type.ndim)}")
    return "\n".join(line for line in lines if line)


def _ranges(placed: TensorLayout, dim: int) -> list[tuple[int, int]]:
    """The different ranges of a dim that blocks have."""
    ranges = [(starts[dim], starts[dim] + sizes[dim]) for starts, sizes in placed.blocks.values() if len(starts) > dim]
    return sorted({(start, stop) for start, stop in ranges if start < stop}) or [(0, 1)]


def block_grid(placed: TensorLayout) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[list[list[int]]]]:
    """The ranges of dim 0 and of dim 1 that blocks have, and for each row the workers of each of its blocks."""
    rows, columns = _ranges(placed, 0), _ranges(placed, 1)
    return rows, columns, [[_holders(placed, row, column) for column in columns] for row in rows]


def _holders(placed: TensorLayout, row: tuple[int, int], column: tuple[int, int]) -> list[int]:
    holders = []
    for worker, (starts, sizes) in placed.blocks.items():
        ranges = [(starts[d], starts[d] + sizes[d]) for d in range(min(2, len(starts)))]
        if all(a == b for a, b in zip(ranges, (row, column), strict=False)):
            holders.append(worker)
    return holders


def _rest(placed: TensorLayout, ndim: int) -> str:
    """A note on the dims that the picture does not show."""
    sharded = [str(d) for d in range(2, ndim) if len(_ranges(placed, d)) > 1]
    if sharded:
        return f"also sharded along dim {', '.join(sharded)}, which is not shown"
    return "each block has all of the other dims"


def _range_text(bounds: tuple[int, int]) -> str:
    return f"{bounds[0]}:{bounds[1]}"
