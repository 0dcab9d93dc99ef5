"""A second store beside the one of a real worker, in which `Levels` runs the same program section by section.

    cluster = Cluster()
    shadow = Shadow(cluster, mode="all")
    with client(cluster):
        ...
        for _ in range(10):
            train_step()
            shadow.cut()        # the words since the last cut are a section

Each cut runs the words since the last one as a section, by `Levels`, or interpreted where that returns None. Then it
compares every tensor with that of the real worker.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from gt.client.stream.session import Session
from gt.testing import Cluster
from gt.types import BYTES, Scalar
from gt.wire.messages import Execute
from gt.wire.words import FIRST_CODE
from gt.worker.engines import Engine, make_engine
from gt.worker.hot.levels import Levels
from gt.worker.hot.program import interpret
from gt.worker.hot.section import KernelCall, Section
from gt.worker.hot.trial import alike
from gt.worker.linked import link_definition


@contextlib.contextmanager
def client(cluster: Cluster) -> Iterator[Session]:
    """A client that sends plain words, which `Shadow` cuts into sections."""
    before = os.environ.get("GT_TEMPLATES", "1")
    os.environ["GT_TEMPLATES"] = "0"
    try:
        with cluster.client() as session:
            yield session
    finally:
        os.environ["GT_TEMPLATES"] = before


class Shadow:
    def __init__(self, cluster: Cluster, mode: str, device: str = "cpu") -> None:
        self.cluster = cluster
        (self.worker,) = cluster.workers.values()
        self.engine: Engine = make_engine("torch", device)
        self.levels = Levels(self.engine, mode)
        self.store: dict[int, Any] = {}
        self.sections: dict[Any, Section] = {}
        #: how many sections were run, and how many of them not interpreted
        self.cuts = self.quick = 0
        self._words: list[Any] = []
        real = self.worker.handle

        def handle(message: Any, data: Any = None) -> Any:
            if isinstance(message, Execute):
                for definition in message.definitions:
                    self.worker.spaces[message.client].codes[definition.code] = link_definition(
                        self.worker.engine, definition
                    )
                self._words += self._plain(message)
            return real(message, data)

        self.worker.handle = handle  # type: ignore[method-assign]

    def _plain(self, message: Execute) -> list[Any]:
        """Instructions as (signature, outputs, operands), and the ids of freed tensors."""
        entries, i, codes = [], 0, self.worker.spaces[message.client].codes
        stream: list[Any] = message.stream
        while i < len(stream):
            if stream[i] < 0:
                entries.append(-stream[i])
                i += 1
            elif stream[i] < FIRST_CODE:
                i += 2 if stream[i] != 1 else 3  # a read, or a word that does not matter here
            else:
                s = codes[stream[i]].signature
                entries.append((s, stream[i + 2 : i + s.start], stream[i + s.start : i + s.width]))
                i += s.width
        return entries

    def begin(self) -> None:
        """Copy the present tensors into the shadow."""
        self._deliver()
        self._words.clear()
        (space,) = self.worker.spaces.values()
        self.store = {id: x.clone().to(self.engine.device) for id, x in space.store.items()}

    def cut(self, compare: bool = True, compile: bool = False) -> bool:
        """Whether the section ran at a faster level than the interpreter."""
        self._deliver()
        words, self._words = self._words, []
        key, ids, numbers, results, freed, ahead = canonical(words)
        for id in ahead:
            del self.store[id]
        section = self.sections.get((key, compile))
        if section is None:
            section = self.sections[key, compile] = make_section(key, self.engine, compile)
        inputs = [self.store[id] for id in ids]
        values = self.levels.run(section, inputs, numbers, self.store)
        quick = values is not None
        values = interpret(section, inputs, numbers) if values is None else values
        del inputs
        self.store.update(zip(results, values, strict=True))
        del values
        for id in freed:
            del self.store[id]
        self.cuts += 1
        self.quick += quick
        if compare:
            self.compare()
        return quick

    def _deliver(self) -> None:
        from gt.client.stream.connect import session

        session().outbox.flush()
        self.cluster.settle()

    def compare(self) -> None:
        (space,) = self.worker.spaces.values()
        assert self.store.keys() == space.store.keys()
        for id, x in space.store.items():
            assert alike(x, self.store[id].cpu()), f"{id}: {x} is not {self.store[id]}"

    def level(self) -> list[str]:
        return [entry["level"] for entry in self.levels.stats()]


def canonical(words: list[Any]) -> tuple[Any, list[int], list[Any], list[int], list[int], list[int]]:
    """(key of the section, ids of inputs, numbers, ids of results, of freed inputs, of other freed tensors)."""
    slot: dict[int, int] = {}
    created = {id for word in words if not isinstance(word, int) and not word[0].into for id in word[1]}
    inputs: list[int] = []
    for word in words:
        if not isinstance(word, int):
            for t, operand in zip(word[0].ins, word[2], strict=True):
                if not isinstance(t, Scalar) and operand not in slot and operand not in created:
                    slot[operand] = len(inputs)
                    inputs.append(operand)
    steps, numbers, count = [], [], len(inputs)
    for word in words:
        if isinstance(word, int):
            continue
        signature, outs, operands = word
        assert BYTES not in signature.ins, signature
        refs = []
        for t, operand in zip(signature.ins, operands, strict=True):
            if isinstance(t, Scalar):
                refs.append(~len(numbers))
                numbers.append(operand)
            else:
                refs.append(slot[operand])
        for id in outs:
            if id not in slot:
                slot[id] = count
                count += 1
        steps.append((signature, tuple(refs), tuple(slot[id] for id in outs)))
    gone = {word for word in words if isinstance(word, int)}
    results = [id for id in slot if id not in inputs and id not in gone]
    freed = [id for id in inputs if id in gone]
    key = (
        tuple((s.op.name, s.attrs, s.ins, s.into, refs, outs) for s, refs, outs in steps),
        len(inputs),
        count,
        len(numbers),
        tuple(slot[id] for id in results),
        tuple(slot[id] for id in freed),
    )
    # a tensor that is freed without a use does not belong to the section
    others = [id for id in gone if id not in slot]
    _SIGNATURES[key] = [s for s, _, _ in steps]
    return key, inputs, numbers, results, freed, others


_SIGNATURES: dict[Any, Any] = {}


def make_section(key: Any, engine: Engine, compile: bool) -> Section:
    calls, inputs, slots, numbers, results, freed = key
    steps = tuple(
        KernelCall(signature, engine.link(signature), refs, outs)
        for signature, (*_, refs, outs) in zip(_SIGNATURES[key], calls, strict=True)
    )
    return Section(steps, inputs, slots, numbers, results, freed, compile)


def wait_for_compiler(levels: Levels) -> None:
    """Wait until the compiler has finished, so that the next run can use its result."""
    for switch in levels._switches.values():
        if switch.job is not None:
            switch.job.exception(timeout=400)
