"""``gt.snapshot`` and ``gt.fork``: the state of a program at one point, and new tensors with that state.

The structure of the state is described as in files (`gt.saving.objects`). The copies stay on the workers.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from gt.client.stream import connect
from gt.client.stream.recovery import Snapshot
from gt.client.stream.session import Session
from gt.client.tensor.emit import current
from gt.client.tensor.operands import session_error
from gt.client.tensor.tensor import Tensor, fresh
from gt.errors import ClusterError, ConfigError
from gt.saving.objects import flatten, unflatten
from gt.types import DTYPES, TensorType
from gt.wire.interrupts import deferred
from gt.wire.recovery_messages import DropKept, FindKept, Fork, Keep

__all__ = ["ForkableSnapshot", "fork", "snapshot"]

#: The longest time for which a snapshot may be kept after its session, in seconds.
MAX_KEEP_S = 86400.0


class ForkableSnapshot(Snapshot):
    """A snapshot for `fork`. ``str()`` gives the text by which another session of the same user can fork it.

    It is freed by `drop`, with the last reference to it, and with the session that has taken it.
    """

    def __init__(self, session: Session, tensors: list[int], structure: bytes, keep: float) -> None:
        self._key = secrets.token_hex(16)
        #: whether nothing has to be freed with this object
        self._dropped = True
        super().__init__(session, Keep, self._key, tensors, structure, keep)
        self._dropped = keep > 0

    def __str__(self) -> str:
        return self._key

    def __repr__(self) -> str:
        return f"<snapshot {self._key}>"

    def drop(self) -> None:
        """Free the copies. What was forked from them stays."""
        if not self._dropped:
            self._dropped = True
            self._session.send_quietly(DropKept(self._key))

    @deferred
    def __del__(self) -> None:
        self.drop()


def snapshot(*, keep: float = 0.0, **state: Any) -> Snapshot:
    """Copy tensors as they are now, while the program goes on.

    With names, the copies are for `gt.fork`: tensors, modules, optimizers and other objects with a ``state_dict``, and
    dicts, lists and plain values of them. They stay on the workers that hold the tensors, and are freed with the
    returned snapshot. ``keep``: free them so many seconds after the end of the session.

    Without names, all tensors of the session are copied, so that less has to run again when a worker is lost. Needs
    ``gt.recovery("replay")``.

    Example::

        model = gt.nn.Linear(4, 2)
        before = gt.snapshot(model=model)
        model.load_state_dict(gt.fork(before)["model"])
    """
    session = connect.session()
    if not state:
        return Snapshot(session)
    if not isinstance(keep, int | float) or not 0 <= keep <= MAX_KEEP_S:
        raise ConfigError(f"snapshot(keep={keep!r}): a number of seconds from 0 to {MAX_KEEP_S:g}")
    described = {name: x.state_dict() if hasattr(x, "state_dict") else x for name, x in state.items()}
    tensors, structure = flatten([described])
    if not tensors:
        raise ConfigError("snapshot(): there is no tensor in it")
    ids = [_id(session, tensor) for tensor in tensors.values()]
    description = json.dumps([list(tensors), structure]).encode()
    return ForkableSnapshot(session, ids, description, float(keep))


def _id(session: Session, tensor: Tensor) -> int:
    current(tensor)
    cell = tensor._cell
    if cell.session is not session:
        raise session_error(session, cell.session)
    return cell.id


def fork(snapshot: Snapshot | str) -> dict[str, Any]:
    """New tensors with the values that a snapshot has, on the same workers and in the same layout.

    ``snapshot``: what ``gt.snapshot(name=…)`` returned, or its text, also in another session of the same user. Returns
    the state by name. A module or an optimizer is its ``state_dict``.

    Example::

        before = gt.snapshot(x=gt.ones(3))
        x = gt.fork(before)["x"]
    """
    if not isinstance(snapshot, Snapshot | str):
        raise ConfigError(f"fork({type(snapshot).__name__}): neither a snapshot nor the text of one")
    if not isinstance(snapshot, ForkableSnapshot | str):
        raise ConfigError("fork(): this snapshot has no names; take it with gt.snapshot(model=model)")
    session, key = connect.session(), str(snapshot)
    if session.outbox.recorder is not None:
        session.outbox.recorder.refuse("a snapshot is forked inside")
    session.outbox.cut()
    session.outbox.flush()
    kept = _answer(session, key, session.replies.begin_to_ask(FindKept, key))
    names, structure = json.loads(kept.structure)
    types = [TensorType(tuple(shape or ()), DTYPES[dtype]) for dtype, shape in kept.types]
    tensors = _copies(session, key, types)
    return unflatten(structure, dict(zip(names, tensors, strict=True)))[0]  # type: ignore[no-any-return]


def _copies(session: Session, key: str, types: list[TensorType]) -> list[Tensor]:
    tensors, answers = _send_fork(session, key, types)
    _answer(session, key, answers)
    return tensors


@deferred
def _send_fork(session: Session, key: str, types: list[TensorType]) -> tuple[list[Tensor], list[Any]]:
    """The new tensors exist from here on, so an interrupt while the program waits frees them."""
    ids = [session.outbox.next_id() for _ in types]
    session.outbox.cut()  # the next template begins after these ids
    session.outbox.flush()
    answers = session.replies.begin_to_ask(Fork, key, ids)
    return [fresh(id, session, type) for id, type in zip(ids, types, strict=True)], answers


def _answer(session: Session, key: str, answers: list[Any]) -> Any:
    session.connection.wait_for_progress(lambda: bool(answers))
    if answers[0].problem:
        raise ClusterError(f"fork({key!r}): {answers[0].problem}")
    return answers[0]
