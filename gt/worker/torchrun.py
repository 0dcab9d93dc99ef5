"""A worker that torchrun has started: ``torchrun --nnodes 2 --nproc-per-node 8 -m gt.worker --torchrun``.

The ranks meet in torchrun's store. Rank 0 starts the server and writes its address and the join token there. All other
ranks wait for them. When all have joined, rank 0 prints the line with which a client connects. The loss of a rank ends
the server, and the loss of the server ends all ranks: nothing is left on any node.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from datetime import timedelta
from types import TracebackType
from typing import Any

from gt.errors import ClusterError, ConfigError
from gt.launch.host_agent import HostReport, this_task
from gt.launch.host_connection import HostConnection
from gt.launch.hosts import Host
from gt.launch.joining import Joining, JoiningDisplay
from gt.launch.local import check_gpus, visible_gpus
from gt.wire.addresses import join_address, split_address
from gt.wire.auth import is_loopback, token_file

#: The server must listen, and all workers must join, within this time: a first import of torch is slow.
JOIN_TIMEOUT_S = 180.0
CHECK_S = 0.1
#: Where the server listens if nobody says.
PORTS = "9000-9100"


class TorchrunRank:
    """This process among those of torchrun. Raises ConfigError if torchrun has not started it.

    Inside the block `server` is the server's (host, port), and the token of this process is the join token.
    """

    def __init__(self, ports: str) -> None:
        try:
            self.rank, self._size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            self._local_rank, self._local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
            self._master = os.environ["MASTER_ADDR"]
        except KeyError as error:
            raise ConfigError(
                f"--torchrun: torchrun has not started this process ({error.args[0]} is not set)"
            ) from None
        self._ports = ports
        self._store: Any = None
        self._server: HostConnection | None = None
        #: the first report of the server, or why it has ended
        self._answer: HostReport | str | None = None
        self._answered = threading.Event()
        self.server = ("", 0)

    def __enter__(self) -> TorchrunRank:
        self._take_gpu()
        self._store = _torchruns_store()
        if self.rank == 0:
            self._start_server()
        try:
            self.server = split_address(self._store.get("server").decode())
            os.environ["GT_TOKEN"] = self._store.get("token").decode()
        except Exception as error:  # torch raises a class of its own
            raise ClusterError(f"--torchrun: rank 0 started no server within {JOIN_TIMEOUT_S:g} s: {error}") from None
        return self

    def _take_gpu(self) -> None:
        gpus = visible_gpus()
        check_gpus(self._local_size, gpus)
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus[self._local_rank % len(gpus)]

    def _start_server(self) -> None:
        host = "127.0.0.1" if is_loopback(self._master) else "::" if ":" in self._master else "0.0.0.0"
        task = this_task(host, ports=self._ports or PORTS, end_with_workers=True)
        self._server = HostConnection(Host("localhost", 0), task, "", "", self._note, self._note)
        if not self._answered.wait(JOIN_TIMEOUT_S):
            raise ClusterError(f"--torchrun: the server did not start within {JOIN_TIMEOUT_S:g} s")
        if not isinstance(answer := self._answer, HostReport) or answer.event != "listening":
            text = answer.text if isinstance(answer, HostReport) else answer
            raise ClusterError(f"--torchrun: the server ended: {text}")
        port = split_address(answer.text)[1]
        self._store.set("token", answer.join_token)
        self._store.set("server", join_address(self._master, port))
        threading.Thread(target=self._watch_others, daemon=True).start()

    def _note(self, event: HostReport | str) -> None:
        if isinstance(event, str) or event.event != "line":
            self._answer = self._answer or event
            self._answered.set()

    def joined(self, text: str) -> None:
        """This worker has joined."""
        self._store.set(f"joined {self.rank}", text)

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            with contextlib.suppress(Exception):  # the store may be gone
                self._store.set(f"failed {self.rank}", f"{type(error).__name__}: {error}"[:400])
        if self._server is not None:
            self._server.stop()
            self._server.wait()

    def _watch_others(self) -> None:
        """On rank 0: show who joins, print the client's line, and end this process if somebody is missing."""
        store = _torchruns_store()  # a store handles one call at a time
        joining = Joining(f"rank {i}" for i in range(self._size))
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        with JoiningDisplay(joining) as display:
            while not joining.complete and not joining.hopeless and time.monotonic() < deadline:
                for i, name in enumerate(joining.rows):
                    if name in joining.missing and store.check([f"joined {i}"]):
                        joining.joined(name, store.get(f"joined {i}").decode())
                    elif name in joining.missing and store.check([f"failed {i}"]):
                        joining.failed(name, store.get(f"failed {i}").decode())
                display.update()
                time.sleep(CHECK_S)
        if joining.complete:
            print(f"{joining.summary()}. On a machine with this host's {token_file()}, a client calls:", flush=True)
            print(f'gt.connect("tcp://{join_address(*self.server)}")', flush=True)
            return
        lines = "\n  ".join(joining.explain_missing())
        print(f"gt.worker: {joining.summary()}, so all end\n  {lines}", file=sys.stderr, flush=True)
        os._exit(1)  # the server's input is closed, so it ends, and with it the workers


def _torchruns_store() -> Any:
    """A connection to the store of this run of torchrun."""
    import torch.distributed

    dist: Any = torch.distributed  # torch has no types for what is used here
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=JOIN_TIMEOUT_S)))
    # a restart of the ranks must not find the server of the run before
    return dist.PrefixStore(f"gt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
