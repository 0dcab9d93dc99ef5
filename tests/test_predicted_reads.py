"""A value that a loop reads in each repetition is requested with the step that makes it. No value changes by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import gt
from gt.client.stream import predicted_reads, replies
from gt.client.stream.predicted_reads import MAX_UNREAD_CUTS, MIN_READS
from gt.client.stream.session import Session
from gt.errors import GtError
from gt.testing import Cluster

#: After this many repetitions with a read, the stretch is cut early and its value is requested with it.
LEARNED = 10


class Training:
    """A small model that trains on one worker or on two; ``submissions`` counts what a call submits."""

    def __init__(self, session: Session) -> None:
        gt.manual_seed(0)
        self.session = session
        #: for each request that was predicted, the number of submissions before it
        self.predicted: list[int] = []
        predict = session.replies.predict
        session.replies.predict = (  # type: ignore[method-assign]
            lambda nbytes: self.predicted.append(session.outbox.serial) or predict(nbytes)  # type: ignore[func-returns-value]
        )
        self.model = gt.nn.Sequential(gt.nn.Linear(8, 6), gt.nn.Tanh(), gt.nn.Linear(6, 1))
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=0.01)
        self.x, self.y = gt.randn(4, 8), gt.randn(4, 1)

    def step(self) -> Any:
        loss = (self.model(self.x) - self.y).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def learn(self) -> None:
        for _ in range(LEARNED):
            self.step().item()

    def submissions(self, act: Any) -> int:
        before = self.session.outbox.serial
        act()
        return self.session.outbox.serial - before

    def predictions(self, act: Any) -> int:
        before = len(self.predicted)
        act()
        return len(self.predicted) - before

    @property
    def open_requests(self) -> int:
        return len(self.session.replies.pending)


@pytest.fixture
def training() -> Iterator[Training]:
    with Cluster(workers=1, backend="numpy").client() as session:
        yield Training(session)


def test_the_value_is_requested_with_the_part_that_makes_it(training: Training) -> None:
    training.learn()
    before = training.session.outbox.serial
    loss = training.step()
    assert training.session.outbox.serial == before + 2
    # with the forward pass, the first submission: the worker answers before the backward pass, which is the second
    assert training.predicted[-1] == before
    assert training.submissions(loss.item) == 0
    assert not training.open_requests


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_bits(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = []
    for templates in ("1", "0"):
        monkeypatch.setenv("GT_TEMPLATES", templates)
        with Cluster(workers=workers, backend="numpy").client() as session:
            if workers == 2:
                gt.auto_shard()
            training = Training(session)
            losses.append([training.step().item() for _ in range(2 * LEARNED)])
            gt.auto_shard(False)
    assert losses[0] == losses[1]


def test_a_value_that_is_not_read_costs_one_request(training: Training) -> None:
    training.learn()
    assert training.predictions(training.step) == 1
    for _ in range(3):
        assert training.predictions(training.step) == 0
    expected = [training.step().item() for _ in range(LEARNED)]
    assert expected == sorted(expected, reverse=True)
    assert training.open_requests <= 1
    assert training.predictions(training.step) == 1  # it was read again in the last runs


def test_requests_that_nobody_reads_do_not_pile_up(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MAX_DROPPED", 2)
    for _ in range(5):
        training.learn()
        training.step()
        training.step()
    assert training.open_requests <= 3


def test_a_program_that_stops_reading_is_not_cut_early(training: Training) -> None:
    training.learn()
    assert training.session.outbox.predictions.cut_lengths
    assert training.submissions(training.step) == 2
    for _ in range(MAX_UNREAD_CUTS + 1):
        training.step()
    assert not training.session.outbox.predictions.cut_lengths
    assert training.submissions(training.step) == 1
    training.learn()
    assert training.submissions(training.step) == 2


def test_a_value_that_is_written_after_the_request_is_read_again(training: Training) -> None:
    training.learn()
    before = training.step().item()
    loss = training.step()
    loss.detach().mul_(0).add_(7)
    assert loss.item() == 7
    assert training.step().item() < before


def test_an_error_comes_with_its_read(training: Training) -> None:
    rows, session = gt.arange(12.0).reshape(4, 3), training.session

    def total(row: int) -> Any:
        place = gt.full((1,), row)
        return (rows.index_select(0, place).exp().log() * 2 + 1).sum()

    expected = [total(k % 4).item() for k in range(LEARNED)][:4]
    failed = total(9)
    after = total(1)
    with pytest.raises(GtError, match="index_select"):
        failed.item()
    assert after.item() == expected[1]
    assert not session.failures.unread
    assert [total(k % 4).item() for k in range(LEARNED)][:4] == expected
    total(9)  # requested, and never read
    total(1).item()
    assert len(session.failures.unread) == 1


def interrupted(*_: Any) -> bool:
    raise KeyboardInterrupt


def test_an_interrupt_while_waiting(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    training.learn()
    loss = training.step()
    request = next(iter(training.session.replies.pending))
    monkeypatch.setattr(training.session.connection, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loss.item()
    monkeypatch.undo()
    assert request in training.session.replies.abandoned
    value = loss.item()  # requested again
    training.learn()
    assert training.step().item() < value


def test_requests_are_cancelled_with_the_rest(training: Training) -> None:
    training.learn()
    loss = training.step()
    assert training.open_requests == 1
    training.session.outbox.cancel()
    assert not training.open_requests
    assert not training.session.replies.abandoned  # the `Cancel` named it
    assert loss.item() > 0


def test_a_stretch_that_is_compiled_stays_whole(training: Training) -> None:
    training.session.outbox.predictions.may_cut = False
    training.learn()
    before = training.session.outbox.serial
    loss = training.step()
    assert training.session.outbox.serial == before + 1
    assert training.submissions(loss.item) == 0


def test_the_result_of_a_compiled_function(training: Training) -> None:
    """A call and the read of its result are one submission; a result that is not read is not requested any more."""

    @gt.compile
    def answer(x: Any) -> tuple[Any, Any]:
        y = training.model(x)
        return y.sum(), y.square().sum()

    values = []
    with gt.no_grad():
        for k in range(LEARNED):
            values.append(answer(training.x * k)[0].item())
        x = training.x * (LEARNED - 1)
        assert training.submissions(lambda: values.append(answer(x)[0].item())) == 1
        assert training.predictions(lambda: answer(x)) == 1
        assert training.predictions(lambda: answer(x)) == 0
        assert values[-1] == values[-2] == answer(x)[0].item()
        assert answer(x)[1].item() == training.model(x).square().sum().item()
    assert training.open_requests <= 1


def test_large_values_are_not_requested(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted_reads, "MAX_PREDICTED_BYTES", 3)
    training.learn()
    assert training.predictions(training.step) == 0


def test_several_values_of_one_step(training: Training) -> None:
    x = gt.arange(6.0)

    def step(k: int) -> tuple[float, float]:
        y = (x * k + 1).tanh()
        total, most = y.sum(), y.max()
        z = (y * 2).exp().sum() + most
        return total.item(), most.item() + 0 * z.item()

    expected = [step(k) for k in range(3)]
    for k in range(MIN_READS * LEARNED):
        assert step(k % 3) == expected[k % 3]
