"""The cases: square and large-batch matrix products, and forward passes of an MLP.

A case creates its operands, computes, and reads the result. Its work is that of the matrix products, 2 m k n each; the
biases and relus of an MLP are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import gt

#: after scaling, sizes are multiples of this, and at least this
GRAIN = 16


@dataclass(frozen=True)
class Case:
    """One row of the tables. ``dims`` are the batch and the widths of the layers, the input's first."""

    group: str
    dims: tuple[int, ...]

    @property
    def name(self) -> str:
        batch, *widths = self.dims
        if self.group == "square":
            return f"{batch}x{batch}"
        if self.group == "batch":
            return f"({batch},{widths[0]})@({widths[0]},{widths[1]})"
        return f"batch {batch}, {'-'.join(map(str, widths))}"

    @property
    def flops(self) -> int:
        batch, *widths = self.dims
        return sum(2 * batch * k * n for k, n in pairwise(widths))

    @property
    def nbytes(self) -> int:
        """Bytes of operands and results on one worker that works alone; float32."""
        batch, *widths = self.dims
        weights = sum(k * n for k, n in pairwise(widths))
        return 4 * (weights + batch * sum(widths))

    def scaled(self, scale: float) -> Case:
        return Case(self.group, tuple(max(GRAIN, round(n * scale / GRAIN) * GRAIN) for n in self.dims))

    def create(self) -> tuple[Any, ...]:
        batch, *widths = self.dims
        if self.group == "mlp":
            return gt.randn(batch, widths[0]), mlp(widths)
        return gt.randn(batch, widths[0]), gt.randn(*widths)

    def compute(self, operands: tuple[Any, ...]) -> Any:
        x, f = operands
        with gt.no_grad():
            return f(x) if self.group == "mlp" else x @ f

    def sampled(self, count: int) -> tuple[list[int], list[int]]:
        """Rows and columns of the result, from its first to its last: so from every worker's block."""
        return spread(self.dims[0], count), spread(self.dims[-1], count)

    def expected(self, operands: tuple[Any, ...], rows: list[int], columns: list[int]) -> np.ndarray[Any, Any]:
        """These rows and columns of the result, computed by numpy in double precision.

        Only what they need is read: of a product these rows and columns of its operands, of an MLP all weights.
        """
        x, f = operands
        y = np.concatenate([x[row : row + 1].numpy() for row in rows]).astype(np.float64)
        if self.group != "mlp":
            return np.asarray(y @ np.concatenate([f[:, column : column + 1].numpy() for column in columns], axis=1))
        layers = [layer for layer in f if isinstance(layer, gt.nn.Linear)]
        for i, layer in enumerate(layers):
            y = y @ layer.weight.detach().numpy().T.astype(np.float64) + layer.bias.detach().numpy()
            y = np.maximum(y, 0) if i + 1 < len(layers) else y
        return np.asarray(y[:, columns])


def spread(size: int, count: int) -> list[int]:
    """At most this many different indices, evenly from the first to the last."""
    return sorted({round(k * (size - 1) / max(1, count - 1)) for k in range(count)})


def mlp(widths: Sequence[int]) -> Any:
    """Linear layers with relus between them."""
    layers: list[Any] = []
    for k, n in pairwise(widths):
        layers += [gt.nn.Linear(k, n), gt.nn.ReLU()]
    return gt.nn.Sequential(*layers[:-1])


def _square(n: int) -> Case:
    return Case("square", (n, n, n))


#: group -> its title, the heading of its first column
GROUPS = {
    "square": ("Square Matrix Multiplications", "Size"),
    "batch": ("Large Batch Matrix Multiplications", "Shape"),
    "mlp": ("MLP Forward Passes", "Batch and widths"),
}
CASES = [
    _square(4096),
    _square(8192),
    _square(16384),
    Case("batch", (8192, 4096, 4096)),
    Case("batch", (16384, 4096, 4096)),
    Case("batch", (32768, 2048, 2048)),
    Case("mlp", (4096, 4096, 4096, 4096, 4096)),
    Case("mlp", (8192, 2048, 4096, 4096, 2048)),
    Case("mlp", (16384, 2048, 4096, 2048, 1024)),
]
#: the cases of --quick: one of each group
QUICK = [CASES[1], CASES[4], CASES[7]]


def chosen(quick: bool, scale: float) -> list[Case]:
    return [case.scaled(scale) for case in (QUICK if quick else CASES)]


def fitting(budget: float, quick: bool) -> float:
    """The largest power of two, at most 1, with which each scaled case needs half the budget."""
    scale = 1.0
    while max(case.nbytes for case in chosen(quick, scale)) > budget / 2 and scale > 1 / 256:
        scale /= 2
    return scale
