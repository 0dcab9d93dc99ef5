"""Overloads that return no tensor of the device: checks of values, and questions about masks."""

from __future__ import annotations

import torch

from gt.torch_device.backend import Kernel
from gt.torch_device.handles import download


def _assert(condition: torch.Tensor, message: str = "Expected a value that is not zero") -> None:
    """Raises at once: the value is read. On a GPU of torch's own, the error would come later, and end the process."""
    if not download(condition).item():
        raise RuntimeError(message)


def _assert_functional(condition: torch.Tensor, message: str, token: torch.Tensor) -> torch.Tensor:
    _assert(condition, message)
    return token.clone()


def _is_left_aligned(x: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether a batch may become a nested tensor. The device has none."""
    return False


#: overload -> kernel
KERNELS: dict[str, Kernel] = {
    "_assert_async": _assert,
    "_assert_async.msg": _assert,
    "_functional_assert_async.msg": _assert_functional,
    "_nested_tensor_from_mask_left_aligned": _is_left_aligned,
}
