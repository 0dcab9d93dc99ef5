"""``benchmark.py`` in as many processes as there are GPUs: ``python launch.py [--single] [options of benchmark.py]``.

One process is started directly, several by torchrun. Torchrun's own exit code is always 1; this script returns the
benchmark's exit code instead. GT is always one process, which starts a worker for each GPU itself.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

SCRIPT = Path(__file__).resolve().with_name("benchmark.py")


def processes(single: bool) -> int:
    """One process per GPU; one without GPUs. `BENCH_PROCESSES` sets another number, for runs on the CPU."""
    setting = os.environ.get("BENCH_PROCESSES", "")
    if single or setting.isdigit():
        return 1 if single else max(1, int(setting))
    import torch

    return max(1, torch.cuda.device_count())


def main(arguments: list[str]) -> int:
    if importlib.util.find_spec("torch") is None:
        print(f"error: {sys.executable} has no torch: name one that has with PYTHON=…", file=sys.stderr)
        return 2
    single = "--single" in arguments
    rest = [argument for argument in arguments if argument != "--single"]
    count = 1 if {"-h", "--help"} & set(rest) else processes(single)
    if on_gt(rest):
        os.environ["BENCH_PROCESSES"] = str(count)
    if count == 1 or on_gt(rest):
        os.execv(sys.executable, [sys.executable, str(SCRIPT), *rest])
    return _torchrun(count, rest)


def on_gt(arguments: list[str]) -> bool:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--engine", nargs="?")
    return bool(parser.parse_known_args(arguments)[0].engine == "gt")


def _torchrun(count: int, arguments: list[str]) -> int:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    # torchrun sets one thread per process, and prints a long message about it
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // count)))
    try:
        words = ["--standalone", f"--nproc_per_node={count}", str(SCRIPT), *arguments]
        run(parse_args(words))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        first = min(error.failures.values(), key=lambda failure: failure.timestamp)
        return first.exitcode if first.exitcode > 0 else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
