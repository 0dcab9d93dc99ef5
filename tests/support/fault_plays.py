"""Random programs under random faults: the real cores and leases, in one thread, all drawn from a seed.

    python -m tests.support.fault_plays 100000            # plays until so many faults happened, or until Ctrl-C
    python -m tests.support.fault_plays --seed 17         # one play; a failure is shrunk to a short schedule

Two of four plays have snapshots in a folder, as a server with a journal has. There the server is killed too, and goes
on from its state; and the disk of the snapshots is full at times.

A play is a schedule of steps. Each step has a seed of its own, so a schedule can be run without some of its steps.
Every value that a program reads is compared with that of an engine called directly, or of numpy. A wait that never ends
fails.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import errno
import pathlib
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import gt
from gt.client.stream import configuration, connect
from gt.client.stream.session import Session
from gt.dispatcher.recovery import program_log
from gt.errors import ClusterError, ConfigError, ConnectionLost, NoWorkers, WorkerLost
from gt.testing import Cluster
from gt.wire.codec import encode
from gt.wire.messages import Bye
from gt.worker.recovery import snapshots as worker_snapshots
from gt.worker.recovery.snapshot_parts import write_file
from tests.support import programs
from tests.support.invariants import always, settled
from tests.support.leased_cluster import LEASE_S, LeasedCluster
from tests.support.programs import Program
from tests.support.small_limits import shrink_limits

#: Steps of one play.
STEPS = 60
MAX_WORKERS = 5
#: over four workers: sharded on disjoint and overlapping meshes, replicated, and on one worker
SIGNALS = """
dp:      {shard: {axis: 0, workers: [0, 1]}}
tp:      {shard: {axis: 1, workers: [0, 1]}}
three:   {shard: {axis: 0, workers: [3, 1, 2]}}
copies:  {replicate: true, workers: [1, 2]}
alone:   {shard: {axis: 0, workers: [3]}}
grid:    {mesh: {a: 2, b: 2}, shard: {0: a, 1: b}}
"""
#: ops whose choice among equal values depends, in torch, on the other values in the block
AMBIGUOUS = frozenset({"topk", "kthvalue", "mode", "median_dim", "nanmedian_dim"})
#: step -> how often it is drawn
WEIGHTS = {
    "act": 30, "large": 2, "loop": 8, "read": 6, "snapshot": 3, "keep": 3, "fork": 3, "interrupt": 3, "pass_time": 2,
    "kill": 8, "leave": 3, "stop": 3, "join": 4, "reset": 6, "silence": 5, "stop_client": 2, "end_client": 2,
    "expire": 0.5, "server_kill": 4, "full_disk": 3,
}  # fmt: skip
FAULTS = frozenset(list(WEIGHTS)[list(WEIGHTS).index("kill") :])


class Step(NamedTuple):
    kind: str
    seed: int


def schedule(seed: int) -> list[Step]:
    rng = random.Random(seed)
    kinds = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS)
    return [Step(kind, rng.randrange(1 << 30)) for kind in kinds]


class Tenant(Program):
    """One client's program: random ops, and a loop that repeats itself and so becomes a template."""

    def __init__(self, session: Session, rng: random.Random, backend: str, texts: dict[str, Any]) -> None:
        super().__init__(session, rng, backend)
        #: its snapshots, and the values of all tenants' snapshots
        self.taken: list[Any] = []
        self.texts = texts
        self.avoid, self.cuts = AMBIGUOUS, True
        self.recovers = rng.random() < 0.6
        if self.recovers:
            session.keep_program((rng.choice((0.0, 5.0)), rng.choice((0.0, 0.0, 4.0))))
        self.signals = rng.sample(list(gt_signals()), 3) if rng.random() < 0.5 else []
        self._loop: tuple[Any, Any, Any, Any] | None = None
        #: whether what is created now may be lost, because a worker has died and nobody has noticed it yet
        self.losing = self._loop_maybe_lost = False

    def lose(self) -> None:
        if not self.recovers:
            super().lose()
            self._loop_maybe_lost = True

    def loop(self) -> None:
        """Some steps of a loop, and a read after each."""
        if self._loop is None:
            weights = np.random.default_rng(self.rng.randrange(100)).standard_normal((6, 6)).astype("f") / 6
            self._loop_maybe_lost = self.losing
            self._loop = gt.tensor(weights), gt.ones(6, 6), weights, np.ones((6, 6), "f")
        for _ in range(self.rng.randint(1, 4)):
            w, x, weights, value = self._loop
            x, value = (x @ w).tanh() + x * 0.5 + 0.25, np.tanh(value @ weights) + value * 0.5 + 0.25
            self._loop = w, x, weights, value.astype("f")
            try:
                np.testing.assert_allclose(x.numpy(), value, rtol=1e-4, atol=1e-5)
            except WorkerLost:
                assert self._loop_maybe_lost, "a loop was lost although no worker was"
                self._loop = None
                return

    def snapshot(self) -> None:
        if self.recovers:
            taken = gt.snapshot()
            if self.rng.random() < 0.5:
                with contextlib.suppress(ClusterError):  # the one before it is not complete, or memory is not shared
                    taken.wait(20)

    def keep(self) -> None:
        """A snapshot of one tensor, which any tenant may fork; sometimes the oldest one is dropped."""
        if self.slots and not (slot := self.rng.choice(self.slots)).memory.failed:
            taken = gt.snapshot(x=slot.tensor, keep=self.rng.choice((0, 0, 10)))
            self.taken.append(taken)
            self.texts[str(taken)] = copy.deepcopy(slot.value)
        if self.taken and self.rng.random() < 0.4:
            self.taken.pop(0).drop()

    def fork(self) -> None:
        """It may be lost, or dropped; otherwise it has its value."""
        if self.texts:
            text = self.rng.choice(list(self.texts))
            try:
                tensor, memory = gt.fork(text)["x"], programs.Memory(maybe_lost=True)
            except NoWorkers:
                raise
            except ClusterError:
                self.session.connection.check_open()
                del self.texts[text]
            else:
                self.slots.append(programs.Slot(tensor, copy.deepcopy(self.texts[text]), memory))

    def interrupt(self) -> None:
        """Ctrl-C in a read; what the read needed is freed, and cancelled."""
        link: Any = self.session.connection.link
        if link is None:  # the client was killed in this step
            return
        link.interrupt_after = self.rng.randint(0, 10)
        try:
            self.read()
        except KeyboardInterrupt:
            for _ in range(self.rng.randint(0, 3)):
                self.free()
            if self.rng.random() < 0.5:
                self.session.outbox.cancel()
        finally:
            link.interrupt_after = -1


