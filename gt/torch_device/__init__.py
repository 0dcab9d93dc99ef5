"""A device of torch's, ``gtx``: ``import gt.torch_device`` registers it, and ``model.to("gtx")`` is on GT's workers.

Tensors are plain `torch.Tensor`s. torch's own autograd runs in the client; the kernels of the device, in Python, emit
GT's instructions. Only a program that uses the device imports this room: neither `gt` nor a worker does. It may import
everything of the client.
"""

from importlib.util import find_spec

from gt.errors import ConfigError
from gt.launch.backend import INSTALL_TORCH

if find_spec("torch") is None:
    raise ConfigError(f"the device of torch needs torch: {INSTALL_TORCH}")

from gt.torch_device import register
from gt.torch_device.backend import NAME
from gt.torch_device.fallback import cpu_fallbacks
from gt.torch_device.handles import unwrap

__all__ = ["NAME", "cpu_fallbacks", "unwrap"]

register.register()
