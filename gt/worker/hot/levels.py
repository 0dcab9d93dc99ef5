"""How a worker runs pieces of a program that come again: by steps, as a CUDA graph, or compiled.

`Levels.run` is called for each run of a piece, in order, by the worker's one thread. It gives the piece's results, or
None: then the caller runs the steps. A piece's way from one level to the next is a `Track`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.worker.engines import Engine
from gt.worker.hot.piece import Piece, title

if TYPE_CHECKING:
    from gt.worker.hot.compiler import Shared
    from gt.worker.hot.track import Track

MODES = OFF, GRAPHS, AUTO, ALL = "off", "graphs", "auto", "all"


class Levels:
    def __init__(self, engine: Engine, mode: str) -> None:
        """``mode``: "off", "graphs" (of what is hot; no compiler), "auto" (what is hot, in the background) or "all"
        (everything, at first sight)."""
        assert mode in MODES, mode
        self._compiles = mode != GRAPHS
        self._engine, self._all = engine, mode == ALL
        #: nothing is ever compiled but what asks for it; without torch not even that
        self._off, self._never = mode == OFF, engine.name != "torch"
        self._tracks: dict[Piece, Track] = {}
        self._shared: Shared | None = None
        #: (reason, text) of what was not compiled in the last run; whoever runs a piece tells its client, and clears it
        self.notices: list[tuple[str, str]] = []

    def run(self, piece: Piece, inputs: list[Any], numbers: list[Any], store: dict[int, Any]) -> list[Any] | None:
        """The values of ``piece.results``, with what it writes in place written; None: run it step by step.

        ``store`` is where the client's tensors are kept: what it still holds of a graph's earlier results is replaced
        there by copies.
        """
        if self._never or (self._off and not piece.compile):
            return None
        track = self._tracks.get(piece)
        if track is None:
            track = self._tracks[piece] = self._begin(piece)
        return track.run(inputs, numbers, store)

    def _begin(self, piece: Piece) -> Track:
        from gt.worker.hot.compiler import Shared, prepare
        from gt.worker.hot.track import Track

        if self._shared is None:
            prepare(self._engine)
            self._shared = Shared(self._engine, notices=self.notices)
        track = Track(piece, self._engine, self._all or piece.compile, self._shared)
        track.compiles = self._compiles or piece.compile
        return track

    def forget(self, piece: Piece) -> None:
        track = self._tracks.pop(piece, None)
        if track is not None:
            track.close()

    def told(self, piece: Piece, runs: int) -> dict[str, Any]:
        """How a piece is run, by steps or better; ``runs`` is the caller's count."""
        track = self._tracks.get(piece)
        if track is not None:
            return track.stats()
        nothing = {"compile_seconds": 0.0, "saved_seconds": 0.0, "reasons": []}
        return {"length": len(piece.steps), "title": title(piece), "runs": runs, "level": "template"} | nothing

    def stats(self) -> list[dict[str, Any]]:
        """One entry a piece, in the order they came."""
        return [track.stats() for track in self._tracks.values()]

    def close(self) -> None:
        for piece in list(self._tracks):
            self.forget(piece)
        if self._shared is not None:
            self._shared.close()
