"""GT in ten seconds: ``make demo``, or ``python examples/demo.py``.

Nothing has to be running: the first tensor starts a server and a worker on this machine, on its GPU if it has one.
"""

from __future__ import annotations

import os
import textwrap
import time

import gt

WIDTH = 78


def main() -> None:
    started = time.perf_counter()
    start()
    tensors()
    picture()
    speed()
    mistakes()
    memory()
    gt.disconnect()
    print(f"\nThe system has ended with its client. {time.perf_counter() - started:.1f} s in all.")


def title(text: str) -> None:
    print(f"\n== {text} " + "=" * (WIDTH - len(text) - 4))


def start() -> None:
    title(f"GT {gt.__version__}")
    started = time.perf_counter()
    gt.ones(1).item()
    print(f"A server and its workers were started by the first tensor, in {time.perf_counter() - started:.1f} s:")
    for worker in gt.workers():
        print(f"  worker {worker.id}   {worker.backend} on {worker.device}   pid {worker.pid}")


def tensors() -> None:
    title("Tensors look and behave like PyTorch's")
    gt.manual_seed(0)
    x = gt.randn(3, 4)
    print("x =", str(x).replace("\n", "\n    "))
    print("x.softmax(1).sum(1) =", x.softmax(1).sum(1))
    first_row = x[0]
    first_row.zero_()
    print("after x[0].zero_(), (x == 0).sum() =", (x == 0).sum().item())


def picture() -> None:
    title("The Mandelbrot set, one value to read")
    before = instructions()
    re = gt.linspace(-2.2, 0.8, WIDTH)
    im = gt.linspace(-1.15, 1.15, 24).unsqueeze(1)
    x, y, steps = gt.zeros(24, WIDTH), gt.zeros(24, WIDTH), gt.zeros(24, WIDTH)
    for _ in range(40):
        x, y = (x * x - y * y + re).clamp(-9, 9), (2 * x * y + im).clamp(-9, 9)
        steps += x * x + y * y < 4
    shades = gt.tensor(list(b" .,:;-=+ox*&%$#@"), dtype=gt.uint8)
    shade = (gt.sqrt(steps / 40) * 15).long()
    for row in shades[shade].numpy():
        print(row.tobytes().decode().rstrip())
    print(f"{instructions() - before} instructions were streamed, and one value was read.")


def instructions() -> int:
    return gt.debug.get_worker_stats()["total_instructions"]


def speed() -> None:
    title("The client never waits, except to read a value")
    x, one = gt.zeros(64, 64), gt.ones(64, 64)
    for _ in range(200):  # the first calls take longer
        x = x + one
    x.sum().item()

    n = 2000
    started = time.perf_counter()
    for _ in range(n):
        x = x + one
    emitted = time.perf_counter() - started
    x[0, 0].item()
    streamed = n / (time.perf_counter() - started)

    started = time.perf_counter()
    for _ in range(200):
        x = x + one
        x[0, 0].item()
    read = 200 / (time.perf_counter() - started)

    bar("additions a second, one read at the end", streamed, streamed)
    bar("additions a second, a read after each", read, streamed)
    print(f"Python needs {emitted / n * 1e6:.1f} us for an addition, whatever it takes the worker.")


def bar(name: str, value: float, full: float) -> None:
    length = max(1, round(20 * value / full))
    print(f"  {name:40} {value:9,.0f}  {'#' * length}")


def mistakes() -> None:
    title("An error names your own line, and the session goes on")
    x = gt.arange(5)
    # the client knows the shapes: it refuses a wrong call at once, and sends nothing
    try:
        x + gt.ones(4)
    except gt.ShapeError as error:
        print_error(error)
    # an error that only a worker can see is raised at the read of a value that depends on it
    column, row = gt.ones(1 << 23, 1), gt.ones(1 << 23)
    grid = column * row
    grid = grid - grid.mean()
    try:
        grid[0, 0].item()
    except gt.OutOfMemory as error:
        print_error(error)
    print("x.sum() =", x.sum().item())


def print_error(error: Exception) -> None:
    print(f"{type(error).__name__}:")
    for line in str(error).replace(os.getcwd() + os.sep, "").splitlines():
        print(textwrap.fill(line.strip(), WIDTH, initial_indent="  ", subsequent_indent="    "))


def memory() -> None:
    title("A tensor that Python drops is freed on its worker")
    kept_tensors = [gt.ones(1 << 20) for _ in range(8)]
    kept_tensors[-1].sum().item()
    show("8 tensors of 4 MiB")
    del kept_tensors[1:]
    show("7 of them dropped")


def show(when: str) -> None:
    for name, memory_of_worker in gt.debug.memory().items():
        client = memory_of_worker["client"]
        print(f"  {name}, {when}: {client['tensors']} tensors, {client['bytes'] / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
