"""Recurrent layers step by step, in operations that numpy and torch have in common.

A batch of sequences is a matrix of rows: those of step 0, then those of step 1, and so on. ``sizes`` says how many
sequences have each step; it never grows, because longer sequences come first. All sequences may have the same length.

The backward pass needs no values of the forward pass except the output. The output of a step is the state before the
next one, so the gates of all steps follow from one product. Only the gradient of the state goes from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, repeat
from typing import Any, NamedTuple


class Weights(NamedTuple):
    """The parameters of one layer in one direction."""

    ih: Any
    hh: Any
    bias_ih: Any = None
    bias_hh: Any = None
    #: the projection of an LSTM's output
    hr: Any = None


class Direction(NamedTuple):
    """One layer in one direction: what the forward pass had, and its output."""

    x: Any
    #: the states before the first step: h, and the c of an LSTM
    states: tuple[Any, ...]
    weights: Weights
    sizes: Sequence[int]
    reverse: bool
    #: None in the forward pass
    y: Any = None

    def steps(self, rows: Any) -> list[Any]:
        """The rows of each step, in the order in which the steps are computed."""
        if hasattr(rows, "split"):
            parts = list(rows.split(self.sizes))
        else:
            ends = accumulate(self.sizes)
            parts = [rows[end - count : end] for end, count in zip(ends, self.sizes, strict=True)]
        return parts[::-1] if self.reverse else parts

    def before(self, xp: Any, state: int, rows: Any) -> Any:
        """The state before each row, if these are the states after them."""
        first, batch = self.states[state], self.sizes[0]
        if self.sizes[-1] == batch:
            parts = [rows[batch:], first] if self.reverse else [first, rows[: rows.shape[0] - batch]]
            return xp.concatenate(parts)
        parts, last = [], self._nothing(state)
        for step in self.steps(rows):
            parts.append(self.continued(xp, state, last, step.shape[0]))
            last = step
        return xp.concatenate(parts[::-1] if self.reverse else parts)

    def continued(self, xp: Any, state: int, last: Any, count: int) -> Any:
        """The state before a step of ``count`` rows: that of the last step, and for sequences that begin, the first."""
        rows = last.shape[0]
        return last[:count] if rows >= count else xp.concatenate([last, self.states[state][rows:count]])

    def _nothing(self, state: int) -> Any:
        """The last state before any step."""
        return self.states[state][: 0 if self.reverse else None]


# -- forward -------------------------------------------------------------------------------


def sigmoid(xp: Any, x: Any) -> Any:
    return xp.sigmoid(x) if hasattr(xp, "sigmoid") else 1 / (1 + xp.exp(-x))


def product(x: Any, weight: Any, bias: Any) -> Any:
    """x times the transposed weight, plus the bias."""
    # torch's product with a transposed matrix takes 0.6 ms more than the copy on ARM, whatever the sizes
    turned = weight.T if getattr(weight, "is_cuda", True) else weight.T.contiguous()
    return x @ turned if bias is None else x @ turned + bias


def parts(x: Any, count: int) -> list[Any]:
    """Views of equally many columns, one for each gate."""
    width = x.shape[-1] // count
    return [x[..., k * width : (k + 1) * width] for k in range(count)]


def tanh_step(xp: Any, x: Any, h: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
    return (xp.tanh(x + h),)


def relu_step(xp: Any, x: Any, h: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
    return (xp.maximum(x + h, 0),)


def gru_step(xp: Any, x: Any, h: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
    (xr, xz, xn), (hr, hz, hn) = parts(x, 3), parts(h, 3)
    n = xp.tanh(xn + sigmoid(xp, xr + hr) * hn)
    return (n + sigmoid(xp, xz + hz) * (states[0] - n),)


def lstm_step(xp: Any, x: Any, h: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
    i, f, g, o = parts(x + h, 4)
    c = sigmoid(xp, f) * states[1] + sigmoid(xp, i) * xp.tanh(g)
    return sigmoid(xp, o) * xp.tanh(c), c


def run(xp: Any, step: Callable[..., tuple[Any, ...]], layer: Direction) -> list[Any]:
    """The output of each row, and the last states. It writes nothing in place, so gradients can go through it."""
    weights, batch = layer.weights, layer.sizes[0]
    inputs = product(layer.x, weights.ih, weights.bias_ih)
    states, outputs = layer.states, []
    for x in layer.steps(inputs):
        count = x.shape[0]
        last = tuple(s[:count] for s in states)
        now = step(xp, x, product(last[0], weights.hh, weights.bias_hh), last)
        if weights.hr is not None:
            now = (now[0] @ weights.hr.T, *now[1:])
        outputs.append(now[0])
        states = (
            now if count == batch else tuple(map(xp.concatenate, zip(now, [s[count:] for s in states], strict=True)))
        )
    return [xp.concatenate(outputs[::-1] if layer.reverse else outputs), *states]


# -- backward ------------------------------------------------------------------------------


class Grads(NamedTuple):
    """The gradients that a backward pass over the steps computes; the others follow from them."""

    #: of the product of the input with its weight, and of the state with its own
    gates_ih: Any
    gates_hh: Any
    #: of the states before the first step
    states: tuple[Any, ...]
    #: the state h before each row
    before: Any
    #: of an LSTM with a projection: the gradient of each row's output, and what was projected
    projected: tuple[Any, Any] = (None, None)


def _or_zeros(xp: Any, grad: Any, like: Any) -> Any:
    return xp.zeros_like(like) if grad is None else grad + 0


def _backwards(layer: Direction, *rows: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of each step, the last step first; None for what is None."""
    columns = [repeat(None) if each is None else reversed(layer.steps(each)) for each in rows]
    return zip(*columns, strict=False)


