"""``gt.launch.slurm`` and ``gt.launch.ray``: workers from a scheduler, which end with this program."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from pathlib import Path

from gt.client.stream.connect import connect_system, disconnect
from gt.errors import ClusterError, ConfigError
from gt.launch.private_server import DEFAULT_PORTS
from gt.launch.ray_system import RaySystem, import_ray
from gt.launch.slurm_job import START_TIMEOUT_S, SlurmJob
from gt.launch.slurm_worker import JobServer, any_meeting_file, slurm_folder, wait_for_server

__all__ = ["ray", "slurm", "slurm_workers"]

#: Seconds in a queue, unless the caller says otherwise.
QUEUE_TIMEOUT_S = 24 * 3600.0


def slurm(
    nodes: int = 1,
    gpus_per_node: int = 0,
    time: str = "1:00:00",
    *,
    workers_per_node: int | None = None,
    cpus_per_worker: int | None = None,
    partition: str = "",
    account: str = "",
    options: Sequence[str] = (),
    folder: str | os.PathLike[str] | None = None,
    ports: str = "",
    timeout: float = QUEUE_TIMEOUT_S,
) -> None:
    """Submit a Slurm job of workers, wait until all have joined, and use them for all later ops.

    There is one worker for each GPU; without GPUs, ``workers_per_node`` workers compute on the CPUs. The job is
    cancelled when this program ends, in whatever way, or calls `gt.disconnect`. ``time`` is the job's time limit,
    ``options`` are further options of sbatch, ``folder`` is one that the nodes share, ``ports`` a range for the server.

    Example::

        gt.launch.slurm(nodes=2, gpus_per_node=8, time="1:00:00", partition="gpu")
    """
    per_node = gpus_per_node or 1 if workers_per_node is None else workers_per_node
    for name, count in (("nodes", nodes), ("workers_per_node", per_node), ("cpus_per_worker", cpus_per_worker or 1)):
        if count < 1:
            raise ConfigError(f"gt.launch.slurm({name}={count}): at least one is needed")
    chosen = {"nodes": nodes, "ntasks-per-node": per_node, "time": time, "gpus-per-node": gpus_per_node}
    chosen |= {"cpus-per-task": cpus_per_worker, "partition": partition, "account": account}
    arguments = [f"--{name}={value}" for name, value in chosen.items() if value] + list(options)
    disconnect()
    place = Path(folder or slurm_folder()).absolute()
    job = SlurmJob(arguments, nodes * per_node, time, place, ["--ports", ports] if ports else [])
    try:
        job.wait_for_server(timeout)
    except BaseException:
        job.stop()
        raise
    connect_system(job)


def ray(
    workers: int,
    *,
    cpus_per_worker: float = 1,
    gpus_per_worker: float | None = None,
    address: str | None = None,
    ports: str = DEFAULT_PORTS,
    timeout: float = QUEUE_TIMEOUT_S,
) -> None:
    """Start workers on a Ray cluster, wait until all have joined, and use them for all later ops.

    Each worker has one GPU, or only CPUs if the cluster has no GPUs. The workers end with this program, in whatever way
    it ends, or with `gt.disconnect`. A worker that is lost is started again. ``address`` is that of the cluster, unless
    the program has called ``ray.init``.

    Example::

        gt.launch.ray(workers=16)
    """
    if workers < 1:
        raise ConfigError(f"gt.launch.ray(workers={workers}): at least one worker is needed")
    module = import_ray()
    if not module.is_initialized():
        try:
            module.init(address=address, log_to_driver=False)
        except ConnectionError as error:
            raise ClusterError(f"gt.launch.ray: {error}") from None
    if gpus_per_worker is None:
        gpus_per_worker = 1 if module.cluster_resources().get("GPU") else 0
    disconnect()
    atexit.unregister(disconnect)
    atexit.register(disconnect)  # before Ray's own end, which was registered when it was imported
    connect_system(RaySystem(workers, cpus_per_worker, gpus_per_worker, ports, timeout))


def slurm_workers(folder: str | os.PathLike[str] | None = None, timeout: float = START_TIMEOUT_S) -> None:
    """Use the workers that ``srun gt slurm-worker`` has started in the Slurm job of this program, for all later ops.

    Example::

        gt.launch.slurm_workers()
    """
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        raise ConfigError("gt.launch.slurm_workers: SLURM_JOB_ID is not set: this program does not run in a Slurm job")
    restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
    path = any_meeting_file(Path(folder or slurm_folder()).absolute(), job, restarts)
    connect_system(_OwnJob(wait_for_server(path, timeout, "folder="), f"Slurm job {job}", timeout))


class _OwnJob:
    """The workers in the job that this program is a part of. Slurm ends them with it."""

    def __init__(self, server: JobServer, name: str, timeout: float) -> None:
        self.address, self.keys, self.workers = server.address, server.keys, server.workers
        self.name, self.start_timeout = name, timeout

    def check(self, joined: int = 0) -> bool:
        return False

    def explain(self, server_lost: bool) -> str:
        return ""

    def stop(self) -> None:
        """They may have other clients."""
