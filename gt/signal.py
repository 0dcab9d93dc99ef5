"""``gt.signal``: names for stretches of a program, which a configuration maps to placements. See docs/signals.md.

    with gt.signal.context("pp_stage0"):
        x = layer(x)

Without a configuration signals have no effect, and the program runs as if there were none.
"""

from gt.client.signals.signal import context, current, enter, exit
from gt.client.tensor.placing import place, tensor

__all__ = ["context", "current", "enter", "exit", "place", "tensor"]
