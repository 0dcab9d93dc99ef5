"""Dense peaks of known devices, in FLOP/s for each dtype; the denominators of MFU.

Data sheets print tensor-core rates with 2:4 sparsity; the dense rate is half of that. A device or dtype that is missing
here has no MFU, because a guess would be misleading.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

T = 1e12


@dataclass(frozen=True)
class Device:
    #: matched against the driver's name of the device; the first match applies
    pattern: str
    dense: dict[str, float]
    source: str


def _tensor(half: float, tf32: float, fp32: float) -> dict[str, float]:
    return {"bf16": half * T, "fp16": half * T, "tf32": tf32 * T, "fp32": fp32 * T}


DEVICES = [
    Device(r"\bH200 NVL\b", _tensor(835.5, 417.5, 60), "NVIDIA H200 data sheet (NVL), sparse rates halved"),
    Device(r"\bH200\b", _tensor(989.4, 494.7, 66.9), "NVIDIA H200 data sheet (SXM), sparse rates halved"),
    Device(r"\bH100 NVL\b", _tensor(835.5, 417.5, 60), "NVIDIA H100 data sheet (NVL), sparse rates halved"),
    Device(r"\bH100 PCIe\b", _tensor(756.5, 378, 51), "NVIDIA H100 PCIe data sheet, sparse rates halved"),
    Device(r"\bH100\b", _tensor(989.4, 494.7, 66.9), "NVIDIA H100 data sheet (SXM), sparse rates halved"),
    Device(r"\bA100\b", _tensor(312, 156, 19.5), "NVIDIA A100 data sheet"),
    Device(r"\bA40\b", _tensor(149.7, 74.8, 37.4), "NVIDIA A40 data sheet"),
    Device(r"\bA10\b", _tensor(125, 62.5, 31.2), "NVIDIA A10 data sheet"),
    Device(r"\bL40S\b", _tensor(362.05, 183, 91.6), "NVIDIA L40S data sheet, sparse rates halved"),
    Device(r"\bL4\b", _tensor(121, 60, 30.3), "NVIDIA L4 data sheet, sparse rates halved"),
    Device(r"\bV100-SXM", {"fp16": 125 * T, "fp32": 15.7 * T}, "NVIDIA V100 data sheet (SXM2)"),
    Device(r"\bV100-PCI", {"fp16": 112 * T, "fp32": 14 * T}, "NVIDIA V100 data sheet (PCIe)"),
    Device(r"\bT4\b", {"fp16": 65 * T, "fp32": 8.1 * T}, "NVIDIA T4 data sheet"),
    Device(r"\bRTX 4090$", _tensor(165.2, 82.6, 82.6), "NVIDIA Ada architecture paper, fp32 accumulation"),
    Device(r"\bRTX 3090$", _tensor(71, 35.6, 35.6), "NVIDIA GA102 architecture paper, fp32 accumulation"),
]


def peak(device: str, dtype: str) -> tuple[float, str] | None:
    """FLOP/s and their source, or None if unknown."""
    match = next((row for row in DEVICES if re.search(row.pattern, device)), None)
    return None if match is None or dtype not in match.dense else (match.dense[dtype], match.source)


def mfu(flops: float, seconds: float, device: str, dtype: str, devices: int = 1) -> dict[str, Any]:
    """The model's FLOPs divided by those the devices can do; ``mfu`` is null if the peak is unknown."""
    rate, known_peak = flops / seconds, peak(device, dtype)
    bound = known_peak[0] * devices if known_peak else None
    return {
        "mfu": rate / bound if bound else None,
        "numerator_flops_per_s": rate,
        "denominator_flops_per_s": bound,
        "dtype": dtype,
        "source": known_peak[1] if known_peak else f"no dense {dtype} peak of {device!r} is known",
    }
