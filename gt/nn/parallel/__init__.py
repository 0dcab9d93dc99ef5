"""``gt.nn.parallel``: torch's wrappers for several devices. They pass calls on, because one program has all workers.

Here belong names of torch.nn.parallel. It may import `gt.nn.module` and below.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gt.missing import absent as _absent
from gt.nn.module import Module
from gt.say import warn

__all__ = ["DataParallel", "DistributedDataParallel", "data_parallel"]
_absent("nn.parallel")

_explained: set[str] = set()


def _explain(name: str) -> None:
    if name not in _explained:
        _explained.add(name)
        warn(f"gt.nn.{name} only calls its module; gt.auto_shard() uses all workers (docs/sharding.md)")


class DataParallel(Module):
    """Calls its module. The state has the prefix ``module.``, as torch's has. `gt.auto_shard` uses all workers."""

    def __init__(self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        _explain("DataParallel")
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The output of the module."""
        return self.module(*inputs, **kwargs)


class DistributedDataParallel(Module):
    """Calls its module. The state has the prefix ``module.``, as torch's has. `gt.auto_shard` uses all workers."""

    def __init__(
        self,
        module: Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        **options: Any,
    ) -> None:
        _explain("parallel.DistributedDataParallel")
        super().__init__()
        self.module, self.require_backward_grad_sync = module, True

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The output of the module."""
        return self.module(*inputs, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context without an effect: there is one process."""
        yield

    @contextlib.contextmanager
    def join(
        self, divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False
    ) -> Iterator[None]:
        """A context without an effect: there is one process."""
        yield


def data_parallel(
    module: Module,
    inputs: Any,
    device_ids: Any = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:
    """The output of the module. `gt.auto_shard` uses all workers."""
    _explain("parallel.data_parallel")
    return module(*(inputs if isinstance(inputs, tuple) else (inputs,)), **(module_kwargs or {}))
