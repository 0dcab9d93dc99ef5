"""`Optimizer`, the base of all optimizers: parameter groups, state, and one instruction for many parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import chain
from struct import pack, unpack
from typing import Any
from weakref import WeakSet

from gt.client.grad.backward import enable_grad, is_leaf
from gt.client.grad.handles import RemovableHandle, in_list
from gt.client.grad.leaves import clear_grads
from gt.client.stream import recorder
from gt.client.tensor import rebalancing
from gt.client.tensor.multi_tensor import call_into_many
from gt.client.tensor.tape import mode
from gt.client.tensor.tensor import Cell, Tensor
from gt.functions.creation import as_tensor, zeros_like
from gt.ops import Attrs, Op

Group = dict[str, Any]

#: The most words in one instruction: half of `gt.wire.words.MAX_INSTRUCTION_WORDS`, because the first instruction of
#: a kind is sent with the types of its operands.
MAX_WORDS = 1 << 13


class Required:
    """The default of an option that has no default: every group must set it."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = Required()

#: the optimizers of this program
_all: WeakSet[Optimizer] = WeakSet()


class Optimizer:
    """The base of all optimizers. See `torch.optim.Optimizer`.

    A subclass defines `update`, which emits the step of the parameters of one group. A parameter's ``step`` is a number
    here, where torch keeps a tensor: the client writes it into the instruction, so it never has to be read.
    """

    #: the states of a parameter that are numbers here and 0-d tensors in torch
    number_states: tuple[str, ...] = ("step",)

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[Group] = []
        #: hooks before and after each step
        self._step_hooks: tuple[list[Any], list[Any]] = ([], [])
        #: If set, a step's numbers are appended here and no instructions are emitted.
        self._numbers: list[float] | None = None
        #: id of a learning rate in a tensor -> (the tensor, its value's cell, the version that was read, the value)
        self._rates: dict[int, tuple[Tensor, Cell, int, float]] = {}
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got "
                f"{type(params)}"
            )
        listed = list(params)
        if not listed:
            raise ValueError("optimizer got an empty parameter list")
        for group in listed if isinstance(listed[0], dict) else [{"params": listed}]:
            self.add_param_group(dict(group))
        _all.add(self)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters, which may set options differently."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        params = param_group["params"]
        if isinstance(params, set):
            raise TypeError("optimizer parameters need to be organized in ordered collections")
        listed = [params] if isinstance(params, Tensor) else list(params)
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
        """Remove the gradients of all parameters, or set them to zeros."""
        clear_grads((p for group in self.param_groups for p in group["params"]), set_to_none)

    # -- a step ----------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients; a closure computes the loss first, and its result is returned."""
        if recorder.active is not None:
            recorder.active.optimizers.append((self, self._with_gradients()))
            for p in (p for group in self.param_groups for p in group["params"]):
                recorder.active.note_grad(p)
            if closure is not None or any(self._step_hooks):
                recorder.active.refuse(
                    "an optimizer step with hooks or a closure cannot be repeated without its Python"
                )
        for hook in list(self._step_hooks[0]):
            hook(self, (closure,), {})
        loss = self.run_step(closure)
        for hook in list(self._step_hooks[1]):
            hook(self, (closure,), {})
        for p in self.param_groups[0]["params"][:1] if self.param_groups else ():
            p._cell.session.outbox.after_step()
        return loss

    def run_step(self, closure: Callable[[], Any] | None) -> Any:
        """One step without its hooks; returns the result of the closure."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        before = mode.enabled
        try:  # not `no_grad`: an interrupt in its __exit__ would leave the mode changed
            mode.enabled = False
            for group, params in zip(self.param_groups, self._with_gradients(), strict=True):
                if params:
                    self.update(group, params)
        finally:
            mode.enabled = before
        return loss

    def _with_gradients(self) -> list[list[Tensor]]:
        """The parameters of each group that a step updates now."""
        return [[p for p in group["params"] if p._grad is not None] for group in self.param_groups]

    def update(self, group: Group, params: list[Tensor]) -> None:
        """Emit the step of these parameters of a group. Every subclass defines it; `step` calls it."""
        raise NotImplementedError

    def numbers_of_step(self, stepped: list[list[Tensor]]) -> list[float]:
        """Count a step of these parameters of each group, and return the numbers of its instructions.

        A compiled function has the rest in a fragment. Its parameters need not have gradients between two calls.
        """
        numbers: list[float] = []
        self._numbers = numbers
        try:
            for group, params in zip(self.param_groups, stepped, strict=True):
                if params:
                    self.update(group, params)
        finally:
            self._numbers = None
        return numbers

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` before every step."""
        self._step_hooks[0].append(hook)
        return in_list(self._step_hooks[0], hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` after every step."""
        self._step_hooks[1].append(hook)
        return in_list(self._step_hooks[1], hook)

    def rate(self, group: Group) -> float:
        """The learning rate of a group as a number. One in a tensor is read only after it was written."""
        lr = group["lr"]
        if not isinstance(lr, Tensor):
            return float(lr)
        cell = lr._cell if lr._view is None else lr._view.base._cell
        known = self._rates.get(id(lr))
        if known is None or known[0] is not lr or known[1] is not cell or known[2] != cell.version:
            known = self._rates[id(lr)] = (lr, cell, cell.version, float(lr))
        return known[3]

    def count_step(
        self, params: list[Tensor], names: tuple[str, ...], numbers: tuple[tuple[str, float], ...] = ()
    ) -> dict[Any, list[Tensor]]:
        """Count the step of each parameter, and group those that one instruction can update, by (step, dtype).

        The first time, the named states are created as zeros, and states that are numbers get these values.
        """
        groups: dict[Any, list[Tensor]] = {}
        for p in params:
            state = self.state[p]
            if not state:
                state["step"] = 0.0
                state.update(numbers)
                state.update((name, zeros_like(p)) for name in names)
            step = state["step"] = state["step"] + 1.0
            groups.setdefault((step, p._type.dtype), []).append(p)
        return groups

    def apply(
        self, op: Op, params: list[Tensor], names: tuple[str, ...], numbers: tuple[Any, ...], flags: Attrs
    ) -> None:
        """Emit a step of these parameters and their named states, in as few instructions as `MAX_WORDS` allows."""
        limit = MAX_WORDS // (2 * len(names) + 3)
        for start in range(0, len(params), limit):
            if self._numbers is not None:
                self._numbers += map(float, numbers)
                continue
            if recorder.active is not None:
                recorder.active.step_numbers += len(numbers)
            batch = params[start : start + limit]
            targets = (*batch, *[self.state[p][name] for name in names for p in batch])
            grads: Any = tuple([p._grad for p in batch])
            call_into_many(op, targets, grads, tuple(map(float, numbers)), (("n", len(batch)), *flags))

    # -- state -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of all parameters, by their positions, and the options of all groups; `gt.save` takes it."""
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
        """Restore a state from `state_dict`, also one of torch's optimizer of the same class."""
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
            self.state[params[number]] = {k: self._load(k, v, params[number]) for k, v in state.items()}
        for group, new in zip(self.param_groups, saved, strict=True):
            group.update((k, v) for k, v in new.items() if k != "params")

    def _load(self, name: str, value: Any, p: Tensor) -> Any:
        return float(value) if name in self.number_states else _load_state(value, p)

    def __repr__(self) -> str:
        text = type(self).__name__ + " ("
        for i, group in enumerate(self.param_groups):
            text += f"\nParameter Group {i}\n"
            text += "".join(f"    {key}: {group[key]}\n" for key in sorted(group) if key != "params")
        return text + ")"


def _load_state(value: Any, p: Tensor) -> Any:
    if isinstance(value, list):
        return [_load_state(x, p) for x in value]
    if not hasattr(value, "shape"):
        return value
    state = as_tensor(value).to(p._type.dtype)
    if state._type.shape == p._type.shape:
        return zeros_like(p).copy_(state)  # placed as its parameter is
    return state.clone() if state is value else state


def check(valid: bool, what: str, value: Any) -> None:
    """Raise torch's error for an option out of range."""
    if not valid:
        raise ValueError(f"Invalid {what}: {value}")


def check_rate(lr: Any) -> None:
    """Raise torch's error for a learning rate that is negative, or a tensor of several elements."""
    if isinstance(lr, Tensor) and lr._type.numel != 1:
        raise ValueError("Tensor lr must be 1-element")
    check(lr >= 0, "learning rate", lr)


def check_betas(betas: tuple[float, float]) -> None:
    """Raise torch's error for a beta out of range."""
    for i, beta in enumerate(betas):
        check(0 <= beta < 1, f"beta parameter at index {i}", beta)


def in_float32(number: float) -> float:
    """The number as torch keeps it in a state: in the default dtype."""
    return float(unpack("f", pack("f", number))[0])


def _tensors() -> Iterator[Tensor]:
    """The parameters and the states of all optimizers, and the gradients."""
    for optimizer in list(_all):
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            yield p
            if p._grad is not None:
                yield p._grad
            yield from (x for x in optimizer.state.get(p, {}).values() if isinstance(x, Tensor))


rebalancing.replicated.append(_tensors)
