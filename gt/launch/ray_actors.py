"""Actors of Ray that run GT's processes: one for the server, and one for each worker.

Ray ends the actors of a driver with it, also after ``kill -9``. A server or a worker is a child of its actor, and ends
with it. So nothing is left when the driver ends.
"""

from __future__ import annotations

import sys
import threading
import time

from gt.launch.private_server import PrivateServer, start_worker
from gt.wire.server_keys import config_folder

#: Seconds before a worker that has ended is started again.
RESTART_S = 1.0


class ServerActor:
    """Runs the server on the node of this actor."""

    def __init__(self, ports: str) -> None:
        from ray.util import get_node_ip_address

        self._server = PrivateServer(get_node_ip_address(), ports, config_folder() / "ray" / "server")

    def place(self) -> tuple[str, int, str]:
        """Its host, port and token."""
        return self._server.host, self._server.port, self._server.token


class WorkerActor:
    """Runs a worker on the GPU of this actor, and starts it again when it ends.

    If its node is lost, Ray creates the actor again, as soon as a node has room for it.
    """

    def __init__(self, host: str, port: int, token: str, threads: int) -> None:
        self._server, self._threads = (host, port, token), threads
        self._error = ""
        threading.Thread(target=self._run, name="gt-worker", daemon=True).start()

    def _run(self) -> None:
        while True:
            worker = start_worker(*self._server, "--threads", str(self._threads), keep_errors=True)
            assert worker.stderr is not None
            last = "it printed nothing"
            for line in worker.stderr:
                last = line.decode(errors="replace").strip()
                print(last, file=sys.stderr, flush=True)  # for the log of the actor
            self._error = f"exit code {worker.wait()}: {last}"
            time.sleep(RESTART_S)

    def last_error(self) -> str:
        """Why a worker of this actor has ended; empty if none has."""
        return self._error
