"""The cost of torch's device ``gtx``: ``python benchmarks/torch_device.py [--quick] [--json FILE] [--only NAME…]``

Times are the client's own: processor time of the thread that emits, which other programs disturb least. A model is
compared with the same model in GT's own API, in turns. This is not a test: a busy machine changes figures.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import sys
import time
import timeit
import warnings
from collections.abc import Callable, Iterator
from typing import Any

if __name__ == "__main__":
    # the root of the repository instead of this folder, so that modules have the same name wherever this starts
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import torch

import gt
import gt.torch_device
from benchmarks import bare
from benchmarks.control_plane import in_turns, ratio, run
from benchmarks.core.rows import Row
from benchmarks.torch_device_child import GPT2, Steps
from gt.client.stream.connect import session

DEVICE = gt.torch_device.NAME
CALLS = 1000
#: Seconds of steps of GPT-2 before any is timed.
WARM_UP_S = 90 if os.environ.get("GT_AUTO_COMPILE") == "1" else 5
#: layers, width, heads, vocabulary, batch, length
DEEP, NANO = (12, 64, 4, 256, 2, 16), (2, 128, 4, 256, 16, 128)


def single_ops(rounds: int) -> Iterator[Row]:
    """One op after the other, with a read between the rounds."""
    x, y = torch.ones(64, 64, device=DEVICE), torch.ones(64, 64, device=DEVICE)
    names = {"x": x, "y": y, "w": (x * 1).requires_grad_(), "g": gt.ones(64, 64), "torch": torch}
    rows: dict[str, tuple[str, float | None]] = {
        "add": ("x + y", 7.0),
        "add recording gradients": ("x + w", 10.0),
        "add in GT's own API": ("g + g", None),
        "view": ("x.view(32, 128)", None),
        "transpose": ("x.transpose(0, 1)", None),
        "slice": ("x[3:7]", None),
        "matmul": ("x @ y", None),
        "linear": ("torch.nn.functional.linear(x, y)", None),
        "softmax": ("torch.softmax(x, -1)", None),
    }
    timers = {name: timeit.Timer(code, globals=names, timer=time.thread_time) for name, (code, _) in rows.items()}
    samples: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, timer in timers.items():
            x.sum().item()
            samples[name].append(timer.timeit(CALLS) / CALLS * 1e6)
    for name, (_, goal) in rows.items():
        details = {"least_us": min(samples[name])}
        yield Row(name, statistics.median(samples[name]), "us of the client", "<=" if goal else "", goal, details)


def floors(rounds: int) -> Iterator[Row]:
    """What torch itself takes for a kernel in Python that does nothing but return a new tensor, as `add` has to."""
    library: Any = torch.library.Library("aten", "IMPL")
    new_tensor, handle = gt.torch_device.backend.new_tensor, object()

    def empty_kernel(*_: Any) -> torch.Tensor:
        result = new_tensor((64, 64), torch.float32)
        result.untyped_storage()._gt = handle  # type: ignore[attr-defined]
        return result

    with warnings.catch_warnings(action="ignore"):  # the kernels of GT are replaced
        for overload in ("sub.Tensor", "view"):
            library.impl(overload, empty_kernel, gt.torch_device.backend.KEY, allow_override=True)
    x = torch.ones(64, 64, device=DEVICE)
    names = {"x": x, "w": (x * 1).requires_grad_()}
    rows = {
        "floor of a binary op": "x - x",
        "floor of a binary op recording gradients": "x - w",
        "floor of a view": "x.view(32, 128)",
    }
    for name, code in rows.items():
        timer = timeit.Timer(code, globals=names, timer=time.thread_time)
        samples = [timer.timeit(CALLS) / CALLS * 1e6 for _ in range(rounds)]
        yield Row(name, statistics.median(samples), "us of the client", details={"least_us": min(samples)})
    library._destroy()  # GT's kernels are back


def twelve_layers(rounds: int) -> Iterator[Row]:
    """The client's time for a step of 12 layers, and how much of it is sent as templates."""
    theirs, ours = Steps(torch, DEEP), Steps(gt, DEEP)
    for steps in (theirs, ours):
        steps.wall(4)
    before = session().worker_stats()
    theirs.wall(4)
    after = session().worker_stats()
    hot, total = (
        sum(getattr(a, name) - getattr(b, name) for a, b in zip(after, before, strict=True))
        for name in ("hot_instructions", "total_instructions")
    )
    pairs = [(theirs.client_ms(theirs.step), ours.client_ms(ours.step)) for _ in range(2 * rounds)]
    device, own = zip(*pairs, strict=True)
    details = {"device_ms": statistics.median(device), "gt_ms": statistics.median(own)}
    yield Row("step of 12 layers", ratio(list(own), list(device)), "x GT's own API", "<=", 1.4, details)
    yield Row("share in templates", 100 * hot / total, "% of instructions", ">=", 95, {"instructions": total / 4})


