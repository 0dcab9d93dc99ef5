"""What the device ``gtx`` does not do, or does differently, on PyTorch's sample inputs: each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_MISSING = """
_histogramdd_bin_edges _histogramdd_from_bin_tensors fractional_max_pool2d
fractional_max_pool3d hash_tensor histogram igammac igammac_ linalg_ldl_factor_ex linalg_ldl_solve segment_reduce
special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
special_chebyshev_polynomial_w special_erfcx special_hermite_polynomial_h special_hermite_polynomial_he special_i0e
special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0
special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri
special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w
special_spherical_bessel_j0 special_zeta
"""
#: Functions of ATen without a kernel. They raise, or run on the client's CPU if asked to.
MISSING = frozenset(_MISSING.split())
if torch.__version__ >= "2.15":
    MISSING |= {"_scaled_dot_product_flash_attention_for_cpu", "linalg_matrix_sqrth", "linalg_polar"}

_DROPPED = "what is dropped is drawn, and torch's draws are not GT's"
_UNWRITTEN = "memory that nobody wrote has other values"
_OVERLAP = "a view made of overlapping windows cannot be written, and torch's gradient writes it"
_SIGNS = "singular vectors are unique up to their sign, complex ones up to a phase"
_SMALL = "the system of equations is close to singular, so rounding is magnified"

#: OpInfo's name -> why its results differ, and in which samples
DIFFERENT: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "addbmm": ("torch writes a larger result into a smaller tensor, which changes its shape", lambda case: True),
    "addmv": (
        "torch before 2.12 does not look at the dtypes",
        lambda case: torch.__version__ < "2.12" and case.family == "mixed",
    ),
    "as_strided": (_OVERLAP, lambda case: case.family == "gradients"),
    "as_strided_copy": (_OVERLAP, lambda case: case.family == "gradients"),
    "as_strided_scatter": (_OVERLAP, lambda case: case.family == "gradients"),
    "as_strided_partial_views": ("the samples reach beyond the tensor into its storage", lambda case: True),
    "chalf": ("GT has no complex32", lambda case: True),
    "cholesky_inverse": (_SMALL, lambda case: case.family == "complex64"),
    "cholesky_solve": (_SMALL, lambda case: case.family == "complex64"),
    "empty_permuted": (_UNWRITTEN, lambda case: True),
    "empty_strided": (_UNWRITTEN, lambda case: True),
    "fft_ihfft2": ("torch puts out= together from parts that resize it twice", lambda case: True),
    "fft_ihfftn": ("torch puts out= together from parts that resize it twice", lambda case: True),
    "gradient": ("a sample of errors is on the device meta", lambda case: case.family == "errors"),
    "hash_tensor": ("GT has no uint64", lambda case: True),
    "linalg_solve_triangular": (
        "torch does not look at the right side's dtype where the diagonal is ones",
        lambda case: case.family == "mixed",
    ),
    "__rmatmul__": ("torch refuses products of integers and floats", lambda case: case.family == "mixed"),
    "multinomial": ("GT draws from more than 2**24 as well", lambda case: case.family == "errors"),
    "new_empty_strided": (_UNWRITTEN, lambda case: True),
    "nn_functional_multi_head_attention_forward": (_DROPPED, lambda case: True),
    "nn_functional_scaled_dot_product_attention": (_DROPPED, lambda case: bool(case.kwargs.get("dropout_p"))),
    "pca_lowrank": (_SIGNS, lambda case: case.family in ("float32", "gradients", "complex64")),
    "svd_lowrank": (_SIGNS, lambda case: case.family in ("float32", "gradients", "complex64")),
    "tensor_split": ("torch takes positions on the CPU only", lambda case: len(case.tensors) > 1),
}


def is_known(case: Any, problem: str) -> bool:
    """Whether a difference has a row here."""
    if "has no kernel for it" in problem:
        return problem.split("aten.")[1].split(".")[0] in MISSING
    if case.family == "complex64" and "not defined for complex" in problem:
        return True  # GT refuses complex numbers there
    reason = DIFFERENT.get(case.op.formatted_name)
    return reason is not None and reason[1](case)
