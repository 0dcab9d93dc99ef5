"""PyTorch's own sample inputs (OpInfo) on the device ``gtx``, compared with torch on the CPU."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

import gt.torch_device
from gt.torch_device.fallback import MissingKernel
from tests.support.opinfo import FAMILIES, RANDOM, SETTLED, TOLERANCES, Case, _fresh, _mapped, _random, _tensors, cases

DEVICE = gt.torch_device.NAME
#: families of samples: see `tests.support.opinfo.FAMILIES`
TRIED = ("float32", "int64", "bool", "mixed", "gradients", "complex64", "errors")


def samples(op: Any, family: str, most: int) -> list[Case]:
    return list(itertools.islice(cases(op, family), most))


def moved(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.detach().to(DEVICE).requires_grad_(x.requires_grad)
    if isinstance(x, torch.device):
        return torch.device(DEVICE)
    return DEVICE if x == "cpu" else x


def ways(op: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The ways to call an op: as it is, and in place."""
    yield "call", op.op
    if (written := op.inplace_variant) is not None:
        yield "in place", lambda x, *args, **kwargs: written(x.clone(), *args, **kwargs)


def difference(case: Case, call: Callable[..., Any]) -> str:
    """The difference between the device and the CPU; "" if there is none."""
    first, args, kwargs = _mapped((case.input, case.args, case.kwargs), _fresh)
    theirs = [x for x in _tensors((first, args, kwargs)) if x.requires_grad]
    device = _mapped((case.input, case.args, case.kwargs), moved)
    ours = [x for x in _tensors(device) if x.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want = call(first, *args, **kwargs)
        except Exception as error:
            return _refuses(call, device, error)
        try:
            got = call(device[0], *device[1], **device[2])
            if case.op.name in SETTLED:
                got, want = case.settle(got), case.settle(want)
            compare(got, want, case.op.name in RANDOM)
            if FAMILIES[case.family][1] and case.op.name not in RANDOM:
                settle = (lambda y: y) if case.op.name in SETTLED else case.settle
                _compare_gradients(settle(got), settle(want), ours, theirs)
        except AssertionError as error:
            return f"differs: {str(error)[:300]}"
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def _refuses(call: Callable[..., Any], device: Any, error: Exception) -> str:
    try:
        for y in _tensors([call(device[0], *device[1], **device[2])]):
            y.detach().cpu()
    except MissingKernel as missing:
        return f"MissingKernel: {missing}"
    except Exception:
        return ""
    return f"no error; torch: {type(error).__name__}: {str(error)[:150]}"


def compare(got: Any, want: Any, only_types: bool = False) -> None:
    if isinstance(want, torch.Tensor):
        assert got.device.type == DEVICE, f"on {got.device}"
        y = got.detach().cpu()
        ours, theirs = (f"{x.dtype}{list(x.shape)}" for x in (y, want))
        assert ours == theirs, f"{ours} for {theirs}"
        if not only_types:
            rtol, atol = TOLERANCES.get(want.dtype, (1e-3, 1e-3) if want.dtype.is_floating_point else (0, 0))
            want = want.detach().resolve_conj().resolve_neg()
            torch.testing.assert_close(y, want, rtol=rtol, atol=10 * atol, equal_nan=True)
    elif isinstance(want, tuple | list):
        assert len(got) == len(want), f"{len(got)} results for {len(want)}"
        for a, b in zip(got, want, strict=True):
            compare(a, b, only_types)
    else:
        assert got == want or (got != got and want != want), f"{got!r} for {want!r}"


def _compare_gradients(got: Any, want: Any, ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    pairs = [(g, w) for g, w in zip(_tensors([got]), _tensors([want]), strict=True) if w.requires_grad]
    if not pairs:
        return
    rng = torch.Generator().manual_seed(7)
    cotangents = [_random(w, rng) for _, w in pairs]
    try:
        wanted = torch.autograd.grad([w for _, w in pairs], theirs, cotangents, allow_unused=True)
    except NotImplementedError:
        return  # torch has none
    found = torch.autograd.grad([g for g, _ in pairs], ours, [c.to(DEVICE) for c in cotangents], allow_unused=True)
    for g, w in zip(found, wanted, strict=True):
        assert (g is None) == (w is None), "a gradient where torch has none, or none where it has one"
        if w is not None:
            compare(g, w)


def write_into_out(case: Case) -> str:
    """The same with ``out=``: into an empty tensor, and into one of the right shape."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        first, args, kwargs = _mapped((case.input, case.args, case.kwargs), _fresh)
        try:
            want = case.op.op(first, *args, **kwargs)
        except Exception:
            return ""
        if not isinstance(want, torch.Tensor):
            return ""
        device = _mapped((case.input, case.args, case.kwargs), moved)
        for shape in ((0,), want.shape):
            try:
                out = torch.empty(shape, dtype=want.dtype, device=DEVICE)
                result = case.op.op(device[0], *device[1], **device[2], out=out)
                assert result is out, "the result is not out"
                compare(out, want, case.op.name in RANDOM)
            except Exception as error:
                return f"out={list(shape)}: {type(error).__name__}: {str(error)[:300]}"
    return ""