def gt_signals() -> Iterator[str]:
    return (name for name in configuration.current.signals if not name.startswith("@"))


class Play:
    """A cluster, its programs, and what happens to them."""

    def __init__(self, seed: int, folder: str) -> None:
        self.rng = random.Random(seed)
        self.backend = "numpy" if seed % 2 else "torch"
        self.has_folder = seed % 4 < 2
        self.cluster = LeasedCluster(self.rng.randint(1, 4), seed, self.backend, folder if self.has_folder else None)
        self.folder = pathlib.Path(folder)
        #: how many of the next files cannot be written
        self.unwritten_files = 0
        self.cluster.after_step = self._after_step
        self.cluster.before_death = self._before_death
        self.faults: Counter[str] = Counter()
        self.tenants: list[Tenant] = []
        #: the text of a snapshot -> its value
        self.texts: dict[str, Any] = {}
        #: faults that happen after so many more messages
        self._due: list[tuple[int, Callable[[], None]]] = []
        #: workers that died; whether one of them is unnoticed, or was during this step; whether none was left
        self._dead: set[int] = set()
        self._losing = self._empty = False

    # -- steps ---------------------------------------------------------------------------

    def run(self, steps: list[Step]) -> None:
        with self.cluster.simulated():
            for step in steps:
                self.rng.seed(step.seed)
                self.cluster.rng.seed(step.seed)
                self._step(step)
            self.end()

    def _step(self, step: Step) -> None:
        self._losing = self._unnoticed()
        self._empty = not self.cluster.workers
        if self._empty and self.rng.random() < 0.5:
            self.join()
        while len(self.tenants) < 2:
            with contextlib.suppress(ConnectionLost):
                session = self.cluster.add_client()
                self.tenants.append(Tenant(session, random.Random(step.seed), self.backend, self.texts))
        if step.kind in FAULTS:
            delay, fault = self.rng.choice((0, 0, self.rng.randint(1, 15))), getattr(self, step.kind)
            if delay and step.kind != "join":
                self._due.append((delay, fault))
            else:
                fault()
        elif step.kind == "pass_time":
            self.cluster.tick(self.rng.choice((1, 3)))
        else:
            self._program_step(step.kind)
        for tenant in self.tenants:
            if self._losing or self._unnoticed() or (self._dead and tenant.signals):
                tenant.lose()
        self.tenants = [t for t in self.tenants if t.session.connection.ended is None]

    def _program_step(self, kind: str) -> None:
        tenant = self.rng.choice(self.tenants)
        tenant.rng, tenant.losing = self.rng, self._losing or bool(self._dead and tenant.signals)
        name = self.rng.choice([*tenant.signals, None])
        context = gt.signal.context(name) if name else contextlib.nullcontext()
        with connect.use(tenant.session), contextlib.suppress(ConfigError), context:  # a signal may name a dead worker
            try:
                if kind == "large":
                    tenant.send_large(self.rng.randint(70_000, 200_000))
                else:
                    getattr(tenant, kind)()
            except NoWorkers:
                known = tenant.session.connection.workers  # a client that is cut off knows of no new worker
                assert self._empty or not known, "there were workers all the time"
            except ConnectionLost:
                assert tenant.session.connection.ended is not None

    def _after_step(self, cluster: Cluster) -> None:
        always(cluster)
        due = [(left - 1, fault) for left, fault in self._due]
        self._due = [(left, fault) for left, fault in due if left > 0]
        for left, fault in due:
            if left <= 0:
                fault()

    def _unnoticed(self) -> bool:
        """Whether the dispatcher, or a client, has not noticed yet that a worker is dead."""
        rosters = ({w.id for w in tenant.session.connection.workers} for tenant in self.tenants)
        return bool(self._dead & set(self.cluster.dispatcher.workers).union(*rosters))

    def _before_death(self, worker: int) -> None:
        self._dead.add(worker)
        self._losing = True
        self._empty = self._empty or len(self.cluster.workers) == 1
        for tenant in self.tenants:
            tenant.lose()

    # -- faults --------------------------------------------------------------------------

    def _worker(self, kind: str) -> bytes | None:
        names = [n for n, w in self.cluster.workers.items() if w.id >= 0 and n not in self.cluster.paused]
        self.faults[kind] += bool(names)
        return self.rng.choice(names) if names else None

    def kill(self) -> None:
        if (name := self._worker("kill")) is not None:
            self.cluster.kill_worker(name)

    def leave(self) -> None:
        if (name := self._worker("leave")) is not None:
            self.cluster._post(name, b"", [encode(Bye("it was told to end"))])
            self.cluster.kill_worker(name)

    def stop(self) -> None:
        if (name := self._worker("stop")) is not None:
            self.cluster.stop_worker(name, self.rng.choice((2, 5, 30)))

    def join(self) -> None:
        if len(self.cluster.workers) < MAX_WORKERS:
            self.faults["join"] += 1
            self.cluster.add_worker()

    def _client(self, kind: str) -> bytes | None:
        names = list(self.cluster.links)
        self.faults[kind] += bool(names)
        return self.rng.choice(names) if names else None

    def reset(self) -> None:
        if (name := self._client("reset")) is not None:
            self.cluster.cut_off(name, 0, silently=False)

    def silence(self) -> None:
        if (name := self._client("silence")) is not None:
            self.cluster.cut_off(name, self.rng.choice((0, 1, 12, 20)), silently=True)

    def stop_client(self) -> None:
        if (name := self._client("stop_client")) is not None:
            self.cluster.stop_client(name, self.rng.choice((1, 5, 20)))

    def expire(self) -> None:
        if (name := self._client("expire")) is not None:
            self.cluster.cut_off(name, 3 * LEASE_S, silently=True)

    def end_client(self) -> None:
        if (name := self._client("end_client")) is not None:
            self.cluster.kill_client(self.cluster.clients[name])

    def server_kill(self) -> None:
        if self.has_folder:
            self.faults["server_kill"] += 1
            self.cluster.restart_server()

    def full_disk(self) -> None:
        if self.has_folder:
            self.faults["full_disk"] += 1
            self.unwritten_files = self.rng.randint(1, 4)

    def write_file(self, *arguments: Any) -> None:
        if self.unwritten_files:
            self.unwritten_files -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        write_file(*arguments)

    # -- the end -------------------------------------------------------------------------

    def end(self) -> None:
        """Without more faults everything comes to rest: all values are right, and nothing remains."""
        self._due.clear()
        self.cluster.continue_workers()
        if not self.cluster.workers:
            self.cluster.add_worker()
        for _ in range(int(4 * LEASE_S)):  # until every client has its network again
            self.cluster.settle()
            self.cluster.tick()
        for tenant in self.tenants:
            with connect.use(tenant.session), contextlib.suppress(ConnectionLost):
                tenant.read_all()
        for tenant in self.tenants:
            tenant.slots.clear()
            tenant._loop = None
            tenant.taken.clear()
            tenant.session.close()
        for _ in range(int(LEASE_S) + 20):
            self.cluster.tick()
            self.cluster.settle()
        settled(self.cluster)
        assert not self.cluster.dispatcher.clients
        assert not self.cluster.listener._by_name
        assert not self.cluster.listener._by_key
        assert not len(self.cluster.storage)
        assert not list(self.folder.glob("snapshots-*/*"))
        assert not len(self.cluster.dispatcher.kept)
        assert all(not len(worker.kept) and not worker.kept._waiting for worker in self.cluster.workers.values())
        assert all(not worker.spaces for worker in self.cluster.workers.values())


