"""The header of a safetensors file: names, dtypes, shapes and offsets.

A file has 8 bytes with the length of the header, the header (JSON), and the values.
"""

from __future__ import annotations

import json
from typing import Any, BinaryIO, NamedTuple

from gt.types import DTYPES, DType, TensorType

SAFETENSORS_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
}  # fmt: skip
DTYPE_OF = {name: DTYPES[dtype] for dtype, name in SAFETENSORS_NAMES.items()}

#: The values start at a multiple of this, so that no page holds both header and values.
PAGE_BYTES = 4096
#: The largest header that is read.
MAX_HEADER_BYTES = 100 << 20
#: Tensors from this size on come first in a file: each worker writes and reads its own block of them.
LARGE_BYTES = 1 << 16

#: a tensor in a file: its type, and the offset of its values in bytes
Entry = tuple[TensorType, int]


class FilePlan(NamedTuple):
    """A file that is to be written."""

    header: bytes
    #: name -> the offset of the values
    offsets: dict[str, int]
    nbytes: int


def is_large(t: TensorType) -> bool:
    return t.ndim > 0 and t.nbytes >= LARGE_BYTES


def compose(types: dict[str, TensorType], metadata: dict[str, str]) -> FilePlan:
    """Plan a file of tensors of these types: the large ones first, then the small ones without gaps."""
    entries: dict[str, Any] = {"__metadata__": metadata, **dict.fromkeys(types)}
    offsets, end = {}, 0
    # larger elements first, so that all of them are aligned
    for name in sorted(types, key=lambda name: (not is_large(types[name]), -types[name].dtype.itemsize)):
        t = types[name]
        offsets[name], end = end, end + t.nbytes
        dtype = SAFETENSORS_NAMES[t.dtype.name]
        entries[name] = {"dtype": dtype, "shape": list(t.shape), "data_offsets": [offsets[name], end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE_BYTES)
    start = 8 + len(text)
    by_offset = {name: start + offset for name, offset in offsets.items()}
    return FilePlan(len(text).to_bytes(8, "little") + text, by_offset, start + end)


class TorchFile(ValueError):
    """The file is one that torch.save wrote. ``start``: the bytes that were read."""

    def __init__(self, path: str, start: bytes) -> None:
        super().__init__(path)
        self.path, self.start = path, start


def read_places(file: BinaryIO, path: str) -> tuple[bytes, dict[str, str], dict[str, Entry]]:
    """The header's bytes, the metadata, and where each tensor is. Raises TorchFile or ValueError."""
    header, entries = _read_header(file, path)
    metadata = entries.pop("__metadata__", None) or {}
    return header, metadata, {name: _entry(path, name, entry, len(header)) for name, entry in entries.items()}


def _read_header(file: BinaryIO, path: str) -> tuple[bytes, dict[str, Any]]:
    """The header's bytes, with the 8 bytes of its length, and its entries."""
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > MAX_HEADER_BYTES:
        raise _wrong_format(path, first)
    text = file.read(length)
    try:
        entries = json.loads(text)
    except ValueError:
        entries = None
    if len(text) < length or not isinstance(entries, dict):
        raise _wrong_format(path, first + text)
    return first + text, entries


def _wrong_format(path: str, start: bytes) -> ValueError:
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04")):
        return TorchFile(path, start)
    return ValueError(f"{path} is not a safetensors file")


def _entry(path: str, name: str, entry: Any, start: int) -> Entry:
    """Check an entry of the header. ``start``: the offset of the first value in the file."""
    try:
        dtype: DType = DTYPE_OF[entry["dtype"]]
        type = TensorType(tuple(map(int, entry["shape"])), dtype)
        begin, end = map(int, entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path}: {name!r} has a type that GT does not support: {entry}") from None
    if begin < 0 or end - begin != type.nbytes or min(type.shape, default=0) < 0:
        raise ValueError(f"{path}: {name!r} has a wrong entry: {entry}")
    return type, start + begin
