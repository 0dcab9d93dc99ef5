"""The cost of a replay in the control plane: fragments of 700 instructions, and nothing computed.

The dispatcher and the worker run alone, on the messages of a real client and the dispatcher's messages for the worker;
decoding and encoding are included. The third figure uses processes, with a worker whose engine computes nothing.
"""

from __future__ import annotations

import operator
import random
import time
from collections.abc import Callable
from typing import Any

import gt
from benchmarks.hot import null
from benchmarks.simulation import load
from gt.client.stream.session import Session
from gt.wire.codec import Decode, encode
from gt.worker.core import Worker

#: about the longest stretch that becomes one fragment: a longer one is divided
OPS = 700
#: repetitions before anything is timed: a stretch is a fragment from its second repetition on
KNOWN = 6


#: the ops of the programs
BINARY = (operator.add, operator.sub, operator.mul, operator.truediv)
UNARY = (operator.neg, operator.abs, gt.Tensor.relu, gt.Tensor.exp)
_draw = random.Random(0)
#: pairs of instructions in an order that does not repeat within it: a loop without cuts would become a fragment
PAIRS = [(_draw.choice(BINARY), _draw.choice(UNARY)) for _ in range(OPS // 2)]


def piece(x: Any) -> Any:
    y = z = x
    for binary, unary in PAIRS:
        y, z = binary(y, z), unary(y)
    return y


def step(x: Any) -> None:
    piece(x)
    gt.step()


class Kept(load.Drive):
    """A dispatcher that keeps what it sends to its first worker."""

    def __init__(self, workers: int) -> None:
        self.frames: list[bytes] = []
        super().__init__(workers)

    def _encoded(self, action: Any) -> list[tuple[bytes, Any]]:
        if b"w0" in getattr(action, "peers", (getattr(action, "peer", b""),)):
            self.frames.append(encode(action.message))
        return super()._encoded(action)


def recorded(rounds: int) -> load.Program:
    program = load.record(lambda: gt.ones(1024, 64), step, KNOWN + rounds, templates=True)
    assert all(sum(map(len, frames)) < OPS for frames in program.rounds[KNOWN:]), "it was sent word by word"
    return program


def dispatcher(program: load.Program, workers: int) -> list[float]:
    """Seconds of each repetition."""
    drive = load.Drive(workers)
    drive.run(program.opening)
    return [drive.run(frames).seconds for frames in program.rounds][KNOWN:]


def worker(program: load.Program) -> list[float]:
    """Seconds of each repetition in a worker."""
    drive, decode, core = Kept(1), Decode("worker"), Worker(null.Null())
    core.assign_id(0)
    for frames in [program.opening, *program.rounds]:
        drive.run(frames)
    seconds = [_seconds(core, decode, frame) for frame in drive.frames]
    return seconds[-(len(program.rounds) - KNOWN) :]


def _seconds(core: Worker, decode: Decode, frame: bytes) -> float:
    started = time.perf_counter()
    for send in core.handle(decode(frame)):
        encode(send.message)
    return time.perf_counter() - started


# -- with a client -----------------------------------------------------------------------------


def rate(act: Callable[[Any], Any], steps: int) -> Callable[[], tuple[float, float]]:
    """Instructions per second of ``steps`` repetitions and a read at their end; the client's own us per instruction."""
    x = gt.ones(64, 64)
    for _ in range(KNOWN):
        act(x)

    def once() -> tuple[float, float]:
        x.sum().item()
        started, used = time.perf_counter(), time.thread_time()
        for _ in range(steps):
            act(x)
        x.sum().item()
        count = steps * OPS
        return count / (time.perf_counter() - started), (time.thread_time() - used) / count * 1e6

    return once


def unlike(x: Any, seed: int, pieces: int) -> None:
    """Stretches of 50 to 350 instructions, drawn again each time, each with a cut at its end."""
    draw = random.Random(seed)
    for _ in range(pieces):
        y = z = x
        for _ in range(draw.randrange(50, 350)):
            y, z = draw.choice(BINARY)(y, z), draw.choice(UNARY)(y)
        gt.step()
    y.sum().item()


def nothing_repeats(session: Session, pieces: int, seed: int) -> tuple[float, float]:
    """The time of the same program with templates, divided by without: wall time, and the client's own time."""
    x, times = gt.ones(64, 64), {}
    for on in (True, False) if seed % 2 else (False, True):
        session.outbox.templates.enabled = on
        started, used = time.perf_counter(), time.process_time()
        unlike(x, seed, pieces)
        times[on] = time.perf_counter() - started, time.process_time() - used
    session.outbox.templates.enabled = True
    return times[True][0] / times[False][0], times[True][1] / times[False][1]
