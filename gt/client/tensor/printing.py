"""A tensor as text, exactly as torch prints it.

Only the printed values are read: of a large tensor, the workers first select the corners.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Any, NamedTuple

from gt.client.tensor.emit import call, current
from gt.client.tensor.tape import Node
from gt.client.tensor.tensor import Tensor
from gt.errors import ConfigError
from gt.ops import OPS
from gt.types import Shape, bool_, complex64, float32, int64

__all__ = ["set_printoptions"]


class Options(NamedTuple):
    #: digits after the decimal point
    precision: int = 4
    #: a tensor with more elements is shown by its corners
    threshold: float = 1000
    #: how many elements of a dim are shown at either end
    edgeitems: int = 3
    #: characters in a line
    linewidth: int = 80
    #: None: depends on the values
    sci_mode: bool | None = None


PROFILES = {"default": Options(), "short": Options(precision=2, edgeitems=2), "full": Options(threshold=inf)}
_options = Options()


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Set how tensors are printed; None leaves an option as it is. See `torch.set_printoptions`."""
    global _options
    if profile is not None and profile not in PROFILES:
        raise ConfigError(f"set_printoptions(profile={profile!r}): the profiles are {', '.join(PROFILES)}")
    base = PROFILES[profile] if profile else _options
    _options = Options(
        base.precision if precision is None else precision,
        base.threshold if threshold is None else threshold,
        base.edgeitems if edgeitems is None else edgeitems,
        base.linewidth if linewidth is None else linewidth,
        sci_mode,
    )


def format_tensor(x: Tensor) -> str:
    """The text of ``repr(x)``. Waits for the workers."""
    prefix, shape, dtype = "tensor(", x._type.shape, x._type.dtype
    if not x._type.numel:
        notes = [f"size={tuple(shape)}"] if len(shape) != 1 else []
        notes += [] if dtype is float32 else [f"dtype={dtype}"]
        return _with_notes(prefix + "[]", [*notes, *_grad_note(x)], len(prefix))
    large = x._type.numel > _options.threshold
    values = (_corners(x) if large else x)._readable()
    text = prefix + _nested(values.tolist(), shape, len(prefix), large, _formatter(values))
    notes = [] if dtype in (float32, complex64, int64, bool_) else [f"dtype={dtype}"]
    return _with_notes(text, [*notes, *_grad_note(x)], len(prefix))


def _grad_note(x: Tensor) -> list[str]:
    """The note on gradients: ``grad_fn`` of a result, ``requires_grad`` of a leaf."""
    current(x)
    if x._node is None:
        return []
    return [f"grad_fn={x._node!r}" if isinstance(x._node, Node) else "requires_grad=True"]


def _with_notes(text: str, notes: list[str], indent: int) -> str:
    # one more than the length of the last line, as in torch
    last = len(text) - text.rfind("\n") + 1
    for note in notes:
        # "torch." is longer than "gt.", and lines must break where torch's do
        length = len(note.replace("gt.", "torch."))
        if last + length + 2 > _options.linewidth:
            text += ",\n" + " " * indent + note
            last = indent + length
        else:
            text += ", " + note
            last += length + 2
    return text + ")"


# -- the corners of a large tensor ---------------------------------------------------------


def _is_shortened(size: int) -> bool:
    """Does a dim of this size have elements that are not shown?"""
    return size > 2 * _options.edgeitems


def _corners(x: Tensor) -> Tensor:
    """The first and last elements of every long dim, selected on the workers."""
    edge = _options.edgeitems
    for dim, size in enumerate(x._type.shape):
        if _is_shortened(size):
            x = call(OPS["cat"], (x.narrow(dim, 0, edge), x.narrow(dim, size - edge, edge)), (("dim", dim),))
    return x


# -- numbers -------------------------------------------------------------------------------

#: a function that returns one element as text, padded, and how wide the widest is
Formatter = tuple[Callable[[Any], str], int]


def _formatter(values: Any) -> Formatter:
    if values.dtype.kind == "c":
        return _complex_formatter(_formatter(values.real), _formatter(values.imag))
    write, width = _writer_and_width(values)
    return lambda value: write(value).rjust(width), width


def _complex_formatter(real: Formatter, imag: Formatter) -> Formatter:
    def write(value: complex) -> str:
        text = imag[0](value.imag).lstrip()
        return f"{real[0](value.real)}{'' if text[0] in '+-' else '+'}{text}j"

    return write, real[1] + imag[1] + 1


def _writer_and_width(values: Any) -> Formatter:
    flat = values.reshape(-1).tolist()
    if values.dtype.kind != "f":
        return str, max(map(len, map(str, flat)))
    numbers = [v for v in flat if isfinite(v) and v != 0]  # others do not influence the format, as in torch
    integral = all(v == int(v) for v in numbers)
    write = _writer(integral, bool(numbers) and _is_scientific([abs(v) for v in numbers]))
    return write, max((len(write(v)) for v in numbers), default=1)


def _is_scientific(magnitudes: list[float]) -> bool:
    if _options.sci_mode is not None:
        return _options.sci_mode
    return max(magnitudes) / min(magnitudes) > 1000 or max(magnitudes) > 1e8 or min(magnitudes) < 1e-4


def _writer(integral: bool, scientific: bool) -> Callable[[float], str]:
    digits = _options.precision
    if scientific:
        return lambda v: f"{v:.{digits}e}"
    if integral:
        return lambda v: f"{v:.0f}." if isfinite(v) else f"{v:.0f}"
    return lambda v: f"{v:.{digits}f}"


# -- brackets ------------------------------------------------------------------------------


def _nested(values: Any, shape: Shape, indent: int, large: bool, formatter: Formatter) -> str:
    """``values`` has the two ends of each shortened dim; ``shape`` has the full sizes."""
    if not shape:
        return formatter[0](values)
    shortened = large and _is_shortened(shape[0])
    if len(shape) == 1:
        return _row([formatter[0](v) for v in values], shortened, indent, formatter[1])
    rows = [_nested(v, shape[1:], indent + 1, large, formatter) for v in values]
    if shortened:
        rows.insert(_options.edgeitems, "...")
    return "[" + ("," + "\n" * (len(shape) - 1) + " " * (indent + 1)).join(rows) + "]"


def _row(texts: list[str], shortened: bool, indent: int, width: int) -> str:
    if shortened:
        texts.insert(_options.edgeitems, " ...")
    count = max(1, (_options.linewidth - indent) // (width + 2))
    lines = [", ".join(texts[i : i + count]) for i in range(0, len(texts), count)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
