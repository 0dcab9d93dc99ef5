"""Ops that write tensors to a file and read them from one, where a worker shares the client's file system.

These are the only ops with an effect outside the workers' memory. Only a worker of a local system runs them: its client
is a process of the same user, and has the same rights. A worker of a shared server refuses them
(`gt.worker.linked.link_definition`), and the bytes go through the client.

The file may be another one where the worker runs, in a container for example. So a worker writes only into a file that
the client has just created, with a secret in its name and its content. It reads only a file of which the client knows
the `proof`, the size and the time of the last change: another file that has replaced it by now is refused.

Here one worker writes or reads several small tensors; `gt.ops.system.file_blocks` is for large ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.errors import ShapeError
from gt.ops.elements import from_bytes_numpy, from_bytes_torch
from gt.ops.infer import sizes
from gt.ops.op import dtype_named, op
from gt.types import OperandType, Shape, TensorType, int64

#: the prefixes of the name and of the content of a file that is being written, before the secret
MARK = ".gt-saving-"
#: the number of last bytes of a file that go into its proof
TAIL = 4096

DONE = TensorType((), int64)

#: (shape, dtype's name)
Described = tuple[Shape, str]


def proof(head: bytes, tail: bytes) -> str:
    """A digest of a file's header and last bytes: a file with another one is not the file that the client sees."""
    from hashlib import sha256

    return sha256(head + b"\0" + tail).hexdigest()


# -- writing -------------------------------------------------------------------------------


def open_saving(request: Any) -> tuple[Any, dict[str, Any]]:
    """The file that is being saved, and the request's fields. Raises PermissionError if it is another one."""
    import json
    import os

    fields = json.loads(bytes(request))
    path, secret = str(fields["path"]), str(fields["secret"])
    fields["offset"] = int(fields["offset"])
    if fields["offset"] < 0:
        raise ValueError("a negative offset")
    if os.path.basename(path) != MARK + secret or len(secret) != 32:
        raise PermissionError(f"{path} is not the name of a file that is being saved")
    file = open(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b")  # noqa: SIM115, the caller closes it
    if file.read(len(MARK) + 32) != (MARK + secret).encode():
        file.close()
        raise PermissionError(f"{path} was not created by the client for saving")
    return file, fields


def _save(request: Any, buffers: Iterable[Any]) -> int:
    """Writes the buffers one after the other from an offset on; returns the number of bytes."""
    file, fields = open_saving(request)
    with file:
        file.seek(fields["offset"])
        return sum(file.write(buffer) for buffer in buffers)


def bytes_torch(torch: Any, x: Any) -> Any:
    """The bytes of a tensor in row-major order."""
    if not x.numel():
        return b""
    x = x.contiguous().reshape(-1)
    if x.stride() != (1,):  # torch reports any single element as contiguous
        x = x.clone(memory_format=torch.contiguous_format)
    return x.view(torch.uint8).cpu().numpy().data


op(
    "save_file",
    complex="rule",
    no_gradient="it reads or writes a file",
    whole="one worker writes small tensors",
    operands="Bt+",
    infer=lambda request, *xs: DONE,
    effects=True,
    torch=lambda torch, request, *xs: torch.tensor(_save(request, (bytes_torch(torch, x) for x in xs))),
    kernel=lambda np, request, *xs: np.asarray(_save(request, (x.tobytes() for x in xs))),
)


# -- reading -------------------------------------------------------------------------------


def _loaded(request: OperandType, *, types: tuple[Described, ...]) -> tuple[TensorType, ...]:
    if not types:
        raise ShapeError("names no tensors to read")
    return (*(TensorType(sizes(tuple(shape)), dtype_named(dtype)) for shape, dtype in types), DONE)


def open_seen(request: Any) -> tuple[Any, dict[str, Any]]:
    """The file to read, and the request's fields. Raises PermissionError if it is not the file that the client sees."""
    import json
    import os
    import stat

    fields = json.loads(bytes(request))
    file = open(os.open(fields["path"], os.O_RDONLY | os.O_NONBLOCK), "rb")  # noqa: SIM115, the caller closes it
    try:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{fields['path']} is not a regular file")
        head = file.read(min(int(fields["head"]), status.st_size))
        file.seek(max(0, status.st_size - TAIL))
        seen = [proof(head, file.read()), status.st_size, status.st_mtime_ns]
        if seen != [fields["proof"], fields["size"], fields["changed_ns"]]:
            raise PermissionError(f"{fields['path']} is not the file that the client sees")
    except BaseException:
        file.close()
        raise
    return file, fields


def _load(request: Any, types: tuple[TensorType, ...]) -> list[bytearray]:
    """The bytes of each tensor, read at the offsets in the request."""
    file, fields = open_seen(request)
    with file:
        return [_read(file, int(offset), t.nbytes) for offset, t in zip(fields["offsets"], types, strict=True)]


def _read(file: Any, offset: int, nbytes: int) -> bytearray:
    import os

    if offset + nbytes > os.fstat(file.fileno()).st_size:  # before this much memory is allocated
        raise ValueError("the file is too short")
    result = bytearray(nbytes)
    file.seek(offset)
    if file.readinto(result) != nbytes:
        raise ValueError("the file is too short")
    return result


def _load_torch(torch: Any, request: Any, *, types: Any, device: Any, out: tuple[TensorType, ...]) -> tuple[Any, ...]:
    read = _load(request, out[:-1])
    result = [
        from_bytes_torch(torch, data, t.shape, t.dtype.name).to(device) for data, t in zip(read, out[:-1], strict=True)
    ]
    return (*result, torch.tensor(len(result)))


def _load_numpy(np: Any, request: Any, *, types: Any, device: Any, out: tuple[TensorType, ...]) -> tuple[Any, ...]:
    read = _load(request, out[:-1])
    result = [from_bytes_numpy(np, data, t.shape, t.dtype.name) for data, t in zip(read, out[:-1], strict=True)]
    return (*result, np.asarray(len(result)))


op(
    "load_file",
    complex="rule",
    no_gradient="it reads or writes a file",
    whole="one worker reads small tensors",
    operands="B",
    infer=_loaded,
    effects=True,
    creates=True,
    wants_out=True,
    torch=_load_torch,
    kernel=_load_numpy,
)
