"""Repeated stretches of the stream are sent, planned and run as one fragment, with bitwise the same values."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.stream import outbox, templates
from gt.client.stream.candidates import MIN_REPEATED, MIN_REPEATS, find_period
from gt.client.stream.connect import use
from gt.client.stream.session import Session
from gt.errors import GtError
from gt.testing import Cluster
from gt.wire.words import RUN

# -- random programs with loops ------------------------------------------------------------

#: what a step of a loop may do: (state, number of the round, drawn numbers) -> None
Action = Callable[[dict[str, Any], int, random.Random], None]


def _pointwise(s: dict[str, Any], k: int, rng: random.Random) -> None:
    s["x"] = (s["x"] * 0.5 + s["w"]).tanh()


def _matmul(s: dict[str, Any], k: int, rng: random.Random) -> None:
    s["x"] = gt.relu(s["x"] @ s["m"]) + 1


def _rate(s: dict[str, Any], k: int, rng: random.Random) -> None:
    s["w"] = s["w"] - 0.1 / (k + 1) * s["x"].mean(0)


def _in_place(s: dict[str, Any], k: int, rng: random.Random) -> None:
    s["w"] += k
    s["w"].mul_(0.25)


def _view(s: dict[str, Any], k: int, rng: random.Random) -> None:
    row = s["x"][k % 3]
    row += 1
    s["x"][:, 1] = s["w"][0]


def _several(s: dict[str, Any], k: int, rng: random.Random) -> None:
    values, places = s["x"].max(1)
    s["w"] = s["w"] + values.sum() * 0.01 + places.sum() * 0.001


def _branch(s: dict[str, Any], k: int, rng: random.Random) -> None:
    s["x"] = s["x"].sin() if k % 3 == 2 else s["x"].cos()


def _random(s: dict[str, Any], k: int, rng: random.Random) -> None:
    s["x"] = gt.nn.functional.dropout(s["x"], 0.3) + gt.rand(4)


def _data(s: dict[str, Any], k: int, rng: random.Random) -> None:
    s["x"] = s["x"] + gt.from_numpy(np.random.default_rng(k).random((6, 4), np.float32))


def _keep(s: dict[str, Any], k: int, rng: random.Random) -> None:
    s["kept"].append(s["x"].sum())


def _train(s: dict[str, Any], k: int, rng: random.Random) -> None:
    loss = ((s["model"](s["x"].detach()) - 1) ** 2).mean()
    s["optimizer"].zero_grad()
    loss.backward()
    s["optimizer"].step()
    s["kept"].append(loss.detach())


def _same(s: dict[str, Any], k: int, rng: random.Random) -> None:
    """Two operands that are now and then one tensor."""
    before = s.get("before", s["x"])
    other = s["x"] if k % 4 == 3 or before.shape != s["x"].shape else before
    s["x"] += 0.25
    s["before"] = s["x"]
    s["x"] = (s["x"] * 0.5 + other * 0.5).tanh() - other


def _fail(s: dict[str, Any], k: int, rng: random.Random) -> None:
    """Now and then an index is out of range: that value fails, and nothing else."""
    index = gt.full((2,), 99 if k % 4 == 3 else 1, dtype=gt.int64)
    s["failing"].append(gt.nn.functional.embedding(index, s["m"]).sum())


def _read(s: dict[str, Any], k: int, rng: random.Random) -> None:
    s["log"].append(s["x"].numpy().tobytes())


ACTIONS: list[Action] = [
    _pointwise, _matmul, _rate, _in_place, _view, _several, _branch, _random, _data, _keep, _train, _same, _fail, _read,
]  # fmt: skip
WITHOUT_READ = [action for action in ACTIONS if action is not _read]


def begin(seed: int) -> dict[str, Any]:
    gt.manual_seed(seed)
    model = gt.nn.Sequential(gt.nn.Linear(4, 5), gt.nn.ReLU(), gt.nn.Linear(5, 1))
    optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
    state: dict[str, Any] = {"x": gt.rand(6, 4), "w": gt.rand(4), "m": gt.rand(4, 4), "model": model}
    return state | {"optimizer": optimizer, "kept": [], "failing": [], "log": []}


def loop(seed: int, rounds: int = 14, actions: list[Action] = ACTIONS) -> Iterator[dict[str, Any]]:
    """The same body again and again; midway the shapes change."""
    rng = random.Random(seed)
    body = rng.sample(actions, rng.randint(2, 6))
    state = begin(seed)
    for k in range(rounds):
        if k == rounds // 2 and rng.random() < 0.4:
            state["x"] = gt.rand(9, 4) if _data not in body else state["x"]
        for action in body:
            action(state, k, rng)
        if seed % 3 and k % 7:
            gt.step()
        yield state


def bytes_or_error(x: Any) -> bytes:
    try:
        return bytes(x.numpy().tobytes())
    except GtError as error:
        return type(error).__name__.encode()


def outcome(state: dict[str, Any]) -> list[bytes]:
    parameters = list(state["model"].parameters())
    return [
        *state["log"],
        *map(bytes_or_error, (state["x"], state["w"], *state["kept"], *state["failing"], *parameters)),
    ]


def played(seed: int, workers: int, clients: int, monkeypatch: pytest.MonkeyPatch, on: bool) -> list[list[bytes]]:
    monkeypatch.setenv("GT_TEMPLATES", "1" if on else "0")
    cluster, rng = Cluster(workers=workers, seed=seed), random.Random(seed)
    sessions = [cluster.add_client() for _ in range(clients)]
    programs: list[tuple[Session, Iterator[dict[str, Any]]]] = []
    try:
        if workers > 1:
            gt.auto_shard()
        for k, session in enumerate(sessions):
            programs.append((session, loop(seed + 1000 * k)))
        states: dict[int, dict[str, Any]] = {}
        running = list(range(clients))
        while running:
            k = rng.choice(running) if clients > 1 else 0
            with use(programs[k][0]):
                state = next(programs[k][1], None)
            if state is None:
                running.remove(k)
            else:
                states[k] = state
        results = []
        for k, session in enumerate(sessions):
            with use(session):
                results.append(outcome(states[k]))
        if on and seed % 3 and seed != 19:  # that one's body is too short to be worth it
            assert any(session.outbox.templates.announced for session in sessions)
        return results
    finally:
        gt.auto_shard(False)
        for session in sessions:
            session.close()


@pytest.mark.parametrize("seed", range(40))
def test_the_same_bits_on_or_off(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "BATCH_WORDS", random.Random(seed).choice((40, 640)))
    assert played(seed, 1, 1, monkeypatch, True) == played(seed, 1, 1, monkeypatch, False)


@pytest.mark.parametrize("seed", range(24))
def test_the_same_bits_on_several_workers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = 2 + seed % 3
    assert played(seed, workers, 1, monkeypatch, True) == played(seed, workers, 1, monkeypatch, False)


@pytest.mark.parametrize("seed", range(12))
def test_the_same_bits_with_several_clients(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    workers, clients = 1 + seed % 2, 2 + seed % 2
    assert played(seed, workers, clients, monkeypatch, True) == played(seed, workers, clients, monkeypatch, False)


@pytest.mark.parametrize("workers", [1, 2])
def test_one_tensor_in_the_place_of_two(workers: int) -> None:
    """The inputs of a fragment are different tensors: its plan has a record for each."""
    with Cluster(workers=workers).client():
        gt.auto_shard(workers > 1)
        x, y = gt.ones(64, 64), gt.full((64, 64), 2.0)
        totals = []
        for k in range(12):
            a, b = (x, x) if k % 6 == 5 else (x, y)
            a.add_(1)
            totals.append(((a * b).sum() + (a - b).sum() + (b * 3).sum()).item() / 64**2)
        gt.auto_shard(False)
    assert totals == [(a * b + a - b + 3 * b) for k in range(12) for a in [k + 2] for b in [a if k % 6 == 5 else 2]]


# -- long repeated stretches are recognised in chunks --------------------------------------


@pytest.mark.parametrize("seed", range(24))
def test_the_same_bits_in_chunks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "BATCH_WORDS", 20)
    monkeypatch.setattr(templates, "MAX_WHOLE_WORDS", 60)
    monkeypatch.setattr(templates, "SECTION_WORDS", random.Random(seed).choice((20, 35)))
    assert played(seed, 1 + seed % 2, 1, monkeypatch, True) == played(seed, 1 + seed % 2, 1, monkeypatch, False)


def _chain(x: Any, adds: int) -> float:
    y = x
    for _ in range(adds):
        y = y + x
    return float(y.sum().item())


def _messages(session: Session, act: Callable[[], Any]) -> list[list[Any]]:
    before = list(session.outbox.recent)
    act()
    return [stream for stream, *_ in session.outbox.recent if all(stream is not old[0] for old in before)]


def test_a_long_loop_goes_out_while_it_is_emitted() -> None:
    with Cluster(workers=1).client() as session:
        x = gt.ones(2, 2)
        for _ in range(4):
            assert _chain(x, 1000) == 4004
        announced = len(session.outbox.templates.announced)
        for _ in range(3):
            sent = _messages(session, lambda: _chain(x, 1000))
            assert len(sent) >= 4
            assert all(next(word for word in stream if word >= 0) == RUN for stream in sent)
        # a loop that ends elsewhere begins with the same chunks; then the first is as it was
        assert [_chain(x, 700) for _ in range(4)] == [2804] * 4
        for adds in (700, 1000):
            sent = _messages(session, lambda adds=adds: _chain(x, adds))
            assert all(next(word for word in stream if word >= 0) == RUN for stream in sent)
        assert announced <= 4
        assert len(session.outbox.templates.announced) <= announced + 1


def test_stretches_in_turns_that_begin_alike() -> None:
    """They have the same length and the same first codes, as two parts of a pipeline on one stage."""
    cluster = Cluster(1, backend="numpy")
    with cluster.client() as session:
        x = gt.ones(4)
        for _ in range(3):
            for last in (gt.exp, gt.neg, gt.abs):
                y = x
                for _ in range(templates.KEY_CODES):
                    y = y.relu() * 2
                last(y)
                del y
                gt.step()
        session.outbox.flush()
        streams = [stream for stream, _, _ in session.outbox.recent][-3:]
        assert [stream[0] for stream in streams] == [RUN] * 3
        assert len({stream[1] for stream in streams}) == 3


def test_long_pieces_are_forgotten_as_well() -> None:
    with Cluster(workers=1).client() as session:
        x = gt.ones(2)
        for adds in range(140, 140 + 3 * templates.MAX_TEMPLATES):
            for _ in range(2):
                y = x
                for _ in range(adds):
                    y = y + x
                gt.step()
        assert y.sum().item() == 2 * (adds + 1)
        assert len(session.outbox.templates._recent) <= templates.MAX_TEMPLATES
        assert not session.outbox.templates.forgotten


def test_a_tensor_freed_between_two_fragments_belongs_to_neither() -> None:
    """A program that sometimes keeps its last result for a while still runs the same fragment."""
    cluster = Cluster(1)
    with cluster.client() as session:
        x, kept = gt.rand(4, 4), []

        def once() -> Any:
            y = (x * 2).tanh() @ x
            y.sum().item()
            return y

        for k in range(12):
            y = once()
            if k % 3:
                kept.append(y)
            elif k % 2:
                kept.clear()
        assert len(session.outbox.templates._recent) == 1
        y = kept = None
        assert session.outbox.freed_between
        (space,) = next(iter(cluster.workers.values())).spaces.values()
        session.outbox.flush()
        cluster.settle()
        assert not session.outbox.freed_between
        assert len(space.store) == 1


@pytest.mark.parametrize("early", [0, 1, 3])
def test_a_stretch_is_learned_although_its_beginning_was_submitted_alone(early: int) -> None:
    """As the background thread does it, with the first instructions or with tensors that were freed before them."""
    with Cluster(1).client() as session:
        x, before = gt.rand(4, 4), []
        for first in (True, False):
            before.append(gt.ones(2))
            gt.step()
            before.clear()
            y = x
            for k in range(8):
                if first and k == early:
                    session.outbox.flush()
                y = (y * 2).tanh()
            gt.step()
        assert session.outbox.templates._recent


THREADS = """
    stop, wrong = threading.Event(), []

    def other():
        i = 0
        while not stop.is_set():
            i = (i + 1) % 100
            if (gt.full((2,), float(i)) * 2).sum().item() != 4 * i:
                wrong.append(i)

    thread = threading.Thread(target=other)
    thread.start()
    model = gt.nn.Linear(3, 2)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
    x = gt.ones(4, 3)
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    stop.set()
    thread.join()
    say("fell", losses == sorted(losses, reverse=True), "wrong", wrong)
