"""Writing in place, and what views show of it: both ways, through views of views, as in torch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import gt
from gt.testing import Cluster
from tests.support.worlds import agree, refused, same_after, session

__all__ = ["session"]

STATEMENTS = """
x += 1
x -= y
x *= 2.5
x /= y
x //= 2
x %= 3
x **= 2
i += True
i //= 2
i &= 3
i |= 1
i ^= 2
m &= x > 0
x += np.float64(2)
x += i
i *= i
x @= gt.eye(4)
x.add_(y, alpha=2)
x.sub_(1, alpha=3)
x.mul_(v)
x.div_(2)
x.div_(y, rounding_mode='floor')
y.pow_(2)
y.sqrt_()
x.exp_()
x.neg_()
x.abs_()
x.relu_()
x.round_()
x.floor_()
x.ceil_()
x.sign_()
x.square_()
m.logical_not_()
x.clamp_(-1, 1)
x.clamp_(min=y)
x.clip_(max=0)
x.copy_(y)
x.copy_(v)
x.copy_(i)
i.copy_(x)
x.fill_(3)
x.fill_(s)
i.fill_(2.7)
x.zero_()
m.fill_(1)
x.masked_fill_(m, 7)
x.masked_fill_(b[:, None], s)
i.masked_fill_(m, 1.5)
x.scatter_add_(0, gt.tensor([[0, 0, 1, 2]]), y)
x.index_put_((j,), gt.tensor(5.0))
x.index_put_((j, j), w, accumulate=True)
x.tril_()
x.triu_(1)
x.cumsum_(1)
x.eq_(y)
x.lt_(0)
x.remainder_(2)
x.add_(1).mul_(2).sub_(y)
z = x.T; z += 1
z = x.T; x += 1
z = x[0]; z += 1
z = x[0]; x += 1
z = x[1:, ::2]; z.zero_()
z = x.view(-1); z[3] = 100
z = x.view(2, 6); q = z[1]; q *= 2
z = x.view(2, 6); q = z[1]; x *= 2
z = x.t().reshape(-1); z += 1
z = x.reshape(-1); z += 1
z = x.flatten(); z += 1
p, q = x.split(2); p += 1; x[2] = 0
p, q, r = x.unbind(); q.copy_(r)
p, q = x.chunk(2, 1); q.fill_(1); p.copy_(q)
z = v.expand(3, 4); v += 1
z = v.expand(3, 4); q = z + 0; v.zero_()
z = x[j]; z += 1
z = x[m]; z += 1
z = x[0]; q = z[1:3]; r = q[1]; r += 5; x += 1; q -= 1
z = x.unsqueeze(0); z[0, 1] = 9
z = x[:1].squeeze(0); z += 1
z = x.permute(1, 0)[1:]; z[:, 0] = 4; z.mul_(2)
z = x.narrow(1, 1, 2); z += 1; q = x.select(1, 1); q -= 3
z = x.detach(); z += 1
z = x.contiguous(); z += 1
z = x.t().contiguous(); z += 1
z = x[...]; z += 1
z = x[:]; z += 1
z = x.clone(); z += 1
z = x.movedim(0, 1); z.view(-1) if z.is_contiguous() else z.add_(1)
z = x.expand(3, 4); z += 1
z = x.unflatten(1, (2, 2)); z[:, 0] += 1
z = x.view_as(x); z += 1
z = x.float(); z += 1
z = x.double(); z += 1
z = s.view(1); z += 1
x[0] += x[1]
x[0], x[1] = x[1].clone(), x[0].clone()
z = x[0]; x = x + 1; z += 1
z = c[0].t(); q = z[:2].t(); q += 1; z.mul_(2); c[0, 0] = -1
z = e[:, 1]; z += 1
"""


@pytest.mark.parametrize("statements", STATEMENTS.strip().splitlines())
def test_in_place(session, statements):
    same_after(statements)


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_a_tensor_is_overwritten_by_a_part_of_itself(backend):
    """Torch's ``copy_`` refuses some of these, and its ``x[...] = part`` does not."""

    def run(write):
        x = gt.arange(6.0).reshape(2, 3)
        write(x)
        return x.tolist()

    with Cluster(backend=backend).client():
        assert run(lambda x: x.__setitem__(..., x[0])) == [[0, 1, 2]] * 2
        assert run(lambda x: x.__setitem__(slice(None), x[1])) == [[3, 4, 5]] * 2
        assert run(lambda x: x.copy_(x[1])) == [[3, 4, 5]] * 2
        assert run(lambda x: x.t().copy_(x[0, 1])) == [[1, 1, 1]] * 2
        assert run(lambda x: x[:, 1:].copy_(x[:, :2])) == [[0, 0, 1], [3, 3, 4]]
        assert run(lambda x: x[:, 1:].__setitem__(..., x[:, :2])) == [[0, 0, 1], [3, 3, 4]]


