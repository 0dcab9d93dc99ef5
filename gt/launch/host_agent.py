"""``python -m gt.launch.host_agent``: starts a server or workers on this host for ``gt up``, and watches them.

It reads one `HostTask` from its standard input, which is the end of an ssh channel or of a pipe, and writes a
`HostReport` for each event to its standard output, one JSON document a line. Secrets come and go only on these two,
never on a command line. When the input is closed it ends all that it started. If it is killed, the input of its
processes is closed, and they end.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from typing import NoReturn

import msgspec

from gt.errors import GtError
from gt.launch.local import check_gpus, share_of_host, visible_gpus
from gt.launch.own_module import TRUSTED_NETWORKS, module_command, module_environment
from gt.version import PROTOCOL, VERSION
from gt.wire.addresses import split_address
from gt.wire.auth import create_token, find_token, make_token
from gt.wire.identities import Quota
from gt.wire.server_keys import key_text, make_server_keys, server_folder, split_token
from gt.wire.token_file import TokenFile

#: How long a child may take to end.
TERMINATE_TIMEOUT_S = 2.0
#: The last lines of a worker that explain its end.
EXPLANATION_LINES = 3


class HostTask(msgspec.Struct, frozen=True):
    """What to start: workers, or with none of them a server."""

    version: str
    protocol: int
    #: workers: the server's address; server: the host to listen on, empty for the end of the ssh connection
    address: str
    workers: int = 0
    #: the join token of the workers
    token: str = ""
    ports: str = ""
    backend: str = ""
    #: whether the loss of a worker ends the server
    end_with_workers: bool = False
    #: folders of the server; empty: it keeps no journal, and no snapshots in files
    journal: str = ""
    snapshots: str = ""
    #: settings of the processes
    settings: dict[str, str] = {}


class HostReport(msgspec.Struct, frozen=True, omit_defaults=True):
    #: "listening", "joined", "line" (of its output), "ended", or "refused" (nothing was started)
    event: str
    worker: int = 0
    text: str = ""
    #: of a server: the token of the workers, and the token of clients
    join_token: str = ""
    token: str = ""


class HostAgent:
    def __init__(self, task: HostTask) -> None:
        self._task = task
        self._writing = threading.Lock()
        self._children: list[subprocess.Popen[str]] = []
        #: of a server: what its `HostReport` of listening has
        self._tokens = ("", "")

    def start(self) -> None:
        """Raises GtError."""
        task = self._task
        if (task.version, task.protocol) != (VERSION, PROTOCOL):
            raise GtError(
                f"GT {VERSION} (protocol {PROTOCOL}) is installed there, and GT {task.version} (protocol "
                f"{task.protocol}) here; install the same version"
            )
        if task.workers:
            self._start_workers()
        else:
            self._start_server()
        for i, child in enumerate(self._children):
            threading.Thread(target=self._watch, args=(i, child), daemon=True).start()

    def _start_workers(self) -> None:
        host, port = split_address(self._task.address)
        gpus = visible_gpus()
        check_gpus(self._task.workers, gpus)
        backend = ["--backend", self._task.backend] if self._task.backend else []
        for i in range(self._task.workers):
            environment, options = share_of_host(i, self._task.workers, gpus)
            environment["GT_TOKEN"] = self._task.token
            self._start("gt.worker", environment, "--host", host, "-p", str(port), *backend, *options)

    def _start_server(self) -> None:
        folder = server_folder()
        key = key_text(make_server_keys(folder).public)
        secret, _ = split_token(find_token() or make_token(key))
        remove_join_tokens()  # of runs that were killed
        self._tokens = create_token(folder, join_user(os.getpid()), "worker", Quota()), f"{secret}@{key}"
        # the third word: the address of this host by which the other end reached it
        host = self._task.address or os.environ.get("SSH_CONNECTION", "").split()[2]
        options = ["--end-with-workers"] * self._task.end_with_workers
        options += ["--journal", self._task.journal] if self._task.journal else []
        options += ["--snapshots", self._task.snapshots] if self._task.snapshots else []
        self._start("gt.server", {}, "--host", host, *TRUSTED_NETWORKS, *options)

    def _start(self, module: str, environment: dict[str, str], *options: str) -> None:
        ports = ["--ports", self._task.ports] if self._task.ports else []
        child = subprocess.Popen(
            module_command(module, *options, *ports, "--with-stdin"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=module_environment(**self._task.settings, **environment),
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is meant for gt up
        )
        self._children.append(child)

    def _watch(self, i: int, child: subprocess.Popen[str]) -> None:
        """Report the output and the end of a child. The last child's end is the end of this process."""
        assert child.stdout is not None
        last: list[str] = []
        for line in child.stdout:
            last = [*last, line.strip()][-EXPLANATION_LINES:]
            self.report(self._meaning(i, line.strip()))
        code = child.wait()
        explanation = " / ".join(filter(None, last)) or "it printed nothing"
        self.report(HostReport("ended", i, f"exit code {code}: {explanation}"))
        if all(other.poll() is not None for other in self._children):
            self.end(1)

    def _meaning(self, i: int, line: str) -> HostReport:
        if self._task.workers:
            match = re.fullmatch(r"joined \S+ as (worker .*)", line)
            return HostReport("joined", i, match[1]) if match else HostReport("line", i, line)
        match = re.match(r"listening on (\S+?)(?:,|$)", line)
        return HostReport("listening", i, match[1], *self._tokens) if match else HostReport("line", i, line)

    def report(self, report: HostReport) -> None:
        with self._writing:
            try:
                os.write(1, msgspec.json.encode(report) + b"\n")
            except OSError:  # nobody reads any more
                os.kill(os.getpid(), signal.SIGTERM)

    def end(self, code: int) -> NoReturn:
        """End all children, and this process, whatever happens."""
        try:
            for child in self._children:
                child.terminate()
            for child in self._children:
                try:
                    child.wait(TERMINATE_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    child.kill()
            if not self._task.workers:
                remove_join_tokens(own=True)
        finally:
            os._exit(code)


def join_user(pid: int | str) -> str:
    """The user of the token with which the workers of an agent's server join."""
    return f"join-{re.sub('[^A-Za-z0-9]', '-', socket.gethostname())[:40]}-{pid}"


def remove_join_tokens(own: bool = False) -> None:
    """Remove the tokens of agents of this host that have ended, and that of this one."""
    tokens = TokenFile(server_folder())
    for user in {record.user for record in tokens.read()}:
        pid = re.fullmatch(join_user("([0-9]+)"), user)
        if pid and (int(pid[1]) == os.getpid() if own else not os.path.exists(f"/proc/{pid[1]}")):
            tokens.remove(user)


def this_task(address: str, **fields: object) -> HostTask:
    """A task for an agent of the same version."""
    return msgspec.convert({"version": VERSION, "protocol": PROTOCOL, "address": address, **fields}, HostTask)


def main() -> NoReturn:
    if not (line := sys.stdin.buffer.readline()):
        sys.exit(1)  # gt up has ended
    agent = HostAgent(msgspec.json.decode(line, type=HostTask))
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: agent.end(0))
    try:
        agent.start()
    except GtError as error:
        agent.report(HostReport("refused", 0, str(error)))
        agent.end(1)
    while os.read(0, 4096):
        pass
    agent.end(0)


if __name__ == "__main__":
    main()
