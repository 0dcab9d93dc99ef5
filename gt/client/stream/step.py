"""``gt.step``: what a program says about its own rhythm."""

from __future__ import annotations

from gt.client.stream.connect import connected

__all__ = ["step"]


class step:  # noqa: N801, called like a function, or a context
    """The program comes round here: what was emitted since the last time is likely to be emitted again.

    Reads, `backward` and optimizer steps say so by themselves. As a context, both its ends do.
    """

    def __init__(self) -> None:
        _cut()

    def __enter__(self) -> step:
        return self

    def __exit__(self, *_: object) -> None:
        _cut()


def _cut() -> None:
    session = connected()
    if session is not None and session.ended is None:
        session.cut()
