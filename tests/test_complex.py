"""Complex numbers and Fourier transforms end to end: from Python numbers to values, gradients and several workers.

Torch is the oracle. The op tests (`tests.support.samples_complex`) and torch's own samples (`tests.test_opinfo`) try
every function; here are the paths around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gt
import gt.fft
from gt.testing import Cluster

RNG = np.random.default_rng(0)
VALUES = (RNG.standard_normal((4, 6)) + 1j * RNG.standard_normal((4, 6))).astype(np.complex64)


@pytest.fixture(scope="module", params=["torch", "numpy"], autouse=True)
def _client(request: pytest.FixtureRequest) -> Iterator[None]:
    with Cluster(backend=request.param).client():
        yield


def same(got: Any, want: torch.Tensor, **tolerance: float) -> None:
    result = torch.from_numpy(np.array(got.detach().numpy()))
    torch.testing.assert_close(result, want.detach().resolve_conj().resolve_neg(), **tolerance)


# -- values --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_the_real_part_of_a_cast_is_a_copy() -> None:
    for cast in (lambda x: x.float(), lambda x: x.to(gt.float32), lambda x: x.double()):
        x = gt.tensor([1.5 + 1j, 2.5])
        y = cast(x)
        y.floor_()
        assert y.tolist() == [1, 2]
        assert x.tolist() == [1.5 + 1j, 2.5]


def test_values_travel() -> None:
    for dtype in (np.complex64, np.complex128):
        x = gt.tensor(VALUES.astype(dtype))
        assert str(x.dtype) == f"gt.{np.dtype(dtype).name}"
        assert x.is_complex()
        assert gt.is_complex(x)
        assert x.dtype.is_complex
        assert not x.is_floating_point()
        assert x.numpy().tobytes() == VALUES.astype(dtype).tobytes()
    assert gt.tensor([1 + 2j, 3]).tolist() == [1 + 2j, 3]
    assert gt.tensor(1 - 2j).item() == complex(gt.tensor(1 - 2j)) == 1 - 2j
    assert gt.tensor([1.5, 2j]).dtype is gt.complex64 is gt.cfloat
    assert gt.tensor([1.5], dtype=complex).dtype is gt.complex128 is gt.cdouble
    assert gt.tensor(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]
    assert gt.zeros(2, dtype=gt.complex64).tolist() == [0, 0]
    assert gt.full((2,), 1 + 2j).tolist() == [1 + 2j] * 2
    assert gt.full_like(gt.ones(2), 2j, dtype=gt.complex128).tolist() == [2j, 2j]


@pytest.mark.parametrize(
    "values",
    [
        1 + 2j,
        [],
        [1 + 2j, 3 - 1j],
        [[1.5 + 2j, 3 - 1000.25j]],
        [1e-7j, 1e9],
        [complex("nan"), complex("inf")],
        [-0.0 + 1j],
    ],
    ids=str,
)
def test_prints_as_torch_does(values: Any) -> None:
    for dtype in (torch.complex64, torch.complex128):
        theirs = torch.tensor(values, dtype=dtype)
        assert repr(gt.tensor(theirs)) == repr(theirs).replace("torch.", "gt.")


def test_large_tensors_print_as_torch_does() -> None:
    theirs = torch.randn(40, 40, dtype=torch.complex64)
    assert repr(gt.tensor(theirs)) == repr(theirs)


#: (with x complex64, r float32, d float64, i int64, z 0-d float64): the dtypes, and the precision of the number
NUMBERS = [
    "x * 2j", "2j * x", "x + 1", "r * 0.1j", "0.1j - d", "d / (1 + 0.1j)", "i * 1j", "z * 0.1j", "x ** 2",
    "x ** 0.1j", "x == 1j", "m.where(r > 0, x, 1j)", "x.masked_fill(r > 0, 2 + 1j)", "m.add(x, x, alpha=2j)",
    "m.float_power(x, 2)", "r @ r + 1j", "m.addcmul(x, x, x, value=2j)", "m.addcdiv(x, x, x + 9, value=2j)",
    "m.scatter(x, 0, i, 2j)", "m.scatter(x, 0, i[:2], value=1 + 2j)", "x.clone().scatter_(0, i[1:3], 1j)",
    "m.scatter(m.outer(x, x), 1, m.outer(i, i)[:2, :2], 1j)",
    "m.addmm(m.outer(x, x), m.outer(x, x), m.outer(x, x), beta=1j, alpha=2)",
]  # fmt: skip


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_beside_tensors(text: str) -> None:
    def run(m: Any) -> Any:
        names = {
            "m": m,
            "x": m.tensor(VALUES[0]),
            "r": m.tensor(VALUES[0].real.copy()),
            "d": m.tensor(VALUES[0].real.astype(np.float64)),
            "i": m.arange(6),
            "z": m.tensor(0.5, dtype=m.float64),
        }
        return eval(text, names)

    same(run(gt), run(torch), rtol=1e-5, atol=1e-5)


def test_a_number_keeps_double_precision() -> None:
    x = gt.ones(2, dtype=gt.float64)
    assert (x * 0.1j).tolist() == [0.1j, 0.1j]


def test_parts_are_views() -> None:
    ours, theirs = gt.tensor(VALUES), torch.tensor(VALUES)
    for x in (ours, theirs):
        x.real[0] = 7
        x.imag.mul_(2)
        (gt if x is ours else torch).view_as_real(x)[1, :, 0] = -1
        x[2] = 1j
    same(ours, theirs)
    pairs = gt.arange(8).float().reshape(4, 2)
    gt.view_as_complex(pairs)[0] = 5 + 6j
    assert pairs[0].tolist() == [5, 6]
    assert gt.view_as_real(ours).stride() == torch.view_as_real(theirs).stride()
    assert ours.real.stride() == theirs.real.stride()


def test_conjugates_and_transposes() -> None:
    x, t = gt.tensor(VALUES), torch.tensor(VALUES)
    for ours, theirs in ((x.conj(), t.conj()), (x.mH, t.mH), (x.H, t.H), (gt.adjoint(x), torch.adjoint(t))):
        same(ours, theirs)
    same(gt.vdot(x[0], x[1]), torch.vdot(t[0], t[1]))
    assert not x.conj().is_conj()
    assert gt.isreal(gt.tensor([1 + 0j, 1j])).tolist() == [True, False]
    same(gt.polar(x.abs(), x.angle()), t, rtol=1e-5, atol=1e-5)


def test_random_numbers() -> None:
    x = gt.randn(4000, dtype=gt.complex64)
    assert x.dtype is gt.complex64
    assert abs(float(x.abs().square().mean()) - 1) < 0.1
    assert abs(float(x.real.var()) - 0.5) < 0.1
    assert gt.rand(3, dtype=gt.complex128).imag.max() < 1


# -- what is refused -------------------------------------------------------------------------

REFUSED = [
    ("x < x", gt.DTypeError, "lt(complex64[2], complex64[2]): not defined for complex64; use x.real, x.imag or abs(x)"),
    ("x.max()", gt.DTypeError, "not defined for complex64"),
    ("gt.sort(x)", gt.DTypeError, "not defined for complex64"),
    ("gt.relu(x)", gt.DTypeError, "not defined for complex64"),
    ("x // 2", gt.DTypeError, "not defined for complex64"),
    ("gt.div(x, 2, rounding_mode='floor')", gt.DTypeError, "complex numbers cannot be rounded"),
    ("r.copy_(x)", gt.DTypeError, "float32 has no imaginary part"),
    ("r.__setitem__(0, 1j)", gt.DTypeError, "float32 has no imaginary part"),
    ("r.__setitem__(gt.tensor([0]), 1j)", gt.DTypeError, "float32 has no imaginary part"),
    ("r.__iadd__(1j)", gt.DTypeError, "in place, complex64 does not fit into float32"),
    ("r.fill_(1j)", gt.DTypeError, "a complex value does not fit into float32"),
    ("r.masked_fill(r > 0, 1j)", gt.DTypeError, "a complex value does not fit into float32"),
    (
        "r.scatter(0, gt.tensor([0]), 1j)",
        gt.DTypeError,
        "scatter(float32[2], complex64[]): a complex value does not fit",
    ),
    ("x.abs_()", gt.DTypeError, "in place, not defined for complex64: its result is real"),
    ("x.sum(dtype=gt.float32)", gt.DTypeError, "float32 has no imaginary part"),
    ("gt.add(r, r, alpha=1j)", gt.DTypeError, "alpha is complex, but the operands are not"),
    ("gt.full((2,), 1j, dtype=gt.float32)", gt.DTypeError, "a complex number does not fit into float32"),
    ("gt.tensor([1j], dtype=gt.float32)", gt.DTypeError, "complex numbers do not fit into float32"),
    ("gt.imag(r)", gt.DTypeError, "imag(float32[2]): not defined for float32; it takes complex numbers"),
    ("gt.view_as_real(r)", gt.DTypeError, "it takes complex numbers"),
    ("gt.view_as_complex(gt.ones(3))", gt.ShapeError, "its size must be 2"),
    ("gt.view_as_complex(gt.ones(2, 2).t())", gt.ShapeError, "must be neighbours in memory"),
    ("gt.view_as_complex(r.half())", gt.DTypeError, "use float32 or float64"),
    ("gt.complex(r, r.double())", gt.DTypeError, "takes two tensors of float32 or of float64"),
    ("gt.polar(r, r.double())", gt.DTypeError, "both must have the same dtype"),
    ("gt.nansum(x)", gt.DTypeError, "not defined for complex64"),
    ("gt.nn.functional.max_pool1d(x.reshape(1, 1, 2), 2)", gt.DTypeError, "has no imaginary part"),
    ("float(x[0])", TypeError, ""),
    ("x.requires_grad_().sum().backward()", gt.GradError, "only for real scalar outputs"),
    ("gt.fft.fft(r.half())", gt.DTypeError, "not defined for float16"),
    ("gt.fft.rfft(x)", gt.DTypeError, "takes real numbers, not complex64"),
    ("gt.fft.fft(r, 0)", gt.ShapeError, "a transform needs at least one element, not 0"),
    ("gt.fft.fft(r, -1)", gt.ShapeError, "a transform needs at least one element, not -1"),
    ("gt.fft.irfft(x, 0)", gt.ShapeError, "a transform needs at least one element, not 0"),
    ("gt.fft.fft(r, norm='other')", gt.ShapeError, "norm is 'backward', 'ortho' or 'forward'"),
    ("gt.fft.fft(r, dim=3)", gt.DimError, "dim 3 is out of range"),
    ("gt.fft.fft(gt.ones(0))", gt.ShapeError, "there is no transform of nothing"),
    ("gt.fft.fftn(r, s=(2, 2))", gt.ShapeError, "2 sizes for 1 dims"),
    ("gt.fft.fftn(r, dim=(0, 0))", gt.ShapeError, "each dim once"),
    ("gt.fft.rfftn(r, dim=())", gt.ShapeError, "needs at least one dim"),
    ("gt.fft.irfftn(x, dim=())", gt.ShapeError, "needs at least one dim"),
    ("gt.fft.wave(r)", AttributeError, "gt.fft.wave does not exist"),
    ("gt.stft(gt.ones(9), 4)", gt.DTypeError, "return_complex"),
    ("gt.stft(gt.ones(9), 400, return_complex=True)", gt.ShapeError, ""),
    ("gt.stft(gt.arange(9), 4, return_complex=True)", gt.ShapeError, "floating or complex"),
    ("gt.stft(gt.ones(9), 4, onesided=True, window=gt.ones(4) * 1j)", gt.DTypeError, "two sides"),
    ("gt.stft(gt.ones(9), 4, win_length=5, return_complex=True)", gt.ShapeError, "win_length is from 1 to 4, not 5"),
    ("gt.stft(gt.ones(9), 4, window=gt.ones(3), return_complex=True)", gt.ShapeError, "the window needs 4 elements"),
    ("gt.stft(gt.ones(9), 4, return_complex=True, align_to_window=True)", gt.ShapeError, "not supported"),
    ("gt.istft(gt.ones(3, 3), 4)", gt.DTypeError, "complex numbers"),
    ("gt.istft(gt.ones(2, 3) * 1j, 4)", gt.ShapeError, "dim 0 of size 2 does not fit n_fft=4"),
    ("gt.istft(gt.ones(3, 3) * 1j, 4, hop_length=9)", gt.ShapeError, "hop_length is from 1 to 4, not 9"),
    ("gt.istft(gt.ones(3, 3) * 1j, 4, return_complex=True)", gt.DTypeError, "two sides"),
    ("gt.istft(gt.ones(3, 3) * 1j, 4, window=gt.ones(4) * 1j)", gt.DTypeError, "return_complex=True"),
    ("gt.istft(gt.ones(3, 3) * 1j, 4, length=0)", gt.ShapeError, "the signal has no elements"),
]


@pytest.mark.parametrize(("text", "error", "message"), REFUSED, ids=[text for text, _, _ in REFUSED])
def test_refused(text: str, error: type[Exception], message: str) -> None:
    names = {"gt": gt, "x": gt.tensor([1 + 2j, 3j]), "r": gt.ones(2)}
    with pytest.raises(error) as caught:
        eval(text, names)
    assert message in str(caught.value)


def test_a_cast_to_real_warns() -> None:
    x = gt.tensor([1 + 2j])
    for cast in (
        lambda: x.float(),
        lambda: x.to(gt.float64),
        lambda: x.type(gt.int64),
        lambda: gt.tensor(x, dtype=gt.float32),
    ):
        with pytest.warns(UserWarning, match="Casting complex values to real discards the imaginary part"):
            assert cast().tolist() == [1]
    assert x.bool().tolist() == [True]


# -- gradients -------------------------------------------------------------------------------


def _loss(m: Any, x: Any, w: Any) -> Any:
    spectrum = m.fft.rfft(x, norm="ortho") * w
    return (m.fft.irfft(spectrum, x.shape[-1]).tanh() - 0.5).square().mean() + w.abs().sum() * 0.01


def test_a_filter_is_learned_as_by_torch() -> None:
    signal = VALUES.real.copy()
    ours = gt.tensor(VALUES[0, :4]).requires_grad_()
    theirs = torch.tensor(VALUES[0, :4], requires_grad=True)
    for _ in range(5):
        losses = []
        for m, w, x in ((gt, ours, gt.tensor(signal)), (torch, theirs, torch.tensor(signal))):
            loss = _loss(m, x, w)
            loss.backward()
            losses.append(float(loss.detach()))
            with m.no_grad():
                w -= 0.3 * w.grad
            w.grad = None
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    same(ours, theirs, rtol=1e-4, atol=1e-4)


def test_gradcheck_of_real_inputs() -> None:
    x = gt.tensor(VALUES.real.astype(np.float64)).requires_grad_()
    assert gt.autograd.gradcheck(lambda x: gt.fft.fft2(x).abs(), x)
    assert gt.autograd.gradgradcheck(lambda x: gt.fft.rfft(x).abs().square(), x)


# -- short-time transforms -------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [{}, {"normalized": True}, {"hop_length": 3}, {"win_length": 9}, {"center": False}, {"onesided": False}],
    ids=str,
)
def test_stft_and_its_inverse(how: dict[str, Any]) -> None:
    signal = RNG.standard_normal((2, 80))
    length = how.get("win_length", 16)
    spectra = []
    for m in (gt, torch):
        x = m.tensor(signal).requires_grad_()
        window = m.hann_window(length, dtype=m.float64) + 0.1
        spectrum = m.stft(x, 16, window=window, return_complex=True, **how)
        back = m.istft(spectrum, 16, window=window, length=72, **how)
        (back.square().sum() + spectrum.abs().sum()).backward()
        spectra.append((spectrum, back, x.grad))
    for ours, theirs in zip(*spectra, strict=True):
        same(ours, theirs, rtol=1e-6, atol=1e-6)


def test_stft_as_pairs() -> None:
    x = gt.tensor(VALUES.real.reshape(-1).copy())
    pairs = gt.stft(x, 8, return_complex=False)
    assert (pairs == gt.view_as_real(gt.stft(x, 8, return_complex=True))).all()
    two_sided, theirs = (m.stft(m.tensor(VALUES.reshape(-1)), 8, window=m.ones(8)) for m in (gt, torch))
    same(two_sided, theirs, rtol=1e-5, atol=1e-5)


def test_windows() -> None:
    for name in ("hann", "hamming", "blackman", "bartlett", "kaiser"):
        for args in ((9,), (8, False), (1,), (0,)):
            ours, theirs = (getattr(m, f"{name}_window")(*args) for m in (gt, torch))
            same(ours, theirs, rtol=1e-4, atol=1e-5)
    for name in ("hann", "kaiser"):
        ours, theirs = (getattr(m, f"{name}_window")(9, dtype=m.float64) for m in (gt, torch))
        same(ours, theirs, rtol=1e-9, atol=1e-9)


def test_frequencies() -> None:
    for n in (7, 8):
        same(gt.fft.fftfreq(n, 0.5), torch.fft.fftfreq(n, 0.5))
        same(gt.fft.rfftfreq(n, 0.5), torch.fft.rfftfreq(n, 0.5))


# -- factors of matrices -------------------------------------------------------------------

#: functions of factors that do not depend on the phases of their columns
FACTORS = {
    "svd": lambda lib, x: (lambda u, s, vh: (u.abs(), s, vh.abs(), u * s @ vh))(
        *lib.linalg.svd(x, full_matrices=False)
    ),
    "eigh": lambda lib, x: (lambda w, v: (w, v.abs(), (v * w) @ v.mH))(*lib.linalg.eigh(x @ x.mH)),
    "pinv": lambda lib, x: (lib.linalg.pinv(x), lib.linalg.pinv(x @ x.mH, hermitian=True, rtol=1e-6)),
    "cholesky": lambda lib, x: (lib.linalg.cholesky(x.mH @ x), lib.linalg.cholesky(x.mH @ x, upper=True)),
    "cholesky_solve": lambda lib, x: (lib.cholesky_solve(x.mH, lib.linalg.cholesky(x.mH @ x)),),
    "logdet": lambda lib, x: (lib.logdet(x.mH @ x + 1j), lib.linalg.slogdet(x[:3]).sign),
    "lstsq": lambda lib, x: (lib.linalg.lstsq(x, x.sum(1, keepdim=True), driver="gelsd").solution,),
    "conv1d": lambda lib, x: (lib.nn.functional.conv1d(x[None], x.T[:2, :, None] * 1j, x[0, :2], padding=1),),
}


@pytest.mark.parametrize("name", FACTORS)
def test_factors_and_their_gradients_are_torchs(name: str) -> None:
    rng = np.random.default_rng(3)
    value = rng.standard_normal((4, 3)) + 1j * rng.standard_normal((4, 3))
    found = []
    for lib in (torch, gt):
        x = lib.tensor(value).requires_grad_()
        results = FACTORS[name](lib, x)
        weighted = [r * lib.arange(1.0, 1 + r.numel(), dtype=lib.float64).reshape(r.shape) for r in results]
        sum((y.real + y.imag * 2 if y.is_complex() else y).square().sum() for y in weighted).backward()
        found.append([*(np.array(r.tolist()) for r in results), np.array(x.grad.tolist())])
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)
