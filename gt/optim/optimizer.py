"""What all optimizers share: parameter groups, state, and one instruction for many parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from itertools import chain
from typing import Any

from gt.client.grad.backward import enable_grad, is_leaf
from gt.client.stream import recorder
from gt.client.tensor.emit import call_into_many
from gt.client.tensor.tape import mode
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import as_tensor, zeros_like
from gt.ops import Attrs, Op

Group = dict[str, Any]

#: Words of one instruction: half of what the wire takes, because the first of its kind carries the types as well.
WIDTH = 1 << 13


class Required:
    """Stands for an option that has no default."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = Required()


class Optimizer:
    """See `torch.optim.Optimizer`.

    A subclass says in `update` what becomes of some parameters of a group that have gradients. A parameter's ``step``
    is a number here, where torch keeps a tensor: it goes into the instruction, and nobody ever waits for it.
    """

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[Group] = []
        self._step_hooks: tuple[list[Any], list[Any]] = ([], [])
        #: where a step's numbers go instead of into instructions
        self._numbers: list[float] | None = None
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got "
                f"{type(params)}"
            )
        given = list(params)
        if not given:
            raise ValueError("optimizer got an empty parameter list")
        for group in given if isinstance(given[0], dict) else [{"params": given}]:
            self.add_param_group(dict(group))

    def add_param_group(self, param_group: Group) -> None:
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        given = param_group["params"]
        if isinstance(given, set):
            raise TypeError("optimizer parameters need to be organized in ordered collections")
        listed = [given] if isinstance(given, Tensor) else list(given)
        if listed and isinstance(listed[0], tuple):  # from named_parameters()
            param_group["param_names"] = [name for name, _ in listed]
            listed = [p for _, p in listed]
        param_group["params"] = listed
        for p in listed:
            if not isinstance(p, Tensor):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}")
            if not is_leaf(p):
                raise ValueError("can't optimize a non-leaf Tensor")
        for name, default in self.defaults.items():
            if default is required and name not in param_group:
                raise ValueError(f"parameter group didn't specify a value of required optimization parameter {name}")
            param_group.setdefault(name, default)
        taken = {id(p) for group in self.param_groups for p in group["params"]}
        if any(id(p) in taken for p in listed):
            raise ValueError("some parameters appear in more than one parameter group")
        self.param_groups.append(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p._grad is None:
                    continue
                if set_to_none:
                    p.grad = None
                else:
                    p.grad = zeros_like(p.grad)

    # -- a step ----------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if recorder.active is not None:
            recorder.active.optimizers.append(self)
            for p in (p for group in self.param_groups for p in group["params"]):
                recorder.active.note_grad(p)
            if closure is not None or any(self._step_hooks):
                recorder.active.refuse("an optimizer's hooks, or a closure, are more than its words")
        for hook in self._step_hooks[0]:
            hook(self, (closure,), {})
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        was = mode.enabled
        try:  # and no `no_grad`: Ctrl-C must not come between the end and what it puts back
            mode.enabled = False
            for group in self.param_groups:
                params = [p for p in group["params"] if p._grad is not None]
                if params:
                    self.update(group, params)
        finally:
            mode.enabled = was
        for hook in self._step_hooks[1]:
            hook(self, (closure,), {})
        for p in self.param_groups[0]["params"][:1] if self.param_groups else ():
            p._cell.session.outbox.after_step()
        return loss

    def update(self, group: Group, params: list[Tensor]) -> None:
        raise NotImplementedError

    def numbers_of_a_step(self) -> list[float]:
        """Count a step, and give the numbers its instructions are emitted with: the rest is sent by a fragment."""
        numbers: list[float] = []
        self._numbers = numbers
        try:
            for group in self.param_groups:
                if params := [p for p in group["params"] if p._grad is not None]:
                    self.update(group, params)
        finally:
            self._numbers = None
        return numbers

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> None:
        self._step_hooks[0].append(hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> None:
        self._step_hooks[1].append(hook)

    def counted(self, params: list[Tensor], names: tuple[str, ...]) -> dict[Any, list[Tensor]]:
        """Count the step of each parameter, with states of zeros the first time; together, what may go together."""
        together: dict[Any, list[Tensor]] = {}
        for p in params:
            state = self.state[p]
            if not state:
                state["step"] = 0.0
                state.update((name, zeros_like(p)) for name in names)
            step = state["step"] = state["step"] + 1.0
            together.setdefault((step, p._type.dtype), []).append(p)
        return together

    def apply(
        self, op: Op, params: list[Tensor], names: tuple[str, ...], numbers: tuple[Any, ...], flags: Attrs
    ) -> None:
        """Emit a step for these parameters and their states of these names: one instruction, unless it is too long."""
        most = WIDTH // (2 * len(names) + 3)
        for start in range(0, len(params), most):
            if self._numbers is not None:
                self._numbers += map(float, numbers)
                continue
            if recorder.active is not None:
                recorder.active.step_numbers += len(numbers)
            some = params[start : start + most]
            targets = (*some, *[self.state[p][name] for name in names for p in some])
            given = (*[p._grad for p in some], *map(float, numbers))
            call_into_many(op, targets, given, (("n", len(some)), *flags))

    # -- state -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        numbers = {id(p): i for i, p in enumerate(chain.from_iterable(g["params"] for g in self.param_groups))}
        groups = [
            {**{k: v for k, v in group.items() if k != "params"}, "params": [numbers[id(p)] for p in group["params"]]}
            for group in self.param_groups
        ]
        return {
            "state": {numbers[id(p)]: state for p, state in self.state.items()},
            "param_groups": groups,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also takes what torch's optimizer of the same kind saved."""
        saved = deepcopy(state_dict["param_groups"])
        if len(saved) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        for group, new in zip(self.param_groups, saved, strict=True):
            if len(group["params"]) != len(new["params"]):
                raise ValueError(
                    "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
                )
        ids = chain.from_iterable(g["params"] for g in saved)
        params = dict(zip(ids, chain.from_iterable(g["params"] for g in self.param_groups), strict=True))
        self.state = defaultdict(dict)
        for number, state in state_dict["state"].items():
            self.state[params[number]] = {k: _loaded(k, v, params[number]) for k, v in state.items()}
        for group, new in zip(self.param_groups, saved, strict=True):
            group.update((k, v) for k, v in new.items() if k != "params")

    def __repr__(self) -> str:
        text = type(self).__name__ + " ("
        for i, group in enumerate(self.param_groups):
            text += f"\nParameter Group {i}\n"
            text += "".join(f"    {key}: {group[key]}\n" for key in sorted(group) if key != "params")
        return text + ")"


def _loaded(name: str, value: Any, p: Tensor) -> Any:
    if name == "step":
        return float(value)
    if not hasattr(value, "shape"):
        return value
    made = as_tensor(value).to(p._type.dtype)
    if made._type.shape == p._type.shape:
        return zeros_like(p).copy_(made)  # it lies where its parameter does
    return made.clone() if made is value else made


def check(good: bool, what: str, value: Any) -> None:
    """torch's words for an option out of range."""
    if not good:
        raise ValueError(f"Invalid {what}: {value}")