def lstm_back(xp: Any, layer: Direction, gy: Any, *final: Any) -> Grads:
    weights = layer.weights
    before = layer.before(xp, 0, layer.y)
    gates = product(layer.x, weights.ih, weights.bias_ih)
    gates += product(before, weights.hh, weights.bias_hh)
    i, f, g, o = parts(gates, 4)
    i[...], f[...], g[...], o[...] = sigmoid(xp, i), sigmoid(xp, f), xp.tanh(g), sigmoid(xp, o)
    cells = _cells(xp, layer, f, i * g)
    tanh = xp.tanh(cells)
    # the factors from the gradient of the cell to those of the gates i, f and g; from that of the output to those of
    # the gate o and of the cell
    to_ifg = xp.stack([g * i * (1 - i), layer.before(xp, 1, cells) * f * (1 - f), i * (1 - g * g)], 1)
    to_o, to_cell = tanh * o * (1 - o), o * (1 - tanh * tanh)
    d_rows = xp.empty_like(gates)
    d_gates = d_rows.reshape(-1, 4, to_o.shape[1])
    dh, dc = (_or_zeros(xp, g, s) for g, s in zip(final, layer.states, strict=True))
    dy = None if weights.hr is None else xp.empty_like(layer.y)
    columns = (gy, dy, to_ifg, to_o, to_cell, f, d_gates[:, :3], d_gates[:, 3], d_rows)
    for g_y, d_y, ifg, out, cell, forget, d_ifg, d_out, d in _backwards(layer, *columns):
        h, c = dh[: d.shape[0]], dc[: d.shape[0]]
        if g_y is not None:
            h += g_y
        output = h
        if d_y is not None:
            d_y[...] = h
            output = h @ weights.hr
        c += output * cell
        xp.multiply(ifg, c[:, None], out=d_ifg)
        xp.multiply(out, output, out=d_out)
        c *= forget
        xp.matmul(d, weights.hh, out=h)
    return Grads(d_rows, d_rows, (dh, dc), before, (dy, None if dy is None else o * tanh))


