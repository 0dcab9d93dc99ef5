"""The assumed costs of a machine's work: arithmetic on a small YAML file.

    an instruction     launch + max(FLOPs / rate, bytes / memory bandwidth); a view costs only its launch
    a collective       rings: the bytes through one worker's link divided by its bandwidth, and a latency for each hop

S is what a rank sends or receives in total: its buffer (all_reduce, broadcast), the whole (all_gather, reduce_scatter,
all_to_all). Between nodes the workers of a node use their network ports in parallel. So a ring over k workers of each
node is k ports wide, and at most as wide as the links within a node.
"""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import yaml

from gt.ops import Signature
from gt.types import TensorType

FOLDER = pathlib.Path(__file__).parents[1] / "machines"


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: bytes per second, one way
    bandwidth: float
    #: seconds of a hop
    latency_us: float


class Control(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The control plane: the client's time per instruction, the dispatcher's per instruction and per message, a hop."""

    client_us: float
    instruction_us: float
    message_us: float
    latency_us: float


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    nodes: int
    workers_a_node: int
    #: dtype -> FLOP/s of a worker
    flops: dict[str, float]
    efficiency: float
    memory_bandwidth: float
    launch_us: float
    view_us: float
    #: do collectives run in parallel with computation?
    overlap: bool
    link: Wire
    network: Wire
    control: Control

    @property
    def workers(self) -> int:
        return self.nodes * self.workers_a_node

    def op_seconds(self, signature: Signature) -> float:
        if signature.op.view:
            return self.view_us * 1e-6
        types = [t for t in (*signature.ins, *signature.outs) if isinstance(t, TensorType)]
        moved = sum(t.nbytes for t in types) / self.memory_bandwidth
        flops = signature.op.flops(*signature.ins, **dict(signature.attrs)) if signature.op.flops else 0
        return self.launch_us * 1e-6 + max(flops / self._rate(types), moved)

    def _rate(self, types: Sequence[TensorType]) -> float:
        """The rate for the dtype of the first operand; a dtype without a rate has float32's."""
        name = types[0].dtype.name if types else "float32"
        return self.flops.get(name, self.flops["float32"]) * self.efficiency

    def collective_seconds(self, kind: str, members: Sequence[int], nbytes: float) -> float:
        """``nbytes`` is S."""
        n = len(members)
        if n < 2:
            return 0.0
        passes, share = RINGS[kind](n)
        bandwidth, once_around = self._ring(members)
        return passes * once_around * (n - 1) / n + share * nbytes / bandwidth

    def _ring(self, members: Sequence[int]) -> tuple[float, float]:
        """(bytes per second, latency of one round) of the ring through these workers."""
        workers_by_node = Counter(w // self.workers_a_node for w in members)
        within = (len(members) - len(workers_by_node)) * self.link.latency_us
        if len(workers_by_node) == 1:
            return self.link.bandwidth, len(members) * self.link.latency_us * 1e-6
        width = (
            min(self.link.bandwidth, min(workers_by_node.values()) * self.network.bandwidth)
            if within
            else self.network.bandwidth
        )
        return width, (within + len(workers_by_node) * self.network.latency_us) * 1e-6


#: kind -> n -> (rounds of the ring, share of S through a link)
RINGS: dict[str, Callable[[int], tuple[float, float]]] = {
    "all_reduce": lambda n: (2, 2 * (n - 1) / n),
    "all_gather": lambda n: (1, (n - 1) / n),
    "reduce_scatter": lambda n: (1, (n - 1) / n),
    "all_to_all": lambda n: (1, (n - 1) / n),
    "broadcast": lambda n: (1, 1.0),
    # regions from one worker to another: a hop, which is a ring of two
    "exchange": lambda n: (1, 1.0),
}


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read(name: str) -> Machine:
    """A machine of the folder by its name, or any file; ``ValueError`` says what is wrong with it."""
    path = FOLDER / f"{name}.yaml" if name in names() else pathlib.Path(name)
    try:
        return checked(yaml.safe_load(path.read_text()), str(path.name))
    except OSError:
        raise ValueError(f"{name}: no such machine; there are {', '.join(names())}, or give a file") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name}: not YAML: {error}") from None


def checked(data: Any, source: str) -> Machine:
    try:
        # YAML reads 1e12 as a string, so strings with numbers are accepted
        machine = msgspec.convert(data, Machine, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"{source}: {error}") from None
    if "float32" not in machine.flops:
        raise ValueError(f"{source}: flops names no float32")
    rates = [
        *machine.flops.values(),
        machine.efficiency,
        machine.memory_bandwidth,
        machine.link.bandwidth,
        machine.network.bandwidth,
    ]
    if min(*rates, machine.nodes, machine.workers_a_node) <= 0:
        raise ValueError(f"{source}: rates, nodes and workers are more than 0")
    return machine
