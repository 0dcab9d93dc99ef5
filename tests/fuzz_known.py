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
]


def known(op: str, case: str, report: str) -> bool:
    return report.startswith(EXCUSABLE) and any(
        re.fullmatch(k.op, op) and re.search(k.report, report) and re.search(k.case, case) for k in KNOWN
    )
