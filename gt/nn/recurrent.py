"""Recurrent networks: a cell over the steps of a sequence, in layers, in one direction or both."""

from __future__ import annotations

from math import sqrt
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.functions.creation import empty, zeros
from gt.functions.joining import cat, stack
from gt.functions.pointwise import relu, sigmoid, tanh
from gt.nn import functional as F
from gt.nn import init
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.types import float32

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNBase", "RNNCell"]


#: The state that a cell passes from step to step: h, or h and c.
State = tuple[Any, ...]


def _tanh_cell(x: Any, h: Any, state: State) -> State:
    return (tanh(x + h),)


def _relu_cell(x: Any, h: Any, state: State) -> State:
    return (relu(x + h),)


def _gru_cell(x: Any, h: Any, state: State) -> State:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    z = sigmoid(xz + hz)
    n = tanh(xn + sigmoid(xr + hr) * hn)
    return (n + z * (state[0] - n),)


def _lstm_cell(x: Any, h: Any, state: State) -> State:
    i, f, g, o = (x + h).chunk(4, -1)
    c = sigmoid(f) * state[1] + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


#: mode -> (cell, number of gates, whether its state has a second part)
CELLS: dict[str, tuple[Any, int, bool]] = {
    "RNN_TANH": (_tanh_cell, 1, False),
    "RNN_RELU": (_relu_cell, 1, False),
    "GRU": (_gru_cell, 3, False),
    "LSTM": (_lstm_cell, 4, True),
}


class RNNBase(Module):
    """The base of RNN, LSTM and GRU: a cell applied to each step of a sequence. See `torch.nn.RNNBase`."""

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if not 0 <= dropout <= 1:
            raise ValueError("dropout should be a number in range [0, 1] representing the probability of an element")
        if proj_size >= hidden_size > 0 and proj_size:
            raise ValueError("proj_size has to be smaller than hidden_size")
        if proj_size and not CELLS[mode][2]:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        self._directions = ("", "_reverse") if bidirectional else ("",)
        out = proj_size or hidden_size
        rows = CELLS[mode][1] * hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else out * len(self._directions)
            for direction in self._directions:
                self._add_layer(f"_l{layer}{direction}", rows, width, out, dtype or float32)
        self.reset_parameters()

    def _add_layer(self, suffix: str, rows: int, width: int, out: int, dtype: Any) -> None:
        shapes: dict[str, Any] = {"weight_ih": (rows, width), "weight_hh": (rows, out)}
        if self.bias:
            shapes |= {"bias_ih": rows, "bias_hh": rows}
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        for name, shape in shapes.items():
            setattr(self, name + suffix, Parameter(empty(shape, dtype=dtype)))

    def reset_parameters(self) -> None:
        """Draw all weights and biases again, as torch draws them."""
        bound = 1.0 / sqrt(self.hidden_size) if self.hidden_size else 0.0
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def flatten_parameters(self) -> None:
        """Do nothing: the worker decides how weights are stored."""

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        if input.ndim not in (2, 3):
            raise ShapeError(f"{self.mode}: expected input to be 2D or 3D, got {input.ndim}D instead")
        unbatched = input.ndim == 2
        x: Any = input.unsqueeze(1) if unbatched else input.transpose(0, 1) if self.batch_first else input
        if x.shape[-1] != self.input_size:
            raise ShapeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.shape[-1]}"
            )
        initial = self._initial_states(x, hx, unbatched)
        final: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                x = F.dropout(x, self.dropout)
            outputs = []
            for direction in self._directions:
                output, end = self._run(x, initial[len(final)], f"_l{layer}{direction}", bool(direction))
                outputs.append(output)
                final.append(end)
            x = outputs[0] if len(outputs) == 1 else cat(outputs, -1)
        last = tuple(stack(states) for states in zip(*final, strict=True))
        if unbatched:
            x, last = x.squeeze(1), tuple(state.squeeze(1) for state in last)
        elif self.batch_first:
            x = x.transpose(0, 1)
        return x, last if len(last) > 1 else last[0]

    def _initial_states(self, x: Any, hx: Any, unbatched: bool) -> list[State]:
        """The initial state of each layer and direction."""
        count, batch = self.num_layers * len(self._directions), x.shape[1]
        two_states = CELLS[self.mode][2]
        if hx is None:
            sizes = (self.proj_size or self.hidden_size, self.hidden_size)[: 1 + two_states]
            first = tuple(zeros((batch, size), dtype=x.dtype) for size in sizes)
            return [first] * count
        parts = hx if two_states else (hx,)
        expected = (count, batch) if not unbatched else (count,)
        for state in parts:
            if tuple(state.shape[: len(expected)]) != expected or state.ndim != (2 if unbatched else 3):
                raise ShapeError(f"{self.mode}: a hidden state {state._type} does not fit {count} layers of {x._type}")
        states = [state.unsqueeze(1) if unbatched else state for state in parts]
        return list(zip(*(state.unbind(0) for state in states), strict=True))

    def _run(self, x: Any, state: State, suffix: str, backwards: bool) -> tuple[Any, State]:
        """One layer in one direction. The product with the input is computed for all steps at once."""
        parameters = self._parameters
        inputs = F.linear(x, parameters["weight_ih" + suffix], parameters.get("bias_ih" + suffix)).unbind(0)
        weight, bias = parameters["weight_hh" + suffix], parameters.get("bias_hh" + suffix)
        projection = parameters.get("weight_hr" + suffix)
        cell = CELLS[self.mode][0]
        outputs = []
        for step in reversed(inputs) if backwards else inputs:
            state = cell(step, F.linear(state[0], weight, bias), state)
            if projection is not None:
                state = (F.linear(state[0], projection), *state[1:])
            outputs.append(state[0])
        return stack(outputs[::-1] if backwards else outputs), state

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        defaults = {
            "proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0, "bidirectional": False,
        }  # fmt: skip
        return text + "".join(f", {k}={getattr(self, k)}" for k, v in defaults.items() if getattr(self, k) != v)


