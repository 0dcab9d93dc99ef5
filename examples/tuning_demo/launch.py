"""Start a server and 8 workers, and train: ``python examples/tuning_demo/launch.py [options of train.py]``.

Each worker gets a GPU of its own, as far as there are GPUs; more workers share them. Everything ends with the training.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

from gt.launch.local import visible_gpus

HERE = Path(__file__).parent


def main() -> int:
    words = sys.argv[1:]
    port = words[words.index("--port") + 1] if "--port" in words else "12345"
    count = int(words[words.index("--workers") + 1]) if "--workers" in words else 8
    gpus = visible_gpus()
    environment = {**os.environ, "GT_TOKEN": os.environ.get("GT_TOKEN") or secrets.token_hex(16)}
    children = []

    def start(*command: str, **extra: str) -> None:
        children.append(subprocess.Popen([sys.executable, *command], env={**environment, **extra}))

    try:
        start("-m", "gt.server", "-p", port, "--with-parent")
        for number in range(count):
            extra = {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}
            threads = () if gpus else ("--threads", "1")
            start("-m", "gt.worker", "--host", "localhost", "-p", port, "--with-parent", *threads, **extra)
        training = [sys.executable, str(HERE / "train.py"), *words]
        return subprocess.run(training, env=environment).returncode
    finally:
        for child in reversed(children):
            child.terminate()
            child.wait(10)


if __name__ == "__main__":
    sys.exit(main())
