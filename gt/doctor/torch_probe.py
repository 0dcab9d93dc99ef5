"""``python -m gt.doctor.torch_probe``: what torch says about itself, as a line of JSON."""

from __future__ import annotations

import json
from typing import Any


def probe() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {"version": torch.__version__, "cuda": torch.version.cuda or "", "devices": []}
    if torch.cuda.is_available():
        facts["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    elif torch.version.cuda:
        facts["cuda_error"] = _cuda_error(torch)
    distributed: Any = torch.distributed
    if distributed.is_available():
        facts["gloo"] = bool(distributed.is_gloo_available())
        if distributed.is_nccl_available():
            nccl: Any = torch.cuda.nccl
            facts["nccl"] = ".".join(map(str, nccl.version()))
    return facts


def _cuda_error(torch: Any) -> str:
    try:
        torch.cuda.init()
    except Exception as error:  # whatever it is, it is the reason
        return str(error).partition("\n")[0]
    return "torch.cuda.is_available() is False"


if __name__ == "__main__":
    print(json.dumps(probe()))
