"""A trial of compiled code: the same run interpreted and compiled, which leaves the inputs as they are.

It runs between two runs of the section, so that memory is needed for a moment only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from gt.ops import Signature
from gt.ops.families import uses_cudnn
from gt.worker.engines.device_waits import no_device_waits
from gt.worker.hot.compiled import CompiledProgram, make_cells, silence_compiler
from gt.worker.hot.compiler import error_summary
from gt.worker.hot.graph import Capture
from gt.worker.hot.guard import without_repeats
from gt.worker.hot.host_copies import to_host
from gt.worker.hot.program import NotTranslatable, Program, interpret
from gt.worker.hot.section import Section

#: How far compiled results may differ from interpreted ones, relative to a result's norm: other steps are rounded.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 5e-3, torch.float16: 5e-2, torch.bfloat16: 1e-1}
#: Values that differ by more than this may do so, if interpreting with inputs one rounding step away changes them so
#: much: at most by this times as much.
MAX_NOISE_RATIO = 2.0
#: The share of integers and flags that may differ anyway.
MAX_DIFFERENT_SHARE = 0.01
#: How often the inputs are moved by a rounding step.
MAX_NUDGES = 8
#: Compiled code that takes longer than this share of the time of the section's own kernels is not used.
MAX_TIME_RATIO = 1.0
HALVES = (torch.float16, torch.bfloat16)
#: The least and the most runs that are timed, and the seconds that are enough for them.
MIN_TIMED_RUNS, MAX_TIMED_RUNS, TIMED_S = 3, 20, 0.02
#: How often the two graphs are measured at most.
MAX_TURNS = 4
#: The share of the host's free memory that a trial may use.
MAX_MEMORY_SHARE = 0.5
#: Elements that are compared at once. Their float64 copies take about 256 MiB.
COMPARED_AT_ONCE = 1 << 22
#: The relative rounding step of TF32, which has 10 bits of fraction.
TF32_STEP = 2.0**-10


def has_memory(section: Section, inputs: list[Any]) -> bool:
    """Whether there is enough memory for a trial: two copies of the inputs on the host, and one of the results."""
    sizes = {k: t.nbytes for call in section.calls for k, t in zip(call.results, call.signature.outs, strict=True)}
    needed = 2 * sum(x.nbytes for x in inputs) + sum(sizes.get(k, 0) for k in section.results)
    return bool(needed <= MAX_MEMORY_SHARE * _free_host_bytes())


class preserved:  # noqa: N801, a context manager
    """Keeps copies of tensors on the host. ``restore`` writes them back, as does the end of the block."""

    def __init__(self, tensors: list[Any]) -> None:
        #: the memory of each tensor, without repeats; None if elements overlap, because no op writes to those
        self.memories = [without_repeats(x) for x in tensors]
        self.copies = [None if memory is None else to_host(memory) for memory in self.memories]
        #: the tensors that the end of the block restores; None: all
        self.changed: list[int] | None = None

    def __enter__(self) -> preserved:
        return self

    def restore(self, indices: Iterable[int] | None = None) -> None:
        """Write the copies back; ``indices``: of these tensors only."""
        for i in range(len(self.memories)) if indices is None else indices:
            if self.memories[i] is not None:
                self.memories[i].copy_(self.copies[i])

    def __exit__(self, error: object, *_: object) -> None:
        self.restore(self.changed if error is None else None)


def _free_host_bytes() -> float:
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    return float(fields["MemAvailable"].split()[0]) * 1024


def run_trial(
    section: Section,
    compiled: CompiledProgram,
    inputs: list[Any],
    numbers: list[Any],
    capture: Capture | None = None,
    plain: Callable[[], Program] | None = None,
    log: Callable[[str], object] = lambda text: None,
) -> None:
    """Raises NotTranslatable if the compiled code gives other values than the interpreter. Measures both.

    Both run on the inputs themselves, of which copies are kept on the host: on the device, copies would be the largest
    thing that a training program ever holds there. ``plain`` gives the section's own kernels: a graph of them and one
    of the compiled code are measured too. ``log`` is called with the reason why one of them was not.
    """
    cells = make_cells(compiled.program, numbers)
    written = sorted(compiled.program.mutated)
    with torch.no_grad(), silence_compiler(), preserved(inputs) as kept:
        _compare(section, compiled, inputs, numbers, cells, kept)
        kept.changed = written
        compiled.run_seconds = (
            _measure(lambda: interpret(section, inputs, numbers), inputs),
            _measure(lambda: compiled(inputs, *cells), inputs),
        )
        if capture is not None and plain is not None:
            measure = partial(_measure_graph, capture, inputs=inputs, numbers=numbers, log=log)
            compiled.graph_seconds = _measure_in_turns(partial(measure, plain), partial(measure, lambda: compiled))


def _compare(
    section: Section, compiled: CompiledProgram, inputs: list[Any], numbers: list[Any], cells: Any, kept: preserved
) -> None:
    """Run both; raises NotTranslatable if the results or the inputs after the run differ by more than rounding."""
    written, donated = compiled.program.mutated, set(compiled.program.donated.values())
    expected = [to_host(x) for x in interpret(section, inputs, numbers)]
    count = len(expected)
    expected += [
        to_host(x) if i in written else copy for i, (x, copy) in enumerate(zip(kept.memories, kept.copies, strict=True))
    ]
    kept.restore(written)
    actual = [*compiled(inputs, *cells), *kept.memories]
    least, unlike = least_tolerance(section), {}
    for i, (a, b) in enumerate(zip(expected, actual, strict=True)):
        if a is None or i - count in donated:
            continue
        if i < count or i - count in written:
            if not alike(a, b, least):
                unlike[i] = to_host(b)
        elif not same(a, b):
            raise _differs(section, i)
    del actual
    if unlike:
        _check_noise(section, inputs, numbers, expected, unlike, kept)
        kept.restore()


def _check_noise(
    section: Section,
    inputs: list[Any],
    numbers: list[Any],
    expected: list[Any],
    unlike: dict[int, Any],
    kept: preserved,
) -> None:
    """Raises NotTranslatable, unless the values that differ are mostly rounding errors in the interpreter too.

    Where a gradient is almost zero, it consists of rounding errors; and which of two almost equal numbers is the
    largest depends on them. So the section is interpreted with inputs that differ by one rounding step: if that changes
    a value as much as compiling does, the compiled one is as good. Not every such step changes which number is the
    largest, so several are tried. The inputs are changed.
    """
    signs, step = torch.Generator(inputs[0].device).manual_seed(0), rounding_step(section, inputs[0].device.type)
    changed: dict[int, Any] = {}
    for _ in range(MAX_NUDGES):
        kept.restore()
        for x in inputs:
            _nudge(x, step, signs)
        moved = [*interpret(section, inputs, numbers), *map(without_repeats, inputs)]
        for i, b in [*unlike.items()]:
            if expected[i].dtype in TOLERANCES or expected[i].numel() == 1:
                difference, noise = (_differences(expected[i], x)[0] ** 0.5 for x in (b, moved[i]))
            else:  # of places in a tensor, how far apart they are says nothing
                changed[i] = changed.get(i, False) | (moved[i].cpu() != expected[i])
                difference, noise = _differences(expected[i], b)[2], int(changed[i].sum())
            if difference <= MAX_NOISE_RATIO * noise:
                del unlike[i]
        if not unlike:
            return
    raise _differs(section, min(unlike))


def rounding_step(section: Section, device: str) -> float:
    """The largest relative rounding step of what the section computes with.

    A GPU's convolutions, and where it is allowed its products, round float32 operands to TF32.
    """
    signatures = [call.signature for call in section.calls]
    types = {t.dtype.name for s in signatures for t in s.outs if t.dtype.kind == "f"}
    steps = [torch.finfo(getattr(torch, name)).eps for name in types]
    if device == "cuda" and any(_uses_tf32(s) for s in signatures):
        steps.append(TF32_STEP)
    return max(steps, default=0.0)


def _uses_tf32(signature: Signature) -> bool:
    if signature.op.flops is None or all(t.dtype.name != "float32" for t in signature.outs):
        return False
    setting = torch.backends.cudnn if uses_cudnn(signature.op) else torch.backends.cuda.matmul
    return bool(setting.allow_tf32)


def _nudge(x: Any, step: float, signs: torch.Generator) -> None:
    """Change each number in the tensor by a rounding step, up or down."""
    memory = without_repeats(x)
    if memory is not None and memory.is_floating_point():
        up = torch.empty(memory.shape, device=x.device).uniform_(-1, 1, generator=signs)
        memory.mul_(torch.where(up > 0, 1 + step, 1 - step))


def _differs(section: Section, i: int) -> NotTranslatable:
    return NotTranslatable(f"compiled code gives other values than the interpreter ({_describe(section, i)})")


def slower(compiled: CompiledProgram, on_gpu: bool) -> str:
    """Why compiled code is not used, if it is not faster than the section's own kernels; on a GPU, as graphs."""
    own, fast = compiled.graph_seconds if on_gpu else compiled.run_seconds
    if not own or fast <= MAX_TIME_RATIO * own:
        return ""
    return f"not faster: {fast * 1e6:.0f} us, {'as a graph' if on_gpu else 'interpreted'} {own * 1e6:.0f} us"