def test_in_place_methods_return_the_same_object(session):
    x = gt.ones(3)
    assert x.add_(1) is x
    y = x
    y += 1
    assert y is x
    view = x[:2]
    assert view.mul_(2) is view


REFUSED = [
    (
        "x.add_(c)",
        gt.ShapeError,
        "add(float32[3,4], float32[2,3,4]): in place, the result float32[2,3,4] does not fit into float32[3,4]",
    ),
    ("i.add_(1.5)", gt.DTypeError, "add(int64[3,4], float): in place, float32 does not fit into int64"),
    ("i /= 2", gt.DTypeError, "div(int64[3,4], int, rounding_mode=None): in place, float32 does not fit into int64"),
    ("i.exp_()", gt.DTypeError, "exp(int64[3,4]): in place, float32 does not fit into int64"),
    ("z = x[0]; z += c", gt.ShapeError, None),
    ("z = i[0]; z += 1.5", gt.DTypeError, "add(int64[4], float): in place, float32 does not fit into int64"),
    ("z = v.expand(3, 4); z += 1", gt.ShapeError, None),
    ("x.fill_(v)", gt.DTypeError, "fill_(float32[3,4], float32[4]): the value is a number or a tensor without dims"),
    ("x.copy_(c)", gt.ShapeError, "copy(float32[3,4], float32[2,3,4]): [2,3,4] does not broadcast to [3,4]"),
    ("x += [1]", TypeError, "unsupported operand type(s) for +=: 'Tensor' and 'list'"),
    ("x.add_('a')", gt.DTypeError, "add_(float32[3,4], 'a'): neither a tensor nor a number: str"),
]


@pytest.mark.parametrize(("statement", "error", "text"), REFUSED)
def test_refused(session, statement, error, text):
    if text is not None:
        refused(session, statement, error, text)
        return
    with pytest.raises(error):
        same_after(statement)


def test_writing_into_an_expanded_tensor_sends_nothing(session):
    z = gt.ones(4).expand(3, 4)
    before = list(session.outbox.words)
    with pytest.raises(gt.ShapeError, match="shows elements more than once; write into a clone"):
        z += 1
    assert session.outbox.words == before


def test_random_values_in_place(session):
    gt.manual_seed(1)
    x = gt.empty(1000)
    x.uniform_(-2, 3)
    values = x.numpy()
    assert values.min() >= -2
    assert values.max() < 3
    x.normal_(5, 0.1)
    assert abs(x.mean().item() - 5) < 0.05
    assert set(x.bernoulli_(0.5).tolist()) == {0.0, 1.0}


# -- random programs -----------------------------------------------------------------------


