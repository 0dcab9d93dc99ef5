"""How a worker runs fragments: section by section.

A section with a body runs as a whole, at the level that `Levels` chooses. The interpreter runs the other sections, and
those that cannot run as a whole this time: because an input is a failure or missing, or after an instruction failed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gt.wire.messages import Notice
from gt.worker.collectives.interface import GroupBroken
from gt.worker.failures import FailureRecorder
from gt.worker.fragment_run import FragmentRun
from gt.worker.fragments import InstructionFailed, LinkedFragment, LinkedSection
from gt.worker.hot.levels import Levels
from gt.worker.hot.section import PartialRun, Section
from gt.worker.interpreter import Interpreter
from gt.worker.mover import Mover
from gt.worker.outbox import WorkerOutbox
from gt.worker.space import PLACEHOLDERS, ClientSpace

if TYPE_CHECKING:
    from gt.worker.recording import EventRecorder

#: How many reasons for not compiling a client gets as notices. The statistics have all of them.
MAX_ANNOUNCED_REASONS = 3


class Replayer:
    def __init__(
        self, levels: Levels, interpreter: Interpreter, mover: Mover, failures: FailureRecorder, outbox: WorkerOutbox
    ) -> None:
        self.levels = levels
        self._interpreter, self._mover, self._failures, self._outbox = interpreter, mover, failures, outbox
        #: how many instructions it has run without the interpreter
        self.instructions = 0
        #: how many of them in sections that ran completely
        self.hot_instructions = 0
        #: while somebody listens to events
        self.recorder: EventRecorder | None = None
        #: called with the client between the instructions of a long section; None if there is no other client
        self.pause: Callable[[int], None] | None = None

    def forget(self, space: ClientSpace, number: int) -> None:
        """The fragment will not run again: free what its levels hold."""
        fragment = space.fragments.pop(number, None)
        for section in fragment.sections if isinstance(fragment, LinkedFragment) else ():
            if section.body is not None:
                self.levels.forget(section.body)

    def run(self, space: ClientSpace, client: int, stream: list[Any], i: int) -> int:
        """Execute the RUN at word ``i``; returns the index of the word after it, or ``i`` if the stream must wait."""
        fragment = space.fragments[stream[i + 1]]
        if not isinstance(fragment, LinkedFragment):
            fragment = space.fragments[stream[i + 1]] = LinkedFragment(fragment, space.codes)
        parsed = fragment.parsed
        base, dispatcher_base, inputs, numbers = parsed.read_run(stream, i)
        if self.recorder is not None:
            self.recorder.run_fragment(stream[i + 1])
        run = FragmentRun(space, client, fragment, parsed.slot_ids(base, dispatcher_base, inputs), numbers)
        for index in range(stream[i + 2], len(fragment.sections)):
            section = fragment.sections[index]
            if section.is_bucket:
                waits = self._start_bucket(run, section)
            elif section.body is None:
                waits = self._interpret(run, section.first, section.last)
            else:
                waits = self._run_section(run, section, section.body)
            if waits:
                stream[i + 2] = index  # continue from this section later
                return i
        return i + int(parsed.width)

    def _interpret(self, run: FragmentRun, first: int, last: int) -> bool:
        """Run instructions one by one. Returns whether the stream must wait for an operand."""
        words = run.words(first, last)
        return self._interpreter.run(run.space, run.client, words, 0) < len(words)

    def _start_bucket(self, run: FragmentRun, section: LinkedSection) -> bool:
        """Start several reductions as one. Returns whether the stream must wait for an operand."""
        space, ids = run.space, run.ids
        instructions = run.fragment.parsed.instructions[section.first : section.last]
        if space.placeholders and not all(
            self._mover.arrived(space, ids[instruction.operands[0]]) for instruction in instructions
        ):
            return True
        moves = [
            (space.codes[instruction.code], instruction.site, ids[instruction.outs[0]], ids[instruction.operands[0]])
            for instruction in instructions
        ]
        try:
            self._mover.start_all(space, moves)
        except (GroupBroken, KeyError):  # a lost group or a missing operand: the interpreter reports it
            return self._interpret(run, section.first, section.last)
        self.instructions += len(instructions)
        return False

    def _run_section(self, run: FragmentRun, section: LinkedSection, body: Section) -> bool:
        """Run a section as a whole. Returns whether the stream must wait for an operand."""
        space, slot_ids = run.space, run.ids
        store = space.store
        ids = [slot_ids[slot] for slot in section.inputs]
        if space.placeholders or space.sends:
            arrived = all(self._mover.arrived(space, id) for id in ids)
            if not arrived or (section.writes and not self._mover.may_write(space, space.arrays(ids))):
                return True
            if any(type(store.get(id)) in PLACEHOLDERS for id in ids):
                return self._interpret(run, section.first, section.last)
        for slot in section.freed_unused:
            space.drop(slot_ids[slot])
        try:
            registers = [store[id] for id in ids]
        except KeyError:  # an input is missing: the interpreter reports it
            return self._interpret(run, section.first, section.last)
        self._run_body(run, section, body, ids, registers)
        return False

    def _run_body(
        self, run: FragmentRun, section: LinkedSection, body: Section, ids: list[int], registers: list[Any]
    ) -> None:
        """Run a section whose inputs are there, in ``registers``; ``ids`` are their tensor ids."""
        space, recorder, tick = run.space, self.recorder, None
        if recorder is not None:
            marks, tick = recorder.marks(section)
        numbers = [run.numbers[k] for k in section.numbers]
        section.runs += 1
        try:
            results = self._run_at_level(space, run.client, body, registers, numbers)
        except PartialRun as partial:
            self._fail_written(run, section, partial)
            return
        interpreted = results is None
        if results is not None:
            for register in section.freed:
                space.drop(ids[register])
        else:
            registers += [None] * (body.registers - body.inputs)
            try:
                section.run(registers, numbers, ids, space.store, tick, self._pause_of(run.client, section))
            except InstructionFailed as failed:
                if recorder is not None:
                    recorder.section_ran(run, section, marks, tick is not None, "")
                self._continue_after(run, section, body, registers, failed)
                return
            results = [registers[register] for register in body.results]
        for slot, value in zip(section.results, results, strict=True):
            space.put(run.ids[slot], value)
        self.instructions += len(body.calls)
        self.hot_instructions += len(body.calls)
        if recorder is not None:
            level = "" if interpreted else self.levels.level_of(body)
            recorder.section_ran(run, section, marks, tick is not None, level)

    def _pause_of(self, client: int, section: LinkedSection) -> Callable[[], None] | None:
        """What the section calls between its instructions; None if it is short, or nobody else could be waiting."""
        pause = self.pause
        return None if pause is None or not section.pauses else partial(pause, client)

    def _run_at_level(
        self, space: ClientSpace, client: int, body: Section, inputs: list[Any], numbers: list[Any]
    ) -> list[Any] | None:
        """The section's results; None if it must be interpreted."""
        account = space.account
        if account is not None and not account.has_room(body.created_bytes()):
            return None  # then the instruction that exceeds the quota fails
        try:
            results = self.levels.run(body, inputs, numbers, space.store)
            if account is not None and results is not None:
                for result in results:
                    account.add(result)
            return results
        finally:
            waits = self.levels.take_waits()
            if waits and self.recorder is not None:
                self.recorder.compiled(waits)
            if self.levels.notices:
                self._announce_reasons(space, client)

    def _announce_reasons(self, space: ClientSpace, client: int) -> None:
        """Send each reason for not compiling once: a missing compiler, for example, concerns all sections."""
        for reason, text in self.levels.notices:
            if reason not in space.announced_reasons and len(space.announced_reasons) < MAX_ANNOUNCED_REASONS:
                space.announced_reasons.add(reason)
                self._outbox.send(Notice(text, client))
        self.levels.notices.clear()

    def _fail_written(self, run: FragmentRun, section: LinkedSection, partial: PartialRun) -> None:
        """Every tensor that the section creates or writes becomes a failure: it is unknown which were written."""
        space, ids, instructions = run.space, run.ids, run.fragment.parsed.instructions
        calls = [k for k in range(section.first, section.last) if instructions[k].code >= 0]
        writing = [k for k in calls if space.codes[instructions[k].code].signature.into]
        # without instructions in place, the run wrote results into donated inputs
        reported = writing[0] if writing else calls[0]
        words = run.words(reported, reported + 1)
        self._failures.record(space, run.client, space.codes[words[0]].signature, words, 0, partial.error)
        failure = space.store[words[2]]
        if not writing:
            space.drop(words[2])
        written = [slot for k in writing for slot in instructions[k].outs]
        for slot in (*written, *section.results):
            space.put(ids[slot], failure)
        for register in section.freed:
            space.drop(ids[section.inputs[register]])

    def _continue_after(
        self,
        run: FragmentRun,
        section: LinkedSection,
        body: Section,
        registers: list[Any],
        failed: InstructionFailed,
    ) -> None:
        """An instruction failed: keep the results so far, report it, and interpret the rest."""
        space = run.space
        self.instructions += 1 + sum(index < failed.index for index in section.indices)
        for register in range(body.inputs, body.registers):
            if registers[register] is not None:
                space.put(run.ids[section.slots[register]], registers[register])
        registers.clear()
        words = run.words(failed.index, failed.index + 1)
        self._failures.record(space, run.client, space.codes[words[0]].signature, words, 0, failed.error)
        self._interpret(run, failed.index + 1, section.last)
