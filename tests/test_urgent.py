"""An interactive client among heavy ones: its messages overtake theirs, and nothing else changes."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

import gt
from gt.client.stream import connect
from gt.dispatcher.delivery import MAX_URGENT_US
from gt.dispatcher.scheduling import MAX_AHEAD_US
from gt.dispatcher.tenants.access import Access
from gt.events.load import LoadMeter
from gt.events.table import EventTable
from gt.scripts import top
from gt.testing import Cluster
from gt.wire.codec import Decode, encode
from gt.wire.event_messages import EventBatch, Listening, Record
from gt.wire.messages import Define, Done, Execute
from gt.wire.structures import WorkerInfo
from gt.wire.words import FETCH
from gt.worker import fragments
from gt.worker.arrivals import Arrivals
from gt.worker.outbox import OutgoingMessage
from gt.worker.shell import Shell
from tests import test_cluster
from tests.support.overtaking import OvertakingCluster
from tests.support.processes import System
from tests.test_cluster import seeds, small  # noqa: F401, a fixture
from tests.test_dispatcher import ADD, ADD_LARGE, CLIENT, FULL, WORKER, Desk, SimulatedWorker, sent
from tests.test_events import ClusterViewer, drain
from tests.test_sharding import CutPlay, rounding, signals  # noqa: F401, fixtures

HEAVY, LIGHT = b"heavy", b"light"


# -- the order at a worker ---------------------------------------------------------------------


def execute(client: int, number: int, urgent: bool = False) -> Execute:
    return Execute(client, [], [], number, True, urgent)


def taken(arrivals: Arrivals) -> list[Any]:
    found = []
    while arrivals:
        found.append(arrivals.next()[0])
    return found


def test_an_urgent_message_overtakes_those_of_other_clients_only() -> None:
    arrivals = Arrivals()
    messages = [execute(1, 1), Define(2, [], [], []), execute(1, 2), execute(2, 1, True), execute(3, 1, True)]
    for message in messages:
        arrivals.add(message, [])
    assert arrivals.next_urgent(3) is None, "the client 3 runs already, and 2 has an earlier message"
    assert taken(arrivals) == [messages[4], messages[0], messages[1], messages[3], messages[2]]
    assert arrivals.next_urgent() is None


def test_nothing_overtakes_a_message_that_is_no_client_s() -> None:
    """Otherwise the numbers of messages would differ on both sides when recording begins."""
    arrivals = Arrivals()
    messages = [execute(1, 1), Record(True, 5), execute(2, 1, True)]
    for message in messages:
        arrivals.add(message, [])
    assert arrivals.next_urgent(1) is None
    assert taken(arrivals) == messages


@pytest.mark.parametrize("seed", range(50))
def test_any_arrivals_keep_the_order_of_each_client_and_of_what_is_not_urgent(seed: int) -> None:
    rng, arrivals, handled, number = random.Random(seed), Arrivals(), [], 0
    for _ in range(200):
        if rng.random() < 0.6 or not arrivals:
            number += 1
            urgent = rng.random() < 0.3
            message: Any = execute(rng.randint(1, 4), number, urgent) if rng.random() < 0.95 else Record(True, number)
            arrivals.add(message, [])
        else:
            handled.append(arrivals.next()[0])
    handled += taken(arrivals)
    assert len(handled) == number
    for client in (1, 2, 3, 4):
        own = [message.worker_set for message in handled if getattr(message, "client", 0) == client]
        assert own == sorted(own)
    rest = [m.sent if isinstance(m, Record) else m.worker_set for m in handled if not getattr(m, "urgent", False)]
    assert rest == sorted(rest)


# -- what the server marks as urgent -----------------------------------------------------------


def busy_desk(*more: bytes) -> Desk:
    """A worker with more than it should have ahead of a heavy client, and an idle client."""
    desk = Desk(WORKER, *more, HEAVY, LIGHT)
    for client in (HEAVY, LIGHT):
        actions = desk.submit(client, FULL, 0, 1, 1.0)
        for message in sent(actions, WORKER, Execute):
            desk.say(WORKER, Done(message.client, message.worker_set, 10))
    desk.submit(HEAVY, *[ADD, 0, 2, 1, 1] * 5000)
    assert desk.core.workers[0].ahead >= MAX_AHEAD_US
    return desk


def test_an_idle_client_does_not_wait_until_the_worker_has_room() -> None:
    desk = busy_desk()
    (message,) = sent(desk.submit(LIGHT, ADD, 0, 2, 1, 1, FETCH, 1, 2), WORKER, Execute)
    assert message.urgent
    # what follows before that is done is urgent too, but what a busy client sends is not
    (message,) = sent(desk.submit(LIGHT, -2), WORKER, Execute)
    assert message.urgent
    assert not sent(desk.submit(HEAVY, ADD, 0, 2, 1, 1), WORKER, Execute)


def test_long_work_is_not_urgent() -> None:
    desk = busy_desk()
    (message,) = sent(desk.submit(LIGHT, *[ADD, 0, 2, 1, 1] * int(MAX_URGENT_US)), WORKER, Execute)
    assert not message.urgent
    assert not sent(desk.submit(LIGHT, ADD, 0, 2, 1, 1), WORKER, Execute), "it waits for the work before it"


def test_a_client_alone_has_nobody_to_overtake() -> None:
    desk = Desk(WORKER, CLIENT)
    for _ in range(2):
        (message,) = sent(desk.submit(CLIENT, FULL, 0, 1, 1.0), WORKER, Execute)
        assert not message.urgent
        desk.say(WORKER, Done(1, message.worker_set, 10))


def test_a_client_that_always_asks_takes_no_more_than_its_share() -> None:
    """It sends the next instruction when the last one is done, and its messages overtake all others."""
    simulation = SimulatedWorker(HEAVY, b"other", LIGHT)
    asking = simulation.desk.client(LIGHT)
    for _ in range(4000):
        for client in (HEAVY, b"other"):
            while len(simulation.desk.client(client).queue) < 4:
                simulation.flood(client, ADD_LARGE, 5)
        if asking.done >= asking.received:
            simulation.flood(LIGHT, ADD, 100)
        simulation.executes = deque(sorted(simulation.executes, key=lambda message: not message.urgent))
        simulation.one()
    total = sum(simulation.used.values())
    assert 0.2 < simulation.used[3] / total < 1.05 / 3
    assert simulation.used[1] == pytest.approx(simulation.used[2], rel=0.05)


# -- values, order of moves and events ---------------------------------------------------------


@seeds(40)
def test_values_and_moves_do_not_depend_on_what_overtakes(
    seed: int,
    small: Any,  # noqa: F811
    signals: list[str],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several clients with tensors on four workers, and one on one worker; a worker handles messages late."""
    small(seed)
    monkeypatch.setattr(test_cluster, "Cluster", OvertakingCluster)
    monkeypatch.setattr(fragments, "PAUSE_AFTER_US", 0.0)
    play = CutPlay(seed, signals)
    cluster: Any = play.cluster
    light = cluster.add_client()
    with connect.use(light):
        a, b = gt.ones(3), gt.arange(3.0)
        for step in range(60):
            play.act()
            if step % 5 == 0:
                assert (a + b * step).tolist() == [1.0 + step * k for k in range(3)]
        del a, b
    light.close()
    play.end()
    # a stream that waits for a move lets those of other clients go on, so the order is that of each client
    for program in play.programs:
        for (name, moves), (other, others) in combinations(cluster.moves.items(), 2):
            both = {cluster.workers[name].id, cluster.workers[other].id}
            own, same = (
                [m for m in each if m[0] == program.session.id and both <= set(m[3])] for each in (moves, others)
            )
            assert own == same, f"{name!r} and {other!r} started moves in another order"