class Program:
    """The same steps on two lists of live tensors, one of GT's and one of torch's.

    A step names tensors by their place. Sources of a write are cloned: torch refuses or garbles operands that overlap.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        shape = tuple(self.rng.choice([1, 2, 3, 4]) for _ in range(self.rng.randint(1, 4)))
        array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        self.ours, self.theirs = [gt.tensor(array)], [torch.tensor(array)]
        self.log: list[str] = [f"x0 = arange{shape}"]

    def both(self, text: str, k: int, step) -> None:
        self.log.append(text)
        results = step(self.ours[k]), step(self.theirs[k])
        for live, new in zip((self.ours, self.theirs), results, strict=True):
            live.extend(new if isinstance(new, list) else [new] if new is not None else [])

    def any(self) -> int:
        return self.rng.randrange(len(self.theirs))

    def step(self) -> None:
        k = self.any()
        kind = self.rng.choice([self.slice, self.reorder, self.reshape, self.part, self.write, self.write, self.write])
        if self.theirs[k].ndim:
            kind(k)

    def slice(self, k: int) -> None:
        parts = [
            self.rng.choice(
                [slice(None), slice(None, None, 2), slice(1, None), self.rng.randrange(n) if n else slice(None)]
            )
            for n in self.theirs[k].shape
        ]
        index = (*parts, None) if self.rng.random() < 0.3 else tuple(parts)
        self.both(f"x{k}[{index}]", k, lambda x: x[index])

    def reorder(self, k: int) -> None:
        dims = list(range(self.theirs[k].ndim))
        self.rng.shuffle(dims)
        self.both(f"x{k}.permute({dims})", k, lambda x: x.permute(dims))

    def reshape(self, k: int) -> None:
        n = self.theirs[k].numel()
        divisors = [d for d in range(1, n + 1) if n % d == 0]
        if divisors:
            d = self.rng.choice(divisors)
            assert self.ours[k].is_contiguous() == self.theirs[k].is_contiguous(), self.log
            self.both(f"x{k}.reshape({d}, -1)", k, lambda x: x.reshape(d, -1))

    def part(self, k: int) -> None:
        dim = self.rng.randrange(self.theirs[k].ndim)
        name = self.rng.choice(["unsqueeze", "squeeze", "split", "flatten", "unbind", "transpose"])
        arguments = {"split": (2, dim), "flatten": (), "transpose": (0, dim)}.get(name, (dim,))

        def step(x):
            result = getattr(x, name)(*arguments)
            return list(result)[:2] if isinstance(result, tuple) else result

        self.both(f"x{k}.{name}{arguments}", k, step)

    def write(self, k: int) -> None:
        rng, shape = self.rng, self.theirs[k].shape
        value = float(rng.randint(-9, 9))
        source = next((j for j in rng.sample(range(len(self.theirs)), len(self.theirs)) if self.fits(j, shape)), None)
        if source is not None and rng.random() < 0.5:
            clones = iter((self.ours[source].clone(), self.theirs[source].clone()))
            name = rng.choice(["copy_", "add_", "sub_"])
            self.both(f"x{k}.{name}(x{source})", k, lambda x: nothing(getattr(x, name)(next(clones))))
            return
        index = tuple(rng.choice([slice(None), slice(0, 1), rng.randrange(n) if n else slice(None)]) for n in shape)
        steps = {
            "add": lambda x: nothing(x.add_(value)),
            "mul": lambda x: nothing(x.mul_(0.5)),
            "fill": lambda x: nothing(x.fill_(value)),
            "set": lambda x: x.__setitem__(index, value),
            "mask": lambda x: x.__setitem__(x > 3, value),
            "pick": lambda x: x.__setitem__([0] if x.shape[0] else [], value),
        }
        name = rng.choice(list(steps))
        self.both(f"x{k}.{name}({index}, {value})", k, steps[name])

    def fits(self, j: int, shape: torch.Size) -> bool:
        try:
            return torch.broadcast_shapes(self.theirs[j].shape, shape) == shape
        except RuntimeError:
            return False

    def check(self) -> None:
        for k, (ours, theirs) in enumerate(zip(self.ours, self.theirs, strict=True)):
            try:
                agree(ours, theirs)
            except AssertionError as error:
                raise AssertionError(f"x{k} after\n" + "\n".join(self.log)) from error


def nothing(x) -> None:
    return None


@pytest.mark.parametrize("seed", range(150))
def test_random_programs(session, seed):
    program = Program(seed)
    for _ in range(25):
        program.step()
    program.check()
