"""Other forms of some of torch's calls, in which they are traced for compiled code on a GPU.

- **Convolutions** with the channels last. The tensor cores read images in this order. From tensors in the usual order
  cudnn makes copies in each call: of the input and the weight in the forward pass, and of both and the gradient in the
  backward pass. With the operands of the convolutions in this order, their results are in it too, and so is what is
  computed from these element by element, in both passes: few copies are left.
- **Attention of one query**, as when tokens are generated one by one, in plain operations, which the compiler fuses.
  torch's kernel is made for tiles of 64 queries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
#: dtypes whose convolutions run on tensor cores
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class TracedForms(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls on this type of device take their other form while it is active."""

    def __init__(self, device_type: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device_type = device_type
        #: (id, version) of an operand -> the operand, which keeps its id in use, and its copy with the channels last
        self._copies: dict[tuple[int, int], tuple[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        form = _FORMS.get(func)
        if form is None or args[0].device.type != self._device_type:
            return func(*args, **(kwargs or {}))
        return form(self, func, args, kwargs or {})

    def channels_last(self, x: Any) -> Any:
        """The tensor, or a copy, with the channels last."""
        if x.is_contiguous(memory_format=torch.channels_last):
            return x
        key = id(x), x._version
        if key not in self._copies:
            self._copies[key] = x, x.contiguous(memory_format=torch.channels_last)
        return self._copies[key][1]

    def in_usual_order(self, x: Any) -> Any:
        """A result whose channels are last, in the order that it has without this mode."""
        last = x.ndim == 4 and x.device.type == self._device_type and x.is_contiguous(memory_format=torch.channels_last)
        return x.contiguous() if last and not x.is_contiguous() else x


def _convolution(operands: int, groups: int) -> Callable[..., Any]:
    """The form of a convolution: its first ``operands`` are images or weights; ``groups``: which argument that is."""

    def form(mode: TracedForms, func: Any, args: Any, kwargs: Any) -> Any:
        images, rest = args[:operands], args[operands:]
        # with several groups the usual order is faster
        if args[groups] == 1 and all(x.ndim == 4 and x.dtype in _DTYPES for x in images):
            images = [mode.channels_last(x) for x in images]
        return func(*images, *rest, **kwargs)

    return form


def _attention(mode: TracedForms, func: Any, args: Any, kwargs: Any) -> Any:
    q, k, v, bias, _, *others = args
    if q.shape[2] != 1 or any(others) or kwargs.keys() != {"scale"}:  # others: the rate of dropout, is it causal?
        return func(*args, **kwargs)
    scores = (q.float() * k.float()).sum(-1) * kwargs["scale"]
    if bias is not None:
        scores = scores + bias[:, :, 0].float()
    # the result of a query that sees no key is 0, and so is the logarithm of its sum
    top = scores.amax(-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    total = total.masked_fill(total == 0, 1)
    out = ((weights / total).unsqueeze(-1) * v.float()).sum(-2, keepdim=True).to(v.dtype)
    no_seed = q.new_empty((), dtype=torch.int64)
    return out, total.log() + top, no_seed, no_seed


_FORMS = {
    aten.convolution.default: _convolution(2, 8),
    aten.convolution_backward.default: _convolution(3, 9),
    aten._scaled_dot_product_efficient_attention.default: _attention,
}
