"""One random call on both engines, and what is to be said of it.

Run as a program, it makes the cases of ops on request in children of its own: a child that dies fails its case only.

    python -m tests.fuzz_run                      reads "op first last" from its input, line by line
    python -m tests.fuzz_run FIRST LAST [OP…]     the seeds from FIRST to LAST - 1 of these ops, or of all
    python -m tests.fuzz_run OP SEED              one case, in this process

A line of JSON comes out for each case that is not in order, then one with the counts.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # children are forked: there must be no other threads

import ctypes
import json
import resource
import select
import signal
import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np
import torch

from gt.ops import OPS, Signature
from gt.wire.codec import BadFrame, signature_of, to_wire
from gt.wire.messages import Definition
from gt.worker.engines import make_engine
from tests.fuzz import Case, by_op, make_case, make_operands
from tests.fuzz_known import known
from tests.oracle import SETTLED, TOLERANCES
from tests.samples import type_of

ENGINES = {name: make_engine(name, "cpu") for name in ("torch", "numpy")}
#: bytes a child may allocate beyond what it starts with
MEMORY = 1 << 29
#: arithmetic operations of a case that is run: numpy's kernels are slow
MAX_FLOPS = 10**9
#: seconds a case may take
PATIENCE = 30
M_PERTURB = -6


def fill_allocations(byte: int) -> None:
    """Fresh memory holds this byte from here on, so that what reads it before writing is seen."""
    ctypes.CDLL(None).mallopt(M_PERTURB, byte)


class Wrong(Exception):
    """What is not in order about a case."""


def outcome(case: Case) -> str:
    """ "refused", "ran", "failed" (on both), "no memory" or "takes too long"; raises Wrong."""
    try:
        operands = make_operands(case)
    except (RuntimeError, MemoryError, TypeError, ValueError, OverflowError):
        # operands that do not fit into memory: no client could have sent them
        return "no operands"
    signature = _signature(case, operands)
    if signature is None:
        return "refused"
    if (flops := signature.op.flops) and flops(*signature.ins, **dict(signature.attrs)) > MAX_FLOPS:
        return "takes too long"
    first, again = (_run("torch", signature, operands, byte) for byte in (0x2A, 0xD5))
    _same_bits(first, again)
    other = _run("numpy", signature, operands, 0) if _has_numpy(signature) else first
    if isinstance(first, MemoryError) or isinstance(other, MemoryError):
        return "no memory"
    if isinstance(first, Exception) and isinstance(other, Exception):
        return "failed"
    for name, made in (("torch", first), ("numpy", other)):
        if isinstance(made, Exception):
            raise Wrong(f"only {name} fails: {type(made).__name__}: {str(made).splitlines()[0][:200]}")
        if (types := tuple(map(type_of, made))) != signature.outs:
            raise Wrong(f"{name} gives {types}, inferred were {signature.outs}")
    if _has_numpy(signature):
        _agree(case, first, other)
    return "ran"


def _signature(case: Case, operands: list[Any]) -> Signature | None:
    """As a dispatcher makes it of what a client sends."""
    try:
        ins = [to_wire(type_of(x)) for x in operands]
        return signature_of(Definition(16, case.op, [*case.attrs.items()], ins, case.into, ""))
    except BadFrame:
        return None


def _has_numpy(signature: Signature) -> bool:
    return "bfloat16" not in f"{signature} {signature.outs}"


def _run(engine: str, signature: Signature, operands: list[Any], byte: int) -> Any:
    fill_allocations(byte)
    given = [_own(engine, x, signature.into) for x in operands]
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            made = ENGINES[engine].link(signature)(*given)
            made = tuple(made) if len(signature.outs) > 1 else (made,)
            return tuple(m.clone() if isinstance(m, torch.Tensor) else m.copy() for m in made)
    except Exception as error:
        if ENGINES[engine].is_out_of_memory(error) or isinstance(error, MemoryError) or "memory" in str(error):
            return MemoryError()
        return error
    finally:
        fill_allocations(0)


def _own(engine: str, x: Any, into: bool) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    if into:  # a copy in memory of the same layout
        memory = x.untyped_storage().clone()
        x = torch.empty(0, dtype=x.dtype).set_(memory, x.storage_offset(), x.shape, x.stride())
    return x.numpy() if engine == "numpy" and x.dtype is not torch.bfloat16 else x


def _same_bits(first: Any, again: Any) -> None:
    if isinstance(first, Exception) or isinstance(again, Exception):
        if type(first) is not type(again):
            raise Wrong(f"once {first!r:.200}, then {again!r:.200}")
        return
    for a, b in zip(first, again, strict=True):
        if a.shape != b.shape or not torch.equal(_bits(a), _bits(b)):
            raise Wrong(f"memory that nobody wrote: {a.flatten()[:8].tolist()} and {b.flatten()[:8].tolist()}")


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8) if x.numel() else x


def _agree(case: Case, first: Any, other: Any) -> None:
    other = [torch.from_numpy(np.array(x)) for x in other]
    if case.op in SETTLED:
        first, other = SETTLED[case.op](*first), SETTLED[case.op](*other)
    for at, (a, b) in enumerate(zip(first, other, strict=True)):
        rtol, atol = TOLERANCES.get(str(a.dtype).removeprefix("torch."), (0, 0))
        if not torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
            apart = ~torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
            raise Wrong(f"result {at}: torch {a[apart][:6].tolist()}, numpy {b[apart][:6].tolist()}")


# -- children ------------------------------------------------------------------------------


def serve() -> None:
    for line in sys.stdin:
        op, first, last = line.split()
        counts = check(op, int(first), int(last))
        print(json.dumps({"counts": counts}), flush=True)


def check(op: str, first: int, last: int) -> dict[str, int]:
    counts: Counter[str] = Counter()
    while first < last:
        first = _batch(op, first, last, counts)
    return dict(counts)


def _batch(op: str, first: int, last: int, counts: Counter[str]) -> int:
    """The cases until a child has died, or all are done; gives where to go on."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(op, first, last, writer)
    os.close(writer)
    done, reason = first, "died"
    with open(reader) as lines:
        while done < last:
            if not select.select([lines], [], [], PATIENCE)[0]:
                os.kill(child, signal.SIGKILL)
                reason = f"takes longer than {PATIENCE} s"
                break
            line = lines.readline()
            if not line:
                break
            result = json.loads(line)
            _count(op, done, result, counts)
            done += 1
    status = os.waitpid(child, 0)[1]
    if done < last:
        died = f"{reason} ({signal.strsignal(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else status})"
        _count(op, done, {"wrong": died}, counts)
        done += 1
    return done


