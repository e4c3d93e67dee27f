"""A thread with a loop of its own, for a client library of a server.

The gateway's loop hands work over and is called back; only while a gateway starts does it wait. So
a start may read a long log, and a network that hangs holds up nothing else.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Final, TypeVar

from meup_agent.errors import ConfigurationError

END_SECONDS: Final = 2.0
"""Time for a connection to say goodbye, and for the thread to end."""

T = TypeVar("T")


class LoopThread(ABC):
    """A thread with a loop; each method may be called on any other thread.

    Args:
        name: The end of the thread's name.
    """

    def __init__(self, name: str) -> None:
        # Some libraries cannot use the usual loop of Windows.
        is_windows = sys.platform == "win32"
        self._loop = asyncio.SelectorEventLoop() if is_windows else asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"meup-journal-{name}", daemon=True)

    @property
    @abstractmethod
    def place(self) -> str:
        """The server, for people."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of its thread."""
        return self._loop

    def start(self) -> None:
        """Begin; nothing is done before."""
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Wait for a coroutine; blocks.

        Raises:
            ConfigurationError: It took longer.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except (TimeoutError, CancelledError):
            future.cancel()
            raise ConfigurationError(f"{self.place} does not answer; look at its log") from None

    def call(self, then: Callable[..., object], *arguments: object) -> None:
        """Call in the thread."""
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(then, *arguments)

    def begin(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Do something in the thread, without waiting for it."""
        self.call(lambda: asyncio.ensure_future(work()))

    def close(self) -> None:
        """End the thread; blocks a moment, harmless the second time."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            with suppress(ConfigurationError):
                self.wait(self._end(), timeout=END_SECONDS)
            self.call(self._loop.stop)
            self._thread.join(END_SECONDS)
        if not self._loop.is_running():
            self._loop.close()

    @abstractmethod
    async def _disconnect(self) -> None:
        """Say goodbye to the server."""

    async def _end(self) -> None:
        await self._disconnect()
        tasks = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:  # a connection that is being opened is closed by its own task
            await asyncio.wait(tasks, timeout=END_SECONDS / 2)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
