"""Products of large matrices with odd sizes, in half precision on a GPU.

Where a size is not a multiple of eight, torch's product takes up to eight times as long: a language model with 50,257
words spends most of its time in three such products. Zeros up to the next multiple make them fast and change no value.
"""

from __future__ import annotations

from typing import Any

#: Sizes that are multiples of this are fast.
FAST_MULTIPLE = 8
#: Zeros are added up to a multiple of this.
MULTIPLE = 64
#: Products with fewer multiplications are computed as they are: copying the operands would take as long.
MIN_MULTIPLICATIONS = 1 << 33


def is_slow(x: Any, *sizes: int) -> bool:
    """Whether a product with these three sizes, of operands like this one, is worth padding."""
    if not x.is_cuda or x.itemsize != 2 or all(size % FAST_MULTIPLE == 0 for size in sizes):
        return False
    m, n, k = sizes
    return m * n * k >= MIN_MULTIPLICATIONS and min(sizes) >= MULTIPLE


def times(torch: Any, a: Any, b: Any) -> Any:
    """``a @ b`` for matrices ``a[m,k]`` and ``b[k,n]``, both with contiguous rows."""
    k, n = -a.shape[1] % MULTIPLE, -b.shape[1] % MULTIPLE
    return torch.mm(pad(torch, a, 0, k), pad(torch, b, k, n))[:, : b.shape[1]]


def times_transposed(torch: Any, a: Any, b: Any) -> Any:
    """``a @ b.T`` for matrices ``a[m,k]`` and ``b[n,k]``, both with contiguous rows."""
    k, n = -a.shape[1] % MULTIPLE, -b.shape[0] % MULTIPLE
    return torch.mm(pad(torch, a, 0, k), pad(torch, b, n, k).t())[:, : b.shape[0]]


def transposed_times(torch: Any, a: Any, b: Any) -> Any:
    """``a.T @ b`` for matrices ``a[k,m]`` and ``b[k,n]``, both with contiguous rows."""
    m, n = -a.shape[1] % MULTIPLE, -b.shape[1] % MULTIPLE
    return torch.mm(pad(torch, a, 0, m).t(), pad(torch, b, 0, n))[: a.shape[1], : b.shape[1]]


def pad(torch: Any, x: Any, rows: int, columns: int) -> Any:
    """The matrix with rows and columns of zeros behind it."""
    if not rows and not columns:
        return x
    if not rows and has_zeros_behind(x, columns):
        return x.as_strided((x.shape[0], x.shape[1] + columns), x.stride())
    return torch.nn.functional.pad(x, (0, columns, 0, rows) if rows else (0, columns))


def mark_zeros_behind(x: Any) -> None:
    """Note that this matrix ends in columns of zeros: views without them need not be padded again."""
    x.untyped_storage().gt_zeros_behind = True


def has_zeros_behind(x: Any, columns: int) -> bool:
    """Whether each row of the matrix is followed by this many zeros in memory."""
    return bool(
        x.stride() == (x.shape[1] + columns, 1)
        and not x.storage_offset()
        and getattr(x.untyped_storage(), "gt_zeros_behind", False)
    )
