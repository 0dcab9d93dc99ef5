"""`Pipeline`: runs a model in parts, microbatch by microbatch, in the order of a schedule.

The client emits the actions of all stages in one stream, in the order in which they would begin (`merged_order`). Each
stage runs its own actions in order. What a part hands on, activations or gradients, moves as soon as it is computed,
and the receiver goes on with its other work until it needs them.

Between two parts the tape is cut: the inputs of a part are leaves. So the backward pass of a part runs on its own, and
the gradients of its inputs are handed to the part before. The gradients of the parameters are added up for each part,
and added to their ``grad`` after the last microbatch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from gt.client.grad.grad_mode import is_grad_enabled, no_grad
from gt.client.stream.step import cut
from gt.client.tensor import emit
from gt.client.tensor.tensor import Tensor
from gt.errors import ConfigError, GradError
from gt.nn import Module
from gt.pipeline.actions import Action, Schedule
from gt.pipeline.files import is_file, read_schedule
from gt.pipeline.microbatches import cut_batch, cut_targets, joined
from gt.pipeline.outer_graphs import OuterGraphs
from gt.pipeline.part_pass import ACTIONS, PartPass, output_as_loss
from gt.pipeline.schedules import chunks_of, forward_schedule, make_schedule
from gt.pipeline.stages import StageSignals, Workers
from gt.pipeline.timing import merged_order
from gt.say import warn

LossFunction = Callable[..., Tensor]


class Pipeline:
    """A model in parts that run on different workers at the same time, on different microbatches.

    ``stages`` are modules or functions, in the order of the forward pass: a part gets what the part before returns. A
    schedule with several chunks needs that many times as many. ``schedule`` is a name, a file or a `Schedule`.
    ``signals`` names the signals of the stages, ``workers`` their workers; without both, the stages share all workers
    equally. ``mean_loss``: the loss is a mean over the rows of its batch, not a sum.

    Example::

        pipeline = gt.pipeline.Pipeline([first, second], schedule="1f1b", microbatches=8)
        loss = pipeline.step(x, y, gt.nn.functional.cross_entropy)
        optimizer.step()
    """

    def __init__(
        self,
        stages: Sequence[Any],
        schedule: str | os.PathLike[str] | Schedule = "1f1b",
        microbatches: int | None = None,
        *,
        chunks: int | None = None,
        signals: Sequence[str] | None = None,
        workers: Workers | None = None,
        mean_loss: bool = True,
    ) -> None:
        self.parts = _part_list(stages)
        self.mean_loss, self._chunks = mean_loss, chunks
        self._schedule = _named_or_read(schedule)
        if isinstance(self._schedule, Schedule):
            microbatches = self._schedule.microbatches if microbatches is None else microbatches
        elif microbatches is None:
            raise ConfigError("pipeline: pass the number of microbatches")
        self.microbatches = microbatches
        self.schedule = self._make_schedule(microbatches)
        self.signals = StageSignals(self.schedule.stages, signals, workers)
        #: (number of microbatches, whether only forward) -> the actions in order
        self._orders: dict[tuple[int, bool], list[Action]] = {}
        for number, part in enumerate(self.parts):
            if not callable(part):
                raise ConfigError(f"pipeline: part {number} is {part!r}; expected a module or a function")

    def _make_schedule(self, microbatches: int) -> Schedule:
        given, parts = self._schedule, len(self.parts)
        if self._chunks is not None and (type(self._chunks) is not int or isinstance(given, Schedule)):
            what = "the schedule has its own" if isinstance(given, Schedule) else "expected an integer, 1 or more"
            raise ConfigError(f"pipeline: chunks={self._chunks!r}; {what}")
        if isinstance(given, Schedule):
            if (given.parts, given.microbatches) != (parts, microbatches):
                size = f"{given.parts} parts and {given.microbatches} microbatches"
                raise ConfigError(f"pipeline: schedule {given.name} is for {size}, not for {parts} and {microbatches}")
            return given
        chunks = chunks_of(given) if self._chunks is None else self._chunks
        if parts == 0 or parts % max(chunks, 1):
            raise ConfigError(
                f"pipeline: {parts} parts cannot be divided into stages of {chunks}; {_parts_needed(given, chunks)}"
            )
        if parts == chunks > 1:
            warn(f"pipeline: {parts} parts are only one stage; {_parts_needed(given, chunks)}")
        return make_schedule(given, parts // max(chunks, 1), microbatches, chunks)

    def parameters(self) -> list[Any]:
        """The parameters of all parts, each once."""
        modules = [part for part in self.parts if isinstance(part, Module)]
        return list({id(p): p for module in modules for p in module.parameters()}.values())

    def step(self, batch: Any, targets: Any, loss_fn: LossFunction | None) -> Tensor:
        """Run a batch forward and backward, and add the gradients to the ``grad`` of the parameters. Returns the loss.

        ``loss_fn(output, target)`` gets the output of the last part; None: that output is the loss. A list is a batch
        that is cut already.
        """
        if not is_grad_enabled():
            raise GradError("pipeline: step computes gradients; under gt.no_grad, call evaluate")
        if self.schedule.forward_only:
            raise ConfigError(f"pipeline: schedule {self.schedule.name} has no backward pass; call evaluate")
        graphs = OuterGraphs()
        run = self._begin(graphs.cut_off(batch), graphs.cut_off(targets), loss_fn or output_as_loss)
        for action in self._order(run.count, forward_only=False):
            with _without_autocast_cache(action.kind):
                ACTIONS[action.kind](run, action.part, action.microbatch)
            cut()  # the same action on another microbatch is a repetition
        graphs.backward()
        return run.loss()

    def evaluate(self, batch: Any, targets: Any, loss_fn: LossFunction | None) -> Tensor:
        """The loss of a batch, without gradients."""
        return self._forward(batch, targets, loss_fn or output_as_loss).loss()

    def __call__(self, batch: Any) -> Any:
        """The outputs of a batch, without gradients: those of all microbatches, joined along dim 0.

        Values that are not tensors are those of the first microbatch.
        """
        return joined(self._forward(batch, None, None).outputs())

    def _forward(self, batch: Any, targets: Any, loss_fn: LossFunction | None) -> PartPass:
        with no_grad():
            run = self._begin(batch, targets, loss_fn)
            for action in self._order(run.count, forward_only=True):
                run.forward(action.part, action.microbatch)
                cut()
            return run

    def _begin(self, batch: Any, targets: Any, loss_fn: LossFunction | None) -> PartPass:
        """Cut the batch, and start to move the microbatches to where they are needed."""
        microbatches = cut_batch(batch, self.microbatches)
        count = len(microbatches)
        # at most as many as the batch has; a list decides their number itself
        target_parts = [None] * count if targets is None else cut_targets(targets, batch, count)
        if len(target_parts) != count:
            raise ConfigError(f"pipeline: {count} microbatches, and targets for {len(target_parts)}")
        names = self.signals.prepare(self.parts, self.schedule.stage_of)
        run = PartPass(self.parts, names, microbatches, target_parts, loss_fn, self.mean_loss)
        cut()
        return run

    def _order(self, microbatches: int, forward_only: bool) -> list[Action]:
        order = self._orders.get((microbatches, forward_only))
        if order is None:
            if forward_only:
                schedule = forward_schedule(self.schedule, microbatches)
            else:
                schedule = self.schedule if microbatches == self.microbatches else self._make_schedule(microbatches)
            order = self._orders[microbatches, forward_only] = merged_order(schedule)
        return order

    def __repr__(self) -> str:
        return f"<Pipeline of {len(self.parts)} parts: {self.schedule!r}>"


def _part_list(stages: Any) -> list[Any]:
    try:
        return list(stages)
    except TypeError:
        kind = type(stages).__name__
        raise ConfigError(f"pipeline: stages is a {kind}; expected a list of modules or functions") from None


def _named_or_read(schedule: Any) -> str | Schedule:
    """The name of a schedule, or a schedule; a file is read."""
    if isinstance(schedule, os.PathLike) or (isinstance(schedule, str) and is_file(schedule)):
        return read_schedule(schedule)
    if not isinstance(schedule, str | Schedule):
        raise ConfigError(f"pipeline: schedule={schedule!r}; expected a name, a file or a gt.pipeline.Schedule")
    return schedule


def _parts_needed(schedule: str, chunks: int) -> str:
    return f"schedule {schedule} has {chunks} parts in each stage: 2 stages need {2 * chunks} parts"


def _without_autocast_cache(kind: str) -> contextlib.AbstractContextManager[Any]:
    """Inside an autocast: a forward casts parameters anew, because a backward frees the tape of the cast; a backward
    runs in the dtypes of its forward."""
    if emit.casting is None:
        return contextlib.nullcontext()
    from gt.amp.autocast_mode import autocast, current_dtype

    dtype = current_dtype()
    return autocast(dtype=dtype, enabled=kind == "F" and dtype is not None, cache_enabled=False)
