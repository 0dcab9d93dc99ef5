"""An engine that computes nothing, and a system with it: only the cost of the control plane remains.

``python -m benchmarks.hot.null SOCKET`` is its worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.core.environment import ROOT
from gt.client.stream.connect import open_session, use
from gt.client.stream.session import Session
from gt.launch.collector import tune_collector
from gt.launch.parent import end_with_parent, with_parent
from gt.ops import Signature
from gt.worker.engines.numpy import NumpyEngine
from gt.worker.shell import Shell

START_TIMEOUT_S = 60.0


class Null(NumpyEngine):
    """Every result is the same zeros, created when the instruction was linked."""

    def link(self, signature: Signature) -> Any:
        zeros = tuple(np.broadcast_to(self.zeros(type).dtype.type(0), type.shape) for type in signature.outs)
        results = zeros if len(zeros) > 1 else zeros[0]
        return lambda *_: results


@contextmanager
def system(workers: Sequence[Sequence[str]] = (("benchmarks.hot.null",),)) -> Iterator[Session]:
    """A server and workers in their own processes, and a session with them.

    ``workers``: the module of each worker and its arguments, after which the server's socket is added.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/server"
        commands = (["gt.server", "--unix", address, *with_parent()], *[[*words, address] for words in workers])
        environment = {**os.environ, "PYTHONPATH": path}
        children = [subprocess.Popen([sys.executable, "-m", *words], env=environment) for words in commands]
        try:
            session = _session(address, len(workers))
            with use(session):
                yield session
            session.close()
        finally:
            for child in reversed(children):
                child.terminate()
                child.wait(10)


def _session(address: str, workers: int) -> Session:
    session = open_session(f"unix:{address}", None, "a system that computes nothing", START_TIMEOUT_S)
    session.connection.wait(lambda: len(session.connection.workers) == workers, START_TIMEOUT_S)
    return session


def serve(engine: NumpyEngine, address: str) -> None:
    """Be a worker with this engine, until the connection ends."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    end_with_parent()
    shell = Shell(f"unix:{address}", None, engine, START_TIMEOUT_S)
    tune_collector()
    shell.run()


if __name__ == "__main__":
    serve(Null(), sys.argv[1])
