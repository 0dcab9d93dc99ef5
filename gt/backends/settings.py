"""Torch's global switches. They are remembered, so that they can be read, and have no effect unless stated."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.arguments import Device, check_device, dtype_of
from gt.errors import ConfigError
from gt.functions.composite import set_default_dtype
from gt.functions.legacy import TensorClass

__all__ = [
    "_assert", "are_deterministic_algorithms_enabled", "get_default_device", "get_deterministic_debug_mode",
    "get_float32_matmul_precision", "get_num_interop_threads", "get_num_threads",
    "is_deterministic_algorithms_warn_only_enabled", "is_warn_always_enabled", "set_default_device",
    "set_default_tensor_type", "set_deterministic_debug_mode", "set_float32_matmul_precision", "set_flush_denormal",
    "set_num_interop_threads", "set_num_threads", "set_warn_always", "use_deterministic_algorithms",
]  # fmt: skip

PRECISIONS = ("highest", "high", "medium")


class _Settings:
    """The values that were set last."""

    device = Device("gt")
    precision = "highest"
    deterministic = deterministic_warn_only = warn_always = False
    threads = interop_threads = 1


_settings = _Settings()


def set_default_device(device: Any) -> None:
    """Accepted and ignored: the dispatcher decides where tensors are placed. A mistake is refused."""
    check_device(device)
    _settings.device = Device("gt" if device is None else device if isinstance(device, str) else str(device))


def get_default_device() -> Device:
    """The device set last; "gt" before that."""
    return _settings.device


def set_default_tensor_type(t: Any) -> None:
    """Set the default dtype by a class of tensors. Only ``gt.FloatTensor`` is accepted, as by `set_default_dtype`."""
    set_default_dtype(t.dtype if isinstance(t, TensorClass) else dtype_of(t))


def set_float32_matmul_precision(precision: str) -> None:
    """Accepted and ignored: the workers multiply float32 in full precision."""
    if precision not in PRECISIONS:
        raise ConfigError(f"set_float32_matmul_precision({precision!r}): one of {', '.join(map(repr, PRECISIONS))}")
    _settings.precision = precision


def get_float32_matmul_precision() -> str:
    """The precision set last, which has no effect."""
    return _settings.precision


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Accepted and ignored: random numbers are the same everywhere, and torch's kernels compute on the workers."""
    _settings.deterministic, _settings.deterministic_warn_only = bool(mode), bool(warn_only)


def are_deterministic_algorithms_enabled() -> bool:
    """The mode set last, which has no effect."""
    return _settings.deterministic


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """The mode set last, which has no effect."""
    return _settings.deterministic_warn_only


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """Accepted and ignored: 0 or "default", 1 or "warn", 2 or "error"."""
    modes: dict[Any, int] = {"default": 0, "warn": 1, "error": 2, 0: 0, 1: 1, 2: 2}
    if debug_mode not in modes:
        raise ConfigError(f"set_deterministic_debug_mode({debug_mode!r}): 0, 1, 2, 'default', 'warn' or 'error'")
    use_deterministic_algorithms(modes[debug_mode] > 0, warn_only=modes[debug_mode] == 1)


def get_deterministic_debug_mode() -> int:
    """The mode set last as a number, which has no effect."""
    return 0 if not _settings.deterministic else 1 if _settings.deterministic_warn_only else 2


def set_num_threads(num: int) -> None:
    """Accepted and ignored: the client computes nothing. ``python -m gt.worker --threads`` sets those of a worker."""
    _settings.threads = num


def get_num_threads() -> int:
    """The number set last, which has no effect."""
    return _settings.threads


def set_num_interop_threads(num: int) -> None:
    """Accepted and ignored: the client computes nothing."""
    _settings.interop_threads = num


def get_num_interop_threads() -> int:
    """The number set last, which has no effect."""
    return _settings.interop_threads


def set_flush_denormal(mode: bool) -> bool:
    """Always False: the client cannot change how the workers compute."""
    return False


def set_warn_always(b: bool) -> None:
    """Accepted and ignored: GT prints each of its warnings once."""
    _settings.warn_always = b


def is_warn_always_enabled() -> bool:
    """The mode set last, which has no effect."""
    return _settings.warn_always


def _assert(condition: Any, message: str) -> None:
    """Raise AssertionError with the message if the condition is false. A condition on a tensor is read."""
    if not condition:
        raise AssertionError(message)
