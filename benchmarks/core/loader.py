"""Batches made ahead of their use in a thread, and how long the loop waited for each."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

#: batches made ahead of their use
AHEAD = 3


class Loader:
    """``make(n)`` is the n-th batch of a pass; it runs in the loader's thread."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make
        #: seconds waited for each batch of the last pass
        self.waited: list[float] = []

    def first(self, count: int) -> Iterator[Any]:
        """The first ``count`` batches."""
        self.waited = []
        pending: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(1, "loader") as thread:
            try:
                for number in range(count + AHEAD):
                    if number < count:
                        pending.append(thread.submit(self.make, number))
                    if number >= AHEAD and pending:
                        yield self._next(pending.popleft())
            finally:
                for future in pending:
                    future.cancel()

    def _next(self, future: Future[Any]) -> Any:
        started = time.perf_counter()
        batch = future.result()
        self.waited.append(time.perf_counter() - started)
        return batch
