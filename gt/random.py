"""``gt.random``: the state of the random numbers, as in `torch.random`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gt.client.tensor.random_state import default_generator as default_generator
from gt.client.tensor.random_state import get_rng_state, initial_seed, manual_seed, restored, seed, set_rng_state, state
from gt.missing import absent as _absent

__all__ = ["fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]
_absent("random")


@contextlib.contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, device_type: str = "cuda") -> Iterator[None]:
    """A block after which random numbers continue as if it had drawn nothing. The devices are ignored."""
    if not enabled:
        yield
        return
    with restored(state()):
        yield
