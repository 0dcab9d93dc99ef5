"""What a code stands for on a worker: a signature linked to its kernel, or this worker's part in a move."""

from __future__ import annotations

from typing import Any

from gt.ops import Signature
from gt.types import TensorType
from gt.wire.codec import from_wire, signature_of
from gt.wire.structures import Definition, Move
from gt.worker.engines import Engine, Kernel
from gt.worker.memory_account import MemoryAccount


class LinkedSignature:
    """A signature with its kernel, and the signal that it is called under. ``plain`` and ``width`` are the signature's,
    to save an attribute load. ``run`` is the kernel, with a check of the user's quota if there is one."""

    __slots__ = ("kernel", "plain", "run", "signal", "signature", "width")

    def __init__(self, signature: Signature, kernel: Kernel, signal: str, account: MemoryAccount | None) -> None:
        self.signature, self.kernel, self.signal = signature, kernel, signal
        self.run = kernel if account is None else account.guard(signature, kernel)
        self.plain, self.width = signature.plain, signature.width


class LinkedMove:
    """A move between workers. It has the interface of a signature with one operand and one result."""

    __slots__ = (
        "after", "before", "group", "into", "kind", "members", "options", "plain", "signature", "start", "width"
    )  # fmt: skip

    def __init__(self, move: Move, members: tuple[int, ...]) -> None:
        self.kind, self.group, self.options, self.members = move.kind, move.group, dict(move.options), members
        #: the types of this worker's block before and after the move; None if it has no block then
        self.before = _tensor_type(move.before)
        self.after = _tensor_type(move.after)
        self.plain, self.width, self.start, self.into = -1, 4, 3, False
        self.signature = self

    @property
    def offsets(self) -> tuple[int, ...]:
        """The position of its operand, if it has one."""
        return (3,) if self.before is not None else ()

    def __str__(self) -> str:
        return f"{self.kind} among workers {', '.join(map(str, self.members))}"


def link_definition(
    engine: Engine, definition: Definition, opens_files: bool = True, account: MemoryAccount | None = None
) -> LinkedSignature:
    """Link a signature to its kernel. If the engine refuses, the kernel raises the error, so that the failure names the
    instruction."""
    signature = signature_of(definition)
    try:
        if signature.op.effects and not opens_files:
            raise PermissionError("a worker of a shared server opens no files")
        return LinkedSignature(signature, engine.link(signature), definition.signal, account)
    except Exception as error:  # see above
        return LinkedSignature(signature, _raising_kernel(error), definition.signal, None)


def _raising_kernel(error: Exception) -> Kernel:
    def run(*operands: Any) -> Any:
        raise error

    return run


def _tensor_type(wire: Any) -> TensorType | None:
    result = None if wire is None else from_wire(wire)
    assert result is None or isinstance(result, TensorType)
    return result
