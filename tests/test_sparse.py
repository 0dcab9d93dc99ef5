"""Sparse matrices against torch's: values, gradients, forms, both engines, two workers, and what is refused."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.testing import Cluster

#: positions named twice, empty rows and columns
ROWS, COLUMNS, SHAPE = [3, 0, 3, 1, 3, 0], [1, 2, 1, 0, 4, 2], (6, 5)
VALUES = np.random.default_rng(0).standard_normal(6)
LEFT = np.random.default_rng(1).standard_normal((4, 6))
RIGHT = np.random.default_rng(2).standard_normal((5, 3))
SIGNALS = """
rows:    {shard: {axis: 0, workers: [0, 1]}}
columns: {shard: {axis: 1, workers: [0, 1]}}
"""


@pytest.fixture(params=["torch", "numpy"])
def engine(request: Any) -> Iterator[Any]:
    with Cluster(backend=request.param).client() as session:
        yield session


@pytest.fixture
def session() -> Iterator[Any]:
    with Cluster().client() as session:
        yield session


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")  # torch's own notes about its sparse tensors
        yield


def coo(m: Any, values: Any = None, **options: Any) -> Any:
    values = m.tensor(VALUES) if values is None else values
    return m.sparse_coo_tensor(m.tensor([ROWS, COLUMNS]), values, SHAPE, **options)


def csr(m: Any) -> Any:
    return m.sparse_csr_tensor(m.tensor([0, 1, 1, 3, 3]), m.tensor([2, 0, 1]), m.tensor(VALUES[:3]), (4, 5))


def dense(x: Any) -> Any:
    return x.to_dense() if not isinstance(x, torch.Tensor) or x.layout is not torch.strided else x


def assert_same(ours: Any, theirs: Any) -> None:
    ours, theirs = dense(ours), dense(theirs)
    torch.testing.assert_close(torch.tensor(ours.numpy()), theirs, rtol=1e-12, atol=1e-12)


#: the same program in torch (m) and in GT; each result is compared as a dense tensor
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "matrix": lambda m: coo(m) @ m.tensor(RIGHT),
    "vector": lambda m: coo(m) @ m.tensor(RIGHT[:, 0]),
    "left": lambda m: m.tensor(LEFT) @ coo(m),
    "mm": lambda m: m.mm(coo(m), m.tensor(RIGHT)),
    "mm left": lambda m: m.mm(m.tensor(LEFT), coo(m)),
    "mv": lambda m: m.mv(coo(m), m.tensor(RIGHT[:, 0])),
    "matmul": lambda m: m.matmul(coo(m), m.tensor(RIGHT)),
    "spmm": lambda m: m.spmm(coo(m), m.tensor(RIGHT)),
    "sparse.mm": lambda m: m.sparse.mm(coo(m), m.tensor(RIGHT)),
    "sparse.mm dense": lambda m: m.sparse.mm(m.tensor(LEFT[:3, :5]), m.tensor(RIGHT)),
    "method": lambda m: coo(m).mm(m.tensor(RIGHT)),
    "addmm": lambda m: m.sparse.addmm(m.ones(6, 3, dtype=m.float64), coo(m), m.tensor(RIGHT), beta=2.0, alpha=0.5),
    "transposed": lambda m: coo(m).t() @ m.tensor(LEFT).T,
    "transpose": lambda m: coo(m).transpose(0, -1),
    "csr": lambda m: csr(m) @ m.tensor(RIGHT),
    "csr left": lambda m: m.tensor(LEFT[:, :4]) @ csr(m),
    "csr dense": csr,
    "to csr": lambda m: coo(m).to_sparse_csr() @ m.tensor(RIGHT),
    "crow": lambda m: coo(m).to_sparse_csr().crow_indices(),
    "col": lambda m: coo(m).to_sparse_csr().col_indices(),
    "csr values": lambda m: coo(m).to_sparse_csr().values(),
    "csr of a dense matrix": lambda m: m.tensor(RIGHT).to_sparse_csr().crow_indices(),
    "csr to coo": lambda m: csr(m).to_sparse().indices(),
    "indices": lambda m: coo(m).coalesce().indices(),
    "values": lambda m: coo(m).coalesce().values(),
    "raw indices": lambda m: coo(m)._indices(),
    "raw values": lambda m: coo(m)._values(),
    "dense": coo,
    "to_sparse": lambda m: (m.tensor(RIGHT) * (m.tensor(RIGHT) > 0)).to_sparse().indices(),
    "to_sparse values": lambda m: (m.tensor(RIGHT) * (m.tensor(RIGHT) > 0)).to_sparse().values(),
    "add": lambda m: coo(m) + coo(m).coalesce() * 2,
    "subtract": lambda m: coo(m) - coo(m).coalesce() / 2,
    "dense add": lambda m: m.ones(*SHAPE) + coo(m),
    "dense subtract": lambda m: m.ones(*SHAPE, dtype=m.float64) - coo(m),
    "integers added": lambda m: m.eye(6) + m.sparse_coo_tensor([[0, 5], [1, 1]], m.ones(2), (6, 6), dtype=m.int64),
    "scale": lambda m: -(2 * coo(m).coalesce()) * m.tensor(3.0),
    "times dense": lambda m: coo(m).coalesce() * m.tensor(LEFT.T[:, :1]).expand(*SHAPE),
    "sum": lambda m: m.sparse.sum(coo(m)),
    "sum rows": lambda m: m.sparse.sum(coo(m), 1),
    "sum columns": lambda m: m.sum(coo(m), dim=0),
    "sum both": lambda m: m.sparse.sum(coo(m), (0, 1)),
    "sum cast": lambda m: m.sparse.sum(coo(m).float(), -1, dtype=m.float64),
    "sum of integers": lambda m: m.sum(coo(m, m.arange(6, dtype=m.int32)).coalesce(), dim=1).to_dense().long(),
    "cast": lambda m: coo(m).float().to(m.float64).to("cpu").detach().clone(),
    "size from lists": lambda m: m.sparse_coo_tensor([[0, 2], [3, 1]], [1.5, 2.5]),
    "size of csr": lambda m: m.sparse_csr_tensor([0, 1, 1, 2], [0, 1], [1.0, 2.0]),
    "zeros": lambda m: m.sparse_coo_tensor((3, 4), dtype=m.float64) @ m.ones(4, 2, dtype=m.float64),
    "no values": lambda m: m.sparse_coo_tensor(m.zeros(2, 0).long(), m.zeros(0), (2, 3)).coalesce() @ m.ones(3, 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_torchs(engine: Any, name: str) -> None:
    assert_same(PROGRAMS[name](gt), PROGRAMS[name](torch))


#: a loss of the values, the left and the right matrix
LOSSES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "right": lambda m, v, a, b: (coo(m, v) @ b).square().sum(),
    "left": lambda m, v, a, b: (a @ coo(m, v)).square().sum(),
    "vector": lambda m, v, a, b: (coo(m, v) @ b[:, 0]).square().sum(),
    "transposed": lambda m, v, a, b: (coo(m, v).t() @ a.T).square().sum(),
    "coalesced": lambda m, v, a, b: (coo(m, v).coalesce() @ b).square().sum(),
    "dense": lambda m, v, a, b: (coo(m, v).to_dense() @ b).square().sum(),
    "sum": lambda m, v, a, b: dense(m.sparse.sum(coo(m, v), 1)).square().sum(),
    "from dense": lambda m, v, a, b: (m.tanh(a).to_sparse() @ (coo(m, v) @ b)).square().sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_torchs(engine: Any, name: str) -> None:
    def run(m: Any) -> list[Any]:
        leaves = [m.tensor(x, requires_grad=True) for x in (VALUES, LEFT, RIGHT)]
        LOSSES[name](m, *leaves).backward()
        return [x.grad for x in leaves]

    for ours, theirs in zip(run(gt), run(torch), strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            assert_same(ours, theirs)


def test_a_matrix_may_require_a_gradient(session: Any) -> None:
    def run(m: Any) -> Any:
        matrix = coo(m, requires_grad=True)
        assert matrix.requires_grad
        assert matrix.grad is None
        (matrix @ m.tensor(RIGHT)).square().sum().backward()
        return matrix.grad

    ours, theirs = run(gt), run(torch)  # torch's is a dense matrix
    assert_same(ours._values(), theirs[ROWS, COLUMNS])


@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.parametrize("signal", ["rows", "columns"])
def test_two_workers(tmp_path: Any, backend: str, signal: str) -> None:
    (tmp_path / "signals.yaml").write_text(SIGNALS)
    gt.load_config(str(tmp_path / "signals.yaml"))
    features = np.random.default_rng(3).standard_normal((5, 4))

    def run(m: Any, x: Any) -> list[Any]:
        values = m.tensor(VALUES, requires_grad=True)
        product = coo(m, values) @ x
        product.square().sum().backward()
        return [product.detach(), values.grad, x.grad]

    try:
        with Cluster(workers=2, backend=backend).client():
            with gt.signal.context(signal):
                x = gt.tensor(features, requires_grad=True)
            got = run(gt, x)
            for ours, theirs in zip(got, run(torch, torch.tensor(features, requires_grad=True)), strict=True):
                assert_same(ours, theirs)
            if signal == "columns":
                assert str(got[0].layout).startswith("S(1)")
    finally:
        gt.load_config(None)


def test_split_values_give_terms(tmp_path: Any) -> None:
    (tmp_path / "signals.yaml").write_text(SIGNALS)
    gt.load_config(str(tmp_path / "signals.yaml"))
    try:
        with Cluster(workers=2).client():
            with gt.signal.context("rows"):
                rows, columns, values = gt.tensor(ROWS), gt.tensor(COLUMNS), gt.tensor(VALUES)
            matrix = gt.sparse_coo_tensor(gt.stack([rows, columns]), values, SHAPE)
            assert_same(matrix @ gt.tensor(RIGHT), coo(torch) @ torch.tensor(RIGHT))
    finally:
        gt.load_config(None)


def test_products_wait_for_nothing(session: Any, monkeypatch: Any) -> None:
    matrix, right = coo(gt), gt.tensor(RIGHT, requires_grad=True)

    def refuse(*_: Any) -> None:
        raise AssertionError("a read")

    for name in ("item", "tolist", "numpy", "__bool__", "__int__"):
        monkeypatch.setattr(gt.Tensor, name, refuse)
    loss = ((matrix.t() @ (matrix @ right)) + matrix.sum(0).unsqueeze(1)).square().sum()
    loss.backward()
    csr(gt).to_sparse().to_dense()
    monkeypatch.undo()
    assert right.grad is not None
    assert right.grad.isfinite().all()


def test_repeated_steps_and_compiled_functions(session: Any) -> None:
    def train(m: Any, wrap: Any) -> list[float]:
        matrix, weight = coo(m), m.tensor(RIGHT, requires_grad=True)
        step = wrap(lambda w: (matrix @ w).square().sum())
        losses = []
        for _ in range(6):
            loss = step(weight)
            (slope,) = m.autograd.grad(loss, [weight])
            weight = (weight.detach() - 0.1 * slope).requires_grad_()
            losses.append(loss.item())
        return losses

    want = train(torch, lambda f: f)
    assert train(gt, lambda f: f) == pytest.approx(want)
    assert train(gt, gt.compile) == pytest.approx(want)


def test_autocast(session: Any) -> None:
    with gt.autocast("cuda", dtype=gt.bfloat16):
        result = coo(gt).float() @ gt.tensor(RIGHT).float()
    assert result.dtype is gt.bfloat16


def test_facts(session: Any) -> None:
    for m in (torch, gt):
        x = coo(m)
        assert (x.is_sparse, x.is_sparse_csr, csr(m).is_sparse, csr(m).is_sparse_csr) == (True, False, False, True)
        assert (x.dim(), x.ndim, x.sparse_dim(), x.dense_dim(), len(x), x.numel(), x._nnz()) == (2, 2, 2, 0, 6, 30, 6)
        assert tuple(x.shape) == tuple(x.size()) == SHAPE
        assert x.size(1) == 5
        assert tuple(x.T.shape) == (5, 6)
        assert x.dtype == m.float64
        assert x.double().dtype == m.float64
        assert not x.is_cuda
        assert not x.requires_grad
        assert (x.is_coalesced(), x.coalesce().is_coalesced(), x.coalesce().t().is_coalesced()) == (False, True, False)
        assert csr(m).to_sparse().is_coalesced()
        assert m.eye(3).to_sparse().is_coalesced()
        assert not m.eye(3).is_sparse
        assert not m.eye(3).is_sparse_csr
        assert m.eye(3).to_dense().dim() == 2
        assert x.transpose(1, 1).size() == x.size()
        assert x.to_sparse().is_sparse
        assert m.eye(2).to_dense(dtype=m.float64).dtype == m.float64
    matrix = coo(gt).coalesce()
    assert matrix.coalesce() is matrix
    assert csr(gt).to_sparse_csr()._nnz() == 3
    assert_same(copy.deepcopy(matrix), coo(torch))


def test_printing(session: Any) -> None:
    matrix = gt.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2))
    assert repr(matrix) == (
        "tensor(indices=tensor([[0, 1],\n"
        "                       [1, 0]]),\n"
        "       values=tensor([1., 2.]),\n"
        "       size=(2, 2), nnz=2, layout=sparse_coo)"
    )
    assert repr(matrix.to_sparse_csr()) == (
        "tensor(crow_indices=tensor([0, 1, 2]),\n"
        "       col_indices=tensor([1, 0]),\n"
        "       values=tensor([1., 2.]),\n"
        "       size=(2, 2), nnz=2, layout=sparse_csr)"
    )


#: (call, error, part of its text)
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: coo(gt) @ coo(gt).t(), gt.DTypeError, "sparse float64[6,5] @ sparse float64[5,6]: one of them must be"),
    (lambda: coo(gt) * coo(gt), gt.DTypeError, "one of them must be dense; use x * y.to_dense()"),
    (lambda: coo(gt) @ gt.ones(4, 2), gt.ShapeError, "sparse float64[6,5] @ float32[4,2]: needs 5 rows"),
    (lambda: gt.ones(4, 2) @ coo(gt), gt.ShapeError, "float32[4,2] @ sparse float64[6,5]: needs 6 columns"),
    (lambda: coo(gt) @ gt.ones(5, 2), gt.DTypeError, "values and the dense matrix have one dtype"),
    (
        lambda: gt.mm(coo(gt), gt.ones(5)),
        gt.ShapeError,
        "mm(sparse float64[6,5], float32[5]): needs tensors of 2 and 2",
    ),
    (lambda: gt.mm(gt.ones(2, 2), "x"), gt.DTypeError, "mm: a tensor is needed here, not str"),
    (lambda: gt.matmul("x", gt.ones(2)), gt.DTypeError, "matmul: a tensor is needed here, not str"),
    (lambda: coo(gt) + gt.ones(6, 5), gt.DTypeError, "write dense + sparse"),
    (lambda: coo(gt) - gt.ones(6, 5), gt.DTypeError, "write dense - sparse"),
    (lambda: coo(gt) + coo(gt).t(), gt.ShapeError, "sizes differ"),
    (lambda: gt.ones(5) + coo(gt), gt.ShapeError, "sizes differ"),
    (lambda: coo(gt) * gt.ones(5), gt.ShapeError, "sizes differ"),
    (lambda: coo(gt) / gt.ones(6, 5), gt.DTypeError, "a sparse matrix is divided by a number"),
    (lambda: coo(gt).indices(), gt.ShapeError, "call x.coalesce() first"),
    (lambda: coo(gt).values(), gt.ShapeError, "call x.coalesce() first"),
    (lambda: coo(gt).crow_indices(), gt.ShapeError, "needs the CSR form; use x.to_sparse_csr()"),
    (lambda: coo(gt).col_indices(), gt.ShapeError, "needs the CSR form"),
    (lambda: csr(gt).indices(), gt.ShapeError, "needs the COO form; use x.to_sparse()"),
    (lambda: csr(gt).is_coalesced(), gt.ShapeError, "needs the COO form"),
    (lambda: coo(gt)[0], gt.DTypeError, "use x.to_dense()[…]"),
    (lambda: coo(gt).relu(), AttributeError, "a sparse matrix has no relu; x.to_dense() is a tensor"),
    (lambda: coo(gt)._base, AttributeError, "a sparse matrix has no _base"),
    (lambda: coo(gt).sum(2), gt.ShapeError, "there are 2 dims"),
    (lambda: gt.sum(coo(gt), 1, keepdim=True), gt.DTypeError, "not SparseTensor; x.to_dense() is one"),
    (lambda: gt.relu(coo(gt)), gt.DTypeError, "relu: a tensor is needed here, not SparseTensor; x.to_dense() is one"),
    (lambda: gt.transpose(coo(gt), 0, 1), gt.DTypeError, "x.to_dense() is one"),
    (
        lambda: gt.addmm(gt.ones(2), coo(gt), gt.ones(2)),
        gt.DTypeError,
        "addmm(float32[2], sparse float64[6,5], float32",
    ),
    (lambda: gt.sparse.sum(gt.ones(2)), gt.DTypeError, "takes a sparse matrix, not a Tensor; use gt.sum"),
    (lambda: gt.sparse.softmax(coo(gt), 1), AttributeError, "GT has sparse matrices in the COO and CSR forms"),
    (lambda: gt.ones(2).indices(), AttributeError, "docs/sparse.md"),
    (lambda: gt.ones(3).to_sparse(), gt.ShapeError, "GT has sparse matrices, of two dims"),
    (lambda: gt.ones(3, 3).to_sparse(1), gt.ShapeError, "GT has sparse matrices, of two dims"),
    (lambda: gt.sparse_coo_tensor([[0], [1]], [1.0], (2, 2, 2)), gt.ShapeError, "with two sizes"),
    (lambda: gt.sparse_coo_tensor([[0], [1]], [1.0, 2.0], (2, 2)), gt.ShapeError, "a value for each column"),
    (lambda: gt.sparse_coo_tensor([[0]], [1.0], (2, 2)), gt.ShapeError, "needs indices of two rows"),
    (lambda: gt.sparse_coo_tensor([[0], [1]], [1.0], (2, 2), device="nowhere"), gt.DTypeError, "is not a device"),
    (lambda: gt.sparse_csr_tensor([[0]], [0], [1.0]), gt.ShapeError, "needs vectors"),
    (lambda: gt.sparse_csr_tensor([0, 1], [0], [1.0], (2, 2)), gt.ShapeError, "has 2 elements for 2 rows"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_refused(session: Any, case: int) -> None:
    call, error, text = REFUSED[case]
    with pytest.raises(error) as info:
        call()
    assert text in str(info.value)


def test_a_position_outside_the_matrix_is_an_error_at_the_read(engine: Any) -> None:
    for at in ([[0, 2], [0, 0]], [[0, 0], [0, -1]]):
        product = gt.sparse_coo_tensor(at, [1.0, 2.0], (2, 2)) @ gt.ones(2, 2)
        with pytest.raises(gt.RemoteError, match="a position is out of range"):
            product.tolist()
