"""A device of torch's, ``gtx``: ``import gt.torch_device`` registers it, and ``model.to("gtx")`` is on GT's workers.

Tensors are plain `torch.Tensor`s. torch's own autograd runs in the client; the kernels of the device, in Python, emit
GT's instructions. Only a program that uses the device imports this room: neither `gt` nor a worker does. It may import
everything of the client.
"""

from gt.torch_device import register
from gt.torch_device.backend import NAME
from gt.torch_device.fallback import cpu_fallbacks

__all__ = ["NAME", "cpu_fallbacks"]

register.register()
