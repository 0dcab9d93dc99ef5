"""Where a worker is: its host, its NUMA node, its GPU's neighbours. What the machine does not tell stays empty.

host, NUMA, PCIe   from the kernel's files in /proc and /sys
NVLink             from NVML, the library of NVIDIA's driver
"""

from __future__ import annotations

import ctypes
import os
import socket
from pathlib import Path

from gt.wire.structures import WorkerPlace

#: In /sys: the vendor of NVIDIA's devices, and how the class of a display controller begins.
NVIDIA_VENDOR, DISPLAY_CLASS = "0x10de", "0x03"
#: In NVML: the capability "NVLink between two GPUs", and the answer that they have it.
P2P_NVLINK, P2P_OK = 2, 0
_NVML = "libnvidia-ml.so.1"


def find_place(pci: str = "", root: Path = Path("/")) -> WorkerPlace:
    """The place of this process. ``pci``: the PCI address of its GPU. ``root``: where /proc and /sys are."""
    devices = root / "sys/bus/pci/devices"
    numa = _number(devices / pci / "numa_node") if pci else _cpu_node(root)
    hostname = socket.gethostname()
    # the same on all processes of a host, and different on its twin with the same name
    machine = f"{hostname} {_text(root / 'proc/sys/kernel/random/boot_id')}".strip()
    return WorkerPlace(machine, hostname, numa, pci, _below_one_switch(pci, devices), nvlink_neighbours(pci))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    try:
        return int(_text(path))
    except ValueError:
        return -1


def _cpu_node(root: Path) -> int:
    """The NUMA node that has all cores this process may use; -1 if several have some of them."""
    cores = os.sched_getaffinity(0)
    for node in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        if cores <= parse_cores(_text(node / "cpulist")):
            return int(node.name.removeprefix("node"))
    return -1


def parse_cores(text: str) -> set[int]:
    """The numbers in a list of the kernel, such as ``0-3,8``."""
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def _below_one_switch(pci: str, devices: Path) -> tuple[str, ...]:
    """The GPUs that share a PCIe switch with this one: both paths begin with the same device below the host bridge."""
    if not pci:
        return ()
    above = _bridges(devices / pci)
    return tuple(
        device.name
        for device in sorted(devices.glob("*"))
        if device.name != pci
        and _text(device / "vendor") == NVIDIA_VENDOR
        and _text(device / "class").startswith(DISPLAY_CLASS)
        and above & _bridges(device)
    )


def _bridges(device: Path) -> set[str]:
    """The PCI devices above a device: ports and switches, without the host bridge."""
    path = device.resolve().parts[:-1]
    return {part for part in path if part.count(":") == 2}


def nvlink_neighbours(pci: str, library: str = _NVML) -> tuple[str, ...]:
    """The PCI addresses of the GPUs that a GPU reaches by NVLink."""
    if not pci:
        return ()
    try:
        nvml = ctypes.CDLL(library)
        if nvml.nvmlInit_v2():
            return ()
    except (OSError, AttributeError):  # no driver, or an old one
        return ()
    try:
        return _neighbours(nvml, pci)
    except AttributeError:
        return ()
    finally:
        nvml.nvmlShutdown()


def _neighbours(nvml: ctypes.CDLL, pci: str) -> tuple[str, ...]:
    own = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByPciBusId_v2(pci.encode(), ctypes.byref(own)):
        return ()
    count, found = ctypes.c_uint(), []
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        other, status, info = ctypes.c_void_p(), ctypes.c_int(-1), _PciInfo()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(other)) or other.value == own.value:
            continue
        failed = nvml.nvmlDeviceGetP2PStatus(own, other, P2P_NVLINK, ctypes.byref(status))
        if not failed and status.value == P2P_OK and not nvml.nvmlDeviceGetPciInfo_v3(other, ctypes.byref(info)):
            found.append(short_pci(info.busId.decode()))
    return tuple(found)


class _PciInfo(ctypes.Structure):
    """NVML's nvmlPciInfo_t."""

    _fields_ = [
        ("busIdLegacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pciDeviceId", ctypes.c_uint),
        ("pciSubSystemId", ctypes.c_uint),
        ("busId", ctypes.c_char * 32),
    ]


def short_pci(address: str) -> str:
    """The PCI address as in /sys: NVML writes the domain with eight digits."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}"
