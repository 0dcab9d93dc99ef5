"""A server for one job of a scheduler: its own secret, the first free port of a range, and a child of this process."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
from pathlib import Path

from gt.errors import ClusterError
from gt.launch.own_module import TRUSTED_NETWORKS, module_command, module_environment
from gt.launch.parent import with_parent
from gt.wire.addresses import parse_ports
from gt.wire.server_keys import key_text, make_server_keys

#: The ports that are tried, in this order. Few, so that a firewall can let them through.
DEFAULT_PORTS = "9100-9199"
#: Seconds within which the server must listen.
START_TIMEOUT_S = 60.0
#: How long the server may take to end after SIGTERM.
TERMINATE_TIMEOUT_S = 2.0


class PrivateServer:
    """``gt.server`` on an address of this machine. Starting it waits until it listens; it ends with this process.

    ``folder``: where its key is. Use the same folder for all servers on this machine: workers remember the key of an
    address, and refuse another one. ``options``: more options of ``gt.server``.
    """

    def __init__(self, host: str, ports: str, folder: Path, *options: str) -> None:
        self.host, self._options = host, options
        self.token = f"{secrets.token_hex(32)}@{key_text(make_server_keys(folder).public)}"
        reason = "each of them is taken"
        for port in filter(self._is_free, parse_ports(ports)):
            self.port = port
            self._start(folder)
            if self._has_answered.wait(START_TIMEOUT_S) and self._listens:
                return
            self.stop()
            reason = self._last_line
            if "is taken" not in reason:  # otherwise another program was quicker
                break
        raise ClusterError(f"no server could be started on {host}, ports {ports}: {reason}")

    def _is_free(self, port: int) -> bool:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, port))
            except OSError:
                return False
        return True

    def _start(self, folder: Path) -> None:
        where = ("--host", self.host, "-p", str(self.port), "--folder", str(folder), *with_parent())
        self._last_line, self._listens, self._has_answered = "it printed nothing", False, threading.Event()
        self.process = subprocess.Popen(
            module_command("gt.server", *where, *TRUSTED_NETWORKS, *self._options),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=module_environment(GT_TOKEN=self.token, GT_VERBOSE="1"),
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="gt-server-log", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Pass on what the server prints: it belongs in the log of the job."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._last_line = line.strip()
            print(self._last_line, file=sys.stderr, flush=True)
            if "listening on" in line:
                self._listens = True
                self._has_answered.set()
        self._has_answered.set()

    def stop(self) -> None:
        """End the server, by force if necessary."""
        self.process.terminate()
        try:
            self.process.wait(TERMINATE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(TERMINATE_TIMEOUT_S)


def start_worker(host: str, port: int, token: str, *options: str, keep_errors: bool = False) -> subprocess.Popen[bytes]:
    """A worker as a child, which ends with this process. Its token is in its environment, not on its command line.

    ``keep_errors``: what it prints on stderr can be read from here.
    """
    return subprocess.Popen(
        module_command("gt.worker", "--host", host, "-p", str(port), *with_parent(), *options),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE if keep_errors else None,
        env=module_environment(GT_TOKEN=token),
    )


def threads_option(cores: int, workers: int) -> tuple[str, str]:
    """The option of a worker that shares these cores with others."""
    return "--threads", str(max(1, (cores or os.cpu_count() or 1) // max(1, workers)))
