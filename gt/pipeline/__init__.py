"""``gt.pipeline``: pipeline parallelism. Schedules are data; `Pipeline` runs one. See docs/pipelines.md.

    actions      what a schedule consists of, and how a schedule is checked
    schedules    the schedules by name
    files        schedules from CSV and YAML files
    timing       a schedule with set costs: times, bubble, peak activations
    drawing      pictures, as text and PNG
    stages       the signals under which the parts of a model run
    microbatches batches into microbatches
    part_pass    one step: what the parts hand to each other
    runner       `Pipeline`

May import everything of the client; nothing imports it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gt.pipeline.actions import Action, Schedule
from gt.pipeline.files import read_schedule
from gt.pipeline.schedules import make_schedule
from gt.pipeline.timing import bubble, bubble_formula, peak_activations

if TYPE_CHECKING:
    from gt.pipeline.runner import Pipeline as Pipeline

__all__ = [
    "Action", "Pipeline", "Schedule", "bubble", "bubble_formula", "make_schedule", "peak_activations", "read_schedule",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "Pipeline":  # the command that draws schedules needs no tensors
        return import_module("gt.pipeline.runner").Pipeline
    raise AttributeError(f"module 'gt.pipeline' has no attribute {name!r}")