"""


def test_two_threads_of_one_session(system: Any) -> None:
    """Instructions that one thread emits between two fragments of the other use older ids, and belong to neither."""
    client = system.client(THREADS)
    client.expect("fell True wrong []", 60)
    assert client.end() == 0


# -- periods ---------------------------------------------------------------------------------


def repeated_end(codes: list[int], period: int) -> int:
    """How many codes at the end have this period."""
    same = itertools.takewhile(lambda k: codes[-k] == codes[-k - period], range(1, len(codes) - period + 1))
    return sum(1 for _ in same) + period


def slow_period(codes: list[int]) -> int:
    """The period of the longest repeated end, found by trying all."""
    best = covered = 0
    for period in range(1, len(codes) // MIN_REPEATS + 1):
        length = repeated_end(codes, period)
        if length >= max(MIN_REPEATS * period, MIN_REPEATED) and length > covered:
            best, covered = period, length
    return best


@pytest.mark.parametrize("seed", range(200))
def test_the_period_of_codes(seed: int) -> None:
    """Loops in loops, of few codes or many, after a beginning of other codes, in the middle of a repetition."""
    draw = random.Random(seed)
    codes = draw.choice(([7], [7, 300], [*range(16, 40)], [*range(1 << 40, (1 << 40) + 50)]))
    layer = [draw.choice(codes) for _ in range(draw.randint(1, 9))]
    head = [draw.choice(codes) for _ in range(draw.randint(0, 12))]
    step = [*layer * draw.randint(1, 6), *head]
    begin = [draw.choice([*codes, -1]) for _ in range(draw.randint(0, 60))]
    program = begin + step * draw.randint(1, 7)
    program = program[: len(program) - draw.randint(0, len(step))]
    assert find_period(program) == slow_period(program)


def test_a_long_step_without_cuts_is_repeated() -> None:
    """As when tokens are generated without a read: a step of more than a thousand words."""
    rounds, products = 60, 160
    with Cluster(workers=1, backend="numpy").client() as session:
        weights = [gt.ones(4) for _ in range(8)]
        x = gt.ones(4)
        for _ in range(rounds):
            for k in range(products):
                x = (x * weights[k * k % 7]).relu()
        assert x.tolist() == [1.0] * 4
        stats = gt.debug.get_worker_stats()["worker 0"]
        assert session.outbox.templates.announced
        assert stats["hot_instructions"] > rounds * products


def test_uploads_before_a_loop_without_cuts() -> None:
    """The bytes of uploads are words too. They come before the words that repeat, which may be fewer than a batch."""
    for seed in range(40):
        draw = random.Random(seed)
        with Cluster(workers=1, backend="numpy").client():
            kept = [gt.tensor([1.0] * draw.randint(1, 8)) for _ in range(draw.randint(1, 200))]
            x = gt.ones(3)
            for _ in range(draw.randint(10, 400)):
                x = x + 1
            for _ in range(2000):
                x = x * 1.0
            assert x.tolist() == [x[0].item()] * 3
            del kept
