"""``gt.step``: the program says where it repeats itself."""

from __future__ import annotations

import time

from gt.client.stream.connect import connected

__all__ = ["step"]


class step:  # noqa: N801, called like a function, or used as a context
    """Mark where a loop repeats, so that GT recognises the work in between as one repeated fragment.

    Reads, `backward` and optimizer steps mark this automatically. As a context, it marks both ends of its block.

    Example::

        for batch in batches:
            with gt.step():
                predict(batch)
    """

    def __init__(self) -> None:
        cut()

    def __enter__(self) -> step:
        return self

    def __exit__(self, *_: object) -> None:
        cut()


def cut() -> None:
    """Share the stream of the current session, if there is one."""
    session = connected()
    if session is not None and session.connection.ended is None:
        session.outbox.cut()
        session.outbox.training.ended.append(time.perf_counter_ns())
