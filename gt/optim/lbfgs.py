"""L-BFGS: a quasi-Newton method.

Vectors stay on the workers. The client decides by a few numbers, and reads those that it needs at one point together:
one read after each evaluation of the closure, and one for each direction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gt.client.grad.backward import enable_grad, no_grad
from gt.client.stream import recorder
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import zeros_like
from gt.functions.joining import cat
from gt.optim.line_search import Point, WolfeSearch
from gt.optim.optimizer import Group, Optimizer, check_rate
from gt.types import float64

#: the least product of a step and its change of gradient that is remembered
MIN_CURVATURE = 1e-10

Closure = Callable[[], Any]
State = dict[str, Any]


class Evaluation(NamedTuple):
    """What is known after the closure ran."""

    loss: float
    gradient: Tensor
    #: the largest element of the gradient
    steepest: float
    #: the change of the gradient in the last step, the last step, and their product; the largest element of that step
    change: Tensor | None = None
    moved: Tensor | None = None
    curvature: float = 0.0
    longest: float = 0.0


class LBFGS(Optimizer):
    """Limited-memory BFGS; a step calls the closure several times and reads the loss. See `torch.optim.LBFGS`."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_rate(lr)
        defaults = {
            "lr": lr, "max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change, "history_size": history_size,
            "line_search_fn": line_search_fn,
        }  # fmt: skip
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    def run_step(self, closure: Closure | None) -> Any:
        if recorder.active is not None:
            recorder.active.refuse("LBFGS reads the loss to decide what comes next")
        if closure is None:
            raise TypeError("LBFGS.step() needs a closure, which computes the loss and its gradients again")
        with no_grad():
            return self._minimize(closure, self.param_groups[0])

    def _minimize(self, closure: Closure, group: Group) -> Any:
        # as in torch, there is one state, that of the first parameter
        state = self.state[group["params"][0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        original = _call(closure)
        at = _evaluated(state, original, self._flat_gradient())
        evaluations = 1
        state["func_evals"] += 1
        if at.steepest <= group["tolerance_grad"]:
            return original
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            _remember(state, at, group["history_size"])
            state["d"] = _direction(state, at.gradient, group["history_size"])
            state["prev_flat_grad"], state["prev_loss"] = at.gradient, at.loss
            slope, state["t"] = self._slope_and_size(state, group)
            if slope > -group["tolerance_change"]:
                break
            start = Point(0.0, at.loss, at.gradient, slope)
            if group["line_search_fn"] is not None:
                after, count = self._search(closure, state, start, group["max_eval"] - evaluations)
            else:
                self._move(self._copies(), state["t"], state["d"])
                if iteration == group["max_iter"]:
                    break
                after, count = _evaluated(state, _call(closure), self._flat_gradient()), 1
            evaluations += count
            state["func_evals"] += count
            if evaluations >= group["max_eval"] or _converged(at, after, group):
                break
            at = after
        return original

    def _slope_and_size(self, state: State, group: Group) -> tuple[float, float]:
        """The slope of the loss along the direction, and the size of the first step to try."""
        gradient, lr = state["prev_flat_grad"], self.rate(group)
        slope = gradient.dot(state["d"])
        if state["n_iter"] > 1:
            return _read(slope)[0], lr
        slope, total = _read(slope, gradient.abs().sum())
        return slope, min(1.0, 1.0 / total) * lr

    def _search(self, closure: Closure, state: State, start: Point, max_iterations: int) -> tuple[Evaluation, int]:
        """Go to a point that the line search chooses; also the number of evaluations."""
        group = self.param_groups[0]
        if group["line_search_fn"] != "strong_wolfe":
            raise RuntimeError("only 'strong_wolfe' is supported")
        origin, direction = self._copies(), state["d"]

        def evaluate(t: float) -> Point:
            self._move(origin, t, direction)
            loss, gradient = _call(closure), self._flat_gradient()
            value, slope = _read(loss, gradient.dot(direction))
            return Point(t, value, gradient, slope)

        search = WolfeSearch(evaluate, start, max_iterations)
        (longest,) = _read(direction.abs().max())
        point = search.run(state["t"], longest, group["tolerance_change"])
        state["t"] = point.t
        self._move(origin, point.t, direction)
        return _evaluated(state, point.loss, point.gradient), search.evaluations

    # -- all parameters as one vector ------------------------------------------------------

    def _flat_gradient(self) -> Tensor:
        params = self.param_groups[0]["params"]
        return cat([(zeros_like(p) if p._grad is None else p._grad).reshape(-1) for p in params])

    def _copies(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.param_groups[0]["params"]]

    def _move(self, origin: list[Tensor], t: float, direction: Tensor) -> None:
        """Set the parameters to ``origin + t * direction``."""
        sizes = [p._type.numel for p in origin]
        for p, x, part in zip(self.param_groups[0]["params"], origin, direction.split(sizes), strict=True):
            p.copy_(x.add(part.reshape(x._type.shape), alpha=t))


def _call(closure: Closure) -> Any:
    with enable_grad():
        return closure()


def _read(*values: Any) -> list[float]:
    """The values of these 0-d tensors and numbers, in one read."""
    tensors = [x.detach().reshape(1).to(float64) for x in values if isinstance(x, Tensor)]
    numbers = iter(cat(tensors).tolist())
    return [next(numbers) if isinstance(x, Tensor) else float(x) for x in values]


def _evaluated(state: State, loss: Any, gradient: Tensor) -> Evaluation:
    """Read what the next decisions need."""
    steepest = gradient.abs().max()
    if state.get("d") is None:
        numbers = _read(loss, steepest)
        return Evaluation(numbers[0], gradient, numbers[1])
    change, moved = gradient - state["prev_flat_grad"], state["d"] * state["t"]
    numbers = _read(loss, steepest, change.dot(moved), moved.abs().max())
    return Evaluation(numbers[0], gradient, numbers[1], change, moved, *numbers[2:])


def _converged(before: Evaluation, after: Evaluation, group: Group) -> bool:
    least: float = group["tolerance_change"]
    return bool(
        after.steepest <= group["tolerance_grad"] or after.longest <= least or abs(after.loss - before.loss) < least
    )


def _remember(state: State, at: Evaluation, history_size: int) -> None:
    """Append the last step to the history if the loss curves upwards along it."""
    if at.change is None or at.moved is None:
        state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1)
    elif at.curvature > MIN_CURVATURE:
        product = at.change.dot(at.moved)
        for name, value in (("old_dirs", at.change), ("old_stps", at.moved), ("ro", 1.0 / product)):
            state[name].append(value)
            del state[name][: -history_size or None]
        state["H_diag"] = product / at.change.dot(at.change)


def _direction(state: State, gradient: Tensor, history_size: int) -> Tensor:
    """Minus the gradient times the approximate inverse of the Hessian: the two loops of L-BFGS."""
    d: Tensor = -gradient
    if state["n_iter"] == 1:
        return d
    steps = list(zip(state["old_dirs"], state["old_stps"], state["ro"], strict=True))
    factors = []
    for change, moved, ro in reversed(steps):
        factors.append(moved.dot(d) * ro)
        d = d - factors[-1] * change
    d = d * state["H_diag"]
    for (change, moved, ro), factor in zip(steps, reversed(factors), strict=True):
        d = d + (factor - change.dot(d) * ro) * moved
    state["al"] = [*reversed(factors), *[None] * (history_size - len(factors))]
    return d
