"""``gt.pipeline``: pipeline parallelism. Schedules are data. See docs/pipelines.md.

    actions      what a schedule consists of, and how a schedule is checked
    schedules    the schedules by name
    files        schedules from CSV and YAML files
    timing       a schedule with set costs: times, bubble, peak activations
    drawing      pictures, as text and PNG

May import everything of the client; nothing imports it.
"""

from gt.pipeline.actions import Action, Schedule
from gt.pipeline.files import read_schedule
from gt.pipeline.schedules import make_schedule
from gt.pipeline.timing import bubble, bubble_formula, peak_activations

__all__ = [
    "Action", "Schedule", "bubble", "bubble_formula", "make_schedule", "peak_activations", "read_schedule",
]  # fmt: skip
