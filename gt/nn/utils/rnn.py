"""Sequences of different lengths in one tensor: padded to the same length, or packed without padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from gt.client.tensor.arguments import require_tensor, tensor_list
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions.creation import full, tensor
from gt.functions.joining import cat, stack
from gt.functions.views import transpose
from gt.functions.windows import pad
from gt.missing import absent
from gt.types import int64

__all__ = [
    "PackedSequence", "invert_permutation", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence",
    "pad_sequence", "unpack_sequence", "unpad_sequence",
]  # fmt: skip
absent("nn.utils.rnn")


class _PackedFields(NamedTuple):
    data: Any
    batch_sizes: Any
    sorted_indices: Any = None
    unsorted_indices: Any = None


class PackedSequence(_PackedFields):
    """The elements of sequences of different lengths, step by step. See `torch.nn.utils.rnn.PackedSequence`."""

    #: the values of ``batch_sizes`` and ``unsorted_indices``, if they are known without a read
    _known_sizes: list[int] | None
    _known_order: list[int] | None

    def __new__(
        cls, data: Tensor, batch_sizes: Any = None, sorted_indices: Any = None, unsorted_indices: Any = None
    ) -> PackedSequence:
        if batch_sizes is None:
            data, batch_sizes = data
        if unsorted_indices is None and sorted_indices is not None:
            unsorted_indices = invert_permutation(sorted_indices)
        packed = super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)
        packed._known_sizes = packed._known_order = None
        return packed

    @property
    def _sizes(self) -> list[int]:
        if self._known_sizes is None:
            self._known_sizes = self.batch_sizes.tolist()
        return self._known_sizes

    @property
    def _order(self) -> list[int]:
        """The place of each sequence among those in the order of their lengths."""
        if self._known_order is None:
            unsorted = self.unsorted_indices
            self._known_order = list(range(self._sizes[0])) if unsorted is None else unsorted.tolist()
        return self._known_order

    def _with_data(self, data: Tensor) -> PackedSequence:
        """The same sequences with other elements."""
        packed = type(self)(data, *self[1:])
        packed._known_sizes, packed._known_order = self._known_sizes, self._known_order
        return packed

    def to(self, device: Any = None, dtype: Any = None, non_blocking: bool = False, copy: bool = False) -> Any:
        """The elements in another dtype, which may be the first argument. See `torch.Tensor.to`."""
        data = self.data if device is None else self.data.to(device)
        data = data if dtype is None else data.to(dtype)
        return self if data is self.data else self._with_data(data)

    def cuda(self, device: Any = None, non_blocking: bool = False) -> PackedSequence:
        """The same: the server places tensors."""
        return self

    def cpu(self) -> PackedSequence:
        """The same: the server places tensors."""
        return self

    pin_memory = cpu

    def double(self) -> PackedSequence:
        """The elements as float64."""
        return self._with_data(self.data.double())

    def float(self) -> PackedSequence:
        """The elements as float32."""
        return self._with_data(self.data.float())

    def half(self) -> PackedSequence:
        """The elements as float16."""
        return self._with_data(self.data.half())

    @property
    def is_cuda(self) -> bool:
        """Whether the elements are on a GPU."""
        return bool(self.data.is_cuda)


def _host_lengths(lengths: Any) -> list[int]:
    values = lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)
    return [int(n) for n in values]


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The permutation that undoes this one."""
    return None if permutation is None else permutation.argsort()


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack a padded batch. Lengths that are a tensor are read. See `torch.nn.utils.rnn.pack_padded_sequence`."""
    x = require_tensor("pack_padded_sequence", input)
    ends = _host_lengths(lengths)
    batch, steps = x.shape[:2] if batch_first else x.shape[1::-1]
    _check_lengths(ends, batch, steps)
    order = sorted(range(batch), key=lambda i: -ends[i])
    if enforce_sorted and any(ends[i] < ends[i + 1] for i in range(batch - 1)):
        raise ShapeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement"
        )
    longest = [ends[i] for i in order]
    sizes = [sum(n > t for n in longest) for t in range(longest[0])]
    rows = [(i * steps + t if batch_first else t * batch + i) for t, count in enumerate(sizes) for i in order[:count]]
    data = x.reshape(batch * steps, *x.shape[2:]).index_select(0, tensor(rows))
    ordered = None if enforce_sorted else tensor(order)
    places = _inverse(order)
    packed = PackedSequence(data, tensor(sizes), ordered, None if enforce_sorted else tensor(places))
    packed._known_sizes, packed._known_order = sizes, places
    return packed


def _check_lengths(ends: list[int], batch: int, steps: int) -> None:
    if len(ends) != batch:
        raise ShapeError(f"Expected `len(lengths)` to be equal to batch_size, but got {len(ends)} (batch_size={batch})")
    if not ends or min(ends) <= 0:
        raise ShapeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
        )
    if max(ends) > steps:
        raise ShapeError(f"a sequence of length {max(ends)} is longer than the padded batch, which has {steps} steps")


def _inverse(order: list[int]) -> list[int]:
    places = [0] * len(order)
    for place, i in enumerate(order):
        places[i] = place
    return places


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """The padded batch, and the length of each sequence. See `torch.nn.utils.rnn.pad_packed_sequence`."""
    sizes, order = sequence._sizes, sequence._order
    steps = len(sizes) if total_length is None else total_length
    if steps < len(sizes):
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {len(sizes)}"
        )
    data = sequence.data
    # an element that is padded is the row after the last one
    starts, padding = list(accumulate(sizes, initial=0)), data.shape[0]
    counts = sizes + [0] * (steps - len(sizes))
    places = [[starts[t] + i if i < counts[t] else padding for i in order] for t in range(steps)]
    rows = cat([data, full((1, *data.shape[1:]), padding_value, dtype=data.dtype)])
    index = [list(row) for row in zip(*places, strict=True)] if batch_first else places
    lengths = [sum(i < count for count in sizes) for i in order]
    return rows[tensor(index)], tensor(lengths, dtype=int64)


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences of different lengths. See `torch.nn.utils.rnn.pack_sequence`."""
    lengths = [x.size(0) for x in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a packed batch. See `torch.nn.utils.rnn.unpack_sequence`."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


def pad_sequence(
    sequences: Iterable[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """One tensor of all sequences, each padded to the length of the longest. See `torch.nn.utils.rnn.pad_sequence`."""
    rows = tensor_list("pad_sequence", sequences)
    if padding_side not in ("left", "right"):
        raise DTypeError(f"pad_sequence(padding_side={padding_side!r}): it is 'left' or 'right'")
    longest = max(x.size(0) for x in rows)

    def padded(x: Tensor) -> Tensor:
        count = longest - x.size(0)
        sides = (count, 0) if padding_side == "left" else (0, count)
        return pad(x, (0, 0) * (x._type.ndim - 1) + sides, value=padding_value) if count else x

    batch = stack([padded(x) for x in rows])
    return batch if batch_first else transpose(batch, 0, 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences of a padded tensor. Lengths that are a tensor are read. See `torch.nn.utils.rnn.unpad_sequence`."""
    rows = padded_sequences if batch_first else transpose(padded_sequences, 0, 1)
    ends = _host_lengths(lengths)
    return [row[:end] for row, end in zip(rows, ends, strict=True)]
