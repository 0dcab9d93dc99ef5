"""One random call on both engines, and its outcome.

Run as a program, it runs cases of ops in child processes: a child that dies fails only its own case.

    python -m tests.support.fuzz_run                      reads "op first last" from its input, line by line
    python -m tests.support.fuzz_run FIRST LAST [OP…]     the seeds from FIRST to LAST - 1 of these ops, or of all
    python -m tests.support.fuzz_run OP SEED              one case, in this process

It prints a line of JSON for each case that fails, then one with the counts.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # children are forked: there must be no other threads

import ctypes
import json
import re
import resource
import select
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gt.ops import OPS, Signature
from gt.wire.codec import BadFrame, signature_of, to_wire
from gt.wire.structures import Definition
from gt.worker.engines import make_engine
from tests.support.fuzz import Case, by_op, make_case, make_operands
from tests.support.fuzz_known import CANCELLING, known
from tests.support.oracle import TOLERANCES
from tests.support.samples import type_of

ENGINES = {name: make_engine(name, "cpu") for name in ("torch", "numpy")}
#: bytes a child may allocate beyond its initial memory
MEMORY = 1 << 29
#: arithmetic operations of a case, at most: numpy's kernels are slow
MAX_FLOPS = 10**9
#: seconds a case may take
ATTEMPT_TIMEOUT_S = 30
M_PERTURB = -6
#: torch's own switches: new tensors are filled with zeros, or with junk
ZERO_FILL, JUNK_FILL = (
    ctypes.c_bool.in_dll(
        ctypes.CDLL(f"{torch.__path__[0]}/lib/libc10.so"), f"FLAGS_caffe2_cpu_allocator_do_{what}_fill"
    )
    for what in ("zero", "junk")
)


def fill_allocations(what: str) -> None:
    """Fill new memory with zeros or junk from here on, to detect reads of uninitialised memory."""
    ZERO_FILL.value, JUNK_FILL.value = what == "zeros", what == "junk"
    ctypes.CDLL(None).mallopt(M_PERTURB, {"zeros": 0xFF, "junk": 0x2A, "": 0}[what])


class Wrong(Exception):
    """What is wrong with a case."""


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
    first, again = (_run("torch", signature, operands, fill) for fill in ("zeros", "junk"))
    if isinstance(first, MemoryError) or isinstance(again, MemoryError):
        return "no memory"
    _same_bits(first, again)
    other = _run("numpy", signature, operands, "") if _has_numpy(signature) else first
    if isinstance(other, MemoryError):
        return "no memory"
    if isinstance(first, Exception) and isinstance(other, Exception):
        return "failed"
    for name, results in (("torch", first), ("numpy", other)):
        if isinstance(results, Exception):
            raise Wrong(f"only {name} fails: {type(results).__name__}: {str(results).splitlines()[0][:200]}")
        if (types := tuple(map(type_of, results))) != signature.outs:
            raise Wrong(f"{name} gives {types}, inferred were {signature.outs}")
    if _has_numpy(signature):
        _agree(case, operands, first, other)
    return "ran"


def _signature(case: Case, operands: list[Any]) -> Signature | None:
    """The signature, as a dispatcher makes it from a client's message."""
    try:
        ins = [to_wire(type_of(x)) for x in operands]
        return signature_of(Definition(16, case.op, [*case.attrs.items()], ins, case.into, ""))
    except BadFrame:
        return None


def _has_numpy(signature: Signature) -> bool:
    return "bfloat16" not in f"{signature} {signature.outs}"


def _run(engine: str, signature: Signature, operands: list[Any], fill: str) -> Any:
    fill_allocations(fill)
    arguments = [_argument(engine, x, signature.into) for x in operands]
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            results = ENGINES[engine].link(signature)(*arguments)
            results = tuple(results) if len(signature.outs) > 1 else (results,)
            return tuple(m.clone() if isinstance(m, torch.Tensor) else m.copy() for m in results)
    except Exception as error:
        if ENGINES[engine].is_out_of_memory(error) or isinstance(error, MemoryError) or "allocate" in str(error):
            return MemoryError()
        return error
    finally:
        fill_allocations("")


def _argument(engine: str, x: Any, into: bool) -> Any:
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


def _agree(case: Case, operands: list[Any], first: Any, other: Any) -> None:
    other = tuple(torch.from_numpy(np.array(x)) for x in other)
    if case.op in AMBIGUOUS:
        first, other = (AMBIGUOUS[case.op](case, operands, *results) for results in (first, other))
    for at, (a, b) in enumerate(zip(first, other, strict=True)):
        rtol, atol = TOLERANCES.get(str(a.dtype).removeprefix("torch."), (0, 0))
        if a.dtype in (torch.float32, torch.complex64) and a.numel():
            share = next((share for ops, share in CANCELLING.items() if re.fullmatch(ops, case.op)), 0.0)
            atol = max(atol, share * a.abs().nan_to_num(0.0, 0.0, 0.0).max().item())
        if not torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
            apart = ~torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
            raise Wrong(f"result {at}: torch {a[apart][:6].tolist()}, numpy {b[apart][:6].tolist()}")


# -- results that are not unique -----------------------------------------------------------


