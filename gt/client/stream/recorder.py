"""What a function does while `gt.compile` records it.

The words of the function go out as usual, and the recorder keeps a copy. Everything else that the function changes in
the client is noted where it happens: gradients it sets, modules it uses, random numbers it draws, optimizers it steps.
If the words alone cannot repeat something, the recorder keeps that as the reason not to compile the function.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakValueDictionary

from msgspec import Struct, field

#: the recorder at work, if any
active: Recorder | None = None


class Recorder(Struct, eq=False):
    """Notes what happens while a function runs."""

    #: the first id that the function's results may have
    base: int
    #: a value that is read inside is an error
    fullgraph: bool = False
    thread: int = field(default_factory=threading.get_ident)
    #: the words that were submitted, one list for each submission
    submissions: list[list[Any]] = field(default_factory=list)
    #: the tensors that the function used, by id, as long as they live
    cells: WeakValueDictionary[int, Any] = field(default_factory=WeakValueDictionary)
    #: the version of each when it was first used
    versions: dict[int, int] = field(default_factory=dict)
    #: tensors whose ``grad`` was set -> the gradient before
    grads: dict[Any, Any] = field(default_factory=dict)
    #: the modules that were called, or whose parameters, buffers or child modules were used, in order
    modules: dict[Any, None] = field(default_factory=dict)
    #: the generators that were drawn from, each with the (seed, stream) pair it gave
    draws: list[tuple[Any, tuple[int, int]]] = field(default_factory=list)
    #: the optimizers that were stepped with the parameters of each group, and how many numbers they put into the stream
    optimizers: list[tuple[Any, list[list[Any]]]] = field(default_factory=list)
    step_numbers: int = 0
    #: why the function cannot be replayed
    problem: str = ""

    def note_use(self, cell: Any) -> None:
        """An instruction uses this tensor. Called before the instruction changes it."""
        if threading.get_ident() != self.thread:  # a replay would run it too
            self.refuse("another thread computes meanwhile")
        if cell.id not in self.versions:
            self.cells[cell.id] = cell
            self.versions[cell.id] = cell.version

    def note_operands(self, operands: tuple[Any, ...]) -> None:
        """`note_use` for the tensors among the operands."""
        for x in operands:
            if (cell := getattr(x, "_cell", None)) is not None:
                self.note_use(cell)

    def note_grad(self, tensor: Any) -> None:
        """The ``grad`` of this tensor is read or set."""
        if tensor not in self.grads:
            self.grads[tensor] = tensor._grad

    def refuse(self, problem: str) -> None:
        """The function cannot be replayed; the first reason is kept."""
        self.problem = self.problem or problem
