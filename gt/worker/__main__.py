"""``python -m gt.worker --host localhost -p 9000``: a worker that computes on one device."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from gt.errors import ConnectionLost, GtError
from gt.launch.backend import default_backend
from gt.launch.collector import tune_collector
from gt.launch.command_name import command_name
from gt.say import topic
from gt.wire.auth import peer_keys, token_for_peer
from gt.worker.engines import make_engine

#: How long a worker tries to reach its server, which may still be starting.
CONNECT_TIMEOUT_S = 30.0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=command_name("gt.worker"), description=__doc__)
    parser.add_argument("--host", default="localhost", help="where the server runs (default localhost)")
    parser.add_argument("-p", "--port", type=int, default=9000, help="the server's port (default 9000)")
    parser.add_argument("--backend", choices=["torch", "numpy"], help="default: torch if it is installed, else numpy")
    parser.add_argument("--device", help="cuda:0 or cpu (default: the first visible GPU, else the CPU)")
    parser.add_argument("--threads", type=int, help="CPU threads of one op (default: the array library decides)")
    parser.add_argument("--unix", metavar="PATH", help="the server's private Unix socket, instead of host and port")
    parser.add_argument("--with-parent", action="store_true", help="end when the process that started this ends")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if options.with_parent:
        from gt.launch.parent import end_with_parent

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the client, not for the processes it started
        end_with_parent()
    try:
        return _work(options)
    except ConnectionLost as error:
        print(f"gt.worker: {error}", file=sys.stderr)
        return 2
    except GtError as error:
        print(f"gt.worker: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _work(options: argparse.Namespace) -> int:
    """Run a worker until its connection ends; returns the exit code."""
    address, keys = f"unix:{options.unix}", None
    if not options.unix:
        address, keys = f"tcp://{options.host}:{options.port}", peer_keys(token_for_peer())
    if options.threads is not None:
        # set before the libraries are loaded: some of their kernels respect nothing else
        os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(options.threads)))
    engine = make_engine(options.backend or default_backend(), options.device, options.threads)

    from gt.worker.shell import Shell

    shell = Shell(address, keys, engine, CONNECT_TIMEOUT_S)
    if say := topic("GT_VERBOSE"):
        say(f"worker {shell.worker.id} on {engine.device} ({engine.name}), server {address}")
    try:
        tune_collector()
        shell.run()
    finally:
        shell.close()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # without waiting for the threads of torch and ZeroMQ
