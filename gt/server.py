"""``python -m gt.server -p 9000``: the dispatcher, for clients and workers of this user on this machine or others."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gt.errors import ConfigError, GtError
from gt.launch.collector import tune_collector
from gt.launch.command_name import command_name, make_parser, option_type
from gt.launch.running import registered
from gt.say import startup_output, warn
from gt.wire.addresses import AddressTaken, join_address, parse_port, parse_ports
from gt.wire.auth import is_loopback, make_operator_token, token_for_server, token_keys
from gt.wire.server_keys import KeyPair, key_text, make_server_keys, server_folder
from gt.wire.token_file import Identities, TokenFile

if TYPE_CHECKING:
    from gt.dispatcher.journal.journal import Journal
    from gt.dispatcher.recovery.snapshot_folder import SnapshotFolder


def _make_parser() -> argparse.ArgumentParser:
    parser = make_parser("gt.server", __doc__)
    parser.add_argument(
        "-p", "--port", type=option_type(parse_port), default=9000, help="port to listen on (default 9000)"
    )
    parser.add_argument(
        "--ports",
        type=option_type(parse_ports),
        metavar="FIRST-LAST",
        help="listen on the first free port of these instead",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)"
    )
    parser.add_argument("--unix", metavar="PATH", help="listen on a private Unix socket instead; needs no secret")
    parser.add_argument(
        "--folder",
        type=Path,
        default=server_folder(),
        help="where the server's key and the users' tokens are (default ~/.config/gt/server)",
    )
    _add_operator_options(parser)
    parser.add_argument(
        "--dashboard",
        metavar="[ADDRESS:]PORT",
        help="show a web page of the system, by default to this machine only; prints a link that opens it once",
    )
    parser.add_argument("--metrics", metavar="[ADDRESS:]PORT", help="serve /metrics for Prometheus, and /healthz")
    _add_recovery_options(parser)
    _add_end_options(parser)
    return parser


def _add_recovery_options(parser: argparse.ArgumentParser) -> None:
    """What the server keeps for the case that something fails."""
    parser.add_argument(
        "--lease",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="how long to keep the session of a client that does not answer (default 600)",
    )
    parser.add_argument(
        "--journal",
        type=Path,
        metavar="DIR",
        help="keep a journal in this folder: a server that was killed goes on when it is started again with it",
    )
    parser.add_argument(
        "--snapshots",
        type=Path,
        metavar="DIR",
        help="keep snapshots for recovery in this folder, which all workers must see under this path (default: in "
        "shared memory; with --journal: in a folder inside that of the journal)",
    )


def _add_operator_options(parser: argparse.ArgumentParser) -> None:
    """For servers that several users share."""
    parser.add_argument(
        "--private-network",
        action="append",
        default=[],
        metavar="NETWORK",
        help="only workers can reach this network, such as 10.0.0.0/8: workers on several hosts exchange tensors over "
        "it, unencrypted; may be given several times",
    )
    parser.add_argument(
        "--audit", default="", metavar="FILE", help="log who connects and what is refused, as JSON lines"
    )


def _add_end_options(parser: argparse.ArgumentParser) -> None:
    """For launchers: with what the server ends."""
    parser.add_argument(
        "--end-with-workers", action="store_true", help="end when a worker that has joined is lost, as torchrun does"
    )
    parser.add_argument(
        "--with-parent", type=int, default=0, metavar="PID", help="end when this process ends, which started this one"
    )
    parser.add_argument("--with-stdin", action="store_true", help="end when the standard input is closed")
    parser.add_argument("--program", default="", help=argparse.SUPPRESS)  # the parent's, for lists of running systems


class EndRequest:
    """The handler of SIGTERM and Ctrl-C. Python drops an exception that is raised while a destructor runs, so the
    server's loop also checks whether a signal ``came``."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, *_: object) -> None:
        self.came = True
        raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> int:
    options, end = _make_parser().parse_args(argv), EndRequest()
    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell's background job ignores it
        signal.signal(signal.SIGINT, end)
    if options.with_parent:
        # Ctrl-C reaches the whole process group, but it is meant for the client that started this server
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from gt.launch.parent import end_with_parent

        end_with_parent(lambda: _remove_socket(options.unix), options.with_parent)
    if options.with_stdin:
        from gt.launch.parent import end_with_stdin

        end_with_stdin()
    try:
        return _serve(options, end)
    except GtError as error:
        print(f"{command_name('gt.server')}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def seconds(text: str) -> float:
    """A duration on the command line. Raises ValueError, which the parser reports."""
    if not 0 <= (value := float(text)) < float("inf"):
        raise ValueError
    return value


def _remove_socket(path: str | None) -> None:
    """Remove the socket of a private system, and its folder, which nobody else can remove: its client was killed."""
    if path:
        with contextlib.suppress(OSError):
            os.unlink(path)
            os.rmdir(os.path.dirname(path))  # fails if there is anything else in it


def _serve(options: argparse.Namespace, end: EndRequest) -> int:
    from gt.dispatcher.server import Server
    from gt.wire.networks import parse_network

    address, keys, identities, operator = f"unix:{options.unix}", None, None, ""
    ports = options.ports or range(options.port, options.port + 1)
    if not options.unix:
        keys = make_server_keys(options.folder)
        token = token_for_server(options.host, key_text(keys.public))
        identities = Identities(token_keys(token).public, TokenFile(options.folder))
        operator = make_operator_token()
    journal = _journal(options.journal, keys) if options.journal else None
    networks = tuple(parse_network(text) for text in options.private_network)
    snapshots = _snapshots(options.snapshots or (options.journal and options.journal / "snapshots"))
    for port in ports:
        if not options.unix:
            address = f"tcp://{join_address(options.host.replace('localhost', '127.0.0.1'), port)}"
        where, lease, audit = (options.host, port, operator), options.lease, options.audit
        try:
            server = Server(address, keys, identities, *where, lease, audit, journal, networks, snapshots)
            break
        except AddressTaken:
            if port == ports[-1]:
                raise
    server.ends_with_workers, server.end_requested = options.end_with_workers, lambda: end.came
    try:
        with _dashboard(options, address):
            tune_collector()
            if say := startup_output(options.with_parent):
                key = f", public key {key_text(keys.public)}" if keys and not is_loopback(options.host) else ""
                say(f"listening on {address.removeprefix('tcp://')}{key}")
                if server.restarted:
                    clients, workers = len(server.core.clients), len(server.core.workers)
                    say(f"continues the journal in {options.journal}: clients: {clients}, workers: {workers}")
            with registered(address, time.time(), options.program):
                server.run()
    finally:
        server.close()
    return 0


def _journal(folder: Path, keys: KeyPair | None) -> Journal:
    from gt.dispatcher.journal.journal import Journal

    if keys is None:
        raise ConfigError("--journal needs a server on TCP; a private system ends with its client")
    return Journal(folder, key_text(keys.public), warn)


def _snapshots(folder: Path | None) -> SnapshotFolder | None:
    from gt.dispatcher.recovery.snapshot_folder import SnapshotFolder

    return SnapshotFolder(folder) if folder else None


@contextlib.contextmanager
def _dashboard(options: argparse.Namespace, address: str) -> Iterator[None]:
    """Inside the block the dashboard and the metrics run, if they are requested."""
    if not options.dashboard and not options.metrics:
        yield
        return
    from gt.launch.dashboard import DashboardProcess

    process = DashboardProcess(
        address,
        *(["--listen", options.dashboard] if options.dashboard else []),
        *(["--metrics", options.metrics] if options.metrics else []),
    )
    try:
        print("\n".join(process.lines), flush=True)
        yield
    finally:
        process.stop()


if __name__ == "__main__":
    sys.exit(main())
