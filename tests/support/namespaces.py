"""Hosts for tests: namespaces of their own for network, processes and host name, joined by a bridge.

    head 10.77.0.1 ─┐
    node1 10.77.0.11 ┤ bridge, in a namespace of its own: the network of the machine is not changed
    node2 10.77.0.12 ┘ …

Processes of two hosts share no memory, no loopback and no process numbers; they share the files. A host ends with the
process that holds its namespaces, so nothing is left behind. `Host.shape` makes its link slow or lossy: by tc's netem
where the kernel has it, otherwise by a cable in user space (`tests.support.cable`) with the same effects.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
from functools import cache

from tests.support.processes import LONG, Process, System, wait_until

PORT = 9000
_UNSHARE = ("unshare", "--net", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")


def _run(*words: str) -> str:
    result = subprocess.run(words, capture_output=True, text=True, timeout=LONG)
    if result.returncode:
        raise OSError(f"{' '.join(words)}: {result.stderr.strip()}")
    return result.stdout


@cache
def why_not() -> str:
    """Why these tests cannot run here; empty: they can."""
    if missing := [name for name in ("ip", "tc", "unshare", "nsenter") if shutil.which(name) is None]:
        return f"no {', '.join(missing)} on this machine (Debian: apt-get install iproute2 util-linux)"
    try:
        with contextlib.ExitStack() as stack:
            Network(stack, 1)
    except OSError as error:
        return f"network namespaces are not allowed here: {error}"
    return ""


@cache
def has_netem() -> bool:
    """Whether the kernel can delay and lose packets by itself."""
    command = (*_UNSHARE, "sh", "-c", "ip link add a type veth peer name b && tc qdisc add dev a root netem delay 1ms")
    return subprocess.run(command, capture_output=True, timeout=LONG).returncode == 0


class Namespaces:
    """Namespaces that exist as long as a process that holds them. It ends with this one, even if this one is killed."""

    def __init__(self, stack: contextlib.ExitStack, name: str) -> None:
        script = f"hostname {name} && mount -t tmpfs tmpfs /dev/shm && ip link set lo up && echo ready && exec cat"
        self._holder = subprocess.Popen(
            (*_UNSHARE, "sh", "-c", script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        stack.callback(self._close)
        assert self._holder.stdout is not None
        if (line := self._holder.stdout.readline().decode().strip()) != "ready":
            raise OSError(line)
        children = pathlib.Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        #: the first process inside; all others there end with it
        self.pid = int(children.read_text().split()[0])
        #: the words before a command that runs inside
        self.enter = ("nsenter", "-t", str(self.pid), "--net", "--uts", "--pid", "--mount", f"--wd={os.getcwd()}", "--")

    def run(self, *words: str) -> str:
        return _run(*self.enter, *words)

    def kill(self) -> None:
        """End every process inside. Their kernel is alive, and closes their connections."""
        self._holder.kill()  # its child ends with it (--kill-child), and with that one all others

    def _close(self) -> None:
        self.kill()
        self._holder.wait(LONG)
        for pipe in (self._holder.stdin, self._holder.stdout):
            assert pipe is not None
            pipe.close()


class Host(Namespaces):
    """One machine of the network."""

    def __init__(self, stack: contextlib.ExitStack, name: str, address: str, bridge: Namespaces) -> None:
        super().__init__(stack, name)
        self._stack, self.name, self.address, self._bridge = stack, name, address, bridge
        _run(
            "ip", "link", "add", "eth0", "netns", str(self.pid), "type", "veth", "peer", name, "netns", str(bridge.pid)
        )
        self._plug_in()

    def _plug_in(self) -> None:
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self._bridge.run("ip", "link", "set", self.name, "master", "bridge", "up")

    def start(self, *arguments: str, before: tuple[str, ...] = (), **extra: str) -> Process:
        """A Python process there."""
        # servers are listed in a folder, by process numbers that mean nothing outside: /dev/shm is this host's own
        process = Process(*arguments, before=(*self.enter, *before), **{"XDG_RUNTIME_DIR": "/dev/shm", **extra})
        self._stack.callback(process.close)
        self._stack.callback(self.kill)  # the end of nsenter does not end what it started
        return process

    def shape(self, delay_ms: float = 0.0, loss: float = 0.0, mbit: float = 0.0) -> None:
        """Delay, lose (a share from 0 to 1) and limit what this host sends and receives, each way. Once, and before
        processes start there: without netem the network card is replaced."""
        if not has_netem():
            self._replace_link(delay_ms, loss, mbit)
            return
        effects = ["delay", f"{delay_ms:g}ms", "loss", f"{100 * loss:g}%", *(["rate", f"{mbit:g}mbit"] if mbit else [])]
        self.run("tc", "qdisc", "add", "dev", "eth0", "root", "netem", *effects)
        self._bridge.run("tc", "qdisc", "add", "dev", self.name, "root", "netem", *effects)

    def _replace_link(self, delay_ms: float, loss: float, mbit: float) -> None:
        self.run("ip", "link", "del", "eth0")
        ends = [str(self.pid), "eth0", str(self._bridge.pid), self.name]
        cable = Process("-m", "tests.support.cable", *ends, str(delay_ms), str(loss), str(mbit))
        self._stack.callback(cable.close)
        cable.expect("ready")
        self._plug_in()

    def cut_from(self, other: Host) -> None:
        """What this host sends to the other one is lost. No connection is closed, and nobody is told."""
        self.run("ip", "neigh", "replace", other.address, "lladdr", "02:00:00:00:00:99", "dev", "eth0")

    def disappear(self) -> None:
        """The host loses its power: nothing is sent any more, not even the end of a connection."""
        self._bridge.run("ip", "link", "set", self.name, "down")
        self.kill()


class Network:
    """A head, where the server and clients run, and hosts for workers."""

    def __init__(self, stack: contextlib.ExitStack, hosts: int = 4) -> None:
        bridge = Namespaces(stack, "bridge")
        bridge.run("ip", "link", "add", "bridge", "type", "bridge")
        bridge.run("ip", "link", "set", "bridge", "up")
        self.head = Host(stack, "head", "10.77.0.1", bridge)
        self.hosts = [Host(stack, f"node{n}", f"10.77.0.{10 + n}", bridge) for n in range(1, hosts + 1)]


class HostsSystem(System):
    """A server on the head of a network. `join` starts the workers. ``settings`` are those of the server."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        network: Network,
        private: tuple[str, ...] = ("10.77.0.0/24",),
        **settings: str,
    ) -> None:
        self._stack, self.network, self.port, self.workers = stack, network, PORT, []
        self.host = network.head.address
        words = "-m", "gt.server", "--host", self.host, "-p", str(PORT)
        networks = [word for network in private for word in ("--private-network", network)]
        self.server = self.start(*words, *networks, GT_VERBOSE="1", **settings)
        self.server.expect("listening")

    def start(self, *arguments: str, **extra: str) -> Process:
        return self.network.head.start(*arguments, **extra)

    def join(self, per_host: int = 2, *options: str, before: dict[str, tuple[str, ...]] | None = None) -> None:
        """Workers on all hosts at once. Their numbers follow the hosts: 0 and 1 on the first one, and so on.

        ``before``: name of a host -> the words before the commands of its workers."""
        words = ["-m", "gt.worker", "--host", self.host, "-p", str(self.port), "--threads", "1", *options]
        for host in self.network.hosts:
            start = [
                host.start(*words, before=(before or {}).get(host.name, ()), GT_VERBOSE="1") for _ in range(per_host)
            ]
            for worker in start:
                worker.expect("joined")
            self.workers += start

    def join_at_once(self, per_host: int = 2, *options: str) -> None:
        """Workers on all hosts, which join in any order, and have measured their links."""
        words = ["-m", "gt.worker", "--host", self.host, "-p", str(self.port), "--threads", "1", *options]
        hosts = [host for host in self.network.hosts for _ in range(per_host)]
        self.workers = [host.start(*words, GT_VERBOSE="1") for host in hosts]
        for worker in self.workers:
            worker.expect("joined")
        pairs = len(self.network.hosts) * (len(self.network.hosts) + 1) // 2 if per_host > 1 else 0
        wait_until(lambda: sum("the link to" in line for w in self.workers for line in w.lines) >= pairs)
