"""Dense peaks of known devices, in FLOP/s for each dtype; the denominators of MFU.

Data sheets print tensor-core rates with 2:4 sparsity; the dense rate is half of that. A GPU that is missing here
measures its own achievable peak, and the record says so; a CPU has no MFU, because a guess would be misleading.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.core import achievable

T = 1e12


@dataclass(frozen=True)
class Device:
    #: matched against the driver's name of the device; the first match applies
    pattern: str
    dense: dict[str, float]
    source: str


def _tensor(half: float, tf32: float, fp32: float, fp8: float | None = None) -> dict[str, float]:
    eight = {} if fp8 is None else {"fp8": fp8 * T}
    return {"bf16": half * T, "fp16": half * T, "tf32": tf32 * T, "fp32": fp32 * T, **eight}


HOPPER = _tensor(989.4, 494.7, 66.9, 1978.9)
NVL = _tensor(835.5, 417.5, 60, 1671)
DEVICES = [
    Device(r"\bGB200\b", _tensor(2500, 1250, 80, 5000), "NVIDIA GB200 NVL72 page, per GPU, sparse rates halved"),
    Device(r"\bB200\b", _tensor(2250, 1125, 75, 4500), "NVIDIA HGX B200 page, per GPU, sparse rates halved"),
    Device(r"\bB300\b", _tensor(2250, 1125, 75, 4500), "NVIDIA HGX B300 page, per GPU, sparse rates halved"),
    Device(r"\bGH200\b", HOPPER, "NVIDIA GH200 data sheet, sparse rates halved"),
    Device(r"\bH200 NVL\b", NVL, "NVIDIA H200 data sheet (NVL), sparse rates halved"),
    Device(r"\bH200\b", HOPPER, "NVIDIA H200 data sheet (SXM), sparse rates halved"),
    Device(r"\bH100 NVL\b", NVL, "NVIDIA H100 data sheet (NVL), sparse rates halved"),
    Device(r"\bH100 PCIe\b", _tensor(756.5, 378, 51, 1513), "NVIDIA H100 PCIe data sheet, sparse rates halved"),
    Device(r"\bH100\b", HOPPER, "NVIDIA H100 data sheet (SXM), sparse rates halved"),
    Device(r"\bH800 PCIe\b", _tensor(756.5, 378, 51, 1513), "NVIDIA H800 PCIe: the tensor rates of the H100 PCIe"),
    Device(r"\bH800\b", HOPPER, "NVIDIA H800 (SXM): the tensor rates of the H100"),
    Device(r"\bH20\b", _tensor(148, 74, 44, 296), "NVIDIA H20 data sheet"),
    Device(r"\bA100\b", _tensor(312, 156, 19.5), "NVIDIA A100 data sheet"),
    Device(r"\bA30\b", _tensor(165, 82, 10.3), "NVIDIA A30 data sheet"),
    Device(r"\bA40\b", _tensor(149.7, 74.8, 37.4), "NVIDIA A40 data sheet"),
    Device(r"\bA10G\b", _tensor(70, 35, 35), "NVIDIA A10G data sheet"),
    Device(r"\bA10\b", _tensor(125, 62.5, 31.2), "NVIDIA A10 data sheet"),
    Device(r"\bL40S\b", _tensor(362.05, 183, 91.6, 733), "NVIDIA L40S data sheet, sparse rates halved"),
    Device(r"\bL40\b", _tensor(181.05, 90.5, 90.5, 362), "NVIDIA L40 data sheet, sparse rates halved"),
    Device(r"\bL4\b", _tensor(121, 60, 30.3, 242.5), "NVIDIA L4 data sheet, sparse rates halved"),
    Device(r"\bV100-SXM", {"fp16": 125 * T, "fp32": 15.7 * T}, "NVIDIA V100 data sheet (SXM2)"),
    Device(r"\bV100-PCI", {"fp16": 112 * T, "fp32": 14 * T}, "NVIDIA V100 data sheet (PCIe)"),
    Device(r"\bT4\b", {"fp16": 65 * T, "fp32": 8.1 * T}, "NVIDIA T4 data sheet"),
    Device(r"\bRTX 5090$", _tensor(209.5, 104.8, 104.8, 419), "NVIDIA RTX Blackwell paper, fp32 accumulation"),
    Device(r"\bRTX 4090$", _tensor(165.2, 82.6, 82.6, 330.3), "NVIDIA Ada architecture paper, fp32 accumulation"),
    Device(r"\bRTX 3090$", _tensor(71, 35.6, 35.6), "NVIDIA GA102 architecture paper, fp32 accumulation"),
    Device(r"\bMI3(00X|25X)\b", _tensor(1307.4, 653.7, 163.4, 2614.9), "AMD Instinct MI300X and MI325X data sheets"),
]


def peak(device: str, dtype: str) -> tuple[float, str] | None:
    """FLOP/s and their source, or None if unknown."""
    match = next((row for row in DEVICES if re.search(row.pattern, device)), None)
    return None if match is None or dtype not in match.dense else (match.dense[dtype], match.source)


def ran_in(dtype: str) -> str:
    """fp32 products run in TF32 where that is allowed; the peak must be that of the dtype that ran."""
    return "tf32" if dtype == "fp32" and torch.get_float32_matmul_precision() != "highest" else dtype


def mfu(
    flops: float, seconds: float, device: str, dtype: str, devices: int = 1, gpu: torch.device | None = None
) -> dict[str, Any]:
    """The model's FLOPs divided by those the devices can do.

    A ``gpu`` whose peak is not in the table measures what it achieves. Without one ``mfu`` is null.
    """
    rate, known_peak = flops / seconds, peak(device, dtype)
    if known_peak is None and gpu is not None:
        known_peak = achievable.peak(gpu, dtype)
    bound = known_peak[0] * devices if known_peak else None
    return {
        "mfu": rate / bound if bound else None,
        "numerator_flops_per_s": rate,
        "denominator_flops_per_s": bound,
        "dtype": dtype,
        "source": known_peak[1] if known_peak else f"no dense {dtype} peak of {device!r} is known",
    }
