"""Train Mini-GPT in stages, with the schedule by hand: ``python examples/tuning_demo/train.py``.

It connects to a running server with 8 workers (see the README, or launch.py, which starts them). train_simple.py does
the same with `gt.pipeline.Pipeline` and starts everything itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gt
from gt.pipeline import Schedule, bubble, bubble_formula, make_schedule, read_schedule
from gt.pipeline.files import is_file
from gt.pipeline.schedules import SCHEDULES
from gt.pipeline.timing import merged_order

try:
    from model import PRESETS, MiniGpt, loss_fn
except ModuleNotFoundError:  # imported by a test
    from examples.tuning_demo.model import PRESETS, MiniGpt, loss_fn

CONFIG = Path(__file__).with_name("sharding_config.yaml")
#: seconds until the server answers and all workers have joined it; the first import of torch from a cold disk is slow
START_TIMEOUT_S = 120.0
#: the kinds of spans in a trace in which a worker computes nothing
NOT_COMPUTING = ("moves", "waiting", "dispatcher", "line")


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that both programs have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--preset", choices=PRESETS, default="tiny", help="the sizes of the model (default tiny)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--microbatches", type=int, help="default 8; a schedule from a file has its own number")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--schedule", default="1f1b", help=f"{', '.join(SCHEDULES)}, or a .csv or .yaml file")
    parser.add_argument("--workers", type=int, default=8, help="the number of workers (default 8)")
    for name in ("seq-len", "layers", "hidden"):
        parser.add_argument(f"--{name}", type=int, help="default: as the preset has it")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--amp", action="store_true", help="mixed precision: bfloat16")
    parser.add_argument("--checkpoint", action="store_true", help="compute activations again instead of keeping them")
    parser.add_argument("--no-compare", action="store_true", help="do not train again on one worker")
    return parser


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--host", default="localhost")
    parser.add_argument("-p", "--port", type=int, default=12345)
    options = parser.parse_args()
    os.environ.setdefault("GT_CONFIG", str(CONFIG))  # read at GT's first use
    try:
        connect(f"{options.host}:{options.port}", options.workers)
        run(options, lambda model, schedule: partial(by_hand, model, schedule))
    except gt.GtError as error:
        raise SystemExit(f"train.py: {error}") from None


def connect(address: str, workers: int, seconds: float = START_TIMEOUT_S) -> None:
    """Connect to the server, and wait until the workers have joined it. Both may have been started just now."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            gt.connect(address)
            break
        except gt.ConnectionLost:
            if time.monotonic() > deadline:
                raise
    while len(gt.workers()) < workers:
        if time.monotonic() > deadline:
            host, _, port = address.rpartition(":")
            raise gt.NoWorkers(
                f"{len(gt.workers())} of {workers} workers have joined {address} within {seconds:g} s; "
                f"start more with: python -m gt.worker --host {host} -p {port}"
            )
        time.sleep(0.02)


# -- the schedule by hand -------------------------------------------------------------------------


def by_hand(model: MiniGpt, schedule: Schedule, ids: Any, targets: Any) -> Any:
    """One step: the stages run the actions of the schedule, and signals move activations and gradients."""
    count, last, stage = schedule.microbatches, schedule.parts - 1, schedule.stage_of
    inputs = {(0, m): x for m, x in enumerate(ids.tensor_split(count))}
    targets = [gt.signal.tensor(y, model.parts[last].name) for y in targets.tensor_split(count)]
    outputs, gradients, losses = {}, {}, []
    for kind, part, m in merged_order(schedule):
        if kind == "F":
            y = model.parts[part](inputs[part, m])
            if part < last:
                # moves the activations now; the next stage waits for them only when it needs them
                inputs[part + 1, m] = moved(y, stage[part], stage[part + 1]).requires_grad_()
            else:
                with gt.signal.context(model.parts[last].name):
                    y = loss_fn(y, targets[m]) * (len(targets[m]) / len(ids))
                losses.append(y.detach())
            outputs[part, m] = y
        elif kind in "BI":  # a program can ask for all gradients at once only; Pipeline splits B into I and W
            outputs.pop((part, m)).backward(gradients.pop((part, m), None))
            x = inputs.pop((part, m))
            if part > 0:
                gradients[part - 1, m] = moved(x.grad, stage[part], stage[part - 1])
    return sum(losses)


def moved(x: Any, source: int, target: int) -> Any:
    """Activations or gradients on their way to another stage; two parts of one stage hand them on as they are."""
    x = x.detach()
    return x if source == target else gt.signal.tensor(x, f"stage{source}_to_stage{target}").detach()


# -- training -------------------------------------------------------------------------------------

#: (ids, targets) -> the loss, after the gradients were added to the parameters
Step = Callable[[Any, Any], Any]


