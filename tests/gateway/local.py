"""A gateway in a thread, and participants in its process, who speak to it without a socket."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Self, TypeVar

import anyio
from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from meup_agent.gateway import Config
from tests.gateways import Connector, RunningGateway, Transport, first_token, serve
from tests.spaces import SpaceCounters

T = TypeVar("T")


class LocalPlace:
    """The gateway; made by :func:`local`."""

    def __init__(self, config: Config, portal: BlockingPortal) -> None:
        self._config = config
        self._portal = portal
        self._stack = ExitStack()
        self._start()

    @property
    def counters(self) -> SpaceCounters:
        return self._running.counters

    def token(self, participant: str) -> str:
        return first_token(self._config, participant)

    def kill(self) -> None:
        self._portal.call(self._running.abort)

    def drop(self, participant: str) -> None:
        self._portal.call(self._running.drop, participant)

    def restart(self) -> None:
        self.kill()
        self.stop()
        self._start()

    def stop(self) -> None:
        self._stack.close()

    def connector(self, space: str) -> Connector:
        """Dial from the loop of a test, which is another than the gateway's."""
        dial = self._running.connector(space)

        @asynccontextmanager
        async def dial_there(headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
            there = self._portal.wrap_async_context_manager(dial(headers))
            transport = await to_thread.run_sync(there.__enter__)
            try:
                yield _Elsewhere(transport, self._portal)
            finally:
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(there.__exit__, None, None, None)

        return dial_there

    def _start(self) -> None:
        serving = serve(self._config, port=0)
        self._running: RunningGateway = self._stack.enter_context(
            self._portal.wrap_async_context_manager(serving)
        )


class _Elsewhere:
    """A transport of another thread's loop."""

    def __init__(self, transport: Transport, portal: BlockingPortal) -> None:
        self._transport = transport
        self._portal = portal

    @property
    def closed(self) -> Any:
        return self._transport.closed

    @property
    def response_headers(self) -> Mapping[str, str]:
        return self._transport.response_headers

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        # Whoever gives up waiting closes the connection, which ends the wait there.
        reading = partial(self._portal.call, anext, self._transport, None)
        frame: bytes | None = await to_thread.run_sync(reading, abandon_on_cancel=True)
        if frame is None:
            raise StopAsyncIteration
        return frame

    async def send(self, frame: bytes) -> None:
        await self._there(lambda: self._transport.send(frame))

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        await self._there(lambda: self._transport.aclose(code, reason))

    async def abort(self) -> None:
        await self._there(self._transport.abort)

    async def _there(self, run: Callable[[], Awaitable[T]]) -> T:
        return await to_thread.run_sync(self._portal.call, run)


@contextmanager
def local(config: Config) -> Generator[LocalPlace]:
    """A gateway for the length of a block."""
    with start_blocking_portal("asyncio") as portal:
        place = LocalPlace(config, portal)
        try:
            yield place
        finally:
            place.stop()
