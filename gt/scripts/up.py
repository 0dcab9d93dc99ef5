"""``python -m gt.scripts.up host1:8 host2:8``: start a server, and workers on several hosts over ssh.

It shows which workers have joined, and which are missing and why. Then it runs until Ctrl-C or gt down, and ends all
that it started.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from gt.errors import ClusterError
from gt.launch.command_name import command_name, make_parser
from gt.launch.hosts import parse_hosts
from gt.launch.hosts_system import HostsSystem, UpPlan
from gt.launch.own_module import module_command, module_environment
from gt.launch.up_state import UpLock, log_file, read_state
from gt.scripts.command import INTERRUPTED, run
from gt.wire.addresses import parse_ports

#: The interval of checks whether the background process is up.
CHECK_S = 0.1


def main(argv: list[str] | None = None) -> int:
    parser = make_parser("gt.scripts.up", __doc__)
    parser.add_argument(
        "host", nargs="*", help="HOST:WORKERS, such as host1:8; localhost is this machine, others are reached by ssh"
    )
    parser.add_argument("--hosts", type=Path, metavar="FILE", help="a file with one HOST:WORKERS on each line")
    parser.add_argument(
        "--python", default=sys.executable, help="Python on the other hosts (default: the path of this)"
    )
    parser.add_argument("--ssh", default="ssh", metavar="COMMAND", help='such as "ssh -p 2222" (default ssh)')
    parser.add_argument(
        "--address", default="", help="the address of this host for the others (default: of the route to them)"
    )
    parser.add_argument("--server-on-first-host", action="store_true", help="run the server there instead of here")
    parser.add_argument(
        "--ports", default="9000-9100", metavar="FIRST-LAST", help="where to listen (default 9000-9100)"
    )
    parser.add_argument(
        "--backend", choices=["torch", "numpy"], default="", help="of the workers (default: torch if it is there)"
    )
    parser.add_argument(
        "--timeout", type=float, default=180.0, metavar="SECONDS", help="the time to join (default 180)"
    )
    parser.add_argument(
        "--journal",
        default="",
        metavar="DIR",
        help="of the server (gt server --journal): the next gt up goes on with it",
    )
    parser.add_argument(
        "--snapshots", default="", metavar="DIR", help="of the server (gt server --snapshots): all hosts must see it"
    )
    parser.add_argument("--detach", action="store_true", help="return when all workers have joined; gt down ends them")
    parser.add_argument("--foreground", dest="detach", action="store_false", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    words = sys.argv[1:] if argv is None else argv
    return run(command_name("gt.scripts.up"), lambda: _detach(words) if options.detach else _up(options))


def _up(options: argparse.Namespace) -> int:
    hosts = parse_hosts(options.host, options.hosts)
    parse_ports(options.ports)
    if not _lock(lock := UpLock()):
        return 0
    plan = {name: getattr(options, name) for name in UpPlan._fields}
    system = HostsSystem(hosts, UpPlan(**plan))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        system.start()
        lock.write(system.address, system.token, len(system.joining.rows))
        print(f"{system.joining.summary()} the server at {system.address}; gt.connect() uses it", flush=True)
        print("gt down, or Ctrl-C here, ends it" if sys.stdout.isatty() else "gt down ends it", flush=True)
        system.run()
    except KeyboardInterrupt:
        return 0 if system.joining.complete else INTERRUPTED
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must leave nothing behind
        system.stop()
        lock.release()


def _lock(lock: UpLock) -> bool:
    """Take the lock, or say who has it."""
    if lock.acquire():
        return True
    return not _already_up() and lock.acquire()


def _already_up() -> bool:
    """Whether a system runs; if it does, say so."""
    if (state := read_state()) is None:
        return False
    doing = f"with {state.workers} workers at {state.address}" if state.address else "and waits for its workers"
    print(f"already up {doing} (gt up, pid {state.pid} on {state.host}); gt down ends it")
    return True


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _detach(words: list[str]) -> int:
    """Run ``gt up`` in the background, and show what it prints until all workers have joined."""
    if _already_up():
        return _wait_for_workers()
    path = log_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"up-{os.getpid()}.log")  # another gt up may begin at the same time
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as log:
        child = subprocess.Popen(
            module_command("gt", "up", *words, "--foreground"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=module_environment(),
            start_new_session=True,
        )
    try:
        with open(draft) as log:
            while True:
                code, state = child.poll(), read_state()
                sys.stdout.write(log.read())
                sys.stdout.flush()
                if code is not None:
                    return code or _wait_for_workers()
                if state is not None and state.pid == child.pid and state.address:
                    os.replace(draft, path)
                    return 0
                time.sleep(CHECK_S)
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        raise
    finally:
        draft.unlink(missing_ok=True)


def _wait_for_workers() -> int:
    """Wait until the workers of the system that another process starts have joined. Raises ClusterError."""
    while (state := read_state()) is not None:
        if state.address:
            return 0
        time.sleep(CHECK_S)
    raise ClusterError("the other gt up has ended")


if __name__ == "__main__":
    sys.exit(main())
