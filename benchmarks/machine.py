"""Everything about a machine in one command, about 10 minutes with GPUs: ``python machine.py``.

Matrix products by dtype, memory, the link to the host, a minute of load (``node/``), then all collectives and pairs,
and training steps of each model (``distributed/``): one record each, written step by step, in a new folder. At the end
``report.py`` makes a page of them. What fails or is interrupted leaves the records so far.
Exit codes: 0 complete, 1 a step failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

if __name__ == "__main__":
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import torch

from benchmarks.core import environment, results
from benchmarks.core.ranks import BAD_INPUT, DONE, FAILED, INTERRUPTED
from benchmarks.distributed.models import SHAPES, STATE_BYTES

ROOT = pathlib.Path(__file__).resolve().parents[1]
SUITE = str(ROOT / "benchmarks" / "distributed" / "distributed_benchmarks.py")
REPORT = ROOT / "benchmarks" / "report.py"
#: models of a machine without a GPU, and of a quick run
SMALL = {"cpu": ["tiny", "small"], "quick": ["tiny"]}
#: Samples of a step on a GPU: so many that it computes most of the time. With less memory, half as many or fewer. Twice
#: 8192 samples of two heads are near the most blocks that attention may have.
GPU_BATCHES = {"tiny": 8192, "small": 2048, "gpt2": 24, "gpt2-medium": 16, "gpt2-xl": 8}


LIBC = ctypes.CDLL(None)
#: prctl's number of the signal that a process gets when its parent ends
SET_DEATH_SIGNAL = 1
#: how long an interrupted step may take to close its record, before it is terminated
GRACE_S = 5.0


@dataclass(frozen=True)
class Step:
    name: str
    #: after torchrun's own options
    words: list[str]


def parser() -> argparse.ArgumentParser:
    command_line = argparse.ArgumentParser(
        environment.program(__file__), description=(__doc__ or "").partition("\n")[0]
    )
    add = command_line.add_argument
    add("--quick", action="store_true", help="small sizes and few iterations, for a first look; also without a GPU")
    add("--ranks", type=int, help="processes (default: one for each GPU; 2 on a CPU)")
    add("--output-dir", default="./results", help="where the folder of this run is made (default: ./results)")
    return command_line


def models(quick: bool, gpus: int) -> tuple[dict[str, int], list[str]]:
    """The models to train with their samples in a step, and a line for each that one GPU cannot hold."""
    if quick or not gpus:
        return {name: SHAPES[name].batch for name in SMALL["quick" if quick else "cpu"]}, []
    memory = torch.cuda.get_device_properties(0).total_memory
    needed = {name: STATE_BYTES * shape.parameters() for name, shape in SHAPES.items()}
    lines = [
        f"training {name}: skipped: parameters, gradients and moments need {size / 2**30:.1f} GiB, more than a GPU has"
        for name, size in needed.items()
        if size > memory
    ]
    return {name: gpu_batch(name, memory) for name, size in needed.items() if size <= memory}, lines


def gpu_batch(model: str, memory: int) -> int:
    """The samples of a step. Twice as many must fit as well: a step with them tells whether the GPU computes."""
    batch = GPU_BATCHES[model]
    while batch > 1 and SHAPES[model].training_bytes(2 * batch) > memory:
        batch //= 2
    return batch


def steps(quick: bool, chosen: Mapping[str, int], folder: pathlib.Path) -> list[Step]:
    out = ["--output-dir", str(folder)]
    comm = ["--sizes", "1K", "64K", "--warmup", "1", "--iters", "3"] if quick else ["--warmup", "5", "--iters", "20"]
    train = ["--warmup", "1", "--iters", "3"] if quick else ["--warmup", "5", "--iters", "20"]
    trainings = [
        Step(
            f"training {model}",
            [SUITE, "--benchmark", "training", "--model", model, "--batch-size", str(batch), *train, *out],
        )
        for model, batch in chosen.items()
    ]
    return [
        Step(
            "products, memory, host link, sustained", ["-m", "benchmarks.node", *(["--quick"] if quick else []), *out]
        ),
        Step("collectives and pairs", [SUITE, "--benchmark", "comm", *comm, *out]),
        *trainings,
    ]


def run(step: Step, ranks: int) -> int:
    """The exit code of one step, on so many ranks."""
    words = (
        step.words
        if ranks == 1
        else ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", *step.words]
    )
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, *words], env={**os.environ, "PYTHONPATH": path}, preexec_fn=end_with_parent
    )
    try:
        return process.wait()
    except KeyboardInterrupt:
        end(process)
        raise


def end_with_parent() -> None:
    """In a child, before its program: the kernel terminates it when this process ends, also by kill -9. Linux only."""
    if hasattr(LIBC, "prctl"):
        LIBC.prctl(SET_DEATH_SIGNAL, signal.SIGTERM)


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait until a step has closed its record. The keyboard interrupts it too; another sender may not have."""
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


def measure(options: argparse.Namespace, folder: pathlib.Path) -> list[str]:
    """All steps in turn; the names of those that failed."""
    gpus = torch.cuda.device_count()
    ranks = options.ranks or gpus or 2
    chosen, skipped = models(options.quick, gpus)
    failed = []
    for step in steps(options.quick, chosen, folder):
        print(f"\n== {step.name} ({ranks} rank{'s' if ranks > 1 else ''})", flush=True)
        begun = time.monotonic()
        if code := run(step, ranks):
            failed.append(f"{step.name}: exit code {code}")
        print(f"== {step.name}: {time.monotonic() - begun:.0f} s", flush=True)
    print("\n".join(skipped), end="\n" if skipped else "")
    return failed


def report(folder: pathlib.Path) -> None:
    """The page of this run, where this checkout can make one; the paths of the records."""
    records = sorted(folder.glob("*.json"))
    print("\n== records", *map(str, records), sep="\n", flush=True)
    if REPORT.exists() and records:
        subprocess.run([sys.executable, str(REPORT), *map(str, records), "--output-dir", str(folder)], check=False)


def main(words: Sequence[str] | None = None) -> int:
    options = parser().parse_args(words)
    if options.ranks is not None and options.ranks < 1:
        print(f"error: --ranks {options.ranks}: at least 1", file=sys.stderr)
        return BAD_INPUT
    try:
        folder = results.writable(
            pathlib.Path(options.output_dir) / f"machine_{environment.utc_now().replace(':', '')}"
        )
    except results.Unwritable as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # of a batch system: as from the keyboard
    try:
        failed = measure(options, folder)
    except KeyboardInterrupt:
        report(folder)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    report(folder)
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    return FAILED if failed else DONE


if __name__ == "__main__":
    sys.exit(main())
