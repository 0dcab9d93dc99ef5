"""Recurrent networks: a cell over the steps of a sequence, in layers, in one direction or both."""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

from gt.client.grad.grad_mode import is_grad_enabled
from gt.client.tensor.emit import call_many
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.functions.creation import empty, zeros
from gt.functions.joining import cat
from gt.nn import functional as F
from gt.nn import init
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.nn.utils.rnn import PackedSequence
from gt.ops import OPS, Op
from gt.types import float32

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNBase", "RNNCell"]


#: h, or h and c
States = tuple[Any, ...]


class Kind(NamedTuple):
    """What a mode of torch's is in GT."""

    layer: Op
    cell: Op
    gates: int
    #: whether its state has a second part
    has_cell_state: bool = False


KINDS = {
    "RNN_TANH": Kind(OPS["rnn_tanh"], OPS["rnn_tanh_cell"], 1),
    "RNN_RELU": Kind(OPS["rnn_relu"], OPS["rnn_relu_cell"], 1),
    "GRU": Kind(OPS["gru"], OPS["gru_cell"], 3),
    "LSTM": Kind(OPS["lstm"], OPS["lstm_cell"], 4, has_cell_state=True),
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
        if proj_size and not KINDS[mode].has_cell_state:
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        self._directions = ("", "_reverse") if bidirectional else ("",)
        out = proj_size or hidden_size
        rows = self._kind.gates * hidden_size
        #: for each layer, in the order in which its op takes them
        self._weight_names: list[list[str]] = []
        for layer in range(num_layers):
            width = input_size if layer == 0 else out * len(self._directions)
            suffixes = [f"_l{layer}{direction}" for direction in self._directions]
            self._weight_names.append(
                [n for s in suffixes for n in self._add_weights(s, rows, width, out, dtype or float32)]
            )
        self.reset_parameters()

    def _add_weights(self, suffix: str, rows: int, width: int, out: int, dtype: Any) -> list[str]:
        """Add the weights of a layer in one direction, and return their names."""
        shapes: dict[str, Any] = {"weight_ih": (rows, width), "weight_hh": (rows, out)}
        if self.bias:
            shapes |= {"bias_ih": rows, "bias_hh": rows}
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        for name, shape in shapes.items():
            setattr(self, name + suffix, Parameter(empty(shape, dtype=dtype)))
        return [name + suffix for name in shapes]

    def reset_parameters(self) -> None:
        """Draw all weights and biases again, as torch draws them."""
        bound = 1.0 / sqrt(self.hidden_size) if self.hidden_size else 0.0
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def flatten_parameters(self) -> None:
        """Do nothing: the worker decides how weights are stored."""

    @property
    def _kind(self) -> Any:  # not an attribute: ops cannot be saved with a module
        return KINDS[self.mode]

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
        if isinstance(input, PackedSequence):
            y, last = self._forward_packed(input, hx)
        else:
            y, last = self._forward_padded(input, hx)
        return y, last if self._kind.has_cell_state else last[0]

    def _forward_padded(self, input: Tensor, hx: Any) -> tuple[Any, States]:
        if input.ndim not in (2, 3):
            raise ShapeError(f"{self.mode}: Expected input to be 2D or 3D, got {input.ndim}D instead")
        unbatched = input.ndim == 2
        x = input.unsqueeze(1) if unbatched else input.transpose(0, 1) if self.batch_first else input
        y, last = self._run_layers(x, self._initial_states(x, hx, x.shape[1], unbatched), ())
        if unbatched:
            return y.squeeze(1), tuple(s.squeeze(1) for s in last)
        return y.transpose(0, 1) if self.batch_first else y, last

    def _forward_packed(self, input: PackedSequence, hx: Any) -> tuple[Any, States]:
        """States are in the order of the sequences; the packed ones are in the order of their lengths."""
        states = self._initial_states(input.data, hx, input._sizes[0], False)
        if hx is not None and input.sorted_indices is not None:
            states = tuple(s.index_select(1, input.sorted_indices) for s in states)
        y, last = self._run_layers(input.data, states, (input.batch_sizes,))
        if input.unsorted_indices is not None:
            last = tuple(s.index_select(1, input.unsorted_indices) for s in last)
        return input._with_data(y), last

    def _initial_states(self, x: Any, hx: Any, batch: int, unbatched: bool) -> States:
        """The states of all layers and directions before the first step."""
        if x.shape[-1] != self.input_size:
            raise ShapeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.shape[-1]}"
            )
        count = self.num_layers * len(self._directions)
        features = (self.proj_size or self.hidden_size, self.hidden_size)[: 1 + self._kind.has_cell_state]
        if hx is None:
            first = zeros((count, batch, features[0]), dtype=x.dtype)
            same = features[-1] == features[0]
            return (first, *(first if same else zeros((count, batch, n), dtype=x.dtype) for n in features[1:]))
        states = tuple(hx) if self._kind.has_cell_state else (hx,)
        if unbatched:
            states = tuple(s.unsqueeze(1) if s.ndim == 2 else s for s in states)
        for i, (state, n) in enumerate(zip(states, features, strict=True)):
            if tuple(state.shape) != (count, batch, n):
                name = f"hidden[{i}]" if self._kind.has_cell_state else "hidden"
                raise ShapeError(f"Expected {name} size {(count, batch, n)}, got {list(state.shape)}")
        return states

    def _run_layers(self, x: Any, states: States, batch_sizes: tuple[Any, ...]) -> tuple[Any, States]:
        """The output of the last layer, and the last states of all: one instruction for each layer."""
        count, last = len(self._directions), []
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                x = F.dropout(x, self.dropout)
            own = states if self.num_layers == 1 else [s[layer * count : (layer + 1) * count] for s in states]
            weights = [self._parameters[name] for name in self._weight_names[layer]]
            operands = (x, *own, *weights, *batch_sizes)
            # whether the worker keeps what the backward pass needs
            train = is_grad_enabled() and any(t.requires_grad for t in operands)
            x, *end = call_many(self._kind.layer, operands, (("train", train),))
            last.append(end)
        if self.num_layers == 1:
            return x, tuple(last[0])
        return x, tuple(cat(parts) for parts in zip(*last, strict=True))

    @property
    def all_weights(self) -> list[list[Any]]:
        """The weights of each layer and direction."""
        names = [name for layer in self._weight_names for name in layer]
        size = len(names) // (self.num_layers * len(self._directions))
        return [[self._parameters[n] for n in names[i : i + size]] for i in range(0, len(names), size)]

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
        rows, dtype = KINDS[self.mode].gates * hidden_size, dtype or float32
        self.weight_ih = Parameter(empty((rows, input_size), dtype=dtype))
        self.weight_hh = Parameter(empty((rows, hidden_size), dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(rows, dtype=dtype)) if bias else None)
        bound = 1.0 / sqrt(hidden_size) if hidden_size else 0.0
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        kind = KINDS[self.mode]
        if input.ndim not in (1, 2):
            raise ShapeError(f"{type(self).__name__}: Expected input to be 1D or 2D, got {input.ndim}D instead")
        if hx is None:
            hx = (zeros((*input.shape[:-1], self.hidden_size), dtype=input.dtype),) * (1 + kind.has_cell_state)
        states = tuple(hx) if kind.has_cell_state or isinstance(hx, tuple) else (hx,)
        unbatched = input.ndim == 1
        if unbatched:
            input, states = input.unsqueeze(0), tuple(s.unsqueeze(0) for s in states)
        biases = (self.bias_ih, self.bias_hh) if self.bias else ()
        result = call_many(kind.cell, (input, *states, self.weight_ih, self.weight_hh, *biases))[: len(states)]
        if unbatched:
            result = tuple(s.squeeze(0) for s in result)
        return result if kind.has_cell_state else result[0]

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
