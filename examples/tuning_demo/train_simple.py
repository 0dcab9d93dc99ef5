"""Train Mini-GPT in stages: ``python examples/tuning_demo/train_simple.py``. Starts the server and 8 workers itself.

Without GPUs these are CPU workers. The schedule is run by `gt.pipeline.Pipeline`; train.py shows the same by hand.
"""

from __future__ import annotations

import os
from typing import Any

try:
    import train
except ModuleNotFoundError:  # imported by a test
    from examples.tuning_demo import train

import gt
from gt.pipeline import Pipeline, Schedule


def pipelined(model: Any, schedule: Schedule) -> train.Step:
    names = [f"pp_stage{stage}" for stage in range(schedule.stages)]
    pipeline = Pipeline(list(model.parts), schedule, signals=names)
    return lambda ids, targets: pipeline.step(ids, targets, train.loss_fn)


def main() -> None:
    options = train.arguments(__doc__).parse_args()
    os.environ.setdefault("GT_CONFIG", str(train.CONFIG))  # read at GT's first use
    try:
        gt.gpu_workers(options.workers)
        train.run(options, pipelined)
    except gt.GtError as error:
        raise SystemExit(f"train_simple.py: {error}") from None


if __name__ == "__main__":
    main()
