"""Run by two processes: they save sharded tensors, a model of FSDP2 and its optimizer by torch.distributed.checkpoint.

RANK=0 WORLD_SIZE=2 … python -m tests.support.distributed_checkpoint FOLDER
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(65, 301), nn.GELU(), nn.Linear(301, 7))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(4, 65)).square().mean().backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    wide = torch.arange(5 * 40_000, dtype=torch.int32).reshape(5, 40_000)
    state = {
        "model": model_state,
        "optimizer": optimizer_state,
        "rows": distribute_tensor(wide, mesh, [Shard(0)]),
        "columns": distribute_tensor(wide, mesh, [Shard(1)]),
        "copies": distribute_tensor(wide.bool(), mesh, [Replicate()]),
        "turned": wide.t(),
        "half": torch.arange(10).bfloat16(),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5),
        "step": 7,
        "names": ["a", torch.ones(2), {"b": None}],
    }
    dcp.save(state, checkpoint_id=f"{folder}/checkpoint")
    whole = {
        key: value.full_tensor() if hasattr(value, "full_tensor") else value
        for key, value in {**{f"model.{k}": v for k, v in model_state.items()}, **state}.items()
        if isinstance(value, torch.Tensor)
    }
    moments = {
        f"optimizer.state.{name}.{key}": value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, values in optimizer_state["state"].items()
        for key, value in values.items()
    }
    if dist.get_rank() == 0:
        torch.save({**whole, **moments}, f"{folder}/whole.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
