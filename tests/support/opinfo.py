"""PyTorch's own sample inputs (OpInfo) on GT: finding the function of a name, its calls, and comparing results."""

from __future__ import annotations

import itertools
import random
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

import gt
import gt.fft
import gt.linalg
import gt.nn.functional
from tests.support.worlds import to_torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # older versions do what newer versions of numpy warn about
    from torch.testing._internal.common_methods_invocations import op_db

#: family of samples -> the dtype requested from OpInfo, and whether gradients are required
FAMILIES = {
    "float32": (torch.float32, False),
    "int64": (torch.int64, False),
    "uint8": (torch.uint8, False),
    "bool": (torch.bool, False),
    "mixed": (torch.float32, False),
    "gradients": (torch.float64, True),
    "complex64": (torch.complex64, False),
    "complex_gradients": (torch.complex128, True),
    "not_complex": (torch.float32, False),
    "errors": (torch.float32, False),
}
TOLERANCES = {
    torch.float32: (1e-5, 1e-5),
    torch.float64: (1e-9, 1e-9),
    torch.complex64: (1e-5, 1e-5),
    torch.complex128: (1e-9, 1e-9),
}


@dataclass(frozen=True)
class Case:
    """One call: of an op, in a form (function or method), on one sample."""

    op: Any
    family: str
    place: int
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: for results that are not unique, the part that is
    settle: Callable[[Any], Any] = lambda y: y

    def __str__(self) -> str:
        arguments = [*map(shown, (self.input, *self.args)), *(f"{k}={shown(v)}" for k, v in self.kwargs.items())]
        return f"{self.op.formatted_name}[{self.family} {self.place}]({', '.join(arguments)})"

    @property
    def tensors(self) -> list[torch.Tensor]:
        return list(_tensors((self.input, self.args, self.kwargs)))


