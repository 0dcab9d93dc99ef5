"""``python -m gt.server -p 9000``: the dispatcher, for clients and workers of this user on this machine or others."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Iterator

from gt.errors import GtError
from gt.launch.collector import tune_collector
from gt.launch.command_name import command_name
from gt.launch.running import registered
from gt.say import topic
from gt.wire.auth import Keys, make_operator_token, server_keys, token_for_server


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=command_name("gt.server"), description=__doc__)
    parser.add_argument("-p", "--port", type=int, default=9000, help="port to listen on (default 9000)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)"
    )
    parser.add_argument("--unix", metavar="PATH", help="listen on a private Unix socket instead; needs no secret")
    parser.add_argument(
        "--dashboard",
        metavar="[ADDRESS:]PORT",
        help="show a web page of the system, by default to this machine only; prints a link that opens it once",
    )
    parser.add_argument("--metrics", metavar="[ADDRESS:]PORT", help="serve /metrics for Prometheus, and /healthz")
    parser.add_argument("--with-parent", action="store_true", help="end when the process that started this ends")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if options.with_parent:
        from gt.launch.parent import end_with_parent

        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C reaches the whole process group, but is meant for the client
        end_with_parent()
    try:
        return _serve(options)
    except GtError as error:
        print(f"gt.server: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _serve(options: argparse.Namespace) -> int:
    from gt.dispatcher.server import Server

    keys: Keys | None = None
    address = f"unix:{options.unix}"
    if not options.unix:
        keys = server_keys(token_for_server(options.host))
        host = f"[{options.host}]" if ":" in options.host else options.host.replace("localhost", "127.0.0.1")
        address = f"tcp://{host}:{options.port}"
    operator = "" if options.unix else make_operator_token()
    server = Server(address, keys, options.host, options.port, operator)
    if say := topic("GT_VERBOSE"):
        say(f"listening on {address}")
    try:
        with _dashboard(options, address):
            tune_collector()
            with registered(address, time.time()):
                server.run()
    finally:
        server.close()
    return 0


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