def play(seed: int, steps: list[Step] | None = None) -> Counter[str]:
    """Run one play. Returns its faults. Raises what fails."""
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.NamedTemporaryFile("w", suffix=".yaml") as file,
        tempfile.TemporaryDirectory() as folder,
    ):
        warnings.simplefilter("ignore")
        shrink_limits(patch, seed)
        patch.setattr(program_log, "MAX_ATTEMPTS", 1000)  # so many deaths end no program
        patch.setitem(programs.TOLERANCES, "float64", programs.TOLERANCES["float32"])  # sums in another order
        file.write(SIGNALS)
        file.flush()
        gt.load_config(file.name)
        try:
            one = Play(seed, folder)
            patch.setattr(worker_snapshots, "write_file", one.write_file)
            one.run(schedule(seed) if steps is None else steps)
        finally:
            gt.load_config(None)
    return one.faults


# -- failures ------------------------------------------------------------------------------


def failure(seed: int, steps: list[Step]) -> str:
    """What fails, in one line; empty if nothing does."""
    try:
        play(seed, steps)
    except Exception as error:
        place, text = traceback.extract_tb(error.__traceback__)[-1], str(error).partition("\n")[0]
        return f"{type(error).__name__}: {text} ({place.name}:{place.lineno})"
    return ""