def _measure_in_turns(own: Callable[[], float], fast: Callable[[], float]) -> tuple[float, float]:
    """The least seconds of both, 0 if there is no graph. If the second seems slower, both are measured again: others
    may have used the device meanwhile."""
    own_least = fast_least = math.inf
    for _ in range(MAX_TURNS):
        own_least = min(own_least, own())
        fast_least = min(fast_least, fast()) if own_least else 0.0
        if fast_least <= own_least:
            break
    return own_least, fast_least


def _measure_graph(
    capture: Capture,
    code: Callable[[], Program | CompiledProgram],
    inputs: list[Any],
    numbers: list[Any],
    log: Callable[[str], object],
) -> float:
    """The seconds of a graph of these kernels; 0 if there can be none."""
    try:
        run = code()
        cells = make_cells(run if isinstance(run, Program) else run.program, numbers)
        with no_device_waits(cells[0].device):
            run(inputs, *cells)  # the first run loads the kernels, which a capture must not do
        _, replay = capture(lambda operands: run(operands, *cells), inputs)
        return _measure(replay, inputs)
    except Exception as error:  # it cannot be captured; or the device is broken, which its next use reports
        log(f"no time of a graph ({error_summary(error)}):")
        return 0.0


def _describe(section: Section, i: int) -> str:
    if i >= len(section.results):
        return f"input {i - len(section.results)}"
    slot = section.results[i]
    call = next(call for call in reversed(section.calls) if slot in call.results)
    return f"a result of {call.signature.op.name}"


