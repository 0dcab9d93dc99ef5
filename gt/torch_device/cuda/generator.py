"""For `gt.run`: ``torch.Generator("cuda")``. torch has no generators for devices written in Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gt.client.tensor import random_state


class CudaGenerator(torch._C.Generator):
    """A source of random numbers with a seed of its own."""

    def __init__(self) -> None:
        self._gt = random_state.Generator()

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda:0")

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Inside, functions without a generator draw from this one."""
        default = random_state.default_generator
        before = default._state()
        default._restore(self._gt._state())
        try:
            yield
        finally:
            self._gt._restore(default._state())
            default._restore(before)

    def manual_seed(self, seed: int) -> CudaGenerator:
        self._gt.manual_seed(seed)
        return self

    def seed(self) -> int:
        return self._gt.seed()

    def initial_seed(self) -> int:
        return self._gt.initial_seed()

    def get_state(self) -> torch.Tensor:
        return torch.from_numpy(self._gt.get_state().numpy().copy())

    def set_state(self, new_state: Any) -> CudaGenerator:
        self._gt.set_state(new_state)
        return self