def run(options: argparse.Namespace, make_step: Callable[[MiniGpt, Schedule], Step]) -> None:
    """Train in stages, print the figures, and train again on one worker to compare."""
    schedule = chosen_schedule(options.schedule, stages_of(os.environ["GT_CONFIG"]), options.microbatches)
    model = make_model(options, schedule)
    step = make_step(model, schedule)
    losses, seconds = train(options, model, step)
    print(f"Mini-GPT: {readable(model.count())} parameters, {schedule.stages} stages, {len(gt.workers())} workers")
    print(f"step: {min(seconds) * 1e3:.0f} ms")
    print(f"bubble of {schedule.name}: {expected_bubble(schedule)}, {measured(model, options, step)}")
    for worker, memory in gt.debug.memory().items():
        print(f"{worker}: {memory['client']['bytes'] / 2**20:.1f} MiB in {memory['client']['tensors']} tensors")
    if options.no_compare:
        return
    del model, step
    gt.load_config(None)  # without stages, on purpose
    model = make_model(options, schedule)
    alone, _ = train(options, model, partial(whole, model))
    for number, (a, b) in enumerate(zip(losses, alone, strict=True), 1):
        print(f"step {number:3}: loss {a:.4f}, on one worker {b:.4f}")
    print(f"largest difference: {max(abs(a - b) for a, b in zip(losses, alone, strict=True)):.1e}")


def readable(count: int) -> str:
    """204.7M, 71.3K, 940."""
    for unit, name in ((1e6, "M"), (1e3, "K")):
        if count >= unit:
            return f"{count / unit:.1f}{name}"
    return str(count)


def stages_of(path: str) -> int:
    """How many stages the configuration has."""
    return len(re.findall(r"^pp_stage\d+:", Path(path).read_text(), re.MULTILINE))


def chosen_schedule(name: str, stages: int, microbatches: int | None) -> Schedule:
    """The schedule of this name, or the one in this file."""
    if not is_file(name):
        return make_schedule(name, stages, 8 if microbatches is None else microbatches)
    schedule = read_schedule(name)
    if schedule.stages != stages or microbatches not in (None, schedule.microbatches):
        wanted = f"{stages} stages" + ("" if microbatches is None else f" and {microbatches} microbatches")
        raise gt.ConfigError(
            f"{name} has {schedule.stages} stages and {schedule.microbatches} microbatches, not {wanted}"
        )
    return schedule


def expected_bubble(schedule: Schedule) -> str:
    """By formula, or simulated where there is no formula."""
    chunks = schedule.parts // schedule.stages
    formula = bubble_formula(schedule.name, schedule.stages, schedule.microbatches, chunks)
    return f"simulated {bubble(schedule):.1%}" if formula is None else f"by formula {formula:.1%}"


def make_model(options: argparse.Namespace, schedule: Schedule) -> MiniGpt:
    gt.manual_seed(0)
    size = PRESETS[options.preset]
    given = {"layers": options.layers, "hidden": options.hidden, "seq_len": options.seq_len}
    size = size._replace(**{name: value for name, value in given.items() if value is not None})
    return MiniGpt(size, schedule.stage_of, options.checkpoint)


def train(options: argparse.Namespace, model: MiniGpt, step: Step) -> tuple[list[float], list[float]]:
    """The loss of each step, and the seconds of each."""
    optimizer = gt.optim.AdamW(model.parameters(), lr=options.lr)
    losses, seconds = [], []
    for ids, targets in progress(batches(options, model.size), options.steps):
        started = time.perf_counter()
        optimizer.zero_grad()
        with gt.autocast(dtype=gt.bfloat16, enabled=options.amp):
            loss = step(ids, targets)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - started)
    return losses, seconds


def whole(model: MiniGpt, ids: Any, targets: Any) -> Any:
    loss = loss_fn(model(ids), targets)
    loss.backward()
    return loss


def batches(options: argparse.Namespace, size: Any) -> Iterator[tuple[Any, Any]]:
    """Sequences that count in steps of 1 to 7, from a random start: after two letters the next one is certain."""
    for _ in range(options.steps):
        start = gt.randint(0, size.vocabulary, (options.batch_size, 1))
        pace = gt.randint(1, 8, (options.batch_size, 1))
        letters = (start + pace * gt.arange(size.seq_len + 1)) % size.vocabulary
        yield letters[:, :-1], letters[:, 1:]


def progress(items: Iterator[Any], total: int) -> Any:
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return items
    return tqdm(items, total=total, unit="step")


def measured(model: MiniGpt, options: argparse.Namespace, step: Step) -> str:
    """The share of one more step in which a worker computes nothing, from a trace of the workers."""
    ids, targets = next(batches(options, model.size))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.json"
        with gt.debug.trace(path):
            step(ids, targets).item()
        events = json.loads(path.read_text())["traceEvents"]
    model.zero_grad()
    by_worker: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X" and event["cat"] not in NOT_COMPUTING:
            by_worker.setdefault(event["pid"], []).append((event["ts"], event["ts"] + event["dur"]))
    spans = [span for row in by_worker.values() for span in row]
    length = max(end for _, end in spans) - min(begin for begin, _ in spans)
    busy = sum(covered(sorted(row)) for row in by_worker.values())
    return f"measured {1 - busy / (length * len(by_worker)):.1%} ({hardware()})"


def hardware() -> str:
    """What the workers share: several CPU workers on a core wait for each other, which counts as bubble too."""
    workers = gt.workers()
    on_cpu = all(worker.device.startswith("cpu") for worker in workers)
    return f"{len(workers)} workers on {os.cpu_count()} cores" if on_cpu else f"{len(workers)} workers on GPUs"


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of spans."""
    total, until = 0.0, float("-inf")
    for begin, end in spans:
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


if __name__ == "__main__":
    main()
