"""Proxies between programs, which can be cut: each is a port that passes on to another."""

import asyncio
from contextlib import suppress


class FaultProxy:
    """A proxy between one program and the port of another.

    Cut, it ends all connections and takes no more; silent, it keeps them and passes nothing on.
    """

    def __init__(self, source: str, target: str, port: int) -> None:
        self.source = source
        self.target = target
        self._port = port
        self._server: asyncio.Server | None = None
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._is_cut = False
        self._passes = asyncio.Event()
        self._passes.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, port: int) -> None:
        """Take connections at a port."""
        self._server = await asyncio.start_server(self._take, "127.0.0.1", port)

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self._is_cut = True
        for pair in self._pairs:
            for writer in pair:
                writer.transport.abort()

    def silence(self) -> None:
        """Pass nothing on, and tell nobody."""
        self._passes.clear()

    def mend(self) -> None:
        """Pass on again."""
        self._is_cut = False
        self._passes.set()

    def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._pass_on(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, there[1])
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._copy(reader, there[1]), self._copy(there[0], writer))
        finally:
            self._pairs.discard(pair)
            for each in pair:
                each.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
        # Either end ends both.
        writer.transport.abort()
