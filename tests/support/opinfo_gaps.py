"""Where GT deliberately differs from torch on PyTorch's sample inputs: each row with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Gap:
    #: OpInfo's name, the family of samples (see `tests.support.opinfo.FAMILIES`), and the reason
    op: str
    family: str
    why: str
    #: which samples: all by default
    when: Callable[[Any], bool] = lambda case: True
    #: only one form, such as ``Tensor.addbmm_``
    form: str = ""

    def __str__(self) -> str:
        return f"{self.op} {self.family} {self.why}"

    def covers(self, case: Any, form: Any) -> bool:
        matches = (self.op, self.family) == (case.op.formatted_name, case.family)
        return matches and self.form in ("", form.name) and self.when(case)


def _empty(case: Any) -> bool:
    return any(not x.numel() for x in case.tensors)


def _negative(case: Any) -> bool:
    weights = [case.kwargs.get(name) for name in ("fweights", "aweights")]
    return any(w is not None and bool((w < 0).any()) for w in weights)


def _no_probabilities(case: Any) -> bool:
    x = case.input
    return bool(x.isnan().any() | x.isinf().any() | (x < 0).any() | (x.sum(-1) <= 0).any())


_VALUES = "a wrong value is seen by a worker alone, and nothing is read to look for it"
_WIDER = "torch takes a tensor that is too small here, and gives back a larger one that is no longer the same tensor"
_DROPPED = "what is dropped is drawn, and torch's draws are not ours"

#: the families of complex numbers
COMPLEX = ("complex64", "complex_gradients")
_REAL_ONLY = "GT refuses complex numbers here"
#: What GT does not compute with complex numbers, and torch does.
NOT_COMPLEX = [
    "nn_functional_rms_norm", "nn_functional_unfold", "sinc", "logaddexp", "logcumsumexp",
    "linalg_householder_product",
]  # fmt: skip


_HERMITIAN = "the gradients of a Hermitian matrix differ by an anti-Hermitian one, which changes no Hermitian matrix"
GAPS = [
    *(
        Gap(op, "complex_gradients", _HERMITIAN, lambda case: case.kwargs.get("upper", False))
        for op in (*(["cholesky"] if torch.__version__ < "2.15" else []), "linalg_cholesky", "linalg_cholesky_ex")
    ),
    Gap("geqrf", "complex64", _REAL_ONLY),
    *(Gap(op, family, _REAL_ONLY) for op in NOT_COMPLEX for family in COMPLEX),
    Gap("nn_functional_silu_complex", "complex64", _REAL_ONLY),
    Gap("scatter", "complex64", _REAL_ONLY, lambda case: "reduce" in case.kwargs),
    *(
        Gap(op, family, "torch drops the imaginary part there, with a warning")
        for op in ("softmax_with_dtype", "nn_functional_softmin_with_dtype", "log_softmax_with_dtype")
        for family in COMPLEX
    ),
    *(
        Gap("addbmm", family, _WIDER, lambda case: case.input.ndim < 2, "Tensor.addbmm_")
        for family in ("float32", "int64", "uint8", "gradients", *COMPLEX)
    ),
    *(
        Gap(f"nn_functional_interpolate_{mode}", "uint8", "rounded on a CPU alone; a GPU's torch refuses it too")
        for mode in ("bilinear", "bicubic")
    ),
    Gap("bernoulli", "gradients", "a draw has no gradient; torch's has one that is zero"),
    Gap("cov", "errors", _VALUES, _negative),
    Gap("matmul", "mixed", "torch does not look at the dtypes of a batch of nothing", _empty),
    Gap("__rmatmul__", "mixed", "torch does not look at the dtypes of a batch of nothing", _empty),
    Gap("multinomial", "errors", _VALUES, _no_probabilities),
    Gap("multinomial", "errors", "GT draws from more than 2**24 as well", lambda case: case.tensors[0].numel() > 2**24),
    Gap(
        "nn_functional_instance_norm",
        "mixed",
        "running statistics of integers",
        lambda case: case.kwargs.get("running_mean") is not None,
    ),
    Gap("nn_functional_rms_norm", "mixed", "a weight of integers is refused, as by the other norms"),
    *(
        Gap("nn_functional_scaled_dot_product_attention", family, _DROPPED, lambda case: case.kwargs["dropout_p"] > 0)
        for family in ("float32", "gradients")
    ),
    Gap(
        "linalg_solve_triangular",
        "mixed",
        "torch does not look at the right side's dtype where the diagonal is ones",
        lambda case: any(x.dtype is torch.int64 for x in case.tensors),
    ),
    *([Gap("addmv", "mixed", "torch before 2.12 does not look at the dtypes")] if torch.__version__ < "2.12" else []),
    *(
        Gap("nn_functional_dropout3d", family, _REAL_ONLY)
        for family in (COMPLEX if torch.__version__ >= "2.15" else ())
    ),
]
