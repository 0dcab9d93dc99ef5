"""Whether a GPU is in order: its limits, errors and links, read by NVML, and what is wrong with them.

``read`` and `Xids` run in the sampler's process, so this file imports neither torch nor the rest of the core.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

#: links of a GPU that NVML may know
LINKS = 36
#: Xids that come from the program and not from the hardware: an illegal access, a reset of its channel
OF_PROGRAMS = {13, 31, 43, 45, 68}


def read(n: Any, handle: Any) -> dict[str, Any]:
    """Each value is null where a card or driver does not know it."""

    def ask(act: Callable[[], Any]) -> Any:
        with contextlib.suppress(Exception):
            return act()
        return None

    clock = lambda name: ask(lambda: getattr(n, name)(handle, n.NVML_CLOCK_SM))
    return {
        "power_limit_w": ask(lambda: n.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3),
        "default_power_limit_w": ask(lambda: n.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1e3),
        "applications_clock_mhz": clock("nvmlDeviceGetApplicationsClock"),
        "default_applications_clock_mhz": clock("nvmlDeviceGetDefaultApplicationsClock"),
        "uncorrected_ecc_errors": ask(
            lambda: n.nvmlDeviceGetTotalEccErrors(handle, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC)
        ),
        "remapped_rows": ask(lambda: _rows(n.nvmlDeviceGetRemappedRows(handle))),
        "pcie_width": ask(lambda: n.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        "pcie_width_max": ask(lambda: n.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        "nvlinks": _links(n, handle),
    }


def _rows(counts: Any) -> dict[str, Any]:
    return dict(zip(("corrected", "uncorrected", "pending", "failed"), map(int, counts), strict=True))


def _links(n: Any, handle: Any) -> dict[str, int] | None:
    """The links that are up, of those that the card has; null without any."""
    states = []
    for link in range(LINKS):
        with contextlib.suppress(Exception):
            states.append(bool(n.nvmlDeviceGetNvLinkState(handle, link)))
    return {"active": sum(states), "all": len(states)} if states else None


class Xids:
    """The Xid errors of the cards since this was created."""

    def __init__(self, n: Any, handles: Mapping[str, Any]) -> None:
        self._n, self._set = n, None
        self._uuids: dict[Any, str] = {}
        with contextlib.suppress(Exception):  # a driver may not permit it: then they are not known
            events = n.nvmlEventSetCreate()
            for uuid, handle in handles.items():
                n.nvmlDeviceRegisterEvents(handle, n.nvmlEventTypeXidCriticalError, events)
                self._uuids[n.nvmlDeviceGetPciInfo(handle).busId] = uuid
            self._set = events

    def __bool__(self) -> bool:
        return self._set is not None

    def new(self) -> dict[str, list[int]]:
        """UUID of a card -> its errors since the last call."""
        found: dict[str, list[int]] = {}
        with contextlib.suppress(Exception):  # the timeout, if there is none
            while self:
                event = self._n.nvmlEventSetWait_v2(self._set, 0)
                uuid = self._uuids.get(self._n.nvmlDeviceGetPciInfo(event.device).busId, "")
                found.setdefault(uuid, []).append(int(event.eventData))
        return found


# -- what is wrong -------------------------------------------------------------------------


def problems(health: Mapping[str, Any]) -> list[str]:
    """One line for each thing that is not as the card was made."""
    h = health
    rows, links = h.get("remapped_rows") or {}, h.get("nvlinks") or {}
    hardware = sorted(set(h.get("xids") or ()) - OF_PROGRAMS)
    checks = [
        (_less(h, "power_limit_w", "default_power_limit_w"),
         "a power limit of {power_limit_w:g} W instead of {default_power_limit_w:g} W"),
        (_less(h, "applications_clock_mhz", "default_applications_clock_mhz"),
         "clocks limited to {applications_clock_mhz} MHz instead of {default_applications_clock_mhz} MHz"),
        ((h.get("uncorrected_ecc_errors") or 0) > 0, "{uncorrected_ecc_errors} uncorrected memory error(s) (ECC)"),
        (bool(rows.get("pending") or rows.get("failed")), "rows of its memory are to be remapped, or could not be"),
        (bool(hardware), f"Xid {', '.join(map(str, hardware))} in the driver"),
        (_less(h, "pcie_width", "pcie_width_max"), "PCIe with {pcie_width} of {pcie_width_max} lanes"),
        # a card without any active link is one that is not connected
        (0 < links.get("active", 0) < links.get("all", 0),
         f"{links.get('active')} of {links.get('all')} NVLinks are up"),
    ]  # fmt: skip
    return [message.format_map(h) for broken, message in checks if broken]


def unlinked(healths: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """UUIDs of cards without any active NVLink beside cards that have some: alone, such a card is not connected."""
    links = {uuid: health.get("nvlinks") or {} for uuid, health in healths.items()}
    connected = any(each.get("active", 0) > 0 for each in links.values())
    return [uuid for uuid, each in links.items() if connected and each.get("all", 0) > 0 and not each["active"]]


def _less(health: Mapping[str, Any], value: str, usual: str) -> bool:
    values = health.get(value), health.get(usual)
    return None not in values and values[0] < values[1]
