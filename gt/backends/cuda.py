"""``gt.backends.cuda``: torch's switches of CUDA. They may be set and read, and change nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from gt.missing import absent as _absent

__all__ = [
    "cudnn_sdp_enabled", "enable_cudnn_sdp", "enable_flash_sdp", "enable_math_sdp", "enable_mem_efficient_sdp",
    "flash_sdp_enabled", "is_built", "math_sdp_enabled", "matmul", "mem_efficient_sdp_enabled", "sdp_kernel",
]  # fmt: skip
_absent("backends.cuda")

#: the precision of matrix products
matmul = SimpleNamespace(
    allow_tf32=False,
    allow_fp16_reduced_precision_reduction=True,
    allow_bf16_reduced_precision_reduction=True,
    fp32_precision="none",
)


def is_built() -> bool:
    """Always False: the client has no GPU."""
    return False


def enable_flash_sdp(enabled: bool) -> None:
    """Do nothing: the worker chooses the kernel of attention."""


def flash_sdp_enabled() -> bool:
    """Always True: the worker chooses the kernel of attention."""
    return True


enable_cudnn_sdp = enable_math_sdp = enable_mem_efficient_sdp = enable_flash_sdp
cudnn_sdp_enabled = math_sdp_enabled = mem_efficient_sdp_enabled = flash_sdp_enabled


@contextlib.contextmanager
def sdp_kernel(
    enable_flash: bool = True, enable_math: bool = True, enable_mem_efficient: bool = True, enable_cudnn: bool = True
) -> Iterator[Any]:
    """A context without an effect: the worker chooses the kernel of attention."""
    yield
