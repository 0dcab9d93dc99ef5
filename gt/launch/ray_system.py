"""Workers on a Ray cluster: a placement group with an actor for each, and an actor for their server."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from gt.errors import ClusterError, ConfigError, NoWorkers
from gt.launch.ray_actors import ServerActor, WorkerActor
from gt.say import progress
from gt.wire.auth import peer_keys
from gt.wire.server_keys import split_token

INSTALL_RAY = "pip install 'gt-tensor[ray]'"
#: Seconds between two questions to the actors.
CHECK_S = 1.0
#: Seconds for an answer of an actor, and for the start of the server.
ACTOR_TIMEOUT_S = 120.0
#: A resource that Ray gives to the head node.
HEAD_NODE = "node:__internal_head__"


def import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError(f"gt.launch.ray: Ray is not installed: {INSTALL_RAY}") from None
    return ray


class RaySystem:
    """Reserves the resources, and starts the server and the workers. Ends with the driver, which this process is."""

    name = "the Ray cluster"
    #: seconds until all workers have joined, from the time at which their resources are reserved
    start_timeout = 300.0

    def __init__(
        self, workers: int, cpus_per_worker: float, gpus_per_worker: float, ports: str, timeout: float
    ) -> None:
        self._ray = ray = import_ray()
        self.workers = workers
        self._stopping = threading.Lock()
        self._actors: list[Any] = []
        self._checked, self._shown = 0.0, ""
        bundle = {"CPU": cpus_per_worker, "GPU": gpus_per_worker}
        self._bundle = {name: amount for name, amount in bundle.items() if amount}
        self._group = ray.util.placement_group([self._bundle] * workers, strategy="PACK")
        try:
            self._wait_for_resources(timeout)
            host, port, token = self._start_server(ports)
            self.address = f"tcp://{host}:{port}"
            self.keys = peer_keys(token, split_token(token)[1] or b"")
            for i in range(workers):
                self._start_worker(i, host, port, token)
        except BaseException:
            self.stop()
            raise

    def _wait_for_resources(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._group.wait(CHECK_S):
            free = {k: v for k, v in self._ray.available_resources().items() if k in ("CPU", "GPU")}
            wanted = f"{self.workers} workers with {_amounts(self._bundle)} each; free are {_amounts(free)}"
            if time.monotonic() > deadline:
                raise NoWorkers(f"the Ray cluster had no room within {timeout:g} s for {wanted}")
            self._show(f"waiting for {wanted}")

    def _start_server(self, ports: str) -> tuple[str, int, str]:
        """On the head node, without which the cluster ends anyway. An actor and no child of the driver, which may be
        outside of the cluster (``ray://``)."""
        ray, place = self._ray, {HEAD_NODE: 0.001}
        actor = ray.remote(ServerActor).options(num_cpus=0, max_restarts=0, resources=place).remote(ports)
        self._actors.append(actor)
        try:
            host, port, token = ray.get(actor.place.remote(), timeout=ACTOR_TIMEOUT_S)
        except ray.exceptions.RayError as error:
            raise ClusterError(f"the server could not be started on the Ray cluster: {_last_line(error)}") from None
        return host, port, token

    def _start_worker(self, i: int, host: str, port: int, token: str) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        cpus, gpus = self._bundle.get("CPU", 0), self._bundle.get("GPU", 0)
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=i)
        kind = self._ray.remote(WorkerActor).options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=-1, scheduling_strategy=place
        )
        self._actors.append(kind.remote(host, port, token, max(1, int(cpus))))

    # -- while it runs -------------------------------------------------------------------

    def check(self, joined: int = 0) -> bool:
        """Print how many workers have joined. Raises NoWorkers if one of them cannot start."""
        now = time.monotonic()
        if now < self._checked + CHECK_S:
            return False
        self._checked = now
        self._show(f"{joined} of {self.workers} workers have joined")
        questions = [actor.last_error.remote() for actor in self._actors[1:]]
        answers, _ = self._ray.wait(questions, num_returns=len(questions), timeout=0.1)
        for answer in answers:
            try:
                error = self._ray.get(answer)
            except self._ray.exceptions.RayError:  # Ray creates the actor again
                continue
            if error:
                raise NoWorkers(f"a worker on the Ray cluster failed while it was starting ({error})")
        return False

    def explain(self, server_lost: bool) -> str:
        """A worker that is lost is started again, and the server says which one it was."""
        return ""

    def _show(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            progress(f"Ray: {text}")

    def stop(self) -> None:
        """End the actors and give the resources back. May be called twice, and from any thread."""
        if not self._stopping.acquire(blocking=False) or not self._ray.is_initialized():
            return
        with contextlib.suppress(self._ray.exceptions.RayError):
            for actor in reversed(self._actors):  # workers first: otherwise they report a lost server
                self._ray.kill(actor)
            self._ray.util.remove_placement_group(self._group)


def _amounts(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items()) or "none"


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
