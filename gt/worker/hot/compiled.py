"""A piece through `torch.compile`'s compiler: traced to an FX graph of torch's own ops, then compiled by inductor.

Nothing of it is Python's when it runs, so nothing has to be guarded but what `Program` and `Guard` say. Tensors the
piece frees are none of the graph's results; what it writes in place is written into the inputs.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from gt.worker.hot.guard import spread
from gt.worker.hot.piece import Piece
from gt.worker.hot.program import Program, Unfit, by_steps

#: how far compiled code may be from the steps, as a share of a result's norm: it rounds elsewhere, and no more
TOLERANCES = {torch.float64: 1e-6, torch.float32: 5e-3, torch.float16: 5e-2, torch.bfloat16: 1e-1}
#: of a device's free memory, what a trial may take up
TRIAL_SHARE = 0.25
#: torch's tracer can be used by one thread at a time
_tracing = threading.Lock()


@dataclass
class Compiled:
    program: Program
    call: Callable[..., Any]
    #: result -> with which inputs and other results it shares memory when run by steps
    expected: list[set[int]]
    #: how the inputs lie that it was made for
    strides: list[tuple[int, ...]]
    seconds: float
    #: has it been run?
    warm: bool = False
    #: results that share memory they should not: None before the first run
    apart: list[int] | None = None
    #: seconds a run by steps and a compiled one took; 0 where not measured
    took: tuple[float, float] = field(default=(0.0, 0.0))

    def __call__(self, inputs: list[Any], floats: Any, ints: Any) -> list[Any]:
        made = list(self.call(*inputs, floats, ints))
        if self.program.checks_positions and made.pop():
            raise IndexError("a position is out of range")
        if self.apart is None:
            shared = sharing(inputs, made)
            self.apart = [i for i, (now, then) in enumerate(zip(shared, self.expected, strict=True)) if now - then]
        for i in self.apart:
            made[i] = made[i].clone()
        for i, k in self.program.donated.items():
            made[i] = inputs[k]  # and not a view of it, which would hold on to it
        self.warm = True
        return made


@dataclass(frozen=True, slots=True)
class Lying:
    """How a tensor lies, without it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: Any

    def stride(self) -> tuple[int, ...]:
        return self.strides


def lying(x: Any) -> Lying:
    return Lying(x.shape, x.stride(), x.dtype, x.device)


def build(program: Program, inputs: list[Any]) -> Compiled:
    """``inputs`` are looked at, never read: whatever lies as the real ones do."""
    began = time.monotonic()
    with _tracing, torch.no_grad(), _quiet():
        call, expected = _compile(program, inputs)
    return Compiled(program, call, expected, [x.stride() for x in inputs], time.monotonic() - began)


def _compile(program: Program, inputs: list[Any]) -> tuple[Any, list[set[int]]]:
    import torch._inductor.config as inductor
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    if program.device.type == "cpu":
        inductor.compile_threads = 1  # one compiler is enough, and no processes that live on
    expected: list[set[int]] = []

    def run(*operands: Any) -> list[Any]:
        made = program(list(operands[:-2]), *operands[-2:])
        expected[:] = sharing(list(operands[:-2]), made[: len(program.piece.results)])
        return made

    # the compiler keeps on disk what it makes for those who come with shapes of their own
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        kept = [torch.empty(program.count, dtype=t, device=program.device) for t in (torch.float64, torch.int64)]
        fakes = [_fake(x) for x in inputs] + kept
        graph = make_fx(run)(*fakes)
    with tracing(TracingContext(mode)):
        return compile_fx(graph, fakes), expected


def _fake(x: Any) -> Any:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def cells(program: Program, numbers: list[Any]) -> tuple[Any, Any]:
    """The numbers of a run in memory, as float64 and as int64."""
    made = torch.zeros(program.count, dtype=torch.float64)
    program.cells.pack_into(made.numpy().data, 0, *program.numbers(numbers))
    made = made.to(program.device)
    return made, made.view(torch.int64)


