"""Start a server and 8 workers, and train: ``python examples/tuning_demo/launch.py [options of train.py]``.

Each worker gets a GPU of its own, as far as there are GPUs; more workers share them. Training begins when all workers
have joined the server. Everything ends with the training, or with the first process that ends before it.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

from gt.launch.local import visible_gpus
from gt.launch.parent import with_parent

HERE = Path(__file__).parent


def main() -> int:
    words = sys.argv[1:]
    port = words[words.index("--port") + 1] if "--port" in words else "12345"
    count = int(words[words.index("--workers") + 1]) if "--workers" in words else 8
    gpus = visible_gpus()
    environment = {**os.environ, "GT_TOKEN": os.environ.get("GT_TOKEN") or secrets.token_hex(16)}
    children: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str, *command: str, **extra: str) -> None:
        children[name] = subprocess.Popen([sys.executable, *command], env={**environment, **extra})

    try:
        start("the server", "-m", "gt.server", "-p", port, *with_parent())
        for number in range(count):
            extra = {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}
            threads = () if gpus else ("--threads", "1")
            command = ("-m", "gt.worker", "--host", "localhost", "-p", port, *with_parent(), *threads)
            start(f"worker process {number}", *command, **extra)
        start("training", str(HERE / "train.py"), *words)  # it waits for the workers
        return first_end(children)
    finally:
        for child in reversed(children.values()):
            child.terminate()
            child.wait(10)


def first_end(children: dict[str, subprocess.Popen[bytes]]) -> int:
    """Wait until one of the processes ends. Returns the exit code of the training; 1 if another one ended before it."""
    while True:
        for name, child in reversed(children.items()):  # the training first
            if (code := child.poll()) is not None:
                if name == "training":
                    return code
                print(f"launch.py: {name} ended before the training (exit code {code})", file=sys.stderr)
                return 1
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
