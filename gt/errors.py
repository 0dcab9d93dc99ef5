"""Every exception GT raises on purpose.

GtError
├── ShapeError         an op was given shapes it cannot take           (also RuntimeError, ValueError)
├── DimError           a dim or an index is outside the tensor         (also IndexError)
├── DTypeError         an op was given dtypes it cannot take           (also TypeError, RuntimeError)
├── GradError          a gradient cannot be computed                   (also RuntimeError)
├── CompileError       a function cannot be compiled                   (also RuntimeError)
├── RemoteError        an instruction failed on a worker               (also RuntimeError)
│   └── OutOfMemory    …because there was no memory for its result     (also MemoryError)
│       └── QuotaExceeded  …within the user's quota on a shared server
├── ClusterError       the system failed, not the program               (also RuntimeError)
│   ├── ConnectionLost the server cannot be reached                    (also ConnectionError)
│   ├── WorkerLost     the worker that held a tensor is lost
│   ├── NoWorkers      the server has no workers
│   └── Refused        the server refused this connection
├── ConfigError        a setting or a command line is wrong            (also ValueError)
└── SignalError        a signal was exited that was not entered        (also RuntimeError)

A `RemoteError` is about the user's instruction, a `ClusterError` about the machines. After a `RemoteError` the session
still works.
"""

from __future__ import annotations

__all__ = [
    "ClusterError", "CompileError", "ConfigError", "ConnectionLost", "DTypeError", "DimError", "GradError", "GtError",
    "NoWorkers", "OutOfMemory", "QuotaExceeded", "Refused", "RemoteError", "ShapeError", "SignalError", "WorkerLost",
]  # fmt: skip


class GtError(Exception):
    """The base of all errors that GT raises on purpose: ``except gt.GtError`` catches them all."""


class ShapeError(GtError, RuntimeError, ValueError):
    """An op was given shapes it cannot take.

    ``matmul(float32[8,4], float32[5,4]): inner sizes differ: 4 and 5``
    """


class DimError(GtError, IndexError):
    """A dim or an index is outside the tensor.

    ``transpose(float32[3,4], dim=5): dim 5 is out of range [-2, 1]``
    """


class DTypeError(GtError, TypeError, RuntimeError):
    """An op was given dtypes it cannot take.

    ``matmul(float32[8,4], int64[4,4]): dtypes differ: float32 and int64``
    """


class GradError(GtError, RuntimeError):
    """A gradient cannot be computed; the texts are torch's.

    ``Trying to backward through the graph a second time…``
    """


class CompileError(GtError, RuntimeError):
    """A function cannot be compiled.

    ``gt.compile: a value is read inside a compiled function (item, numpy, print, …)…``
    """


class RemoteError(GtError, RuntimeError):
    """An instruction failed on a worker. The text names the op, the types, the worker and the user's source line."""


class OutOfMemory(RemoteError, MemoryError):
    """There was no memory for an op's result. The text lists what uses the memory."""


class QuotaExceeded(OutOfMemory):
    """The user's quota of memory on a worker of a shared server does not allow an op's result."""


class ClusterError(GtError, RuntimeError):
    """The system (server, workers, connections) failed, not the user's program."""


class ConnectionLost(ClusterError, ConnectionError):
    """The server cannot be reached."""


class WorkerLost(ClusterError):
    """The worker that held a value is lost."""


class NoWorkers(ClusterError):
    """The server has no workers, so nothing can be computed."""


class Refused(ClusterError):
    """The server refused this connection: wrong version, wrong secret, or a frame it could not read."""


class ConfigError(GtError, ValueError):
    """A setting or a command line is wrong."""


class SignalError(GtError, RuntimeError):
    """A signal was exited that was not entered.

    ``gt.signal.exit('b'): the innermost signal is 'a'; leave that first``
    """


#: `FailureReport.kind` or `NoValue.kind` on the wire -> the class that the client raises.
BY_NAME: dict[str, type[GtError]] = {
    kind.__name__: kind
    for kind in (RemoteError, OutOfMemory, QuotaExceeded, ConnectionLost, WorkerLost, NoWorkers, Refused)
}
