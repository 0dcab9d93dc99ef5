"""The draws of `philox` on a GPU: a Triton kernel for the words, torch for the rest. Imported where Triton is."""

# mypy: disable-error-code="untyped-decorator, unused-ignore"

from __future__ import annotations

from math import pi
from typing import Any

import torch
import triton
import triton.language as tl

from gt.ops.random import philox

#: words per program of the kernel: four for each lane
BLOCK = 1024


@triton.jit(do_not_specialize=["seed", "stream", "start", "span", "count"])
def _words(out, seed, stream, start, span, count, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    _make(out, seed, stream, start, span, count, lanes)


@triton.jit(do_not_specialize=["start", "count"])
def _keyed(out, seed, stream, span, start, count, ranged: tl.constexpr, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same, with a key in the device's memory."""
    if ranged:
        _make(out, tl.load(seed), tl.load(stream), start, tl.load(span), count, lanes)
    else:
        _make(out, tl.load(seed), tl.load(stream), start, 0, count, lanes)


@triton.jit
def _make(out, seed, stream, start, span, count, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each lane computes the four words of one counter; with a span other than 0, modulo the span."""
    lane = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    block = start // 4 + lane
    # numpy increments the counter before each block, so block 0 has counter 1
    c0 = (block + 1).to(tl.uint64)
    c1 = tl.zeros([lanes], tl.uint64)
    c2 = tl.zeros([lanes], tl.uint64)
    c3 = tl.zeros([lanes], tl.uint64)
    k0 = tl.zeros([lanes], tl.uint64) + seed.to(tl.uint64)
    k1 = tl.zeros([lanes], tl.uint64) + stream.to(tl.uint64)
    m0 = tl.full([lanes], 0xD2E7470EE14C6C93, tl.uint64)
    m1 = tl.full([lanes], 0xCA5A826395121157, tl.uint64)
    w0 = tl.full([lanes], 0x9E3779B97F4A7C15, tl.uint64)
    w1 = tl.full([lanes], 0xBB67AE8584CAA73B, tl.uint64)
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(m0, c0), m0 * c0
        high1, low1 = tl.umulhi(m1, c2), m1 * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + w0, k1 + w1
    if span != 0:
        divisor = tl.zeros([lanes], tl.uint64) + span.to(tl.uint64)
        c0, c1, c2, c3 = c0 % divisor, c1 % divisor, c2 % divisor, c3 % divisor
    at = block * 4 - start
    tl.store(out + at, c0.to(tl.int64, bitcast=True), mask=(at >= 0) & (at < count))
    tl.store(out + at + 1, c1.to(tl.int64, bitcast=True), mask=(at + 1 >= 0) & (at + 1 < count))
    tl.store(out + at + 2, c2.to(tl.int64, bitcast=True), mask=(at + 2 >= 0) & (at + 2 < count))
    tl.store(out + at + 3, c3.to(tl.int64, bitcast=True), mask=(at + 3 >= 0) & (at + 3 < count))


def _words_keyed(seed: Any, stream: Any, span: Any, ranged: bool, start: int, count: int) -> torch.Tensor:
    out = torch.empty(count, dtype=torch.int64, device=seed.device)
    if count:
        programs = triton.cdiv(start % 4 + count, BLOCK)
        with torch.cuda.device(seed.device):
            _keyed[(programs,)](out, seed, stream, span, start, count, ranged=ranged, lanes=BLOCK // 4)
    return out


#: opaque to a compiler, which sees a function of the key
words_keyed = torch.library.custom_op(
    "gt::philox_words",
    _words_keyed,
    mutates_args=(),
    schema="(Tensor seed, Tensor stream, Tensor span, bool ranged, int start, int count) -> Tensor",
)
words_keyed.register_fake(
    lambda seed, stream, span, ranged, start, count: torch.empty(count, dtype=torch.int64, device=seed.device)
)


def words(seed: Any, stream: Any, start: int, count: int, device: Any, span: Any = 0) -> torch.Tensor:
    """The words' bits as int64: torch has few functions for uint64."""
    if isinstance(seed, torch.Tensor):
        ranged = isinstance(span, torch.Tensor)
        result: torch.Tensor = words_keyed(seed, stream, span if ranged else seed, ranged, start, count)
        return result
    out = torch.empty(count, dtype=torch.int64, device=device)
    if count:
        programs = triton.cdiv(start % 4 + count, BLOCK)
        with torch.cuda.device(device):
            _words[(programs,)](out, seed & philox.MASK, stream & philox.MASK, start, span, count, lanes=BLOCK // 4)
    return out


def uniform(seed: Any, stream: Any, start: int, count: int, dtype: str, device: Any) -> torch.Tensor:
    if dtype == "float64":
        return _fraction(words(seed, stream, start, count, device), 64, 53, torch.float64)
    first, skip = divmod(start, 2)
    halves = words(seed, stream, first, (skip + count + 1) // 2, device).view(torch.int32)[skip : skip + count]
    return _fraction(halves, 32, philox.BITS[dtype], torch.float32)


def _fraction(raw: torch.Tensor, width: int, bits: int, dtype: torch.dtype) -> torch.Tensor:
    # the shift copies the sign bit; the mask removes it
    result: torch.Tensor = ((raw >> (width - bits)) & (2**bits - 1)).to(dtype) * 2.0**-bits
    return result


def normal(seed: Any, stream: Any, start: int, count: int, dtype: str, device: Any) -> torch.Tensor:
    skip = start % 2
    precise = "float64" if dtype == "float64" else "float32"
    pairs = uniform(seed, stream, start - skip, (skip + count + 1) // 2 * 2, precise, device).view(-1, 2)
    radius = torch.sqrt(-2 * torch.log(1 - pairs[:, 0]))
    angle = pairs[:, 1] * (2 * pi)
    result = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), 1)
    return result.view(-1)[skip : skip + count]


def integers(seed: Any, stream: Any, low: Any, high: Any, start: int, count: int, device: Any) -> torch.Tensor:
    # for numbers in memory, the number of values replaces the upper limit
    size = high if isinstance(seed, torch.Tensor) else philox.span(low, high)
    result: torch.Tensor = words(seed, stream, start, count, device, size) + low
    return result


#: (seed, stream, start, count): small and huge, aligned and not
KEYS = ((0, 0, 0, 1), (1, 1, 0, 5000), (-1, 2**63, 4093, 3001), (7, 2**31, 2**33 + 3, 9))
RANGES = ((0, 1), (-5, 12), (-(2**62), 2**63 - 1))
TOLERANCES = {"float64": 1e-12, "float32": 1e-4, "float16": 1e-4, "bfloat16": 1e-4}


def differences(device: Any) -> list[str]:
    """The draws in which this module differs from numpy: an empty list on a GPU that works."""
    differs: dict[str, Any] = {}
    for key in KEYS:
        drawn_words = words(*key, device).cpu().numpy().view("uint64")
        differs[f"words{key}"] = (drawn_words != philox.words(*key)).any()
        for low, high in RANGES:
            drawn = integers(*key[:2], low, high, *key[2:], device).cpu().numpy()
            differs[f"integers{(*key, low, high)}"] = (drawn != philox.integers(*key[:2], low, high, *key[2:])).any()
        for dtype, tolerance in TOLERANCES.items():
            apart = uniform(*key, dtype, device).cpu().numpy() - philox.uniform(*key, dtype)
            differs[f"uniform{(*key, dtype)}"] = apart.any()
            apart = normal(*key, dtype, device).cpu().numpy() - philox.normal(*key, dtype)
            differs[f"normal{(*key, dtype)}"] = abs(apart).max() > tolerance
    return [name for name, wrong in differs.items() if wrong]