def _cells(xp: Any, layer: Direction, f: Any, added: Any) -> Any:
    """The cell state after each row. ``added`` is what each step adds, and is overwritten."""
    last = layer._nothing(1)
    for cells, forget in zip(layer.steps(added), layer.steps(f), strict=True):
        cells += forget * layer.continued(xp, 1, last, cells.shape[0])
        last = cells
    return added


def gru_back(xp: Any, layer: Direction, gy: Any, final: Any) -> Grads:
    weights = layer.weights
    before = layer.before(xp, 0, layer.y)
    inputs = parts(product(layer.x, weights.ih, weights.bias_ih), 3)
    hidden = parts(product(before, weights.hh, weights.bias_hh), 3)
    r, z = (sigmoid(xp, a + b) for a, b in zip(inputs[:2], hidden[:2], strict=True))
    n = xp.tanh(inputs[2] + r * hidden[2])
    # from the gradient of the output to those of the gates r, z, n
    to_n = (1 - z) * (1 - n * n)
    to_r, to_z = to_n * hidden[2] * r * (1 - r), (before - n) * z * (1 - z)
    factors = xp.stack([to_r, to_z, to_n * r], 1)
    gates_hh, dh, dy = _state_back(xp, layer, gy, final, factors, z)
    gates_ih = gates_hh + 0
    parts(gates_ih, 3)[2][...] = dy * to_n
    return Grads(gates_ih, gates_hh, (dh,), before)


def tanh_back(xp: Any, layer: Direction, gy: Any, final: Any) -> Grads:
    return _plain_back(xp, layer, gy, final, 1 - layer.y * layer.y)


def relu_back(xp: Any, layer: Direction, gy: Any, final: Any) -> Grads:
    return _plain_back(xp, layer, gy, final, xp.sign(layer.y))


def _plain_back(xp: Any, layer: Direction, gy: Any, final: Any, slope: Any) -> Grads:
    gates, dh, _ = _state_back(xp, layer, gy, final, slope[:, None], None)
    return Grads(gates, gates, (dh,), layer.before(xp, 0, layer.y))


def _state_back(xp: Any, layer: Direction, gy: Any, final: Any, factors: Any, kept: Any) -> tuple[Any, Any, Any]:
    """The gradients of the gates, of the first state, and of the state after each row.

    ``factors``: from the gradient of a state to those of its gates. ``kept``: to the state before, besides.
    """
    d_gates, dh = xp.empty_like(factors), _or_zeros(xp, final, layer.states[0])
    dy = xp.empty_like(layer.y)
    d_rows = d_gates.reshape(dy.shape[0], factors.shape[1] * factors.shape[2])
    for g_y, d_y, factor, keep, d_gate, d in _backwards(layer, gy, dy, factors, kept, d_gates, d_rows):
        h = dh[: d.shape[0]]
        if g_y is not None:
            h += g_y
        d_y[...] = h
        xp.multiply(factor, h[:, None], out=d_gate)
        if keep is None:
            xp.matmul(d, layer.weights.hh, out=h)
        else:
            h *= keep
            h += d @ layer.weights.hh
    return d_rows, dh, dy


def wanted_grads(layer: Direction, grads: Grads, wanted: Sequence[bool]) -> list[Any]:
    """The gradients of the input, the states and the weights, in this order; None where none is wanted."""
    of_weights: list[Callable[[], Any]] = [
        lambda: grads.gates_ih.T @ layer.x,
        lambda: grads.gates_hh.T @ grads.before,
    ]
    if layer.weights.bias_ih is not None:
        of_weights += [lambda: grads.gates_ih.sum(0), lambda: grads.gates_hh.sum(0)]
    if layer.weights.hr is not None:
        dy, output = grads.projected
        of_weights.append(lambda: dy.T @ output)
    states = [lambda s=s: s for s in grads.states]
    every = [lambda: grads.gates_ih @ layer.weights.ih, *states, *of_weights]
    return [make() if needed else None for make, needed in zip(every, wanted, strict=True)]
