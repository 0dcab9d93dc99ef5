"""A picture of what a program does: ``python examples/visualize_demo.py``

It trains a small model on two workers, records it for a moment while it runs, and draws the recording into
timeline.png: a lane for each worker, colours for kinds of work, arrows for what the workers exchange. In your own work
you would run the two commands in another terminal; they need no change to the program.
"""

from __future__ import annotations

import argparse
import glob
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import gt


def make_training() -> Callable[[], None]:
    """Data parallel: the data is split between the workers, and they add up their gradients."""
    model = gt.nn.Sequential(gt.nn.Linear(784, 256), gt.nn.ReLU(), gt.nn.Linear(256, 10))
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = gt.randn(512, 784), gt.randint(0, 10, (512,))

    def train() -> None:
        for _ in range(10):
            optimizer.zero_grad()
            loss = gt.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        loss.item()

    return train


def command(*words: str) -> None:
    print("$ python -m", *words, flush=True)
    subprocess.run([sys.executable, "-m", *words], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default="timeline.png", help="the picture: .png, .svg or .pdf")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long to record (default 0.5)")
    options = parser.parse_args()
    gt.gpu_workers(2)
    gt.auto_shard()
    train = make_training()
    train()  # the workers have started when this is done
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        recorded = pool.submit(record, folder, options, stop)
        while not stop.is_set():
            train()
        recorded.result()


def record(folder: str, options: argparse.Namespace, stop: threading.Event) -> None:
    try:
        command("gt.scripts.trace", "-s", str(options.seconds), "--dir", folder)
        (trace,) = glob.glob(os.path.join(folder, "*.log"))
    finally:
        stop.set()
    command("gt.scripts.visualize", trace, "--output", options.output)


if __name__ == "__main__":
    main()
