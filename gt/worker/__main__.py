"""``python -m gt.worker --host localhost -p 9000``: a worker that computes on one device."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from gt.errors import ConfigError, ConnectionLost, GtError
from gt.launch.backend import default_backend
from gt.launch.collector import tune_collector
from gt.launch.command_name import command_name, make_parser, option_type
from gt.say import startup_output
from gt.wire.addresses import ANY_PORT, data_address, interface_of, join_address, parse_port, parse_ports
from gt.wire.auth import connection_keys
from gt.wire.identities import parse_quota
from gt.worker.engines import make_engine

#: How long a worker tries to reach its server, which may still be starting.
CONNECT_TIMEOUT_S = 30.0
#: How often an idle thread of an op checks for its next part before it sleeps. One takes up to 140 cycles on x86-64, so
#: the default of libgomp, 300,000, is 17 milliseconds there, in which the client and the server lack a core.
SPIN_COUNT = 1000


def memory_size(text: str) -> int:
    """``8GiB`` in bytes. Raises ValueError, which the parser reports."""
    return parse_quota(f"memory={text}").memory


class ServerLost(ConnectionLost):
    """The connection to a server that had accepted this worker ended."""


def _make_parser() -> argparse.ArgumentParser:
    parser = make_parser("gt.worker", __doc__)
    parser.add_argument("--host", default="localhost", help="where the server runs (default localhost)")
    parser.add_argument(
        "-p", "--port", type=option_type(parse_port), default=9000, help="the server's port (default 9000)"
    )
    parser.add_argument("--backend", choices=["torch", "numpy"], help="default: torch if it is installed, else numpy")
    parser.add_argument("--device", help="cuda:0 or cpu (default: the first visible GPU, else the CPU)")
    parser.add_argument("--threads", type=int, help="CPU threads of one op (default: the array library decides)")
    parser.add_argument(
        "--memory",
        type=memory_size,
        metavar="SIZE",
        help="the most memory of the device that tensors and kernels may take, such as 8GiB (default: nearly all)",
    )
    parser.add_argument(
        "--retry",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="when the connection to the server is lost, try this long to reach it again (default 0: end)",
    )
    parser.add_argument("--unix", metavar="PATH", help="the server's private Unix socket, instead of host and port")
    parser.add_argument("--ports", metavar="FIRST-LAST", help="listen for other workers on a free port of these only")
    parser.add_argument(
        "--data-address",
        metavar="ADDRESS",
        help="an address of this host, or a network that it is in, such as 10.0.0.0/8: exchange tensors with other "
        "workers there (default: the address from which this host reaches the server)",
    )
    parser.add_argument(
        "--with-parent", type=int, default=0, metavar="PID", help="end when this process ends, which started this one"
    )
    parser.add_argument("--with-stdin", action="store_true", help="end when the standard input is closed")
    parser.add_argument(
        "--torchrun",
        action="store_true",
        help="find the server by torchrun, which started this; rank 0 starts the server",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    options = _make_parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if options.with_parent or options.torchrun:
        from gt.launch.parent import end_with_parent

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the client, not for the processes it started
        end_with_parent(parent=options.with_parent)
    if options.with_stdin:
        from gt.launch.parent import end_with_stdin

        end_with_stdin()
    try:
        return _work(options)
    except ServerLost as error:
        print(f"gt.worker: {error}", file=sys.stderr)
        if not options.retry:
            return 2
        _start_again(sys.argv[1:] if argv is None else argv)
    except ConnectionLost as error:
        print(f"{command_name('gt.worker')}: {error}", file=sys.stderr)
        return 2
    except GtError as error:
        print(f"{command_name('gt.worker')}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _patience(options: argparse.Namespace) -> float:
    """Seconds to wait for the server."""
    return max(CONNECT_TIMEOUT_S, float(options.retry))


def _start_again(arguments: list[str]) -> NoReturn:
    """Replace this process by a new worker. Nothing of the old one is left: no tensor, group or device memory."""
    print("gt.worker: trying to reach the server again", file=sys.stderr, flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "gt.worker", *arguments])


def _work(options: argparse.Namespace) -> int:
    """Run a worker until its connection ends; returns the exit code."""
    if options.threads is not None:
        # set before the libraries are loaded: some of their kernels respect nothing else
        os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(options.threads)))
    if platform.machine() == "x86_64" and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
    os.environ.pop("GT_TORCH_DEVICE", None)  # the client's: `import torch` would register the device here too
    if options.torchrun:
        from gt.worker.torchrun import TorchrunRank

        if options.retry:
            raise ConfigError("--retry has no use with --torchrun: the server ends with its workers")
        with TorchrunRank(options.ports or "") as rank:
            options.host, options.port = rank.server
            return _connect(options, rank.joined)
    return _connect(options)


def _data_address(text: str | None) -> str:
    """The address that ``--data-address`` names. NCCL uses its interface too."""
    if not text:
        return ""
    address = data_address(text)
    if interface := interface_of(address):
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    return address


def _connect(options: argparse.Namespace, on_joined: Callable[[str], object] = bool) -> int:
    """``on_joined`` is called with the worker's name and device."""
    ports = parse_ports(options.ports) if options.ports else ANY_PORT
    address, keys = f"unix:{options.unix}", None
    if not options.unix:
        keys = connection_keys(options.host, options.port, _patience(options))
        address = f"tcp://{join_address(options.host, options.port)}"
    engine = make_engine(options.backend or default_backend(), options.device, options.threads)
    engine.limit_memory(options.memory, shared=not options.unix)

    from gt.worker.shell import Shell

    server, patience = address.removeprefix("tcp://"), _patience(options)
    say = startup_output(options.with_parent)
    waiting = partial(say, f"waiting for a server at {server}, at most {patience:g} s") if say else None
    shell = Shell(address, keys, engine, patience, waiting, ports, _data_address(options.data_address))
    on_joined(name := f"worker {shell.worker.id} on {engine.device} ({engine.name})")
    if say:
        say(f"joined {server} as {name}")
    shell.worker.replayer.levels.load_ahead()
    try:
        tune_collector()
        shell.run()
    except ConnectionLost as error:
        raise ServerLost(str(error)) from None
    finally:
        shell.close()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # without waiting for the threads of torch and ZeroMQ
