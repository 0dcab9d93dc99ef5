"""torchmetrics on GT's tensors: a metric's `update` reads them."""

from __future__ import annotations

from typing import Any

from gt.interop.values import with_values


def adapt(module: Any) -> None:
    """Let the update of every metric accept GT's tensors."""
    wrap = module.Metric._wrap_update
    module.Metric._wrap_update = lambda metric, update: wrap(metric, with_values(update))
