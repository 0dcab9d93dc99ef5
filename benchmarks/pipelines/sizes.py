"""The sizes of a run."""

from __future__ import annotations

from typing import NamedTuple


class Sizes(NamedTuple):
    """The sizes of a run; ``--quick`` uses smaller ones."""

    #: seconds of an op on the timed workers
    op_seconds: float
    #: measured steps of a schedule
    steps: int
    #: rounds of a comparison
    rounds: int
    #: the MLP of ``scaling``
    width: int
    rows: int
    port: int