class _quiet:  # noqa: N801, a context manager
    """The compiler's warnings and logs are about code nobody wrote."""

    def __enter__(self) -> None:
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.simplefilter("ignore")
        logging.getLogger("torch._inductor").setLevel(logging.ERROR)

    def __exit__(self, *problem: object) -> None:
        self._caught.__exit__(None, None, None)


# -- which results share memory ------------------------------------------------------------


def sharing(inputs: list[Any], made: list[Any]) -> list[set[int]]:
    """For each result the inputs (from 0 on) and the other results (from -1 down) that show the same memory."""
    where: dict[int, set[int]] = {}
    for i, x in enumerate(inputs):
        where.setdefault(x.untyped_storage()._cdata, set()).add(i)
    for i, x in enumerate(made):
        where.setdefault(x.untyped_storage()._cdata, set()).add(~i)
    return [where[x.untyped_storage()._cdata] - {~i} for i, x in enumerate(made)]


# -- a trial: the same run by steps and compiled -------------------------------------------


def snapshot(inputs: list[Any]) -> list[Any] | None:
    """Copies that lie as the inputs do; None if there is no room for a trial."""
    if sum(x.numel() * x.element_size() for x in inputs) * 2 > TRIAL_SHARE * _free(inputs):
        return None
    return [_copy(x) for x in inputs]


def _copy(x: Any) -> Any:
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    once = spread(made)
    if once is None:  # windows that overlap: nobody writes to those
        return x
    once.copy_(spread(x))
    return made


def _free(inputs: list[Any]) -> float:
    device = inputs[0].device if inputs else torch.device("cpu")
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    with open("/proc/meminfo") as file:
        told = dict(line.split(":") for line in file)
    return float(told["MemAvailable"].split()[0]) * 1024


def trial(piece: Piece, compiled: Compiled, inputs: list[Any], numbers: list[Any], timed: bool) -> None:
    """Raises Unfit if the compiled piece gives anything but what its steps give; writes into ``inputs``."""
    others = [_copy(x) for x in inputs]
    kept = cells(compiled.program, numbers)
    with torch.no_grad(), _quiet():
        expected = by_steps(piece, inputs, numbers)
        made = compiled(others, *kept)
        donated = {len(made) + i for i in compiled.program.donated.values()}
        for i, (a, b) in enumerate(zip([*expected, *inputs], [*made, *others], strict=True)):
            if i not in donated and not alike(a, b):
                raise Unfit(f"compiled code gives other values than the steps do ({_where(piece, i)})")
        del expected, made
        if timed:
            compiled.took = (
                _time(lambda: by_steps(piece, inputs, numbers), inputs),
                _time(lambda: compiled(others, *kept), inputs),
            )


@contextlib.contextmanager
def no_waits(device: Any) -> Iterator[None]:
    """What waits for a GPU raises: in the capture of a graph it must not, and there it would do harm.

    For the worker's thread: whatever waits in others meanwhile raises too.
    """
    if device.type != "cuda":
        yield
        return
    with _quiet():  # torch warns of it
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _where(piece: Piece, i: int) -> str:
    if i >= len(piece.results):
        return f"input {i - len(piece.results)}"
    slot = piece.results[i]
    maker = next(step for step in reversed(piece.steps) if slot in step.results)
    return f"a result of {maker.signature.op.name}"


def _time(run: Callable[[], Any], inputs: list[Any], times: int = 3) -> float:
    def once() -> float:
        began = time.perf_counter()
        run()
        if inputs and inputs[0].is_cuda:
            torch.cuda.current_stream(inputs[0].device).synchronize()
        return time.perf_counter() - began

    return min(once() for _ in range(times))


def alike(a: Any, b: Any) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    x, y = a.to(torch.float64), b.to(torch.float64)
    apart = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, x - y)
    if a.dtype in TOLERANCES:
        tolerance = TOLERANCES[a.dtype]
        scale = torch.where(x.isfinite(), x, 0.0).norm() + 1e-4 * max(1, x.numel()) ** 0.5
        return bool(apart.norm() <= tolerance * scale)
    # a comparison may turn out otherwise where two numbers are all but equal
    return bool((apart != 0).sum() <= 0.01 * apart.numel()) or bool(apart.norm() <= 0.01 * x.norm())
