"""Where torch and numpy differ, and may: rows that the random calls of `tests.fuzz` are held against.

Only differences between two results, or an error of one engine alone, can be known. A crash, a hang, memory that nobody
wrote or a result of another type than the inferred one never is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: how the reports begin that a row may excuse
EXCUSABLE = ("result ", "only torch fails", "only numpy fails")


@dataclass(frozen=True)
class Known:
    #: the op, and what is said of it, as regular expressions; the case must match ``case`` too
    op: str
    report: str
    why: str
    case: str = ""


KNOWN: list[Known] = [
    Known(
        ".*",
        "only torch fails.*(without overflow|int too big|Promotion for uint16|can't be cast)",
        "torch refuses a number that its dtype cannot hold; numpy wraps it, or makes it infinite",
    ),
    Known("gcd|lcm", "result", "the smallest integer has no absolute value", case="extreme|far|special"),
    Known(
        "polygamma", r"torch \[-?\d{13,}|e\+\d\d", "next to a pole: as large as the sine of a multiple of pi is small"
    ),
    Known("polygamma", "result", "n! beyond the dtype's range, times what is below it", case="float16|n=(17|100)"),
    Known("pow", "only torch fails.*negative integer powers", "torch refuses these of Python numbers, not of tensors"),
    Known("searchsorted", "^result 0", "where a value belongs in a row that is not sorted", case=r"\bunsorted\]"),
    Known(
        "sum|mean|var|std|logsumexp|(log_)?softmax_backward",
        "^result 0",
        "sums overflow or cancel in another order",
        case=":extreme",
    ),
    Known(
        "prod|prod_others|cumprod_backward", r"\b(nan|inf)\b", "partial products overflow or vanish in another order"
    ),
    Known("det|slogdet", "^result", "NaN, or products that overflow, on the diagonal", case=":(special|extreme)"),
    Known("matmul|addmm|baddbmm", r"\b(nan|inf)\b", "partial sums overflow in another order", case=":extreme"),
    Known("qr|inv|solve|solve_triangular|svd|eigh", "^result", "products overflow", case=":(special|extreme)"),
    Known("inv|solve", "[Ss]ingular", "a pivot vanishes by rounding, or does not", case=":extreme"),
    Known("(log_)?softmax_backward", "^result 0", "rounded in a narrower dtype than the result's", case="dtype='float"),
    Known("put_view", "only numpy.*does not fit into float16", "torch refuses such a number, but not in a 0-d view"),
    Known(
        "put_view|masked_put|index_put",
        "^result 0",
        "floats outside the range of integers, cast to them",
        case=r"\((uint8|int\d+)\[.*?, float.*:(far|extreme|special)|\(uint8\[.*?, float",
    ),
]


def known(op: str, case: str, report: str) -> bool:
    return report.startswith(EXCUSABLE) and any(
        re.fullmatch(k.op, op) and re.search(k.report, report) and re.search(k.case, case) for k in KNOWN
    )
