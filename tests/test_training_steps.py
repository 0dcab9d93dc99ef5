"""Where workers compile for GPUs, a training step is one fragment, unless the program reads a value in most steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gt
from gt.client.stream import connect, outbox, training_steps
from gt.client.stream.session import Session
from gt.client.stream.templates import MAX_WHOLE_WORDS
from gt.client.stream.training_steps import CUT_SHARE, MIN_STEPS, REMEMBERED_STEPS, WHOLE_SHARE, TrainingSteps
from gt.testing import Cluster
from gt.wire.words import MAX_FRAGMENT_WORDS

#: After this many steps of one kind the next ones are recognised, whatever came before.
LEARNED = REMEMBERED_STEPS + 4


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Callable[[Session], Session]:
    """Let a session take its workers for GPUs that compile, with long stretches that are short enough for tests."""
    monkeypatch.setattr(training_steps, "DEVICES", "")
    monkeypatch.setattr(outbox, "MIN_FORWARD_WORDS", 40)

    def begin(session: Session) -> Session:
        session.outbox.training.compiling = True
        session.outbox.predictions.may_cut = False
        return session

    return begin


@pytest.fixture
def session(compiling: Callable[[Session], Session]) -> Iterator[Session]:
    with Cluster(workers=1, backend="numpy").client() as session:
        yield compiling(session)


class Training:
    def __init__(self, session: Session, layers: int) -> None:
        gt.manual_seed(0)
        self.session = session
        self.model = gt.nn.Sequential(
            *[m for _ in range(layers) for m in (gt.nn.Linear(4, 4), gt.nn.LayerNorm(4), gt.nn.Tanh())]
        )
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=0.01)
        self.x = gt.randn(2, 4)

    def step(self, clear: bool = True) -> Any:
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        if clear:
            self.optimizer.zero_grad()
        return loss

    def learn(self, read: bool) -> None:
        for _ in range(LEARNED):
            loss = self.step()
            if read:
                loss.item()

    def submissions(self) -> int:
        """Those of one step."""
        before = self.session.outbox.serial
        self.step()
        return self.session.outbox.serial - before


@pytest.mark.parametrize("layers", [4, 90])
def test_a_step_is_one_fragment_until_the_program_reads_in_each(session: Session, layers: int) -> None:
    training = Training(session, layers)
    for _ in range(2):
        training.learn(read=False)
        assert training.submissions() == 1
        (before,) = session.worker_stats()
        training.step()
        (after,) = session.worker_stats()
        assert after.hot_instructions - before.hot_instructions >= 0.95 * (
            after.total_instructions - before.total_instructions
        )
        training.learn(read=True)
        assert training.submissions() >= 2


def test_workers_without_gpus_get_the_forward_pass_first(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_steps, "DEVICES", "cuda")
    training = Training(session, 4)
    training.learn(read=False)
    assert training.submissions() == 2


def test_a_step_that_is_too_long_is_cut(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (outbox, training_steps):
        monkeypatch.setattr(module, "MAX_FRAGMENT_WORDS", 400)
    training = Training(session, 8)
    training.learn(read=False)
    assert training.submissions() >= 2
    assert not session.outbox.training.whole(session.connection.workers)


def test_the_setting_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in ("", "0", "1"):
        monkeypatch.setenv("GT_AUTO_COMPILE", setting)
        try:
            gt.ones(2).sum().item()
            session = connect.session()
            assert session.outbox.training.compiling == (setting == "1")
        finally:
            gt.disconnect()


@pytest.mark.parametrize("clear", ["optimizer", "model", "optimizer, to zeros"])
def test_gradients_that_are_cleared_after_a_step_belong_to_it(session: Session, clear: str) -> None:
    """Else the compiled code of the step would have to write them into memory."""
    training, losses = Training(session, 4), [gt.ones(1)]

    def step() -> None:
        loss = training.model(training.x).square().mean()
        loss.backward()
        training.optimizer.step()
        losses[0] = loss  # frees the one before
        del loss
        if clear == "model":
            training.model.zero_grad()
        else:
            training.optimizer.zero_grad(set_to_none=clear == "optimizer")

    for _ in range(LEARNED):
        step()
    sent: list[Any] = []
    real = session.outbox.templates.sent
    session.outbox.templates.sent = lambda words: sent.append(words) or real(words)  # type: ignore[method-assign]
    step()
    ((_, number, *_),) = sent  # the words that run a fragment
    fragment = session.outbox.templates.announced[number]
    assert not session.outbox.freed_between
    freed = sum(type(word) is int and word < 0 for word in fragment.words)
    assert freed >= len(list(training.model.parameters())) * (clear != "optimizer, to zeros")


def test_a_step_is_sent_at_once_unless_gradients_were_cleared_right_after_the_last(session: Session) -> None:
    training = Training(session, 4)

    def step(clear_first: bool) -> int:
        """Submissions until the optimizer's step is over."""
        if clear_first:
            training.optimizer.zero_grad()
        training.model(training.x).square().mean().backward()
        before = session.outbox.serial
        training.optimizer.step()
        return session.outbox.serial - before

    for _ in range(LEARNED):
        step(clear_first=True)
        gt.ones(2)  # such as the next batch
    assert step(clear_first=True) == 1
    for _ in range(LEARNED):
        training.step()
    assert step(clear_first=False) == 0  # it waits for the gradients to be cleared
    assert training.model(training.x).square().mean().item() > 0
    gt.ones(2)
    step(clear_first=True)
    gt.ones(2)
    assert step(clear_first=True) == 1