@pytest.mark.parametrize("listening", [False, True])
def test_a_message_runs_between_the_instructions_of_a_fragment(
    listening: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragments, "PAUSE_AFTER_US", 0.0)
    cluster = OvertakingCluster(workers=1, seed=1, backend="numpy")
    heavy, light = cluster.add_client(), cluster.add_client()
    table = EventTable()
    with connect.use(light):
        a = gt.ones(2)
        assert (a + 1).tolist() == [2.0, 2.0]
        if listening:
            light.listen(table.add)
    with connect.use(heavy):
        x, sums = gt.ones(3), []
        for _ in range(12):
            y = x
            for _ in range(20):
                y = y * 2 + x
            sums.append(y.sum())
            gt.step()
            heavy.outbox.flush()
            with connect.use(light):
                assert (a + 1).tolist() == [2.0, 2.0]
        expected = 3.0 * (2**21 - 1)
        assert [value.item() for value in sums] == [expected] * 12
    assert cluster.in_pauses > 0
    if listening:
        with connect.use(light):
            light.stop_listening()
        rows = table.rows(-1, light.id).tolist()
        sent_numbers = {execute for worker, execute, *_ in rows if worker >= 0}
        numbers = {event.execute for event in table.events() if event.client == light.id}
        assert len(numbers) > 5
        assert numbers <= sent_numbers
    heavy.close(), light.close()


