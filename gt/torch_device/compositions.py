"""Overloads of ATen that are functions of GT with other arguments, or several instructions.

Each takes GT's tensors and the arguments of the overload, and returns new values; `gt.torch_device.kernels` makes the
kernels, also those in place and with ``out=``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.functions import pointwise
from gt.torch_device import views

#: overload, or name of all its overloads -> function
OVERLOADS: dict[str, Callable[..., Any]] = {**views.GRADIENTS}
