"""What makes a torch model distributed: DDP, FSDP2, or nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.core.ranks import World


def ddp(module: nn.Module, world: World, dtype: torch.dtype, group: Any, units: Sequence[nn.Module]) -> nn.Module:
    """One rank exchanges nothing: torch alone."""
    if (world.size if group is None else dist.get_world_size(group)) == 1:
        return module
    devices = [world.device] if world.device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(
        module, device_ids=devices, process_group=group, gradient_as_bucket_view=True
    )


def fsdp(module: nn.Module, world: World, dtype: torch.dtype, group: Any, units: Sequence[nn.Module]) -> nn.Module:
    """FSDP2: each unit by itself, then the rest; computed in the given dtype, reduced in fp32."""
    # this import takes a second, which other runs save
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = DeviceMesh.from_group(group or dist.group.WORLD, world.device.type)
    low = None if dtype == torch.float32 else dtype
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32 if low else None)
    for part in [*units, module]:
        fully_shard(part, mesh=mesh, mp_policy=policy)
    return module


def alone(module: nn.Module, world: World, dtype: torch.dtype, group: Any, units: Sequence[nn.Module]) -> nn.Module:
    return module


def _without_exchange(module: Any) -> Any:
    return module.no_sync() if hasattr(module, "no_sync") else contextlib.nullcontext()


@contextlib.contextmanager
def _fsdp_without_exchange(module: Any) -> Iterator[None]:
    module.set_requires_gradient_sync(False)
    yield
    module.set_requires_gradient_sync(True)


#: engine -> the function that wraps the model, and a context in which gradients stay on their rank
ENGINES: dict[str, tuple[Callable[..., nn.Module], Callable[[Any], Any]]] = {
    "ddp": (ddp, _without_exchange),
    "fsdp": (fsdp, _fsdp_without_exchange),
    "none": (alone, _without_exchange),
}
