"""Random calls of one op: a sample with random changes, most of which leave it legal.

A case depends only on its op and its seed, so naming both repeats a failure:

    python -m tests.support.fuzz_run add 17
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from gt.ops import OPS
from gt.ops.op import MAX_NBYTES
from gt.types import DTYPES, real_of
from tests.support.samples import Sample, T, V, samples

FLOATS = ("float64", "float32", "float16", "bfloat16")
#: sizes of dims: empty, single, around the widths of vector units, and one that fits in no memory
SIZES = (0, 0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 100, 1 << 40)
INTS = (0, 1, -1, 2, -2, 3, 5, 8, 100, -100, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**64 - 1)
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, -1e30, 1e308, math.inf, -math.inf, math.nan)
FILLS = ("any", "any", "any", "special", "extreme", "zero", "index", "far")
LAYOUTS = ("plain", "plain", "plain", "transposed", "spaced", "offset", "expanded")


@dataclass
class Operand:
    """A tensor to create."""

    shape: tuple[int, ...]
    dtype: str
    fill: str = "any"
    layout: str = "plain"
    #: these values, if it is unchanged from the sample
    values: Any = None

    def __str__(self) -> str:
        marks = [m for m in (self.fill, self.layout) if m not in ("any", "plain")]
        return f"{self.dtype}{list(self.shape)}" + "".join(f":{m}" for m in marks)


@dataclass
class Case:
    op: str
    seed: int
    operands: list[Any]
    attrs: dict[str, Any]
    into: bool = False
    #: is it a sample with only other values?
    changes: list[str] = field(default_factory=list)
    #: as in a sample: some operands as functions of the others
    fit: Callable[[list[Any]], list[Any]] | None = None

    def __str__(self) -> str:
        shown = [f"{len(x)} bytes" if isinstance(x, bytes) else str(x) for x in self.operands]
        call = ", ".join([*shown, *(f"{k}={v!r}" for k, v in self.attrs.items())])
        return f"{self.op}{'_' if self.into else ''}({call}) [{' '.join(self.changes)}]"


@cache
def by_op() -> dict[str, list[Sample]]:
    groups: dict[str, list[Sample]] = {}
    for sample in samples():
        groups.setdefault(sample.op, []).append(sample)
    return groups


def make_case(op: str, seed: int) -> Case:
    rng = random.Random(f"{op} {seed}")
    sample = rng.choice(by_op()[op])
    operands = [_operand(x) for x in sample.operands]
    case = Case(op, seed, operands, dict(sample.attrs), rng.random() < 0.1, fit=sample.fit)
    if op in OPTIONAL and rng.random() < 0.2:
        case.attrs.update(OPTIONAL[op](case.attrs, rng))
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        change = rng.choice(CHANGES)
        case.changes.append(change.__name__)
        change(case, rng)
    if rng.random() < 0.2:  # in addition to the other changes: many kernels ignore strides by mistake
        case.changes.append("laid_out")
        laid_out(case, rng)
    if op == "searchsorted":
        case.changes.append(rng.choice(("sorted", "sorted", "unsorted")))
    return case


def _block(attrs: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    at = tuple(rng.randrange(4) for _ in attrs["shape"])
    return {"block": (at, tuple(n + i + rng.randrange(3) for n, i in zip(attrs["shape"], at, strict=True)))}


#: attributes that only some calls have: (the others, rng) -> values
OPTIONAL: dict[str, Callable[[dict[str, Any], random.Random], dict[str, Any]]] = {
    "mean": lambda attrs, rng: {"whole": rng.choice((0, 1, 7, 2**40))},
    "arange": lambda attrs, rng: {"first": rng.choice((0, 3, 2**40, 2**62))},
    **dict.fromkeys(("rand", "randn", "randint"), _block),
}


def _operand(x: Any) -> Any:
    if isinstance(x, T):
        return Operand(x.shape, x.dtype, x.of)
    if isinstance(x, V):
        tensor = torch.tensor(x.values, dtype=getattr(torch, x.dtype))
        return Operand(tuple(tensor.shape), x.dtype, values=tensor)
    return x


def _tensors(case: Case) -> list[Operand]:
    return [x for x in case.operands if isinstance(x, Operand)]


# -- changes -------------------------------------------------------------------------------


def resized(case: Case, rng: random.Random) -> None:
    """Change one size, in every operand that has it: operands that fitted together still do."""
    sizes = sorted({n for x in _tensors(case) for n in x.shape})
    if not sizes:
        return
    old, new = rng.choice(sizes), rng.choice(SIZES)

    def swap(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(swap, value))
        return new if value == old and type(value) is int else value

    for x in _tensors(case):
        x.shape, x.values = swap(x.shape), None
    case.attrs = {k: swap(v) for k, v in case.attrs.items()}


def dim_changed(case: Case, rng: random.Random) -> None:
    """Change one dim of one operand: operands that fitted together no longer do."""
    tensors = [x for x in _tensors(case) if x.shape]
    if tensors:
        x = rng.choice(tensors)
        d = rng.randrange(len(x.shape))
        x.shape, x.values = (*x.shape[:d], rng.choice(SIZES), *x.shape[d + 1 :]), None


def rank_changed(case: Case, rng: random.Random) -> None:
    tensors = _tensors(case)
    if tensors:
        x = rng.choice(tensors)
        d = rng.randint(0, len(x.shape))
        more = rng.random() < 0.5 or not x.shape
        x.shape = (*x.shape[:d], rng.choice(SIZES[:-1]), *x.shape[d:]) if more else (*x.shape[:d], *x.shape[d + 1 :])
        x.values = None


def dtype_changed(case: Case, rng: random.Random) -> None:
    """Change the dtype of one operand, or of all operands with the same one."""
    tensors = _tensors(case)
    if tensors:
        chosen, new = rng.choice(tensors), rng.choice([*DTYPES])
        old = chosen.dtype
        for x in [chosen] if rng.random() < 0.3 else tensors:
            if x.dtype == old:
                x.dtype, x.values = new, None


def refilled(case: Case, rng: random.Random) -> None:
    tensors = _tensors(case)
    if tensors:
        x = rng.choice(tensors)
        x.fill, x.values = rng.choice(FILLS), None


def laid_out(case: Case, rng: random.Random) -> None:
    for x in _tensors(case):
        x.layout = rng.choice(LAYOUTS)


def recounted(case: Case, rng: random.Random) -> None:
    """Add or remove an operand, or swap two."""
    if not case.operands:
        return
    i = rng.randrange(len(case.operands))
    what = rng.choice(("drop", "double", "swap"))
    if what == "drop":
        del case.operands[i]
    elif what == "double":
        case.operands.insert(i, case.operands[i])
    else:
        j = rng.randrange(len(case.operands))
        case.operands[i], case.operands[j] = case.operands[j], case.operands[i]


def number_changed(case: Case, rng: random.Random) -> None:
    """Change a number among the operands; sometimes replace a tensor by one."""
    places = [i for i, x in enumerate(case.operands) if not isinstance(x, Operand) or rng.random() < 0.1]
    if places:
        i = rng.choice(places)
        if isinstance(case.operands[i], bytes):
            request = case.operands[i] if OPS[case.op].effects else b""
            case.operands[i] = _request(request, rng) if request else bytes(rng.choice((0, 1, 3, 8, 64)))
        else:
            case.operands[i] = rng.choice((*INTS, *REALS, True, False))


def _request(data: bytes, rng: random.Random) -> bytes:
    """Another request for a file of the same folder; data is written after its header."""
    request = json.loads(data)
    if not request["path"]:  # changed before
        return data
    name = rng.choice([*request])
    choices = {
        "path": (request["path"] + "x", os.path.dirname(request["path"]), "", None),
        "secret": ("cd" * 16, "", None),
        "offset": (-1, 5000, 2**40, 2**63, 5000.5, "4096", None),
        "head": (-1, 0, 63, 65, 2**40, None),
        "proof": ("", None),
        "offsets": ([], [64], [64, 64], [64, 72, 72], [-1, 64], [64, 2**63], None),
        "size": (0, 2**40, "88", None),
        "changed_ns": (0, None),
        "chunks": (
            *([], None, [[64, [0, 0], [2, 2]]], [[2**63, [0, 0], [2, 2]]], [[-1, [0, 0], [2, 2]]]),
            *([[64, [0, 0], [2**40, 2**40]]], [[64, [-1, 0], [2, 2]]], [[64, [0], [2]]], [["64", [0, 0], [2, 2]]]),
        ),
    }
    return json.dumps({**request, name: rng.choice(choices[name])}).encode()


def attribute_changed(case: Case, rng: random.Random) -> None:
    if case.attrs:
        name = rng.choice([*case.attrs])
        others = [s.attrs[name] for s in by_op()[case.op] if name in s.attrs]
        borrowed = others and rng.random() < 0.3
        case.attrs[name] = rng.choice(others) if borrowed else _changed(case.attrs[name], rng)


def _changed(value: Any, rng: random.Random) -> Any:
    match value:
        case bool():
            return rng.choice((not value, not value, None, 2))
        case int():
            return rng.choice((value + 1, value - 1, *INTS, 1.5))
        case float():
            return rng.choice((*REALS, 3))
        case str():
            return rng.choice((*DTYPES, "", "none", "mean", "sum", "nonsense"))
        case tuple():
            return _changed_tuple(value, rng)
        case _:
            return rng.choice((0, 1, -1, 2.5, True, "float32", (1,), ()))


def _changed_tuple(value: tuple[Any, ...], rng: random.Random) -> Any:
    if not value:
        return rng.choice(((0,), (1, 2), (-1,), None))
    i = rng.randrange(len(value))
    what = rng.choice(("one", "one", "one", "drop", "double", "empty"))
    if what == "drop":
        return (*value[:i], *value[i + 1 :])
    if what == "double":
        return (*value[: i + 1], *value[i:])
    return () if what == "empty" else (*value[:i], _changed(value[i], rng), *value[i + 1 :])


def attribute_gone(case: Case, rng: random.Random) -> None:
    if case.attrs and rng.random() < 0.3:
        del case.attrs[rng.choice([*case.attrs])]


CHANGES: tuple[Callable[[Case, random.Random], None], ...] = (
    *(resized, resized, resized, resized, dim_changed, dim_changed, rank_changed, dtype_changed, dtype_changed),
    *(refilled, refilled, refilled, laid_out, laid_out, recounted, number_changed, number_changed),
    *(attribute_changed, attribute_changed, attribute_changed, attribute_gone),
)


# -- tensors -------------------------------------------------------------------------------


def make_operands(case: Case) -> list[Any]:
    rng = torch.Generator().manual_seed(case.seed)
    built = [_make(x, case, rng) if isinstance(x, Operand) else x for x in case.operands]
    laid = zip(_fitted(case, built), case.operands, strict=True)
    operands = [_laid_out(x, o.layout) if isinstance(o, Operand) else x for x, o in laid]
    if "sorted" in case.changes and operands and isinstance(operands[0], torch.Tensor):
        operands[0] = operands[0].sort(-1).values.nan_to_num(torch.inf, torch.inf, -torch.inf)
    return operands


def _fitted(case: Case, operands: list[Any]) -> list[Any]:
    """With the results of the forward op for its gradient, if the operands are still those of a sample."""
    if case.fit is None or {"refilled", "recounted"} & set(case.changes):
        return operands
    try:
        fitted = case.fit(list(operands))
    except Exception:  # other shapes or dtypes than those of the sample
        return operands
    pairs = [(m, f) for m, f in zip(operands, fitted, strict=True) if isinstance(m, torch.Tensor)]
    return fitted if all(m.shape == f.shape and m.dtype == f.dtype for m, f in pairs) else operands


def _make(x: Operand, case: Case, rng: torch.Generator) -> torch.Tensor:
    if x.values is not None:
        return x.values.clone()
    if math.prod(n or 1 for n in x.shape) * DTYPES[x.dtype].itemsize > MAX_NBYTES:
        raise MemoryError("no op gives such a result")
    if x.fill in ("any", "positive", "distinct", "special"):
        return T(x.shape, x.dtype, x.fill).make(rng)
    dtype = getattr(torch, x.dtype)
    if x.fill == "zero":
        return torch.zeros(x.shape, dtype=dtype)
    if x.fill == "index":  # indices, some of them just out of range
        sizes = [n for other in _tensors(case) for n in other.shape if n < 1000]
        top = max(sizes, default=2) + 1
        return torch.randint(-2, top, x.shape, generator=rng).to(dtype)
    if dtype.is_complex:
        parts = [_make(Operand(x.shape, real_of(DTYPES[x.dtype]).name, x.fill), case, rng) for _ in range(2)]
        return torch.complex(*parts)
    if not dtype.is_floating_point:
        picked = torch.tensor([0, 1] if dtype == torch.bool else _extremes(dtype, x.fill), dtype=dtype)
    else:
        largest = torch.finfo(dtype)
        picked = torch.tensor(
            [largest.max, largest.min, largest.tiny, 0.0, 1.0] if x.fill == "extreme" else [1e4, -1e4]
        )
        picked = picked.to(dtype)
    return picked[torch.randint(0, len(picked), x.shape, generator=rng)]


def _extremes(dtype: torch.dtype, fill: str) -> list[int]:
    limits = torch.iinfo(dtype)
    return [limits.min, limits.max, 0, 1] if fill == "extreme" else [limits.max // 2, limits.min // 2, 100]


def _laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "transposed" and x.ndim > 1:
        return x.mT.contiguous().mT
    if layout == "spaced" and x.ndim:
        wider = torch.ones(*x.shape, 2, dtype=x.dtype)
        wider[..., 0] = x
        return wider[..., 0]
    if layout == "expanded" and x.ndim and x.shape[0] > 1:
        return x[:1].expand(x.shape)
    if layout == "offset":
        flat = torch.ones(x.numel() + 3, dtype=x.dtype)
        flat[3:] = x.reshape(-1)
        return flat[3:].reshape(x.shape)
    return x
