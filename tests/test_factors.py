"""Gradients of ops built from matrix factorizations, and their gradients, where those of the factors are undefined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import gt
from gt.testing import Cluster
from tests.support.worlds import to_torch


@pytest.fixture(autouse=True)
def _client() -> Iterator[None]:
    with Cluster().client():
        yield


def _matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


LOWER = torch.tril(_matrix(3, 3, 4)) + 3 * torch.eye(3, dtype=torch.float64)
SYMMETRIC = _matrix(3, 3, 1) + _matrix(3, 3, 1).mT


def _sum(factors: Any) -> Any:
    return sum((x**2).sum() for x in factors)


CALLS: dict[str, tuple[list[torch.Tensor], Any]] = {
    "pinv of a wide matrix": ([_matrix(3, 5, 0)], lambda lib, a: lib.linalg.pinv(a)),
    "pinv of a tall one": ([_matrix(5, 3, 0)], lambda lib, a: lib.linalg.pinv(a)),
    "pinv where all singular values are equal": (
        [torch.eye(3, dtype=torch.float64)],
        lambda lib, a: lib.linalg.pinv(a),
    ),
    "pinv of a symmetric one": ([SYMMETRIC], lambda lib, a: lib.linalg.pinv(a, hermitian=True)),
    "cholesky_solve": ([_matrix(3, 2, 2), LOWER], lambda lib, b, low: lib.cholesky_solve(b, low)),
    "cholesky_solve, upper": ([_matrix(3, 2, 2), LOWER.mT], lambda lib, b, up: lib.cholesky_solve(b, up, upper=True)),
    "cholesky_solve of a batch": (
        [torch.stack([_matrix(3, 2, 2), _matrix(3, 2, 3)]), LOWER],
        lambda lib, b, low: lib.cholesky_solve(b, low),
    ),
    "lu": ([_matrix(3, 3, 5)], lambda lib, a: _sum(lib.linalg.lu(a)[1:])),
    "lu of a wide matrix": ([_matrix(3, 5, 5)], lambda lib, a: _sum(lib.linalg.lu(a)[1:])),
    "lu of a tall one": ([_matrix(5, 3, 5)], lambda lib, a: _sum(lib.linalg.lu(a)[1:])),
    "lu_solve": (
        [_matrix(3, 3, 6), _matrix(3, 2, 7)],
        lambda lib, a, b: lib.linalg.lu_solve(*lib.linalg.lu_factor(a), b),
    ),
    "lu_solve from the right, adjoint": (
        [_matrix(3, 3, 6), _matrix(2, 3, 7)],
        lambda lib, a, b: lib.linalg.lu_solve(*lib.linalg.lu_factor(a), b, left=False, adjoint=True),
    ),
    "eigvals": ([_matrix(4, 4, 8)], lambda lib, a: lib.linalg.eigvals(a).abs()),
    "eig, whatever the phase of the vectors": (
        [_matrix(4, 4, 8)],
        lambda lib, a: lib.linalg.eig(a).eigenvectors.abs() + lib.linalg.eig(a).eigenvalues.real,
    ),
    "cholesky_inverse": ([LOWER], lambda lib, low: lib.cholesky_inverse(low)),
    "cholesky_inverse, upper": ([LOWER.mT], lambda lib, up: lib.cholesky_inverse(up, upper=True)),
}


def _gradients(lib: Any, call: Any, arguments: list[Any]) -> list[Any]:
    """Of the sum of the fourth powers, and of the sum of the squares of those."""
    first = lib.autograd.grad((call(lib, *arguments) ** 4).sum(), arguments, create_graph=True)
    second = lib.autograd.grad(sum((g * g).sum() for g in first), arguments)
    return [*first, *second]


@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_torchs(name: str) -> None:
    values, call = CALLS[name]
    theirs = [x.clone().requires_grad_() for x in values]
    ours = [gt.tensor(x.numpy()).requires_grad_() for x in values]
    for got, want in zip(_gradients(gt, call, ours), _gradients(torch, call, theirs), strict=True):
        torch.testing.assert_close(to_torch(got.detach()), want.detach(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("call", ["linalg.matrix_norm", "linalg.vector_norm", "linalg.norm", "norm"])
def test_norms_take_floating_tensors_only(call: str) -> None:
    """A dtype does not make a norm of integers legal, as in torch."""
    for lib, error in ((torch, RuntimeError), (gt, gt.DTypeError)):
        function: Any = lib
        for name in call.split("."):
            function = getattr(function, name)
        with pytest.raises(error):
            function(lib.ones(2, 2, dtype=lib.int64), dtype=lib.float32)


def test_lu_factor_ex_names_the_first_zero_on_the_diagonal() -> None:
    values = torch.stack([torch.eye(3), torch.zeros(3, 3), torch.ones(3, 3)])
    ours = gt.linalg.lu_factor_ex(gt.tensor(values.numpy()))
    assert ours.info.tolist() == torch.linalg.lu_factor_ex(values).info.tolist() == [0, 1, 2]
    assert gt.linalg.lu_factor_ex(gt.ones(2, 0, 0)).info.tolist() == [0, 0]


def test_lu_refuses_what_it_cannot_do() -> None:
    with pytest.raises(gt.ShapeError, match="without an exchange of rows"):
        gt.linalg.lu(gt.ones(2, 2), pivot=False)
    lu, pivots = gt.linalg.lu_factor(gt.ones(2, 2))
    with pytest.raises(gt.DTypeError, match="pivots are int32, not int64"):
        gt.lu_unpack(lu, pivots.long())
    with pytest.raises(gt.ShapeError, match="at most 2 pivots"):
        gt.lu_unpack(lu, gt.ones(3, dtype=gt.int32))
    with pytest.raises(gt.RemoteError, match="a pivot is no row of the matrix"):
        gt.lu_unpack(lu, pivots + 5).P.tolist()