def _measure(run: Callable[[], Any], inputs: list[Any]) -> float:
    """The seconds of the fastest of several runs; short ones run more often, because the device may be shared."""
    seconds: list[float] = []
    while len(seconds) < MIN_TIMED_RUNS or (len(seconds) < MAX_TIMED_RUNS and sum(seconds) < TIMED_S):
        started = time.perf_counter()
        run()
        if inputs and inputs[0].is_cuda:
            torch.cuda.current_stream(inputs[0].device).synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def least_tolerance(section: Section) -> float:
    """The tolerance of the lowest precision in a section: results in a higher one carry its rounding.

    Adam divides a gradient by its size. So where a gradient is zero up to rounding, a parameter changes at random.
    """
    types = {t.dtype.name for call in section.calls for t in (*call.signature.ins, *call.signature.outs)}
    return max((TOLERANCES[half] for half in HALVES if str(half).removeprefix("torch.") in types), default=0.0)


def alike(a: Any, b: Any, least: float = 0.0) -> bool:
    """Whether two results agree up to rounding. NaNs are equal."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    difference, scale, different = _differences(a, b)
    if a.dtype in TOLERANCES:
        floor = 1e-4 * max(1, a.numel()) ** 0.5
        return bool(difference**0.5 <= max(least, TOLERANCES[a.dtype]) * (scale**0.5 + floor))
    # the result of a comparison may differ where two numbers are almost equal
    return bool(different <= MAX_DIFFERENT_SHARE * a.numel())


def same(a: Any, b: Any) -> bool:
    """Whether two tensors of one type have equal bytes."""
    return all(torch.equal(x, y) for x, y in _pieces(_bytes(a), _bytes(b)))


def _bytes(x: Any) -> Any:
    x = x.resolve_conj().resolve_neg().contiguous()
    # as bytes it is viewed only with a stride of 1, and that of a single element may be another
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8)


def _differences(a: Any, b: Any) -> list[float]:
    """The sum of the squares of the differences, that of the squares of the first, and the number of differences."""
    return sum((_sums(x, y) for x, y in _pieces(a, b)), torch.zeros(3, dtype=torch.float64)).tolist()


def _pieces(a: Any, b: Any) -> Iterator[tuple[Any, Any]]:
    """Both in pieces on the device of the second: float64 copies of the whole would need several times its memory."""
    a, b = a.reshape(-1), b.reshape(-1)
    for x, y in zip(a.split(COMPARED_AT_ONCE), b.split(COMPARED_AT_ONCE), strict=True):
        yield x.to(y.device), y


def _sums(a: Any, b: Any) -> Any:
    x, y = a.to(torch.float64), b.to(torch.float64)
    difference = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, x - y)
    finite = torch.where(x.isfinite(), x, 0.0)
    return torch.stack([difference.square().sum(), finite.square().sum(), (difference != 0).sum().double()]).cpu()
