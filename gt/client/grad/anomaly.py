"""Anomaly detection: a backward pass that stops at the first gradient with a NaN, and names the line it belongs to.

Every gradient is read, so a pass is slow while this is on. While it is off, it costs nothing: `set_detect_anomaly`
replaces the two functions that it watches.
"""

from __future__ import annotations

from typing import Any

from gt.client.grad.function import FunctionNode
from gt.client.stream import sites
from gt.client.tensor import tape
from gt.client.tensor.tensor import Tensor
from gt.errors import GradError

#: The most nodes whose source lines are remembered.
MAX_SITES = 1_000_000

_record = tape.record
#: the `backward` of each class of nodes
_backward: dict[type, Any] = {kind: kind.__dict__["backward"] for kind in (tape.Node, FunctionNode)}
#: node -> the site that emitted its op
_sites: dict[int, int] = {}
_enabled = _check_nan = False


def _record_with_site(coded: Any, operands: Any, results: tuple[Tensor, ...]) -> None:
    _record(coded, operands, results)
    if results and (node := results[0]._node) is not None:
        if len(_sites) >= MAX_SITES:
            _sites.clear()
        _sites[node.number] = sites.here()


def _checked_backward(node: tape.Node, grads: list[Tensor | None], retain_graph: bool) -> list[Tensor | None]:
    operand_grads: list[Tensor | None] = _backward[type(node)](node, grads, retain_graph)
    for i, g in enumerate(operand_grads):
        if _check_nan and g is not None and g._type.dtype.kind == "f" and bool(g.detach().isnan().any()):
            place = sites.describe(_sites.get(node.number, 0))
            where = f"\n  called at {place}" if place else ""
            name = node.name if isinstance(node, FunctionNode) else repr(node).strip("<>")
            raise GradError(f"Function '{name}' returned nan values in its {i}th output.{where}")
    return operand_grads


def _switch(enabled: bool, check_nan: bool) -> None:
    global _enabled, _check_nan
    _enabled, _check_nan = enabled, check_nan
    tape.record = _record_with_site if enabled else _record
    for kind, backward in _backward.items():
        kind.backward = _checked_backward if enabled else backward  # type: ignore[attr-defined]
    if not enabled:
        _sites.clear()


class set_detect_anomaly:  # noqa: N801, torch's name
    """Turn anomaly detection on or off: as a function, or as a context that restores what was set before.

    While it is on, a backward pass stops at the first gradient with a NaN, and the error names the line of the forward
    pass. See `torch.autograd.set_detect_anomaly`.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = _enabled, _check_nan
        _switch(bool(mode), check_nan)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        _switch(*self._before)


class detect_anomaly:  # noqa: N801, torch's name
    """A context in which anomaly detection is on; see `set_detect_anomaly`."""

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan

    def __enter__(self) -> None:
        self._before = _enabled, _check_nan
        _switch(True, self._check_nan)

    def __exit__(self, *_: object) -> None:
        _switch(*self._before)


def is_anomaly_enabled() -> bool:
    """Whether anomaly detection is on."""
    return _enabled


def is_anomaly_check_nan_enabled() -> bool:
    """Whether anomaly detection looks for NaN."""
    return _check_nan
