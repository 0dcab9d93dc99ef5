"""The system of ``gt up``: a server here or on the first host, and workers on all hosts."""

from __future__ import annotations

import os
import queue
import shlex
import subprocess
import sys
import time
from typing import NamedTuple, NoReturn

from gt.errors import ClusterError, ConfigError
from gt.launch.host_agent import HostReport, HostTask, this_task
from gt.launch.host_connection import HostConnection
from gt.launch.hosts import Host
from gt.launch.joining import FAILED, Joining, JoiningDisplay
from gt.wire.addresses import route_address
from gt.wire.settings import SERVER_SETTINGS, WORKER_SETTINGS

#: Settings of this process that the processes on all hosts get.
PASSED_ON = {*SERVER_SETTINGS, *WORKER_SETTINGS, "GT_BACKEND", "GT_SHARE_GPUS", "GT_SILENCE_S"}
#: The interval at which the display is updated.
UPDATE_S = 0.1
#: The server among the connections, which have the names of hosts.
SERVER = ""
#: After a first worker has failed, the others have this long to say why they fail too.
SETTLE_S = 5.0
#: After the last worker has ended, the server has this long to report its own end.
SERVER_REPORT_S = 2.0


class UpPlan(NamedTuple):
    #: the command ssh, and Python on the other hosts
    ssh: str
    python: str
    #: where to listen: "9000-9100"
    ports: str
    #: of this host for the others; empty: that of the route to them
    address: str
    server_on_first_host: bool
    #: of the workers; empty: theirs
    backend: str
    #: seconds for all workers to join
    timeout: float
    #: folders on the host of the server; empty: none
    journal: str = ""
    snapshots: str = ""


