"""Sets of time, as arrays of (begin, end) that are sorted and do not overlap."""

from __future__ import annotations

from typing import Any

import numpy as np

NOTHING: Any = np.empty((0, 2), dtype=np.int64)


def union(*parts: Any) -> Any:
    """The time in any of these arrays, which may be unsorted and overlap."""
    spans = np.concatenate(parts) if parts else NOTHING
    spans = spans[spans[:, 1] > spans[:, 0]]
    if not len(spans):
        return NOTHING
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    ends = np.maximum.accumulate(spans[:, 1])
    first = np.concatenate([[True], spans[1:, 0] > ends[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([spans[first, 0], ends[last]], axis=1)


def complement(spans: Any, begin: int, end: int) -> Any:
    """The time from begin to end that is not in the set."""
    edges = np.concatenate([[begin], np.clip(spans, begin, end).reshape(-1), [end]]).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


def intersection(a: Any, b: Any) -> Any:
    """The time in both sets."""
    if not len(a) or not len(b):
        return NOTHING
    begin, end = min(a[0, 0], b[0, 0]), max(a[-1, 1], b[-1, 1])
    return complement(union(complement(a, begin, end), complement(b, begin, end)), begin, end)


def difference(a: Any, b: Any) -> Any:
    """The time in the first set and not in the second."""
    return intersection(a, complement(b, a[0, 0], a[-1, 1])) if len(a) else NOTHING


def length(spans: Any) -> int:
    return int((spans[:, 1] - spans[:, 0]).sum())
