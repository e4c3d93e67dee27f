"""A gateway inside a program or a test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import Self

from anyio import AsyncContextManagerMixin
from anyio.from_thread import BlockingPortal, start_blocking_portal

from meup_agent.errors import UsageError
from meup_agent.gateway.config import (
    DEFAULT_HOST,
    Config,
    Participants,
    first_token,
    one_space_config,
)
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.server import Page, RunningGateway, serve
from meup_agent.protocol.space.allowance import SpaceCounters


class _EmbeddedGateway(ABC):
    """The addresses, tokens and counters of a gateway, which any thread may read."""

    _config: Config

    @property
    @abstractmethod
    def _gateway(self) -> RunningGateway: ...

    @property
    def url(self) -> str:
        """The address to dial, for example ``ws://127.0.0.1:41234``."""
        return self._gateway.url

    @property
    def http_url(self) -> str:
        """The address of its HTTP API.

        Raises:
            UsageError: It serves none: its configuration says so, or others can reach it.
        """
        url = self._gateway.http_url
        if url is None:
            raise UsageError("the gateway serves no HTTP; give it a config with http")
        return url

    @property
    def port(self) -> int:
        """The port it listens at."""
        return self._gateway.port

    @property
    def counters(self) -> SpaceCounters:
        """Counts since it began to listen, or was restarted; they change while they are read."""
        return self._gateway.counters

    def token(self, participant: str, space: str | None = None) -> str:
        """A token of a participant.

        Args:
            participant: The participant.
            space: In which space; the first one by default.

        Raises:
            KeyError: There is no such participant, or it has no token.
        """
        return first_token(self._config, participant, space)


class Gateway(_EmbeddedGateway, AsyncContextManagerMixin):
    """A gateway that listens for the length of an ``async with`` block, on asyncio.

    ::

        async with Gateway(participants={"alice": [{"kind": "chat"}]}) as gateway:
            ...  # dial gateway.url with gateway.token("alice")

    A program that runs on trio uses :meth:`in_thread`.

    Args:
        space: The id of its one space.
        participants: The participants, and their capabilities; each gets a random token.
        config: A whole configuration, in place of these two.
        host: Where to listen.
        port: Where to listen; 0: any free port, the same again after :meth:`restart`.
        limits: Its limits, where no ``config`` says it.
        page: The console that it serves, where the configuration allows one.

    Raises:
        ConfigurationError: A participant's id cannot be one.
        InvalidPattern: A capability does not compile.
    """

    def __init__(
        self,
        space: str = "demo",
        participants: Participants | None = None,
        *,
        config: Config | None = None,
        host: str = DEFAULT_HOST,
        port: int = 0,
        limits: GatewayLimits | None = None,
        page: Page | None = None,
    ) -> None:
        self._page = page
        self._config = config or one_space_config(space, participants or {}, limits)
        self._host = host
        self._port = port
        self._running: RunningGateway | None = None
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        """Listen; leaving stops, with a close frame for every member."""
        async with AsyncExitStack() as self._stack:
            await self._listen()
            yield self
        self._running = None

    def kill(self) -> None:
        """Drop every socket without a close frame and stop listening, as a killed process does."""
        self._gateway.abort()

    async def restart(self) -> None:
        """Listen at the same port again, having forgotten everything; kills it first if it runs."""
        self.kill()
        self._port = self._gateway.port
        await self._stack.aclose()
        await self._listen()

    def drop(self, participant: str) -> None:
        """Drop a participant's socket without a close frame."""
        self._gateway.drop(participant)

    @contextmanager
    def in_thread(self) -> Generator[ThreadedGateway]:
        """Run it in a thread with a loop of its own, whatever the caller runs on."""
        options = {"use_uvloop": find_spec("uvloop") is not None}
        with start_blocking_portal("asyncio", options, name="meup-gateway") as portal:
            with portal.wrap_async_context_manager(self):
                yield ThreadedGateway(self, portal)

    @property
    def _gateway(self) -> RunningGateway:
        if self._running is None:
            raise UsageError("the gateway does not run; use it inside its 'async with' block")
        return self._running

    async def _listen(self) -> None:
        self._running = await self._stack.enter_async_context(
            serve(self._config, self._host, self._port, page=self._page)
        )


class ThreadedGateway(_EmbeddedGateway):
    """A :class:`Gateway` in a thread of its own; every call returns when it has taken effect."""

    def __init__(self, gateway: Gateway, portal: BlockingPortal) -> None:
        self._config = gateway._config
        self._served = gateway
        self._source: _EmbeddedGateway = gateway
        self._portal = portal

    @property
    def _gateway(self) -> RunningGateway:
        return self._source._gateway

    def kill(self) -> None:
        """Drop every socket without a close frame and stop listening, as a killed process does."""
        self._portal.call(self._served.kill)

    def restart(self) -> None:
        """Listen at the same port again, having forgotten everything; kills it first if it runs."""
        self._portal.call(self._served.restart)

    def drop(self, participant: str) -> None:
        """Drop a participant's socket without a close frame."""
        self._portal.call(self._served.drop, participant)
