"""A TCP proxy between a peer and its server, which loses connections the way a network does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterable
from typing import Any

from tests.support.processes import LONG, free_port


class Proxy:
    """Forwards connections to a port of this machine. It runs in a thread of its own.

    freeze()   nothing passes, and nothing is closed; `thaw` lets everything pass that waited
    bury()     like `freeze`, but for ever: only connections made after `thaw` work
    reset()    both sides of all connections get a reset
    cut_next   so many of the next connections get a reset after ``cut_after`` bytes from the server
    patience   seconds for which a new connection waits for a server that does not listen
    """

    def __init__(self, stack: contextlib.ExitStack, target: int, patience: float = 0.0) -> None:
        self._target, self.port, self._patience = target, free_port(), patience
        self.cut_next = self.cut_after = 0
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        #: the pumps wait for their gate; those of buried connections wait for ever
        self._gate = asyncio.Event()
        self._gate.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=1 << 16))
        stack.callback(self._close)

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(LONG)

    def freeze(self) -> None:
        self._loop.call_soon_threadsafe(self._gate.clear)

    def thaw(self) -> None:
        self._loop.call_soon_threadsafe(self._gate.set)

    def bury(self) -> None:
        def replace_gate() -> None:
            self._gate.clear()
            self._gate = asyncio.Event()

        self._loop.call_soon_threadsafe(replace_gate)

    def reset(self) -> None:
        self._call(self._reset())

    async def _reset(self, writers: Iterable[asyncio.StreamWriter] = ()) -> None:
        for writer in list(writers or self._writers):
            wire = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):  # closed already
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gate = self._gate
        cut, self.cut_next = self.cut_next > 0, max(0, self.cut_next - 1)
        try:
            await gate.wait()
            if cut and self.cut_after == 0:
                await self._reset([writer])
                return
            far_reader, far_writer = await self._connect()
        except (OSError, asyncio.CancelledError):
            writer.close()
            return
        self._writers |= {writer, far_writer}
        with contextlib.suppress(asyncio.CancelledError):
            answers = self._cut(far_reader, writer, far_writer) if cut else self._pump(far_reader, writer, gate)
            await asyncio.gather(self._pump(reader, far_writer, gate), answers)
        self._writers -= {writer, far_writer}

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        deadline = self._loop.time() + self._patience
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", self._target)
            except ConnectionRefusedError:
                if self._loop.time() >= deadline:
                    raise
                await asyncio.sleep(0.05)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await gate.wait()
                writer.write(data)
                await writer.drain()
        await gate.wait()
        writer.close()

    async def _cut(self, reader: asyncio.StreamReader, *writers: asyncio.StreamWriter) -> None:
        left = self.cut_after
        while left and (data := await reader.read(left)):
            writers[0].write(data)
            await writers[0].drain()
            left -= len(data)
        await self._reset(writers)

    async def _end(self) -> None:
        self._server.close()
        await self._reset()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _close(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LONG)
        self._loop.close()
