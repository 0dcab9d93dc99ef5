"""Whether the figures of a record follow from its raw samples; those of an edited record do not.

``python -m benchmarks.core.audit FILE…`` prints the verdict of each record and what does not follow, for every suite.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.core import results, tables, timing, verdict

#: relative difference of two figures that are the same: sums in another order
SAME = 1e-6


def differs(written: Any, follows: Any) -> bool:
    if isinstance(written, int | float) and isinstance(follows, int | float):
        return not math.isclose(written, follows, rel_tol=SAME, abs_tol=1e-12)
    return bool(written != follows)


def differences(written: Mapping[str, Any], follows: Mapping[str, Any], where: str) -> Iterator[str]:
    """Each figure that is not what follows from the samples."""
    for key, value in follows.items():
        if differs(written[key], value):
            yield f"{where}.{key} is {written[key]}, and {value} follows from its samples"


def timings(value: Any, where: str) -> Iterator[str]:
    """Every timing at any depth."""
    if isinstance(value, dict):
        if isinstance(written := value.get("timing"), dict) and "samples_s" in written:
            yield from differences(written, timing.figures(written["samples_s"]), f"{where}.timing")
        for key, inner in value.items():
            yield from timings(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from timings(inner, f"{where}[{number}]")


def medians(value: Any, where: str) -> Iterator[str]:
    """Every figure that is the median of samples beside it, at any depth, and every rate of samples."""
    if isinstance(value, dict):
        for key, name in (("samples", "value"), ("ratios", "median"), ("seconds", "median"), ("samples", "median")):
            samples = value.get(key)
            if isinstance(samples, list) and samples and name in value:
                yield from differences(value, {name: statistics.median(samples)}, where)
        if isinstance(value.get("samples"), int) and value.get("wall_s") and "samples_per_s" in value:
            yield from differences(value, {"samples_per_s": value["samples"] / value["wall_s"]}, where)
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from medians(inner, f"{where}.{key}")


def verdicts(record: Mapping[str, Any]) -> Iterator[str]:
    """The verdict of the record is that of its parts and of its end."""
    ended = verdict.ended(record["status"], record["error"])
    parts = verdict.together([ended, *results.verdicts(record["results"])])
    if parts["valid"] is False and record["verdict"]["valid"]:
        yield f"verdict.valid is true, and a part is not valid: {parts['reasons'][0]['message']}"


def memory(record: Mapping[str, Any]) -> Iterator[str]:
    """The bytes needed for tensors are never less than the bytes of the tensors."""
    part = record["results"].get("memory", {})
    for row in [*part.get("batch_fit", {}).get("rows", []), *part.get("largest_batch", {}).get("rows", [])]:
        needed, held = row.get("needed_bytes"), row.get("peak_bytes")
        if needed is not None and held is not None and needed < held:
            yield f"results.memory: a batch of {row['batch']} needs {needed} bytes and holds {held}"


def problems(record: Mapping[str, Any]) -> list[str]:
    """What does not follow, in a record of any suite."""
    inside = record["results"]
    return [*timings(inside, "results"), *medians(inside, "results"), *verdicts(record), *memory(record)]


def main(paths: Sequence[str]) -> int:
    """1 if a file is no record, or one whose figures do not follow."""
    failed = False
    for path in paths:
        try:
            record = results.load(path)
            wrong = problems(record)
            lines = [*tables.verdict_lines(record["verdict"]), *wrong]
        except (OSError, ValueError) as error:
            wrong = lines = [str(error)]
        failed |= bool(wrong)
        print(path, *(f"  {line}" for line in lines), sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
