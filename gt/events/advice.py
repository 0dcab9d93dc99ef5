"""What to do about the time: the three most useful things, in words. docs/tuning.md explains each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gt.events.breakdown import Breakdown

#: An instruction that takes less than this many nanoseconds is small: its overhead matters.
SMALL_NS = 30_000
#: A device that uses more than this share of its memory has little left.
FULL_MEMORY = 0.9
COUNT = 3
#: pattern -> what helps; the rows of a table in docs/tuning.md
REMEDIES = {
    "communication": "use a larger batch, or a layout that moves less (gt.debug.explain(x) shows its moves)",
    "unbalanced load": "give each worker the same share, use fewer workers, or more microbatches in a pipeline",
    "memory": "use a smaller batch, gt.checkpoint, or shard the model",
    "compilation": "warm up before you measure, keep shapes the same, or set GT_AUTO_COMPILE=1 (in the background)",
    "client-bound": "put the step under @gt.compile, use a larger batch, or prepare data in another process",
    "dispatcher": "repeat the same shapes, so that steps become fragments (gt.debug.print_hot_paths()), or set "
    "GT_WORKER_BATCH_SIZE=10",
    "reads": "read values less often (loss.item() every tenth step)",
    "short steps": "do more in one step (a larger batch), or put the step under @gt.compile",
    "small instructions": "set GT_AUTO_COMPILE=1, or use larger tensors",
    "no repetition": "keep shapes the same",
    "compute": "use bfloat16 (gt.autocast), or more workers",
    "idle": "other clients use the workers, or the program waits for something else",
}
#: kind of time -> (its pattern, what was measured)
WAITS = {
    "exposed communication": ("communication", "workers wait for data {}"),
    "bubble": ("unbalanced load", "workers wait for others {}"),
    "dispatcher": ("dispatcher", "only the dispatcher works {}"),
    "wire": ("reads", "messages are on their way {}"),
    "client Python": ("client-bound", "only Python runs {}"),
    "idle": ("idle", "nothing runs {}"),
}


def advice(breakdown: Breakdown) -> list[str]:
    """The three lines that promise most, the best first."""
    rows = [*_waits(breakdown), *_computing(breakdown)]
    if breakdown.memory > FULL_MEMORY:
        rows.append((1.0, "memory", f"a device is {breakdown.memory:.0%} full"))
    best: dict[str, str] = {}
    for _, pattern, measured in sorted(rows, key=lambda row: -row[0]):
        best.setdefault(pattern, measured)
    return [f"{pattern}: {measured}: {REMEDIES[pattern]}" for pattern, measured in best.items()][:COUNT]


def _waits(b: Breakdown) -> list[tuple[float, str, str]]:
    """(share of the time that it could save, pattern, what was measured)."""
    shares = {kind: b.share(kind) for kind in WAITS}
    patterns = {kind: pattern for kind, (pattern, _) in WAITS.items()}
    if 2 * b.hot >= b.instructions:  # the steps are fragments already, or none ran in this time
        patterns["dispatcher"] = "short steps"
    if b.read is not None and 2 * b.read < b.times["wire"]:  # the program hardly waits for values
        patterns["wire"] = "short steps"
    return [
        (shares[kind], patterns[kind], text.format(f"{shares[kind]:.0%} of the time"))
        for kind, (_, text) in WAITS.items()
    ]


def _computing(b: Breakdown) -> list[tuple[float, str, str]]:
    """Advice about the instructions themselves."""
    rows = []
    workers = max(1, len(b.computing))
    compiling = b.compiling / (b.wall * workers) if b.wall else 0.0
    if b.compilations:
        sections = f"{b.compilations} section{'s' * (b.compilations > 1)}"
        rows.append((compiling, "compilation", f"workers compile {sections} {compiling:.0%} of the time"))
    share = max(0.0, b.share("compute") - compiling)
    total = sum(spent for _, spent in b.families)
    if not total or not b.instructions:
        return [*rows, (0.0, "compute", "nothing ran on a worker in this time")]
    family, spent = b.families[0]
    line = f", most of it at {b.lines[0][0]}" if b.lines else ""
    measured = f"{family} takes {spent / total:.0%} of the computing time{line}"
    rows.append((0.5 * share * spent / total, "compute", measured))
    mean = total / b.instructions
    if mean < SMALL_NS and family != "compiled":
        rows.append((0.7 * share, "small instructions", f"{mean / 1e3:.1f} µs on average"))
    if b.hot < 0.5 * b.instructions:
        cold = 1 - b.hot / b.instructions
        measured = f"{cold:.0%} of the instructions are not in repeated fragments"
        rows.append((0.3 * share * cold, "no repetition", measured))
    return rows