def shrink(seed: int, steps: list[Step], runs: int = 300) -> list[Step]:
    """A shorter schedule that fails too: take away half of the steps, then a quarter, and so on."""
    size = len(steps) // 2
    while size and runs:
        for begin in range(0, len(steps), size):
            rest = steps[:begin] + steps[begin + size :]
            runs -= 1
            if failure(seed, rest):
                steps = rest
                break
            if not runs:
                break
        else:
            size //= 2
    return steps


def report(seed: int) -> str:
    """The shrunk schedule of a play that fails, and its error; empty if it does not fail."""
    if not failure(seed, schedule(seed)):
        return ""
    steps = shrink(seed, schedule(seed))
    lines = [f"seed {seed}: {failure(seed, steps)}", *(f"    {step!r}," for step in steps)]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="?", type=int, default=1000, help="plays until so many faults happened")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="one play only")
    options = parser.parse_args(argv)
    begun, counts, failed = time.monotonic(), Counter[str](), 0
    seeds = iter([options.seed]) if options.seed is not None else iter(range(options.first, sys.maxsize))
    for seed in seeds:
        try:
            counts += play(seed)
        except KeyboardInterrupt:
            break
        except Exception:
            failed += 1
            print(report(seed) or f"seed {seed} failed once: {traceback.format_exc()}", flush=True)
        if sum(counts.values()) >= options.faults:
            break
    seconds = time.monotonic() - begun
    print(f"{sum(counts.values())} faults in {seconds:.0f} s, {failed} plays failed: {dict(counts)}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