def _count(op: str, seed: int, result: dict[str, str], counts: Counter[str]) -> None:
    if "outcome" in result:
        counts[result["outcome"]] += 1
        return
    case = str(make_case(op, seed))
    if known(op, case, result["wrong"]):
        counts["known difference"] += 1
        return
    counts["wrong"] += 1
    print(json.dumps({"op": op, "seed": seed, "case": case[:500], **result}), flush=True)


def _child(op: str, first: int, last: int, writer: int) -> None:
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for seed in range(first, last):
        try:
            result = {"outcome": outcome(make_case(op, seed))}
        except Wrong as problem:
            result = {"wrong": str(problem)}
        except BaseException as error:
            result = {"wrong": f"in the test itself: {type(error).__name__}: {error}"}
        os.write(writer, json.dumps(result).encode() + b"\n")
    os._exit(0)


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    by_op()  # made once, for all children
    match arguments:
        case []:
            serve()
        case [op, seed] if op in OPS:
            case = make_case(op, int(seed))
            print(case, outcome(case), sep="\n")
        case [first, last, *ops]:
            total: Counter[str] = Counter()
            for op in ops or OPS:
                total.update(check(op, int(first), int(last)))
            print(json.dumps({"counts": total}))


if __name__ == "__main__":
    main(sys.argv[1:])
