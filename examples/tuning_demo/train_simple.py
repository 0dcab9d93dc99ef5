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

_pipelines: dict[int, Pipeline] = {}


def pipelined(model: Any, schedule: Schedule, ids: Any, targets: Any) -> Any:
    """One step of a pipeline, which is created at the first one."""
    pipeline = _pipelines.get(id(model))
    if pipeline is None:
        names = [stage.name for stage in model.stages]
        pipeline = _pipelines[id(model)] = Pipeline(list(model.stages), schedule, signals=names)
    return pipeline.step(ids, targets, train.loss_fn)


def main() -> None:
    options = train.arguments(__doc__).parse_args()
    os.environ.setdefault("GT_CONFIG", str(train.CONFIG))  # read at GT's first use
    gt.gpu_workers(options.workers)
    train.run(options, pipelined)


if __name__ == "__main__":
    main()