class HostsSystem:
    """A server, and workers on several hosts."""

    def __init__(self, hosts: list[Host], plan: UpPlan) -> None:
        self._hosts, self._plan = hosts, plan
        self.joining = Joining(f"{host.name}/{i}" for host in hosts for i in range(host.workers))
        #: where clients find the server, and their token
        self.address = self.token = ""
        self._connections: list[HostConnection] = []
        #: (host, or `SERVER`; a report, or the reason why the connection has ended)
        self._events: queue.SimpleQueue[tuple[str, HostReport | str]] = queue.SimpleQueue()
        self._settings = {name: value for name, value in os.environ.items() if name in PASSED_ON}
        self._server_failure = ""
        self._join_token = ""

    def start(self) -> None:
        """Returns when all workers have joined. Raises ClusterError if one of them does not."""
        deadline = time.monotonic() + self._plan.timeout
        self._start_server(deadline)
        with JoiningDisplay(self.joining) as display:
            for host in self._hosts:
                self._connect_workers(host)
            while not self.joining.settled and time.monotonic() < deadline:
                hopeless = self.joining.hopeless
                self._take_event(UPDATE_S)
                display.update()
                if self.joining.hopeless and not hopeless:
                    deadline = min(deadline, time.monotonic() + SETTLE_S)
        if not self.joining.complete:
            lines = "\n  ".join(self.joining.explain_missing())
            raise ClusterError(f"{self.joining.summary()}, so all were ended\n  {lines}")

    def _start_server(self, deadline: float) -> None:
        first = self._hosts[0]
        there = self._plan.server_on_first_host and not first.is_here
        host = first if there else Host("localhost", 0)
        task = this_task(
            "" if there else self._own_address(),
            ports=self._plan.ports,
            settings=self._settings,
            journal=self._server_folder("--journal", self._plan.journal, there),
            snapshots=self._server_folder("--snapshots", self._plan.snapshots, there),
        )
        self._connect(SERVER, host, task)
        while not self.address:
            self._take_event(UPDATE_S)
            if time.monotonic() > deadline:
                raise ClusterError(f"the server on {host.name} did not start within {self._plan.timeout:g} s")

    def _server_folder(self, option: str, folder: str, there: bool) -> str:
        """A folder as the server gets it: on another host there is no current folder that it could begin at."""
        if there and folder and not os.path.isabs(folder):
            raise ConfigError(
                f"{option} {folder}: the server runs on {self._hosts[0].name}, so name the whole path there"
            )
        return os.path.abspath(folder) if folder else ""

    def _own_address(self) -> str:
        """The address of this host by which the others reach it."""
        remote = [host.name for host in self._hosts if not host.is_here]
        if self._plan.address or not remote:
            return self._plan.address or "127.0.0.1"
        name = _ssh_name(self._plan.ssh, remote[0])
        if (address := route_address(name, 22)) is None:
            raise ConfigError(
                f"{remote[0]}: the name {name} is not known here, or there is no route to it; --address names the "
                "address of this host for the others"
            )
        return address

    def _connect_workers(self, host: Host) -> None:
        for i in range(host.workers):
            self.joining.note(f"{host.name}/{i}", "starting" if host.is_here else "connecting by ssh")
        task = this_task(
            self.address,
            workers=host.workers,
            token=self._join_token,
            ports=self._plan.ports,
            backend=self._plan.backend,
            settings=self._settings,
        )
        self._connect(host.name, host, task)

    def _connect(self, name: str, host: Host, task: HostTask) -> None:
        def note(event: HostReport | str) -> None:
            self._events.put((name, event))

        self._connections.append(HostConnection(host, task, self._plan.ssh, self._plan.python, note, note))

    def _take_event(self, seconds: float) -> None:
        """Wait for an event, and handle it. Raises ClusterError if the server has ended."""
        try:
            name, event = self._events.get(timeout=seconds)
        except queue.Empty:
            return
        if name == SERVER:
            self._handle_server(event)
        elif isinstance(event, str) or event.event == "refused":
            reason = event if isinstance(event, str) else event.text
            for worker, (state, _) in self.joining.rows.items():
                if worker.rpartition("/")[0] == name and state != FAILED:
                    self.joining.failed(worker, reason)
        else:
            self._handle_worker(f"{name}/{event.worker}", event)

    def _handle_server(self, event: HostReport | str) -> None:
        if isinstance(event, str):
            raise ClusterError(self._server_failure or f"the server: {event}")
        if event.event == "listening":
            self.address, self._join_token, self.token = event.text, event.join_token, event.token
        elif event.event == "ended":
            self._server_failure = f"the server ended ({event.text})"
        elif event.event == "refused":
            self._server_failure = f"the server: {event.text}"

    def _handle_worker(self, name: str, event: HostReport) -> None:
        if event.event == "joined":
            self.joining.joined(name, event.text)
        elif event.event == "ended":
            self.joining.failed(name, f"it ended, {event.text}")
        elif event.event == "line" and name in self.joining.missing:
            self.joining.note(name, event.text)

    def run(self) -> NoReturn:
        """Report workers that end. Raises ClusterError when the server or the last worker has ended."""
        known = self.joining.missing
        while len(known) < len(self.joining.rows):
            self._take_event(60.0)
            for name, reason in self.joining.missing.items():
                if name not in known:
                    print(f"{name}: {reason}", file=sys.stderr, flush=True)
            known = self.joining.missing
        # a server that ends takes its workers along, and their ends may be reported before its own
        limit = time.monotonic() + SERVER_REPORT_S
        while (left := limit - time.monotonic()) > 0:
            self._take_event(left)
        raise ClusterError(self._server_failure or "all workers have ended")

    def stop(self) -> None:
        """End everything: the workers first, because otherwise they report a lost server."""
        for connection in self._connections[1:]:
            connection.stop()
        for connection in self._connections[1:]:
            connection.wait()
        for connection in self._connections[:1]:
            connection.stop()
            connection.wait()


def _ssh_name(ssh: str, host: str) -> str:
    """The host that ssh connects to under this name: its configuration may have another one."""
    try:
        shown = subprocess.run([*shlex.split(ssh), "-G", host], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"--ssh {ssh}: {error}") from None
    names = [line.split()[1] for line in shown.stdout.splitlines() if line.startswith("hostname ")]
    return names[0] if names else host.rpartition("@")[2]
