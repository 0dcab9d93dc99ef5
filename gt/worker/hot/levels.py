"""How a worker runs repeated sections: interpreted, as a CUDA graph, or compiled.

The worker's thread calls `Levels.run` for each run of a section, in order. It returns the results, or None: then the
caller interprets the section. A `LevelSwitch` moves each section from one level to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.worker.engines import Engine
from gt.worker.hot.section import Section, title
from gt.worker.hot.starved import StarvedSections, on_engine

if TYPE_CHECKING:
    from gt.worker.hot.compiler import Compiler
    from gt.worker.hot.level_switch import LevelSwitch

#: Which sections leave the interpreter. "off": only those whose signal requires it. "starved": hot ones for whose
#: instructions the device waits become graphs. "graphs": all hot ones become graphs, and are not compiled. "auto": hot
#: ones are also compiled, in the background. "all": all, compiled on their first run.
OFF, STARVED, GRAPHS, AUTO, ALL = "off", "starved", "graphs", "auto", "all"
MODES = (OFF, STARVED, GRAPHS, AUTO, ALL)


class Levels:
    """Runs sections at their levels. ``mode`` is one of `MODES`."""

    def __init__(self, engine: Engine, mode: str) -> None:
        assert mode in MODES, mode
        self._engine = engine
        self._off, self._compiles, self._all = mode == OFF, mode not in (STARVED, GRAPHS), mode == ALL
        self._loads_ahead = mode in (AUTO, ALL) and engine.device.startswith("cuda")
        #: in the mode "starved": which sections these are
        self._starved = on_engine(engine) if mode == STARVED else None
        #: without torch every section is interpreted, even if its signal requires compiling
        self._never = engine.name != "torch"
        self._switches: dict[Section, LevelSwitch] = {}
        self._compiler: Compiler | None = None
        self._prepared = False
        #: in the mode "starved": whether a section may become a graph
        self._fitting: dict[Section, bool] = {}
        #: whether several clients use the worker. Then it never waits for the compiler: the others would wait too.
        self.shared = False
        #: (reason, text) for each section that will not be compiled; the caller announces and clears them
        self.notices: list[tuple[str, str]] = []

    def run(self, section: Section, inputs: list[Any], numbers: list[Any], store: dict[int, Any]) -> list[Any] | None:
        """The values of ``section.results``, with in-place writes done; None: interpret the section.

        ``store`` has the client's tensors. Results of a graph that a new run would overwrite are replaced by copies.
        """
        if self._never or (self._off and not section.compile):
            return None
        if self._starved is not None and not section.compile and not self._becomes_graph(self._starved, section):
            return None
        switch = self._switches.get(section)
        if switch is None:
            switch = self._switches[section] = self._new_switch(section)
        return switch.run(inputs, numbers, store)

    def _becomes_graph(self, starved: StarvedSections, section: Section) -> bool:
        known = self._fitting.get(section)
        if known is None:
            known = self._fitting[section] = starved.fits(section)
        return known and starved.starves(section)

    def begin_moves(self) -> None:
        """From now on tensors move to other workers, possibly while a graph runs again. So only sections for which the
        program asks become graphs."""
        if self._starved is not None:
            for section in [section for section in self._switches if not section.compile]:
                self.forget(section)
            self._starved, self._off = None, True

    def load_ahead(self) -> None:
        """Load the compiler in the background if it is going to be used: this takes seconds. Not where the compiler and
        the program share the CPU's cores."""
        if self._loads_ahead:
            self._make_compiler(prepared=True).load_ahead()

    def _new_switch(self, section: Section) -> LevelSwitch:
        from gt.worker.hot.level_switch import LevelSwitch

        compiles = self._compiles or section.compile
        compiler = self._make_compiler(prepared=compiles)
        at_once = self._all or section.compile
        switch = LevelSwitch(section, self._engine, at_once, compiler, lambda: not self.shared)
        switch.compiles = compiles
        return switch

    def _make_compiler(self, prepared: bool) -> Compiler:
        """The compiler; ``prepared``: with its cache folder."""
        from gt.worker.hot.compiler import Compiler, prepare

        if self._compiler is None:
            self._compiler = Compiler(self._engine, notices=self.notices)
        if prepared and not self._prepared:
            self._prepared = True
            self._compiler.use_folder(prepare(self._engine))
        return self._compiler

    def take_waits(self) -> list[tuple[int, int]]:
        """When the worker's thread waited for compiled code since the last call, in nanoseconds."""
        if self._compiler is None or not self._compiler.waits:
            return []
        waits, self._compiler.waits = self._compiler.waits, []
        return waits

    def level_of(self, section: Section) -> str:
        """The name of the level at which a section runs now."""
        switch = self._switches.get(section)
        return "template" if switch is None else switch.level

    def forget(self, section: Section) -> None:
        """The section will not run again: free its graph and compiled code."""
        switch = self._switches.pop(section, None)
        if switch is not None:
            switch.close()
        if self._starved is not None:
            self._fitting.pop(section, None)
            self._starved.forget(section)

    def section_stats(self, section: Section, runs: int) -> dict[str, Any]:
        """How a section runs. ``runs`` is the caller's count."""
        switch = self._switches.get(section)
        if switch is not None:
            return switch.stats()
        return {
            "length": len(section.calls),
            "title": title(section),
            "runs": runs,
            "level": "template",
            "compile_seconds": 0.0,
            "saved_seconds": 0.0,
            "reasons": [],
        }

    def stats(self) -> list[dict[str, Any]]:
        """The statistics of each section, in the order of their first runs."""
        return [switch.stats() for switch in self._switches.values()]

    def close(self) -> None:
        for section in list(self._switches):
            self.forget(section)
        if self._compiler is not None:
            self._compiler.close()
