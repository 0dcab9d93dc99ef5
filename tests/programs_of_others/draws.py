"""Random numbers that both worlds share: torch's random functions, drawn by numpy in the order of the calls.

GT's own random numbers differ from torch's, so losses could not be compared with them. Initial weights are not drawn
here: `worlds.py` copies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


class Draws:
    """The random functions of one framework: `torch` or `gt`."""

    def __init__(self, framework: Any) -> None:
        self._framework, self._rng = framework, np.random.default_rng(1)

    def install(self) -> None:
        """Replace the framework's own random functions."""
        framework, functional = self._framework, self._framework.nn.functional
        for name in ("bernoulli", "multinomial", "rand", "rand_like", "randint", "randn", "randn_like", "randperm"):
            setattr(framework, name, getattr(self, name))
        functional.dropout, functional.dropout2d = self.dropout, self.dropout2d
        if framework.__name__ == "gt":  # its modules hold the functions themselves
            framework.nn.Dropout.function = staticmethod(self.dropout)
            framework.nn.Dropout2d.function = staticmethod(self.dropout2d)
        categorical = getattr(getattr(framework, "distributions", None), "Categorical", None)
        if categorical is not None:
            categorical.sample = lambda distribution, shape=(): self.multinomial(distribution.probs, 1).squeeze(-1)

    def _tensor(self, array: Any, dtype: Any = None) -> Any:
        tensor = self._framework.from_numpy(np.ascontiguousarray(array))
        return tensor if dtype is None else tensor.to(dtype)

    def _floats(self, draw: Callable[..., Any], shape: Any, options: dict[str, Any]) -> Any:
        tensor = self._tensor(draw(tuple(shape)).astype(np.float32), options.get("dtype"))
        return tensor.requires_grad_() if options.get("requires_grad") else tensor

    def randn(self, *size: Any, **options: Any) -> Any:
        return self._floats(self._rng.standard_normal, _shape(size, options), options)

    def rand(self, *size: Any, **options: Any) -> Any:
        return self._floats(self._rng.random, _shape(size, options), options)

    def randn_like(self, x: Any, **options: Any) -> Any:
        return self._floats(self._rng.standard_normal, x.shape, {"dtype": x.dtype} | options)

    def rand_like(self, x: Any, **options: Any) -> Any:
        return self._floats(self._rng.random, x.shape, {"dtype": x.dtype} | options)

    def randint(self, *limits: Any, **options: Any) -> Any:
        *limits, size = limits if "size" not in options else (*limits, options["size"])  # type: ignore[assignment]
        low, high = limits if len(limits) == 2 else (options.get("low", 0), options.get("high", *limits))
        return self._tensor(self._rng.integers(low, high, tuple(size)), options.get("dtype"))

    def randperm(self, n: int, **options: Any) -> Any:
        return self._tensor(self._rng.permutation(n), options.get("dtype"))

    def bernoulli(self, x: Any, **options: Any) -> Any:
        return self._tensor(self._rng.random(x.shape) < x.detach().numpy(), x.dtype)

    def multinomial(self, weights: Any, count: int = 1, *args: Any, num_samples: int = 0, **options: Any) -> Any:
        """The first positions whose running sums exceed uniform numbers. It draws with replacement."""
        sums = weights.detach().numpy().astype(np.float64).cumsum(-1)
        limits = self._rng.random((*sums.shape[:-1], num_samples or count)) * sums[..., -1:]
        return self._tensor((sums[..., None, :] <= limits[..., None]).sum(-1).clip(max=sums.shape[-1] - 1))

    def dropout(self, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return self._drop(x, p, training, tuple(x.shape))

    def dropout2d(self, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return self._drop(x, p, training, tuple(x.shape[:2]) + (1,) * (x.ndim - 2))

    def _drop(self, x: Any, p: float, training: bool, shape: tuple[int, ...]) -> Any:
        if not training or p == 0:
            return x
        return x * self._tensor((self._rng.random(shape) >= p).astype(np.float32) / (1 - p), x.dtype)


def _shape(size: tuple[Any, ...], options: dict[str, Any]) -> Any:
    size = options.get("size", size)
    return size[0] if len(size) == 1 and not isinstance(size[0], int) else size


def share_shuffling(sampler: Any) -> None:
    """Draw the order of a loader's samples from numbers of their own: loaders read ahead."""
    rng = np.random.default_rng(2)

    def iterate(self: Any) -> Iterator[int]:
        count = len(self.data_source)
        if self.replacement:
            return (int(rng.integers(count)) for _ in range(self.num_samples))
        return map(int, rng.permutation(count))

    sampler.__iter__ = iterate