class RNN(RNNBase):
    """A recurrent network with tanh or relu. See `torch.nn.RNN`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        self.__dict__["nonlinearity"] = nonlinearity
        options = (num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype)
        super().__init__(f"RNN_{nonlinearity.upper()}", input_size, hidden_size, *options)


class LSTM(RNNBase):
    """A recurrent network with long short-term memory. See `torch.nn.LSTM`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        options = (num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype)
        super().__init__("LSTM", input_size, hidden_size, *options)


class GRU(RNNBase):
    """A recurrent network with gated units. See `torch.nn.GRU`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        options = (num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype)
        super().__init__("GRU", input_size, hidden_size, *options)


# -- one step ------------------------------------------------------------------------------


class _Cell(Module):
    mode = ""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows, dtype = CELLS[self.mode][1] * hidden_size, dtype or float32
        self.weight_ih = Parameter(empty((rows, input_size), dtype=dtype))
        self.weight_hh = Parameter(empty((rows, hidden_size), dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(rows, dtype=dtype)) if bias else None)
        bound = 1.0 / sqrt(hidden_size) if hidden_size else 0.0
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        cell, _, two_states = CELLS[self.mode]
        if hx is None:
            hx = (zeros((*input.shape[:-1], self.hidden_size), dtype=input.dtype),) * (1 + two_states)
        state = tuple(hx) if two_states else hx if isinstance(hx, tuple) else (hx,)
        x = F.linear(input, self.weight_ih, self.bias_ih)
        state = cell(x, F.linear(state[0], self.weight_hh, self.bias_hh), state)
        return state if two_states else state[0]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(_Cell):
    """One step of a recurrent network with tanh or relu. See `torch.nn.RNNCell`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {nonlinearity}")
        self.__dict__.update(mode=f"RNN_{nonlinearity.upper()}", nonlinearity=nonlinearity)
        super().__init__(input_size, hidden_size, bias, device, dtype)

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", nonlinearity={self.nonlinearity}" if self.nonlinearity != "tanh" else "")


class LSTMCell(_Cell):
    """One step of an LSTM. See `torch.nn.LSTMCell`."""

    mode = "LSTM"


class GRUCell(_Cell):
    """One step of a GRU. See `torch.nn.GRUCell`."""

    mode = "GRU"
