"""Whether the figures of a record follow from its raw samples; those of an edited record do not.

``python -m benchmarks.core.audit FILE…`` prints the verdict of each record and what does not follow, for every suite.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.core import derived, results, tables, verdict

#: errors of reading a part that has not the shape of its suite
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError, OverflowError)
#: relative difference of two figures that are the same: sums in another order
SAME = 1e-6
#: quotient of two times that are the same, measured by two clocks; and what may pass after the last step, in seconds
SAME_TIME, TAIL_S = 0.95, 0.2


#: keys of a configuration that say nothing about the work
NOISE = {"port", "output_dir", "load", "nccl_log", "seed"}


def origin(record: Mapping[str, Any]) -> str:
    """Equal in copies of one run, whatever else was changed in them: measured times are not equal by chance."""
    config = {key: value for key, value in record["config"].items() if key not in NOISE | {"device"}}
    parts = [part for part, _ in derived.parts(record["results"], "results")]
    samples = [value for part in parts for value in part.values() if isinstance(value, list) and derived.numbers(value)]
    return json.dumps([config, samples or record["results"]], sort_keys=True)


def differs(written: Any, follows: Any) -> bool:
    if isinstance(written, int | float) and isinstance(follows, int | float):
        return not math.isclose(written, follows, rel_tol=SAME, abs_tol=1e-12)
    if isinstance(written, dict) and isinstance(follows, dict):
        return written.keys() != follows.keys() or any(differs(written[key], follows[key]) for key in follows)
    if isinstance(written, list | tuple) and isinstance(follows, list | tuple):
        return len(written) != len(follows) or any(map(differs, written, follows))
    return bool(written != follows)


def differences(written: Mapping[str, Any], follows: Mapping[str, Any], where: str) -> Iterator[str]:
    """Each figure that is not what follows from the samples, down to the one that differs."""
    for key in (key for key in follows if key in written):
        one, other, place = written[key], follows[key], f"{where}.{key}"
        if isinstance(one, dict) and isinstance(other, dict) and one.keys() >= other.keys():
            yield from differences(one, other, place)
        elif isinstance(one, list) and isinstance(other, list | tuple) and len(one) == len(other):
            yield from differences(dict(enumerate_text(one)), dict(enumerate_text(other)), place)
        elif differs(one, other):
            yield f"{place} is {one}, and {other} follows from its samples"


def enumerate_text(values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    return ((str(number), value) for number, value in enumerate(values))


def figures(record: Mapping[str, Any]) -> Iterator[str]:
    """What does not follow within each part."""
    for part, where in derived.parts(record["results"], "results"):
        place = derived.Place(where, record)
        for follows in derived.ROWS:
            yield from differences(part, follows(part, place), where)
        yield from contradicted(part, place)


def contradicted(part: derived.Part, place: derived.Place) -> Iterator[str]:
    """Reasons that a verdict does not have, although a part or a fact beside it does."""
    judged = part.get("verdict")
    if not isinstance(judged, dict):
        return
    if judged["valid"] is not (not judged["reasons"]):
        yield f"{place.where}.verdict.valid is {judged['valid']}, with {len(judged['reasons'])} reason(s)"
        return
    inner = [each for key, value in part.items() if key != "verdict" for each in results.verdicts(value)]
    reasons = [*verdict.together(inner)["reasons"], *verdict.judge(*derived.facts(part, place))["reasons"]]
    known = {reason["code"] for reason in judged["reasons"]}
    for reason in (reason for reason in reasons if judged["valid"] or reason["code"] not in known):
        yield f"{place.where}.verdict does not have what follows: {reason['message']}"
        return


def verdicts(record: Mapping[str, Any]) -> Iterator[str]:
    """The verdict of the record is that of its parts and of its end."""
    ended = verdict.ended(record["status"], record["error"], record["environment"]["git"])
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


def walls(record: Mapping[str, Any]) -> Iterator[str]:
    """The time of all steps by the host's clock is that of their samples, by the clock of the device.

    It may contain a shorter last batch, whose time is no sample. Of several ranks a sample is that of the slowest, and
    their sum may be longer than each rank took.
    """
    shortest = SAME_TIME * max(0.5, 1 / record["world_size"])
    for part, where in derived.parts(record["results"], "results"):
        time = part.get("timing")
        if not part.get("wall_s") or not isinstance(time, dict):
            continue
        sampled = sum(time["samples_s"]) * time.get("steps_per_sample", 1)
        longest = sampled / SAME_TIME + TAIL_S if record["suite"] == "distributed" else math.inf
        if not shortest * sampled <= part["wall_s"] <= longest:
            yield f"{where}.wall_s is {part['wall_s']}, and its samples take {sampled}"


def counts(record: Mapping[str, Any]) -> Iterator[str]:
    """No sample was left out."""
    wanted = record["config"].get("benchmark_iters")
    if record["suite"] != "distributed" or wanted is None:
        return
    for part, where in derived.parts(record["results"], "results"):
        count = len(part["samples_s"]) if "samples_s" in part and "count" in part else wanted
        if count != wanted and not {"doubling", "sweep"} & {*where.split(".")}:
            yield f"{where} has {count} samples, and the run had {wanted} iterations"


def problems(record: Mapping[str, Any]) -> list[str]:
    """What does not follow, in a record of any suite."""
    checks = (figures, verdicts, memory, walls, counts)
    return [line for check in checks for line in check(record)]


def main(paths: Sequence[str]) -> int:
    """1 if a file is no record, or one whose figures do not follow; 2 without a file."""
    if not paths:
        print("usage: python -m benchmarks.core.audit FILE…", file=sys.stderr)
        return 2
    failed = False
    for path in paths:
        try:
            record = results.load(path)
            wrong = problems(record)
            lines = [*tables.verdict_lines(record["verdict"]), *wrong]
        except (OSError, *MALFORMED) as error:
            wrong = lines = [f"{type(error).__name__}: {error}"]
        failed |= bool(wrong)
        print(path, *(f"  {line}" for line in lines), sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
