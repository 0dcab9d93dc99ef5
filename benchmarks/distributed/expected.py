"""Bandwidths that a machine should reach, beside the measured ones, each with its source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class Expected(NamedTuple):
    #: of the GPU's name
    pattern: str
    operation: str
    #: the number of ranks on one node that the figure is for; None: any
    ranks: int | None
    busbw_gb_per_s: float
    source: str


NVLINK4 = r"\bH(100|200|800)\b(?!.*(PCIe|NVL))"
DOCUMENTED = "documented for H100 with NVLink 4, whose 18 links have 450 GB/s in one direction"
MEASURED = "measured elsewhere on 8 H200"
TABLE = [
    Expected(NVLINK4, "allreduce", None, 450.0, DOCUMENTED),
    Expected(NVLINK4, "allreduce", 8, 480.0, f"{MEASURED}, reduced in the switch (NVLS)"),
    Expected(NVLINK4, "allreduce", 8, 367.0, f"{MEASURED}, ring"),
    Expected(NVLINK4, "allreduce", 4, 363.0, "measured elsewhere on 4 H200"),
    Expected(NVLINK4, "allgather", None, 400.0, DOCUMENTED),
    Expected(NVLINK4, "allgather", 8, 361.0, MEASURED),
    Expected(NVLINK4, "p2p", None, 396.0, f"{MEASURED}, a pair, one way"),
]


def compared(part: Mapping[str, Any], device: str, ranks: int, nodes: int, shared: int = 1) -> list[dict[str, Any]]:
    """Expected, measured at the largest size, and their ratio; empty where nothing is known of such a machine.

    Nothing is expected of ``shared`` ranks on one GPU, between which there is no link.
    """
    rows = []
    for each in TABLE if nodes == 1 and ranks > 1 and shared <= 1 else ():
        measured = part.get(each.operation, {}).get("rows")
        if re.search(each.pattern, device) and each.ranks in (None, ranks) and measured:
            value = measured[-1]["busbw_gb_per_s"]
            rows.append(
                {
                    "operation": each.operation,
                    "expected_gb_per_s": each.busbw_gb_per_s,
                    "measured_gb_per_s": value,
                    "ratio": value / each.busbw_gb_per_s,
                    "source": each.source,
                }
            )
    return rows