def test_an_interrupted_end_of_a_step_leaves_other_stretches_as_long_as_they_were(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(session, 4)
    training.learn(read=False)

    def interrupted() -> None:
        assert session.outbox.templates.max_whole_words == MAX_FRAGMENT_WORDS
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session.outbox, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            training.step()
    assert session.outbox.templates.max_whole_words == MAX_WHOLE_WORDS
    assert training.step().item() > 0


# -- decisions against a plain model ------------------------------------------------------------


@pytest.mark.parametrize("seed", range(50))
def test_decisions(seed: int) -> None:
    rng = random.Random(seed)
    steps, history, whole = TrainingSteps(), [], True
    steps.compiling = True
    for _ in range(200):
        steps.read = rng.random() < rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        history.append(steps.read)
        last = history[-REMEMBERED_STEPS:]
        wanted = whole
        if len(history) >= MIN_STEPS:
            wanted = sum(last) <= (CUT_SHARE if whole else WHOLE_SHARE) * len(last)
        assert not steps.after_step(10)
        assert steps.end_step() == (wanted and not whole)
        whole = wanted
        assert steps.whole([]) == whole


# -- random programs ----------------------------------------------------------------------------


def _play(seed: int, session: Session) -> list[Any]:
    """Phases of a training loop, each with its own habit of reading, evaluating and accumulating."""
    rng = random.Random(seed)
    trainings = [Training(session, rng.choice((2, 4))) for _ in range(rng.choice((1, 2)))]
    seen: list[Any] = []
    for _ in range(4):
        reads, accumulates, evaluates = rng.choice((0.0, 0.1, 1.0)), rng.random() < 0.3, rng.random() < 0.3
        clears = rng.choice(("right after", "later", "before", "never"))
        for _ in range(rng.randrange(4, 24)):
            training = rng.choice(trainings)
            if accumulates:
                training.model(training.x * 2).sum().backward()
            if clears == "before":
                training.optimizer.zero_grad()
            loss = training.step(clear=clears == "right after" or rng.random() < 0.05)
            if rng.random() < reads:
                seen.append(loss.item())
            if clears == "later":
                training.model.zero_grad(set_to_none=rng.random() < 0.9)
            if evaluates:
                with gt.no_grad():
                    value = training.model(training.x).sum()
                seen.append(value.item() if rng.random() < reads else value)
    return [x if isinstance(x, float) else x.item() for x in seen] + [
        p.tolist() for training in trainings for p in training.model.parameters()
    ]


@pytest.mark.parametrize("seed", range(24))
def test_the_same_bits(seed: int, compiling: Callable[[Session], Session], monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = []
    for templates in ("1", "0"):
        monkeypatch.setenv("GT_TEMPLATES", templates)
        with Cluster(workers=1 + seed % 2, backend="numpy").client() as session:
            outcomes.append(_play(seed, compiling(session)))
    assert outcomes[0] == outcomes[1]
