"""Messages with which workers measure the links between their hosts (see `gt.dispatcher.plan.topology`)."""

from __future__ import annotations

from gt.wire.structures import Message


class OpenProbe(Message, frozen=True, array_like=True, tag=True):
    """To a worker: accept this many measurements. Answered by `ProbeOpen`, or by nothing if it cannot listen."""

    count: int


class ProbeOpen(Message, frozen=True, array_like=True, tag=True):
    """From a worker: it accepts measurements at this "host:port" for a while, from those that know the key."""

    address: str
    key: bytes


class MeasureLink(Message, frozen=True, array_like=True, tag=True):
    """To a worker: measure the link to another one. Answered by `LinkMeasured`."""

    worker: int
    address: str
    key: bytes


class LinkMeasured(Message, frozen=True, array_like=True, tag=True):
    """From a worker: the link to another one. Zeros: it could not be measured."""

    worker: int
    #: from one to the other
    latency_us: float
    bytes_per_us: float


LinksToDispatcher = ProbeOpen | LinkMeasured
LinksToWorker = OpenProbe | MeasureLink