def shown(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    if isinstance(x, tuple | list):
        return f"[{', '.join(map(shown, x))}]"
    return repr(x)


def _tensors(x: Any) -> Iterator[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        yield x
    for inner in x.values() if isinstance(x, dict) else x if isinstance(x, tuple | list) else ():
        yield from _tensors(inner)


#: Random values, or old contents of memory: they differ from torch's, so only their types are compared.
RANDOM = frozenset((
    "bernoulli", "cauchy", "empty", "empty_like", "exponential", "geometric", "log_normal", "multinomial", "new_empty",
    "nn.functional.alpha_dropout",
    "nn.functional.dropout", "nn.functional.dropout1d", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout", "nn.functional.rrelu", "normal", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "randperm", "uniform",
))  # fmt: skip
#: Vectors that are unique up to their sign: compared by the unique part.
SETTLED = {"linalg.eigh", "linalg.svd", "svd"}
#: What OpInfo calls, if it is not the function of this name with the same arguments.
CALLS: dict[str, Callable[..., Any]] = {
    "einsum": lambda xs, equation: gt.einsum(equation, xs),
    "linalg_lstsq_grad_oriented": lambda a, b, driver: gt.linalg.lstsq(a, b, driver=driver)[:2],
    "linalg_pinv_singular": lambda a, b: gt.linalg.pinv(a @ b.mT),
    "nn_functional_embedding": lambda weight, at, **how: gt.nn.functional.embedding(at, weight, **how),
    "nn_functional_embedding_bag": lambda weight, at, **how: gt.nn.functional.embedding_bag(at, weight, **how),
    "normal_in_place": lambda x, mean=0, std=1: x.clone().normal_(mean, std),
    "where": lambda x, condition, other: gt.where(condition, x, other),
    "zero_": lambda x: x.clone().zero_(),
    **{f"polygamma_polygamma_n_{i}": lambda x, n: gt.polygamma(n, x) for i in range(5)},
    "special_polygamma_special_polygamma_n_0": lambda x, n, **how: gt.special.polygamma(n, x),
}


# -- names in GT -----------------------------------------------------------------------------


def _at(path: str) -> Any:
    value: Any = gt
    for name in path.split("."):
        value = getattr(value, name, None)
    return value if callable(value) and not isinstance(value, gt.DType | type) else None


@dataclass(frozen=True)
class Form:
    """One way to call an op, in GT and in torch."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    #: the first argument is the tensor whose method it is
    method: bool = False


def forms(op: Any) -> list[Form]:
    """As a function, as a method, and in place, under each of its names, if GT has them."""
    if op.formatted_name in CALLS:
        return [Form(f"gt.{op.name}", CALLS[op.formatted_name], op.op)]
    result: list[Form] = []
    for name in (op.name, *(alias.name for alias in op.aliases)):
        if (function := _at(name)) is not None:
            result.append(Form(f"gt.{name}", function, op.op))
        if "." not in name and hasattr(torch.Tensor, name) and hasattr(gt.Tensor, name):
            result.append(Form(f"Tensor.{name}", _method(gt.Tensor, name), op.op, method=True))
        written = f"{name}_"
        if op.inplace_variant and hasattr(torch.Tensor, written) and hasattr(gt.Tensor, written):
            result.append(
                Form(f"Tensor.{written}", _written(gt.Tensor, written), _written(torch.Tensor, written), True)
            )
    return result


def _method(tensor: type, name: str) -> Callable[..., Any]:
    if isinstance(getattr(tensor, name), property):
        return lambda x: getattr(x, name)
    return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


def _written(tensor: type, name: str) -> Callable[..., Any]:
    return lambda x, *args, **kwargs: getattr(x.clone(), name)(*args, **kwargs)


#: tests/test_sparse.py compares ``to_sparse``: its results are no tensors here
OPS = [op for op in op_db if forms(op) and op.name != "to_sparse"]

# -- the samples -----------------------------------------------------------------------------


def cases(op: Any, family: str) -> Iterator[Case]:
    dtype, grad = FAMILIES[family]
    if family == "errors":
        samples = (e.sample_input for e in op.error_inputs_func(op, "cpu")) if op.error_inputs_func else ()
    elif (
        dtype not in op.dtypes
        or (grad and not op.supports_autograd)
        or (family == "not_complex" and torch.complex64 in op.dtypes)
    ):
        return
    else:
        # op.sample_inputs does the same, and also searches the whole stack for the name of the test
        samples = op.sample_inputs_func(op, "cpu", dtype, grad)
    torch.manual_seed(zlib.crc32(op.formatted_name.encode()))
    random.seed(0)
    for place, s in enumerate(samples):
        case = Case(op, family, place, s.input, tuple(s.args), dict(s.kwargs), s.output_process_fn_grad)
        if family == "mixed":
            if not any(x.is_floating_point() for x in case.tensors[1:]):
                continue
            case = _mixed(case)
        if family == "not_complex":
            if not any(x.is_floating_point() for x in case.tensors):
                continue
            case = _changed(case, lambda x: x.to(torch.complex64) if _is_float(x) else x)
        if expressible(case):
            yield case


def _other(x: Any, seen: Iterator[int]) -> Any:
    """All tensors but the first in another dtype."""
    if not isinstance(x, torch.Tensor):
        return x
    return x if next(seen) == 0 or not x.is_floating_point() else x.to(torch.int64)


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _mixed(case: Case) -> Case:
    seen = itertools.count()
    return _changed(case, lambda x: _other(x, seen))


def _changed(case: Case, call: Callable[[Any], Any]) -> Case:
    arguments = _mapped((case.input, case.args, case.kwargs), call)
    return replace(case, input=arguments[0], args=arguments[1], kwargs=arguments[2])


def _mapped(x: Any, call: Callable[[Any], Any]) -> Any:
    if isinstance(x, dict):
        return {k: _mapped(v, call) for k, v in x.items()}
    if type(x) in (tuple, list):
        return type(x)(_mapped(v, call) for v in x)
    return call(x)


def expressible(case: Case) -> bool:
    """Does GT support the call? No sparse or quantized tensors, no layouts, no ``out=``; numpy, through which
    tensors are created, has at most 64 dims.
    """
    for x in case.tensors:
        if x.layout is not torch.strided or x.ndim > 64 or str(x.dtype).removeprefix("torch.") not in gt.types.DTYPES:
            return False
    flat: list[Any] = []
    _mapped((case.input, case.args, case.kwargs), flat.append)
    foreign = torch.layout, torch.memory_format, torch.Generator
    dtypes = [x for x in flat if isinstance(x, torch.dtype)]
    return (
        "out" not in case.kwargs
        and not any(isinstance(x, foreign) for x in flat)
        and all(str(d).removeprefix("torch.") in gt.types.DTYPES for d in dtypes)
    )


# -- running and comparing -------------------------------------------------------------------


def to_gt(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        tensor = (
            gt.tensor(x.detach().float().numpy()).bfloat16()
            if x.dtype is torch.bfloat16
            else gt.tensor(x.detach().resolve_conj().resolve_neg().numpy())
        )
        return tensor.requires_grad_() if x.requires_grad else tensor
    if isinstance(x, torch.dtype):
        return gt.types.DTYPES[str(x).removeprefix("torch.")]
    if isinstance(x, torch.device):
        return x.type
    if isinstance(x, torch.Size):
        return gt.Size(x)
    if isinstance(x, torch.nn.PairwiseDistance):
        return gt.nn.PairwiseDistance(x.norm, x.eps, x.keepdim)
    return x


def difference(case: Case, form: Form) -> str:
    """The difference between GT's answer and torch's; empty if there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = _mapped((case.input, case.args, case.kwargs), lambda x: to_gt(x))
        first, args, kwargs = _mapped((case.input, case.args, case.kwargs), _fresh)
        leaves = [x for x in _tensors((first, args, kwargs)) if x.requires_grad]
        try:
            want = form.theirs(first, *args, **kwargs)
        except Exception as error:
            return _refuses(form.ours, arguments, f"torch: {type(error).__name__}: {str(error)[:150]}")
        ours = [x for x in _gt_tensors(arguments) if x.requires_grad]
        try:
            got = form.ours(arguments[0], *arguments[1], **arguments[2])
            if case.op.name in SETTLED:
                got, want = case.settle(got), case.settle(want)
            compare(got, want, case)
            if FAMILIES[case.family][1] and case.op.name not in RANDOM:
                compare_gradients(*map(_once(case), (got, want)), ours, leaves)
        except Exception as error:
            if case.family == "not_complex" and isinstance(error, gt.DTypeError):
                return ""  # torch's kernel did not look at the dtype, or it is for more than torch says
            return f"{type(error).__name__}: {error}"
    return ""


def _once(case: Case) -> Callable[[Any], Any]:
    return (lambda y: y) if case.op.name in SETTLED else case.settle


def _fresh(x: Any) -> Any:
    return x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x


def _gt_tensors(x: Any) -> Iterator[Any]:
    if isinstance(x, gt.Tensor):
        yield x
    for inner in x.values() if isinstance(x, dict) else x if isinstance(x, tuple | list) else ():
        yield from _gt_tensors(inner)


def _refuses(call: Callable[..., Any], arguments: Any, reason: str) -> str:
    try:
        for y in _gt_tensors([call(arguments[0], *arguments[1], **arguments[2])]):
            y.detach().numpy()
    except Exception as error:
        return "" if not isinstance(error, AssertionError | AttributeError) else f"raises {error!r}; {reason}"
    return f"no error; {reason}"


def compare(got: Any, want: Any, case: Case) -> None:
    if isinstance(want, tuple | list) and not isinstance(want, torch.Size):
        assert isinstance(got, tuple | list), f"{type(got).__name__} for {type(want).__name__}"
        assert len(got) == len(want), f"{len(got)} results for {len(want)}"
        for a, b in zip(got, want, strict=True):
            compare(a, b, case)
    elif isinstance(want, torch.Tensor):
        assert isinstance(got, gt.Tensor), f"{type(got).__name__} for a tensor"
        close(got, want, case.op.name in RANDOM, scale=_scale(case))
        if FAMILIES[case.family][1]:
            assert got.requires_grad == want.requires_grad, f"requires_grad is {got.requires_grad}"
    elif isinstance(want, torch.dtype):
        assert got is to_gt(want)
    else:
        assert got == want or (got != got and want != want), f"{got!r} for {want!r}"


def _scale(case: Case) -> float:
    """How many values a result is a sum of, roughly: rounding grows with them."""
    return 10.0 if case.op.name.startswith("fft.") else 1.0


def close(got: Any, want: torch.Tensor, random: bool = False, scale: float = 1.0) -> None:
    result, want = to_torch(got.detach()), want.detach()
    ours, theirs = (f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in (result, want))
    assert ours == theirs, f"{ours} for {theirs}"
    if random:
        return
    rtol, atol = TOLERANCES.get(want.dtype, (1e-3, 1e-3) if want.dtype.is_floating_point else (0, 0))
    torch.testing.assert_close(result, want, rtol=rtol, atol=scale * atol, equal_nan=True)


def _random(like: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    dtype = torch.complex128 if like.is_complex() else torch.float64
    return torch.randn(like.shape, generator=rng, dtype=dtype).to(like.dtype)


def compare_gradients(got: Any, want: Any, ours: list[Any], leaves: list[torch.Tensor]) -> None:
    pairs = [(g, w) for g, w in zip(_gt_tensors([got]), _tensors([want]), strict=True) if w.requires_grad]
    if not pairs:
        return
    rng = torch.Generator().manual_seed(7)
    cotangents = [_random(w, rng) for _, w in pairs]
    try:
        wanted = torch.autograd.grad([w for _, w in pairs], leaves, cotangents, allow_unused=True)
    except NotImplementedError:
        return  # torch has none
    gradients = gt.autograd.grad([g for g, _ in pairs], ours, [to_gt(c) for c in cotangents], allow_unused=True)
    for g, w in zip(gradients, wanted, strict=True):
        if w is None:
            assert g is None or not to_torch(g).count_nonzero(), "a gradient where torch has none"
        else:
            assert g is not None or not w.count_nonzero(), "no gradient"
            close(g, w) if g is not None else None