def optimizers(rounds: int) -> Iterator[Row]:
    """The client's time for the step of an optimizer with torch's defaults, for 12 layers, against ``foreach=True``."""
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        steps = Steps(torch, DEEP)
        variants: list[Any] = [kind(steps.model.parameters(), lr=1e-3, foreach=foreach) for foreach in (None, True)]
        steps.passes()
        for _ in range(4):
            for optimizer in variants:
                optimizer.step()
        times = [[steps.client_ms(optimizer.step) for optimizer in variants] for _ in range(2 * rounds)]
        default, foreach = (statistics.median(column) for column in zip(*times, strict=True))
        yield Row(f"step of {kind.__name__}, 12 layers", default, "ms of the client", details={"foreach_ms": foreach})


def compiled(rounds: int) -> Iterator[Row]:
    """``torch.compile(model, backend="gt")``: forward and backward of 12 layers."""
    plain = Steps(torch, DEEP)
    steps = Steps(torch, DEEP, lambda model: torch.compile(model, backend="gt"))
    for _ in range(4):
        plain.wall(1), steps.wall(1)
    times = [(steps.client_ms(steps.passes), plain.client_ms(plain.passes)) for _ in range(2 * rounds)]
    ours, eager = (statistics.median(column) for column in zip(*times, strict=True))
    details = {"without_ms": eager, "least_ms": min(t for t, _ in times)}
    yield Row("12 layers forward and backward, compiled", ours, "ms of the client", "<=", 3.0, details)


def small_gpt(rounds: int) -> Iterator[Row]:
    """Steps of a GPT of 2 layers x 128, from start to end."""
    theirs, ours = Steps(torch, NANO), Steps(gt, NANO)
    device_s, gt_s = in_turns(rounds, lambda: theirs.wall(5), lambda: ours.wall(5))
    details = {"device_ms": statistics.median(device_s) * 200, "gt_ms": statistics.median(gt_s) * 200}
    yield Row("step of a GPT of 2 layers x 128", ratio(gt_s, device_s), "x GT's own API", "<=", 1.1, details)


def gpt2(rounds: int) -> Iterator[Row]:
    """Steps of GPT-2 124M in bfloat16 against torch itself, where the client has a GPU, too.

    Torch's run in a process of their own: its autograd engine takes streams of one kind of device only."""
    if not torch.cuda.is_available():
        return
    ours, theirs = Steps(torch, GPT2, bfloat16=True), bare.Child("-m", "benchmarks.torch_device_child")

    def torch_steps() -> None:
        theirs.tell("20")
        theirs.hear("done")

    theirs.hear("ready")
    until = time.monotonic() + WARM_UP_S  # with GT_AUTO_COMPILE=1, the workers compile meanwhile
    while time.monotonic() < until:
        ours.wall(5)
    device_s, torch_s = in_turns(rounds, lambda: ours.wall(20), torch_steps)
    client = statistics.median(ours.client_ms(ours.step) for _ in range(rounds))
    details = {"device_ms": statistics.median(device_s) * 50, "torch_ms": statistics.median(torch_s) * 50}
    yield Row("step of GPT-2 124M, bfloat16", ratio(torch_s, device_s), "x torch eager", "<=", 1.05, details)
    yield Row("the client's time of it", client, "ms of the client")


MEASUREMENTS: dict[str, Callable[[int], Iterator[Row]]] = {
    "ops": single_ops,
    "layers": twelve_layers,
    "compile": compiled,
    "gpt": small_gpt,
    "gpt2": gpt2,
    "optimizers": optimizers,
    "floors": floors,
}


if __name__ == "__main__":
    sys.exit(run(MEASUREMENTS, __doc__))