def _picked(case: Case, operands: list[Any], values: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Among equal elements any may be picked: the picked elements must exist, and none twice."""
    dim, x = case.attrs["dim"], operands[0].reshape(operands[0].shape or (1,))
    kept = case.attrs.get("keepdim", True) or not operands[0].ndim
    positions, picked = (t if kept else t.unsqueeze(dim) for t in (places, values))
    positions, picked = positions.reshape(positions.shape or (1,)), picked.reshape(picked.shape or (1,))
    there = x.gather(dim, positions)
    if not torch.equal(there.isnan(), picked.isnan()) or not torch.equal(there.nan_to_num(), picked.nan_to_num()):
        raise Wrong(f"at the places {positions.flatten()[:6].tolist()} stands {there.flatten()[:6].tolist()}")
    ordered = positions.sort(dim).values
    if (ordered.diff(dim=dim) == 0).any():
        raise Wrong(f"a place is picked twice: {ordered.flatten()[:6].tolist()}")
    return (values if case.attrs.get("sorted", True) else picked.sort(dim).values,)


def _ordered(case: Case, operands: list[Any], values: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (values, places) if case.attrs["stable"] else _picked(case, operands, values, places)


def _scaled(x: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """Relative to the largest element of a matrix, or to this one, as rounding errors of matrices are."""
    return x / torch.where(size == 0, 1, size)


def _eigen(case: Case, operands: list[Any], values: torch.Tensor, vectors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    largest = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    values = _scaled(values, largest)
    return values, vectors * values.unsqueeze(-2) @ vectors.mT


def _general_eigen(case: Case, operands: list[Any], values: torch.Tensor, vectors: torch.Tensor) -> Any:
    """Their order is free, and so is a factor of size 1 of each vector."""
    size = torch.linalg.matrix_norm(operands[0]).unsqueeze(-1)
    a, values = _scaled(operands[0], size.unsqueeze(-1)).to(values.dtype), _scaled(values, size)
    power_sums = torch.stack([(values**k).sum(-1) for k in (1, 2, 3)])
    return power_sums, a @ vectors - vectors * values.unsqueeze(-2), torch.linalg.vector_norm(vectors, dim=-2)


def _singular(case: Case, operands: list[Any], u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> Any:
    k, s = s.shape[-1], _scaled(s, s[..., :1])
    return s, u[..., :k] * s.unsqueeze(-2) @ vh[..., :k, :], u.mT @ u, vh @ vh.mT


def _factors(case: Case, operands: list[Any], q: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, ...]:
    largest = torch.linalg.vector_norm(operands[0], dim=(-2, -1), keepdim=True)
    return q @ _scaled(r, largest), q.mT @ q, r.tril(-1)


def _determinant(case: Case, operands: list[Any], *results: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Relative to the largest possible value: the product of the lengths of the rows."""
    lengths = torch.linalg.vector_norm(operands[0], dim=-1).double().log().sum(-1)
    sign, size = results if len(results) > 1 else (results[0].sgn(), results[0].abs().double().log())
    return ((sign * (size - lengths).exp()).to(operands[0].dtype),)


def _residual(case: Case, operands: list[Any], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The difference of the two sides, relative to their terms: the error of a solution depends on the matrix."""
    a = operands[0]
    if case.op == "solve_triangular":
        a = a.triu() if case.attrs["upper"] else a.tril()
        if case.attrs["unitriangular"]:
            a = a - a.diagonal(0, -2, -1).diag_embed() + torch.eye(a.shape[-1], dtype=a.dtype)
    b = operands[1] if len(operands) > 1 else torch.eye(a.shape[-1], dtype=a.dtype)
    return (_scaled(a @ x - b, (a.abs() @ x.abs() + b.abs()).amax(-2, keepdim=True) if a.shape[-1] else b),)


#: (case, operands, *results) -> the part of the results that is unique
AMBIGUOUS: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    **dict.fromkeys(("topk", "kthvalue", "mode", "median_dim", "nanmedian_dim"), _picked),
    "sort": _ordered,
    "eig": _general_eigen,
    "eigh": _eigen,
    "svd": _singular,
    "qr": _factors,
    "det": _determinant,
    "slogdet": _determinant,
    **dict.fromkeys(("inv", "solve", "solve_triangular"), _residual),
}

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
    """Run cases until a child dies or all are complete; returns the next seed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(op, first, last, writer)
    os.close(writer)
    seed, reason = first, "died"
    with open(reader) as lines:
        while seed < last:
            if not select.select([lines], [], [], ATTEMPT_TIMEOUT_S)[0]:
                os.kill(child, signal.SIGKILL)
                reason = f"takes longer than {ATTEMPT_TIMEOUT_S} s"
                break
            line = lines.readline()
            if not line:
                break
            result = json.loads(line)
            _count(op, seed, result, counts)
            seed += 1
    status = os.waitpid(child, 0)[1]
    if seed < last:
        died = f"{reason} ({signal.strsignal(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else status})"
        _count(op, seed, {"wrong": died}, counts)
        seed += 1
    return seed


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
            if isinstance(error, MemoryError) or ENGINES["torch"].is_out_of_memory(error):
                result = {"outcome": "no memory"}
        os.write(writer, json.dumps(result).encode() + b"\n")
    os._exit(0)


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    by_op()  # created once, for all children
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
