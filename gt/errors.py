"""Every exception GT raises on purpose.

GtError
├── ShapeError         an op was given shapes it cannot take           (also RuntimeError, ValueError)
├── DimError           a dim or an index is outside the tensor         (also IndexError)
├── DTypeError         an op was given dtypes it cannot take           (also TypeError, RuntimeError)
├── GradError          a gradient that cannot be had                   (also RuntimeError)
├── CompileError       what a compiled function cannot do              (also RuntimeError)
├── RemoteError        an instruction failed on a worker               (also RuntimeError)
│   └── OutOfMemory    …because there was no memory for its result     (also MemoryError)
├── ClusterError       the system around the session failed            (also RuntimeError)
│   ├── ConnectionLost the server is gone, or was never there          (also ConnectionError)
│   ├── WorkerLost     the worker that held a tensor is gone
│   ├── NoWorkers      there is a server, but nobody to compute
│   └── Refused        the server turned this connection away
├── ConfigError        a setting or a command line is wrong            (also ValueError)
└── SignalError        a signal is left that was not entered           (also RuntimeError)

A `RemoteError` is about the user's instruction, a `ClusterError` about the machines. The first kind leaves the
session as it was.
"""

from __future__ import annotations

__all__ = [
    "ClusterError", "CompileError", "ConfigError", "ConnectionLost", "DTypeError", "DimError", "GradError", "GtError",
    "NoWorkers", "OutOfMemory", "Refused", "RemoteError", "ShapeError", "SignalError", "WorkerLost",
]  # fmt: skip


class GtError(Exception):
    """The root: ``except gt.GtError`` catches everything GT raises on purpose."""


class ShapeError(GtError, RuntimeError, ValueError):
    """``matmul(float32[8,4], float32[5,4]): inner sizes differ: 4 and 5``"""


class DimError(GtError, IndexError):
    """``sum(float32[8,4], dim=2): dim 2 is out of range [-2, 1]``"""


class DTypeError(GtError, TypeError, RuntimeError):
    """``matmul(float32[8,4], int64[4,4]): dtypes differ: float32 and int64``"""


class GradError(GtError, RuntimeError):
    """``Trying to backward through the graph a second time…``: torch's own words for torch's own rules."""


class CompileError(GtError, RuntimeError):
    """``a value is read inside train_step, which is compiled``"""


class RemoteError(GtError, RuntimeError):
    """An instruction failed on a worker. The text names op, types, worker and the user's own line."""


class OutOfMemory(RemoteError, MemoryError):
    """There was no memory for an op's result; the text says what holds the memory."""


class ClusterError(GtError, RuntimeError):
    """The system failed, not the user's program."""


class ConnectionLost(ClusterError, ConnectionError):
    """The server cannot be reached (any more)."""


class WorkerLost(ClusterError):
    """The worker that held the value is gone."""


class NoWorkers(ClusterError):
    """A server without workers can compute nothing."""


class Refused(ClusterError):
    """The server turned this connection away: version, secret, or a frame it could not read."""


class ConfigError(GtError, ValueError):
    """A setting or a command line is wrong."""


class SignalError(GtError, RuntimeError):
    """``gt.signal.exit('b'): the innermost signal is 'a'; leave that first``"""


#: What a value that cannot be had is told as on the wire; the client raises the class again.
BY_NAME: dict[str, type[GtError]] = {
    kind.__name__: kind for kind in (RemoteError, OutOfMemory, ConnectionLost, WorkerLost, NoWorkers, Refused)
}
