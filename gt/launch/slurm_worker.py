"""``srun gt slurm-worker``: each task of a Slurm job step is a worker on its GPU. Task 0 runs their server too.

Task 0 writes the server's address and a new token into a file in a folder that all nodes share; only its owner can read
the file. The other tasks, and clients of this user (`gt.launch.slurm_workers`), find both there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import stat
import sys
import time
from pathlib import Path
from typing import NamedTuple

from gt.errors import ConfigError, GtError, NoWorkers
from gt.launch.backend import default_backend
from gt.launch.command_name import command_name, make_parser
from gt.launch.local import visible_gpus
from gt.launch.private_server import DEFAULT_PORTS, PrivateServer, start_worker, threads_option
from gt.wire.addresses import route_address
from gt.wire.auth import Keys, peer_keys
from gt.wire.server_keys import config_folder, create_once, split_token

#: Seconds within which task 0 must have written the file: its node may be slower than the others.
MEETING_TIMEOUT_S = 120.0
CHECK_S = 0.2
#: What the log of a job has about a worker that ended.
WORKER_ENDED = "the worker ended"


class JobServer(NamedTuple):
    """What the file of a job step says."""

    host: str
    port: int
    token: str
    #: the number of tasks, each of which is a worker
    workers: int

    @property
    def address(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    @property
    def keys(self) -> Keys:
        """The keys of a client."""
        key = split_token(self.token)[1]
        if key is None:
            raise ConfigError("the token of the job has no key of its server")
        return peer_keys(self.token, key)


def slurm_folder() -> Path:
    """The folder for the files of job steps, in the home folder: clusters share it between their nodes."""
    return config_folder() / "slurm"


def meeting_file(folder: Path) -> Path:
    """The file of this job step. If Slurm has restarted the job, it is another one than before."""
    job, restarts = _variable("SLURM_JOB_ID"), os.environ.get("SLURM_RESTART_COUNT", "0")
    return folder / f"{job}.{restarts}.{_variable('SLURM_STEP_ID')}"


def any_meeting_file(folder: Path, job: str, restarts: str = "0") -> Path:
    """A pattern of the files of all steps of a job."""
    return folder / f"{job}.{restarts}.*"


def read_meeting_file(pattern: Path) -> JobServer | None:
    """What the newest file says; None if there is none yet. Raises ConfigError if others can write or read it."""
    try:
        path = max(pattern.parent.glob(pattern.name), key=lambda path: path.stat().st_mtime)
        status, text = path.stat(), path.read_text()
    except (FileNotFoundError, ValueError):
        return None
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(f"{path} is not a file that only you can read: remove it")
    return JobServer(*json.loads(text))


def main(argv: list[str] | None = None) -> int:
    parser = make_parser("gt.launch.slurm_worker", __doc__)
    parser.add_argument(
        "--folder", type=Path, default=slurm_folder(), help="a folder that all nodes share (default ~/.config/gt/slurm)"
    )
    parser.add_argument("--host", help="the address of the server (default: the one that Slurm's own connections use)")
    parser.add_argument(
        "--ports", default=DEFAULT_PORTS, help=f"the server takes the first free one (default {DEFAULT_PORTS})"
    )
    parser.add_argument(
        "--snapshots", default="", metavar="DIR", help="of the server (gt server --snapshots): all nodes must share it"
    )
    parser.add_argument("--backend", choices=["torch", "numpy"], help="default: torch if it is installed, else numpy")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        task = int(_variable("SLURM_PROCID"))
        return _first_task(options) if task == 0 else _other_task(options, task)
    except GtError as error:
        print(f"{command_name('gt.launch.slurm_worker')}: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 0


def _variable(name: str) -> str:
    if not (value := os.environ.get(name)):
        raise ConfigError(f"{name} is not set: run it in a Slurm job, with srun gt slurm-worker")
    return value


def _first_task(options: argparse.Namespace) -> int:
    """Run the server and a worker until the server ends. The loss of the worker is no reason to end the others."""
    host = options.host or route_address(_variable("SLURM_LAUNCH_NODE_IPADDR"), 9) or socket.gethostname()
    path, count = meeting_file(options.folder), int(_variable("SLURM_STEP_NUM_TASKS"))
    _choose_gpu()
    snapshots = ["--snapshots", options.snapshots] if options.snapshots else []
    server = PrivateServer(host, options.ports, options.folder / "server", *snapshots)
    try:
        path.unlink(missing_ok=True)
        create_once(path, json.dumps(JobServer(host, server.port, server.token, count)))
        worker = start_worker(host, server.port, server.token, *_worker_options(options))
        while server.process.poll() is None:
            if worker.returncode is None and worker.poll() is not None:
                name = command_name("gt.launch.slurm_worker")
                print(f"{name}: {WORKER_ENDED} (exit code {worker.returncode})", file=sys.stderr, flush=True)
            time.sleep(CHECK_S)
        return server.process.returncode
    finally:
        server.stop()
        path.unlink(missing_ok=True)


def _other_task(options: argparse.Namespace, task: int) -> int:
    """Run a worker for the server of task 0."""
    _choose_gpu()
    server = wait_for_server(meeting_file(options.folder), MEETING_TIMEOUT_S, "--folder")
    worker = start_worker(server.host, server.port, server.token, *_worker_options(options))
    try:
        code = worker.wait()
    finally:
        worker.terminate()
    if code:
        name = command_name("gt.launch.slurm_worker")
        print(f"{name}: {WORKER_ENDED} (task {task}, exit code {code})", file=sys.stderr, flush=True)
    return code if code >= 0 else 128 - code


def wait_for_server(pattern: Path, seconds: float, option: str) -> JobServer:
    """What the file of a job step says, as soon as task 0 has written it. Raises NoWorkers."""
    deadline = time.monotonic() + seconds
    while (server := read_meeting_file(pattern)) is None:
        if time.monotonic() > deadline:
            raise NoWorkers(
                f"task 0 has not written {pattern} within {seconds:g} s: see its log; "
                f"if the nodes do not share that folder, name another one with {option}"
            )
        time.sleep(CHECK_S)
    return server


def _worker_options(options: argparse.Namespace) -> tuple[str, ...]:
    tasks, nodes = int(_variable("SLURM_STEP_NUM_TASKS")), int(os.environ.get("SLURM_STEP_NUM_NODES", "1"))
    threads = threads_option(int(os.environ.get("SLURM_CPUS_ON_NODE", "0")), -(-tasks // nodes))
    return ("--backend", options.backend or default_backend(), *threads)


def _choose_gpu() -> None:
    """One GPU for this task. Slurm shows it only that one with --gpus-per-task=1, and all of the node otherwise."""
    gpus, place = visible_gpus(), int(os.environ.get("SLURM_LOCALID", "0"))
    if len(gpus) < 2:
        return
    if place >= len(gpus):
        raise ConfigError(
            f"task {place} of {os.environ.get('SLURMD_NODENAME', 'this node')} has no GPU of its own: the job has "
            f"{len(gpus)} there; use at most as many tasks per node as GPUs"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus[place]


if __name__ == "__main__":
    sys.exit(main())
