"""`gt.Generator`, ``generator=`` and `gt.random`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import gt
from gt.client.stream.session import Session
from gt.testing import Cluster

BACKEND = "numpy"


@pytest.fixture
def session() -> Iterator[Session]:
    with Cluster(workers=2, backend=BACKEND).client() as session:
        yield session


X = (3, 4)
Draw = Callable[[Any], Any]
#: every function that takes a generator
DRAWS: dict[str, Draw] = {
    "rand": lambda g: gt.rand(*X, generator=g),
    "randn": lambda g: gt.randn(X, generator=g),
    "randint": lambda g: gt.randint(0, 1000, X, generator=g),
    "rand_like": lambda g: gt.rand_like(gt.zeros(X), generator=g),
    "randn_like": lambda g: gt.randn_like(gt.zeros(X), generator=g),
    "randint_like": lambda g: gt.randint_like(gt.zeros(X), 1000, generator=g),
    "randperm": lambda g: gt.randperm(20, generator=g),
    "normal": lambda g: gt.normal(0.0, 1.0, X, generator=g),
    "normal of tensors": lambda g: gt.normal(gt.zeros(X), gt.ones(X), generator=g),
    "bernoulli": lambda g: gt.bernoulli(gt.full((40,), 0.5), generator=g),
    "multinomial": lambda g: gt.multinomial(gt.ones(50), 5, generator=g),
    "multinomial with replacement": lambda g: gt.multinomial(gt.ones(50), 9, True, generator=g),
    "uniform_": lambda g: gt.empty(X).uniform_(1, 2, generator=g),
    "normal_": lambda g: gt.empty(X).normal_(1, 2, generator=g),
    "bernoulli_": lambda g: gt.empty(40).bernoulli_(0.5, generator=g),
    "exponential_": lambda g: gt.empty(X).exponential_(generator=g),
    "geometric_": lambda g: gt.empty(40).geometric_(0.2, generator=g),
    "log_normal_": lambda g: gt.empty(X).log_normal_(generator=g),
    "cauchy_": lambda g: gt.empty(X).cauchy_(generator=g),
    "random_": lambda g: gt.empty(X).random_(generator=g),
    "init.uniform_": lambda g: gt.nn.init.uniform_(gt.empty(X), generator=g),
    "init.normal_": lambda g: gt.nn.init.normal_(gt.empty(X), generator=g),
    "init.trunc_normal_": lambda g: gt.nn.init.trunc_normal_(gt.empty(X), generator=g),
    "init.xavier_uniform_": lambda g: gt.nn.init.xavier_uniform_(gt.empty(X), generator=g),
    "init.xavier_normal_": lambda g: gt.nn.init.xavier_normal_(gt.empty(X), generator=g),
    "init.kaiming_uniform_": lambda g: gt.nn.init.kaiming_uniform_(gt.empty(X), generator=g),
    "init.kaiming_normal_": lambda g: gt.nn.init.kaiming_normal_(gt.empty(X), generator=g),
    "init.orthogonal_": lambda g: gt.nn.init.orthogonal_(gt.empty(X), generator=g),
    "init.sparse_": lambda g: gt.nn.init.sparse_(gt.empty(X), 0.3, generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_has_numbers_of_its_own(session: Session, name: str) -> None:
    draw = DRAWS[name]
    generator = gt.Generator().manual_seed(5)
    gt.manual_seed(99)
    state = gt.get_rng_state().tolist()
    first, second = draw(generator).tolist(), draw(generator).tolist()
    assert first != second
    assert gt.get_rng_state().tolist() == state, "the default generator drew"
    assert draw(generator.manual_seed(5)).tolist() == first
    gt.manual_seed(5)
    assert draw(None).tolist() == first, "the same seed gives the same numbers, whatever the generator"
    assert gt.get_rng_state().tolist() != state


def test_seeds_and_states(session: Session) -> None:
    generator = gt.Generator(device="cuda")
    assert generator.device == "gt"
    assert generator.initial_seed() == torch.Generator().initial_seed()
    assert generator.manual_seed(-1) is generator
    assert generator.initial_seed() == torch.Generator().manual_seed(-1).initial_seed() == 2**64 - 1
    assert repr(generator) == f"<gt.Generator seed={2**64 - 1}>"
    gt.rand(3, generator=generator)
    state, clone = generator.get_state(), generator.clone_state()
    drawn = gt.rand(3, generator=generator).tolist()
    assert gt.rand(3, generator=clone).tolist() == drawn
    generator.set_state(state)
    assert gt.rand(3, generator=generator).tolist() == drawn
    assert generator.seed() == generator.initial_seed() != 2**64 - 1
    other = gt.Generator()
    other.set_state(state)
    assert gt.rand(3, generator=other).tolist() == drawn


def test_the_default_generator(session: Session) -> None:
    assert gt.manual_seed(3) is gt.default_generator
    first = gt.rand(2).tolist()
    gt.default_generator.manual_seed(3)
    assert gt.rand(2, generator=gt.default_generator).tolist() == first


def test_what_is_refused(session: Session) -> None:
    with pytest.raises(gt.DTypeError, match=r"generator is a gt\.Generator, not a torch\._C\.Generator"):
        gt.rand(2, generator=torch.Generator())
    with pytest.raises(gt.DTypeError, match="a seed has at most 64 bits"):
        gt.Generator().manual_seed(2**64)
    with pytest.raises(gt.ShapeError, match="the state has 16 bytes, not 3"):
        gt.Generator().set_state(gt.zeros(3, dtype=gt.uint8))
    with pytest.raises(gt.DTypeError, match="'tpu' is not a device"):
        gt.Generator("tpu")


def test_the_namespace(session: Session) -> None:
    gt.random.manual_seed(4)
    assert gt.random.initial_seed() == 4
    state = gt.random.get_rng_state()
    with gt.random.fork_rng(devices=[0]):
        inside = gt.rand(2).tolist()
    assert gt.rand(2).tolist() == inside
    gt.random.set_rng_state(state)
    with gt.random.fork_rng(enabled=False):
        assert gt.rand(2).tolist() == inside
    assert gt.rand(2).tolist() != inside
    assert gt.random.seed() == gt.random.initial_seed()


def numbers_of(run: Callable[..., Any]) -> list[Any]:
    generator = gt.Generator().manual_seed(7)
    gt.manual_seed(1)
    return [run(gt.full((5,), float(k)), generator).tolist() for k in range(8)]


def step(x: Any, generator: gt.Generator) -> Any:
    return x + gt.rand(5, generator=generator) + 10 * gt.randn(5) + gt.empty(5).normal_(generator=generator)


def test_numbers_vary_in_replay(session: Session) -> None:
    wanted = numbers_of(step)
    assert len({tuple(row) for row in wanted}) == 8
    calls = []
    assert numbers_of(gt.compile(lambda x, generator: calls.append(1) or step(x, generator))) == wanted
    assert len(calls) < 4, "it was not replayed"


def test_a_loop_without_cuts(session: Session) -> None:
    """The outbox finds the period by itself and sends a template."""

    def looped() -> Any:
        generator, total = gt.Generator().manual_seed(7), gt.zeros(5)
        for _ in range(300):
            total = total * 0.5 + gt.rand(5, generator=generator)
        return total.tolist()

    first = looped()
    assert looped() == first
    expected, generator = gt.zeros(5), gt.Generator().manual_seed(7)
    for _ in range(300):
        expected = expected * 0.5 + gt.rand(5, generator=generator)
        expected.tolist()  # a read ends the fragment
    assert expected.tolist() == first


def test_a_new_generator_in_each_call_is_not_compiled(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    step = gt.compile(lambda x: x + gt.rand(3, generator=gt.Generator()))
    drawn = [step(gt.zeros(3)).tolist() for _ in range(9)]
    assert drawn == [drawn[0]] * 9
    assert "it draws from another generator than the last time" in capfd.readouterr().err


def test_a_checkpoint_in_compiled_code_draws_the_same_numbers_again(session: Session) -> None:
    w = gt.ones(1000, requires_grad=True)

    def dropped(x: Any) -> Any:
        return gt.nn.functional.dropout(x * w, 0.5) ** 2

    @gt.compile
    def step(x: Any) -> Any:
        y = gt.checkpoint(dropped, x, use_reentrant=False)
        w.grad = None
        y.sum().backward()
        return y.detach()

    for _ in range(8):
        y = step(gt.ones(1000))
        assert w.grad is not None
        assert ((y > 0) == (w.grad > 0)).all().item(), "the second run dropped other elements"


#: every class and function of `gt.utils.data` that takes a generator -> the numbers it draws
LOADS: dict[str, Draw] = {
    "RandomSampler": lambda g: list(gt.utils.data.RandomSampler(range(50), generator=g)),
    "RandomSampler positional": lambda g: list(gt.utils.data.RandomSampler(range(50), False, None, g)),
    "SubsetRandomSampler": lambda g: list(gt.utils.data.SubsetRandomSampler(range(50), generator=g)),
    "WeightedRandomSampler": lambda g: list(gt.utils.data.WeightedRandomSampler([1.0] * 50, 20, generator=g)),
    "random_split": lambda g: [list(part.indices) for part in gt.utils.data.random_split(range(50), [20, 30], g)],
    "DataLoader": lambda g: [
        batch.tolist() for batch in gt.utils.data.DataLoader(range(50), batch_size=10, shuffle=True, generator=g)
    ],
}


@pytest.mark.parametrize("name", LOADS)
def test_loaders_take_a_generator(session: Session, name: str) -> None:
    load = LOADS[name]
    generator = gt.Generator().manual_seed(3)
    first, second = load(generator), load(generator)
    assert first != second, "the second use of a generator continues"
    assert load(gt.Generator().manual_seed(3)) == first
    assert load(torch.Generator().manual_seed(3)) == load(torch.Generator().manual_seed(3))
    gt.manual_seed(5)
    default = load(None)
    gt.manual_seed(5)
    assert load(None) == default


def test_the_sampler_of_a_loader_is_one_of_gt(session: Session) -> None:
    loader = gt.utils.data.DataLoader(range(4), shuffle=True)
    assert isinstance(loader.sampler, gt.utils.data.RandomSampler)
    assert not isinstance(loader.sampler, gt.utils.data.SubsetRandomSampler)

    class Own(gt.utils.data.RandomSampler):
        pass

    assert isinstance(Own(range(4)), torch.utils.data.RandomSampler)
    assert not isinstance(loader.sampler, Own)