# -- the shell ---------------------------------------------------------------------------------


class PausingShell(Shell):
    """A shell whose worker pauses in each message of client 1. In the pause an urgent message of client 2 arrives."""

    def __init__(self, clock: list[float], in_pause: Callable[[], list[OutgoingMessage]]) -> None:
        self.connection: Any = SimpleNamespace(wait=lambda ms: True, take=self._arrived, send=self._sent, ended="")
        self.decode, self.debug, self._arrivals = Decode("worker"), None, Arrivals()
        self._next_look = self._paused = 0.0
        self._pausing, self._pause_error, self._unreported = False, None, Counter()
        self.sent: list[Any] = []
        self._clock = clock
        engine = SimpleNamespace(pace=lambda: None, is_broken=lambda error: False)
        handle, handle_in_pause = self._handle, lambda message, data: in_pause()
        self.worker: Any = SimpleNamespace(id=0, engine=engine, handle=handle, handle_in_pause=handle_in_pause)

    def _arrived(self) -> list[list[bytes]]:
        return [[encode(execute(2, 1, True))], [encode(execute(1, 7, True))]] if self._clock[0] == 1.0 else []

    def _handle(self, message: Any, data: Any) -> list[OutgoingMessage]:
        for _ in range(3):
            self._clock[0] += 1.0
            self._pause(message.client)
        return [OutgoingMessage(Done(message.client, message.worker_set, 0))]

    def _sent(self, frames: list[bytes]) -> None:
        self.sent.append(Decode("dispatcher")(frames[0]))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("gt.worker.shell.time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_a_pause_is_not_the_time_of_the_client_that_pauses(clock: list[float]) -> None:
    def in_pause() -> list[OutgoingMessage]:
        clock[0] += 5.0
        return [OutgoingMessage(Done(2, 1, 0))]

    shell = PausingShell(clock, in_pause)
    shell._work(execute(1, 6), [])
    assert shell.sent == [Done(2, 1, 5_000_000), Done(1, 6, 3_000_000)]
    assert [message.worker_set for message in taken(shell._arrivals)] == [7], "its own next message waits"


def test_an_error_in_a_pause_is_not_the_client_s(clock: list[float]) -> None:
    def in_pause() -> list[OutgoingMessage]:
        raise ValueError("a defect")

    shell = PausingShell(clock, in_pause)
    with pytest.raises(ValueError, match="a defect"):
        shell._work(execute(1, 6), [])
    assert shell.sent == []


# -- who blocked whom --------------------------------------------------------------------------


def test_time_counts_as_blocking_while_others_wait_for_the_worker() -> None:
    desk = busy_desk()
    blocked = desk.core.workers[0].blocked_us
    heavy, light = desk.client(HEAVY).id, desk.client(LIGHT).id
    desk.say(WORKER, Done(heavy, 1, 2000))
    assert not blocked, "nobody waits"
    desk.submit(LIGHT, ADD, 0, 2, 1, 1, FETCH, 1, 2)
    desk.say(WORKER, Done(heavy, 1, 3000))
    desk.say(WORKER, Done(light, 1, 40))
    desk.say(WORKER, Done(heavy, 1, 500))
    assert blocked == {heavy: 3000, light: 40}
    desk.core.gone(HEAVY)
    assert blocked == {light: 40}


def test_a_client_waits_although_the_worker_has_nothing_of_it_yet() -> None:
    desk = busy_desk()
    blocked = desk.core.workers[0].blocked_us
    heavy, light = desk.client(HEAVY).id, desk.client(LIGHT).id
    desk.client(LIGHT).share.used = 1e9  # no right to overtake: its work stays in its queue
    assert not sent(desk.submit(LIGHT, ADD, 0, 2, 1, 1), WORKER, Execute)
    desk.say(WORKER, Done(heavy, 1, 2000))
    assert desk.client(LIGHT).queue
    assert light not in [owner for owner, *_ in desk.core.workers[0].unconfirmed]
    assert blocked == {heavy: 2000}


def batch(blocked_us: int, longest: tuple[int, str]) -> EventBatch:
    return EventBatch(0, 1, 0, 0, 0, 0, 10, [], [], b"", b"", [], 0, {}, 0, 0, longest, blocked_us)


def test_top_shows_who_blocked_others_and_with_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    listening, meter = Listening(1, 0, 0, True, [WorkerInfo(0, "numpy", "cpu", "", 1)], [1]), LoadMeter()
    meter.add(batch(5_000, (9_000_000, "exp(float32[3])")))
    assert meter.read(listening, 1.0)[1][1].blocked_ms == 0.0, "what happened before is not of this interval"
    for one in (batch(6_000, (2_000_000, "exp(float32[3])")), batch(47_000, (40_000_000, "sort(float32[9])"))):
        meter.add(one)
    loads = meter.read(listening, 1.0)
    client = loads[1][1]
    assert (client.blocked_ms, client.longest_ms, client.longest) == (42.0, 40.0, "sort(float32[9])")
    text = top.plain("tcp://localhost:9000", loads)
    assert "42 ms" in text
    assert "40.0 ms sort(float32[9])" in text


def test_only_an_operator_sees_what_the_longest_instruction_was() -> None:
    cluster = Cluster(workers=1, backend="numpy")
    cluster.dispatcher._access = Access(operator="secret")
    seen: dict[str, list[tuple[int, str]]] = {"": [], "secret": []}
    viewers = [ClusterViewer(cluster, operator=token, detail=False) for token in seen]
    for viewer, found in zip(viewers, seen.values(), strict=True):
        viewer.table.add = lambda batch, found=found: found.append(batch.longest)  # type: ignore[method-assign]
    with cluster.client():
        assert gt.ones(500).exp().sum().item() > 0
        drain(cluster)
        cluster.settle()
    longest = {token: max(found) for token, found in seen.items()}
    assert longest["secret"][0] == longest[""][0] > 0
    assert "float32" in longest["secret"][1]
    assert longest[""][1] == ""


# -- processes ---------------------------------------------------------------------------------


def test_a_read_does_not_wait_for_the_rest_of_a_fragment(stack: Any) -> None:
    """Reads begin and end in the middle of a heavy client's steps, each of which is one fragment."""
    system = System(stack)
    system.worker("--device", "cpu", "--threads", "1")
    heavy = system.client(
        """
        x = gt.full((512, 512), 1e-4)
        def step():
            begun, y = time.monotonic(), x
            for _ in range(25): y = y @ x
            y.sum().item()
            return begun, time.monotonic()
        for _ in range(3): step()
        say("warm")
        go()
        say("steps", *[t for _ in range(4) for t in step()])
        """
    )
    heavy.expect("warm")
    light = system.client(
        """
        a, spans, stop = gt.ones(4), [], []
        (a + 1).tolist()
        threading.Thread(target=lambda: stop.append(go())).start()
        say("ready")
        while not stop:
            spans.append(time.monotonic())
            assert (a + 1).tolist() == [2.0] * 4
            spans.append(time.monotonic())
            time.sleep(0.002)
        say("reads", *spans)
        """
    )
    light.expect("ready")
    heavy.tell()
    steps = [float(word) for word in heavy.expect("steps").split()[1:]]
    light.tell()
    reads = [float(word) for word in light.expect("reads").split()[1:]]
    inside = 0
    for begun, done in zip(steps[::2], steps[1::2], strict=True):
        early, late = begun + 0.2 * (done - begun), begun + 0.8 * (done - begun)
        inside += sum(early < a and b < late for a, b in zip(reads[::2], reads[1::2], strict=True))
    assert inside >= 3
