"""Between an engine's array and what the wire reads and writes: numpy arrays as torch's, a GPU's arrays on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from gt.worker.plane.collectives import KINDS, Call
from gt.worker.plane.groups import Departure, Membership

#: what the engine gets
BRING: dict[str, Callable[[torch.Tensor], Any]] = {"torch": lambda x: x, "numpy": lambda x: x.numpy()}


def departure(
    m: Membership, kind: str, array: Any, how: dict[str, Any], engine: str
) -> tuple[Departure, Callable[[], None] | None]:
    """A flight, and what to wait for before it can be issued."""
    text = f"{kind} among workers {', '.join(map(str, m.members))}"
    staged = m.backend == "gloo" and torch.device(m.device).type == "cuda"
    ready = None
    if isinstance(array, np.ndarray | np.generic):
        array = torch.from_numpy(np.require(array, requirements=("C", "W")))
    if staged:
        array, ready = _staged(array)
        how = {**how, "own": True}

    def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu" if staged else m.device, pin_memory=staged)

    def bring(x: torch.Tensor | None) -> Any:
        if x is None:
            return None
        return x.to(m.device, non_blocking=True) if staged else BRING[engine](x)

    plan = partial(KINDS[kind], Call(array, how, m.rank, len(m.members), empty))
    if ready is not None:
        return Departure(text, plan, bring), ready
    made = plan()
    return Departure(text, lambda: made, bring), None


def _staged(array: torch.Tensor | None) -> tuple[torch.Tensor | None, Callable[[], None]]:
    """On its way to the host; gloo reads no GPU's memory."""
    if array is None:
        return None, lambda: None
    host = torch.empty(array.shape, dtype=array.dtype, pin_memory=True)
    host.copy_(array, non_blocking=True)
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return host, event.synchronize
