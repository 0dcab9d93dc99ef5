"""``gt.rebalance``: workers that have joined get their share of a running session."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gt.client.signals.config import from_environment
from gt.client.stream.connect import session
from gt.client.tensor.tensor import Tensor

__all__ = ["rebalance"]

#: functions that return tensors which auto-sharding replicates: `gt.optim` adds the parameters and states of optimizers
replicated: list[Callable[[], Iterable[Tensor]]] = []


def rebalance() -> None:
    """Move the tensors of this session onto all workers, also those that have joined since.

    The meshes of auto-sharding and of signals that name no workers grow; tensors on them are divided anew. No value
    changes. What follows is planned for the new meshes. A signal that names its workers, or the sizes of a mesh, keeps
    them; tensors on its mesh move if another signal had the same mesh, and that has grown. Without a configuration a
    session runs on one worker, and nothing moves.

    Example::

        gt.auto_shard()
        ...  # more workers join
        gt.rebalance()
    """
    from_environment()
    current = session()
    current.outbox.cut()
    whole = {x._cell.id for tensors in replicated for x in tensors() if x._cell.session is current}
    current.signatures.rebalance(sorted(whole))
