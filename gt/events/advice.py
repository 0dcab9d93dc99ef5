"""What to do about the time: the three most useful things, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gt.events.breakdown import Breakdown

#: An instruction that takes less than this many nanoseconds is small: its overhead matters.
SMALL_NS = 30_000
#: A device that uses more than this share of its memory has little left.
FULL_MEMORY = 0.9
COUNT = 3


def advice(breakdown: Breakdown) -> list[str]:
    """The three lines that promise most, the best first."""
    rows = [*_waits(breakdown), *_computing(breakdown)]
    if breakdown.memory > FULL_MEMORY:
        rows.append((1.0, f"memory: a device is {breakdown.memory:.0%} full: use a smaller batch, or shard the model"))
    return [text for _, text in sorted(rows, key=lambda row: -row[0])[:COUNT]]


def _waits(b: Breakdown) -> list[tuple[float, str]]:
    """(share of the time that it could save, advice)."""
    shares = {kind: b.share(kind) for kind in b.times}
    texts = {
        "exposed communication": "communication: workers wait for data {}: use a larger batch, or a layout that moves "
        "less (gt.debug.explain(x) shows the moves of a tensor)",
        "bubble": "unbalanced load: workers wait for others {}: give each the same share, use fewer workers, or more "
        "microbatches in a pipeline",
        "dispatcher": "dispatcher: only it works {}: repeat the same shapes, so that steps become fragments "
        "(gt.debug.print_hot_paths()), or set GT_WORKER_BATCH_SIZE=10",
        "wire": "reads: messages are on their way {}: read values less often (loss.item() every tenth step)",
        "client Python": "client-bound: only Python runs {}: put the step under @gt.compile, use a larger batch, "
        "prepare data in another process",
        "idle": "idle: nothing runs {}: other clients use the workers, or the program waits for something else",
    }
    return [(shares[kind], text.format(f"{shares[kind]:.0%} of the time")) for kind, text in texts.items()]


def _computing(b: Breakdown) -> list[tuple[float, str]]:
    """Advice about the instructions themselves."""
    share = b.share("compute")
    total = sum(spent for _, spent in b.families)
    if not total or not b.instructions:
        return [(0.0, "compute: nothing ran on a worker in this time")]
    family, spent = b.families[0]
    line = f", most of it at {b.lines[0][0]}" if b.lines else ""
    rows = [
        (
            0.5 * share * spent / total,
            f"compute: {family} takes {spent / total:.0%} of the computing time{line}: "
            "use bfloat16 (gt.autocast), or more workers",
        )
    ]
    mean = total / b.instructions
    if mean < SMALL_NS and family != "compiled":
        text = f"small instructions: {mean / 1e3:.1f} µs on average: set GT_AUTO_COMPILE=1, or use larger tensors"
        rows.append((0.7 * share, text))
    if b.hot < 0.5 * b.instructions:
        cold = 1 - b.hot / b.instructions
        text = f"no repetition: {cold:.0%} of the instructions are not in repeated fragments: keep shapes the same"
        rows.append((0.3 * share * cold, text))
    return rows
