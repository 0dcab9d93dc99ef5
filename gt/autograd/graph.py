"""``gt.autograd.graph``: only `save_on_cpu`, which has no effect: the workers keep what gradients need."""

from __future__ import annotations

from contextlib import nullcontext

from gt.missing import absent as _absent

__all__ = ["save_on_cpu"]
_absent("autograd.graph")


class save_on_cpu(nullcontext[None]):  # noqa: N801, torch's name
    """A context without an effect: `gt.checkpoint` saves memory."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__()
