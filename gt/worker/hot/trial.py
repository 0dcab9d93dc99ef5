"""A trial of compiled code: the same run interpreted and compiled, which leaves the inputs as they are.

It runs between two runs of the section, so that memory is needed for a moment only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from gt.worker.hot.compiled import CompiledProgram, make_cells, silence_compiler
from gt.worker.hot.guard import without_repeats
from gt.worker.hot.program import NotTranslatable, interpret, mutated
from gt.worker.hot.section import Section

#: How far compiled results may differ from interpreted ones, relative to a result's norm: other steps are rounded.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 5e-3, torch.float16: 5e-2, torch.bfloat16: 1e-1}
#: The share of the device's free memory that a trial may use.
MAX_MEMORY_SHARE = 0.25


def has_memory(inputs: list[Any]) -> bool:
    """Whether there is enough memory for a trial."""
    nbytes: int = sum(x.nbytes for x in inputs)
    return 2 * nbytes <= MAX_MEMORY_SHARE * _free_bytes(inputs)


def copies_of(inputs: list[Any], which: Collection[int]) -> list[Any]:
    """The inputs, these of them as copies with the same strides."""
    return [_copy(x) if i in which else x for i, x in enumerate(inputs)]


def _copy(x: Any) -> Any:
    copy = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    target = without_repeats(copy)
    if target is None:  # elements overlap, so no op writes to it
        return x
    target.copy_(without_repeats(x))
    return copy


def _free_bytes(inputs: list[Any]) -> float:
    device = inputs[0].device if inputs else torch.device("cpu")
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    return float(fields["MemAvailable"].split()[0]) * 1024


def run_trial(section: Section, compiled: CompiledProgram, inputs: list[Any], numbers: list[Any]) -> None:
    """Raises NotTranslatable if the compiled code gives other values than the interpreter."""
    cells = make_cells(compiled.program, numbers)
    with torch.no_grad(), silence_compiler():
        interpreted = copies_of(inputs, mutated(section))
        expected = interpret(section, interpreted, numbers)
        copies = copies_of(inputs, range(len(inputs)))  # all of them: it must not write into any other
        results = compiled(copies, *cells)
        donated = {len(results) + i for i in compiled.program.donated.values()}
        for i, (a, b) in enumerate(zip([*expected, *interpreted], [*results, *copies], strict=True)):
            if i not in donated and not alike(a, b):
                raise NotTranslatable(
                    f"compiled code gives other values than the interpreter ({_describe(section, i)})"
                )
        del expected, results
        compiled.run_seconds = (
            _measure(lambda: interpret(section, interpreted, numbers), inputs),
            _measure(lambda: compiled(copies, *cells), inputs),
        )


def _describe(section: Section, i: int) -> str:
    if i >= len(section.results):
        return f"input {i - len(section.results)}"
    slot = section.results[i]
    call = next(call for call in reversed(section.calls) if slot in call.results)
    return f"a result of {call.signature.op.name}"


def _measure(run: Callable[[], Any], inputs: list[Any], times: int = 3) -> float:
    """The seconds of the fastest of several runs."""

    def once() -> float:
        started = time.perf_counter()
        run()
        if inputs and inputs[0].is_cuda:
            torch.cuda.current_stream(inputs[0].device).synchronize()
        return time.perf_counter() - started

    return min(once() for _ in range(times))


def alike(a: Any, b: Any) -> bool:
    """Whether two results agree up to rounding. NaNs are equal."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    x, y = a.to(torch.float64), b.to(torch.float64)
    difference = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, x - y)
    if a.dtype in TOLERANCES:
        tolerance = TOLERANCES[a.dtype]
        scale = torch.where(x.isfinite(), x, 0.0).norm() + 1e-4 * max(1, x.numel()) ** 0.5
        return bool(difference.norm() <= tolerance * scale)
    # the result of a comparison may differ where two numbers are almost equal
    few = bool((difference != 0).sum() <= 0.01 * difference.numel())
    return few or bool(difference.norm() <= 0.01 * x.norm())


@contextlib.contextmanager
def no_device_waits(device: Any) -> Iterator[None]:
    """A call that waits for the GPU raises. During the capture of a graph such a call would break the capture.

    The setting is global: during this time calls that wait raise in other threads too.
    """
    if device.type != "cuda":
        yield
        return
    with silence_compiler():  # torch warns about the debug mode
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
