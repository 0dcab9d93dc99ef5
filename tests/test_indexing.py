"""Every ``x[…]`` and ``x[…] = v`` of torch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import gt
from tests.support.worlds import agree, refused, same, same_after, session

__all__ = ["session"]

READS = """
x[0]
x[-1]
x[1, 2]
x[1][2]
x[:]
x[...]
x[()]
x[1:]
x[:2]
x[::2]
x[1:10]
x[5:]
x[2:1]
x[-2:]
x[:, 1]
x[:, 1:3]
x[:, ::3]
x[..., 0]
x[0, ...]
x[..., ...]
x[None]
x[:, None]
x[..., None]
x[None, 0, None, 1:]
x[np.int64(1)]
x[np.int64(0):np.int64(2)]
x[True]
x[False]
x[:, True]
x[0, True, None]
x[gt.tensor(True)]
x[gt.tensor(False)]
s[None]
s[...]
s[()]
s[True]
s[None, None]
c[1, :, 2]
c[:, 1, ::2]
c[..., 1]
c[1, ..., None, 2]
e[:, 1]
e[0:0]
x[j]
x[[0, 2]]
x[[2, 0, -1]]
x[(0, 1),]
x[range(2)]
x[np.array([0, 1])]
x[np.array([[0, 1], [2, 2]])]
x[gt.tensor([[0, 1], [2, 0]])]
x[[]]
x[:, [0, 0, 1]]
x[..., j]
x[[0, 1], [1, 2]]
x[j, j]
x[j, 1]
x[1, j]
x[j[:, None], j]
x[j, None]
x[None, j]
x[j, :2]
x[1:, j]
x[::2, [0, 3]]
c[:, j[:2], j[:2]]
c[[0, 1], :, [1, 2]]
c[[0, 1], 1, [2, 3]]
c[0, :, [1, 2]]
c[[1], [2]]
c[:, None, [0, 1]]
c[[0, 1], None, [1, 2]]
c[[0, 1], ..., [1, 2]]
x[gt.tensor(1)]
x[:, gt.tensor(1)]
x[gt.tensor(1), gt.tensor(2)]
c[gt.tensor(1), :, [1, 2]]
c[[0, 1], :, gt.tensor(2)]
c[gt.tensor(1), 2]
x[gt.tensor(1, dtype=gt.int32)]
x[j.int()]
x[b]
x[m]
x[x > 0]
x[x > 100]
x[[True, False, True]]
x[np.array([True, False, True])]
x[:, [True, False, True, True]]
x[b, 1]
x[b, [0, 1]]
x[b, :2]
x[1:, x[0] > -4]
c[:, m]
c[c > 5]
c[:, b]
c[:, b, 0]
c[0, b]
c[..., x[0] > -4]
x[b, None]
e[gt.zeros(0).bool()]
x.t()[j]
x.t()[1:, b]
"""


@pytest.mark.parametrize("expression", READS.strip().splitlines())
def test_read(session, expression):
    same(expression)


def test_numpy_arrays_and_bools(session):
    """torch takes neither; GT does."""
    x = gt.zeros(2, 3)
    x[0] = np.ones(3)
    assert x[np.bool_(True)].tolist() == [[[1, 1, 1], [0, 0, 0]]]


def test_bytes_are_masks(session):
    agree(gt.arange(3)[gt.tensor([1, 0, 1], dtype=gt.uint8)], torch.tensor([0, 2]))


WRITES = """
x[0] = 5
x[0] = True
x[0] = s
x[0] = v
x[:] = 0
x[...] = y
x[()] = 1
x[1, 2] = 7
x[-1, -1] = s
x[:, 1] = w
x[:, 1:3] = 2.5
x[::2] = y[::2]
x[::2, ::3] = 9
x[0] = np.float64(3)
x[0] = gt.ones(1, 1, 4)
x[:] = gt.ones(1, 3, 4)
x[0, 0] = gt.tensor([3.0])
x[1:] = v
x[0] = i[1]
i[0] = 2.7
i[0] = x[0]
m[0] = x[0]
s[...] = 4
s[()] = 4
x[None, 0] = v
x[True] = 9
x[False] = 8
x[j] = 1
x[j] = y
x[[0, 2]] = v
x[[0, 2]] = y[:2]
x[:, [0, 1]] = 3
x[:, j] = w[:, None]
x[[0, 1], [1, 2]] = 4
x[[0, 1], [1, 2]] = w[:2]
x[j, 1] = w
x[1, [0, 2]] = w[:2]
x[1:, [0, 3]] = 6
x[j[:, None], j] = 0
x[gt.tensor(1)] = 7
x[gt.tensor(1), gt.tensor(2)] = 7
x[b] = 2
x[b] = v
x[b] = y[:2]
x[m] = 0
x[m] = v
x[m] = s
x[x > 0] = -1
x[[True, False, True]] = 0
x[b, 0] = w[:2]
x[b, gt.tensor(1)] = 4
x[:, [True, False, True, True]] = 1
x[1:, x[0] > -4] = 1
c[:, m] = 5
c[:, b] = 5
c[0, b] = 5
c[0, :, [1, 2]] = 5
c[[0, 1], :, [1, 2]] = 5
c[gt.tensor(1), :, [1, 2]] = gt.arange(6.).reshape(3, 2)
c[[0, 1], :, gt.tensor(2)] = 5
x[e[:, 0].long()] = 1
x[0] += 1
x[:, 1] *= 2
x[m] += 1
x[j] -= 1
x[0][1:3] = 8
x.t()[0] = 3
x.t()[j] = 3
x.view(-1)[5:7] = 3
x.view(2, 6)[1, gt.tensor([0, 3])] = -1
c[1][x > 0] = 0
c.permute(2, 0, 1)[1, :, 1:] = 0
x[1:][b[1:]] = 5
"""


@pytest.mark.parametrize("statement", WRITES.strip().splitlines())
def test_write(session, statement):
    same_after(statement)


REFUSED = [
    ("x[3]", gt.DimError, "float32[3,4][3]: index 3 is out of bounds for dim 0 of size 3"),
    ("x[-4]", gt.DimError, "float32[3,4][-4]: index -4 is out of bounds for dim 0 of size 3"),
    ("x[0, 5]", gt.DimError, "float32[3,4][0, 5]: index 5 is out of bounds for dim 1 of size 4"),
    ("x[[0], 5]", gt.DimError, "float32[3,4][[0], 5]: index 5 is out of bounds for dim 1 of size 4"),
    ("x[[0, 5]]", gt.DimError, "float32[3,4][[0, 5]]: index 5 is out of bounds for dim 0 of size 3"),
    ("x[:, np.array([0, -5])]", gt.DimError, None),
    ("x[0, 0, 0]", gt.DimError, "float32[3,4][0, 0, 0]: 3 indices for 2 dims"),
    ("x[..., 0, 0, 0]", gt.DimError, "float32[3,4][..., 0, 0, 0]: 3 indices for 2 dims"),
    ("s[0]", gt.DimError, "float32[][0]: 1 indices for 0 dims; use item() for its number"),
    ("x[::-1]", gt.ShapeError, "float32[3,4][::-1]: step -1 must be at least 1; flip the dim to go backwards"),
    ("x[1:2:0]", gt.ShapeError, "float32[3,4][1:2:0]: step 0 must be at least 1; flip the dim to go backwards"),
    (
        "x[1.5]",
        gt.DimError,
        "float32[3,4][1.5]: an index is an int, a slice, None, ..., a tensor or a list, not float",
    ),
    ("x['a']", gt.DimError, "float32[3,4]['a']: an index is an int, a slice, None, ..., a tensor or a list, not str"),
    (
        "x[[[0, 1], [1, 2]]]",
        gt.DimError,
        "float32[3,4][[[0, 1], [1, 2]]]: a list in lists may mean a tuple or a tensor; write x[tuple(…)] or "
        "x[gt.tensor(…)]",
    ),
    ("x[m[0]]", gt.DimError, None),
    ("x[b, b]", gt.DimError, "float32[3,4][bool[3], bool[3]]: a mask of shape [3] does not cover [3, 4] from dim 1 on"),
    ("x[v]", gt.DTypeError, None),
    ("x[[1.5]]", gt.DTypeError, "float32[3,4][[1.5]]: an index holds integers or bools, not float64"),
    ("x[5] = 1", gt.DimError, "float32[3,4][5]: index 5 is out of bounds for dim 0 of size 3"),
    ("x[0] = [1, 2, 3, 4]", gt.DTypeError, "float32[3,4][…] = …: cannot assign a list; make a tensor of it"),
    ("x[0] = None", gt.DTypeError, "float32[3,4][…] = …: cannot assign a NoneType; make a tensor of it"),
    ("x[0] = 1j", gt.DTypeError, None),
    ("x[0] = 2**70", gt.DTypeError, None),
    ("x[0] = w", gt.ShapeError, None),
    ("x[[0, 1]] = y", gt.ShapeError, None),
    ("x[j] = d[0]", gt.ShapeError, None),
    ("x[b] = i[:2]", gt.DTypeError, None),
]


@pytest.mark.parametrize(("statement", "error", "text"), REFUSED)
def test_refused(session, statement, error, text):
    if text is not None:
        refused(session, statement, error, text)
        return
    with pytest.raises(error):
        same_after(statement)


def test_an_index_tensor_out_of_range_fails_at_the_read(session):
    """The values are on a worker, and the client does not wait for them."""
    picked = gt.arange(3)[gt.tensor([0, 5])]
    with pytest.raises(gt.RemoteError, match=r"index\(int64\[3\], int64\[2\], dims=\(0,\)\) failed"):
        picked.numpy()


def test_writing_with_a_mask_does_not_wait(session, monkeypatch):
    reads = []
    x, mask = gt.arange(6.0), gt.arange(6) % 2 == 0
    monkeypatch.setattr(session, "read", lambda *arguments: reads.append(arguments))
    x[mask] = 0
    x[gt.tensor(1)] = 5
    assert reads == []


def test_rows_of_a_loop_share_a_signature(session):
    x = gt.ones(50, 2)
    _ = x[0]
    x[0] = 1
    count = len(session.signatures.plain)
    for n in range(50):
        _ = x[n]
        x[n] = 2
    assert len(session.signatures.plain) == count


# -- at random -----------------------------------------------------------------------------


def _part(rng: random.Random, size: int):
    low, high = sorted((rng.randint(-size - 1, size + 1), rng.randint(-size - 1, size + 1)))
    picks = [rng.randint(-size, size - 1) for _ in range(2)]
    return rng.choice(
        [rng.randint(-size, size - 1), slice(low, high, rng.choice([None, 1, 2, 3])), slice(None), picks, "mask"]
    )


def _expression(rng: random.Random, shape: tuple[int, ...]):
    parts = []
    for size in shape[: rng.randint(0, len(shape))]:
        if rng.random() < 0.2:
            parts.append(None)
        part = _part(rng, size)
        parts.append([rng.random() < 0.5 for _ in range(size)] if part == "mask" else part)
    if rng.random() < 0.3:
        parts.append(...)
    return tuple(parts)


@pytest.mark.parametrize("seed", range(60))
def test_random_expressions(session, seed):
    rng = random.Random(seed)
    shape = tuple(rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(1, 4)))
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    ours, theirs = gt.tensor(array), torch.tensor(array)
    for _ in range(4):
        index = _expression(rng, shape)
        try:
            expected = theirs[index]
        except IndexError:  # positions that do not broadcast
            with pytest.raises((IndexError, gt.ShapeError)):
                ours[index]
            continue
        agree(ours[index], expected)
        ours[index] = 100
        theirs[index] = 100
        agree(ours, theirs)
