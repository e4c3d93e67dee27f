"""The connection to NATS, in a thread with a loop of its own.

The gateway's loop hands work over and is called back; only while a gateway starts does it wait. So
a start may read a long log, and a network that hangs holds up nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import anyio
import anyio.to_thread

from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.gateway.journal.nats.client import (
    ANSWER_SECONDS,
    RETRY_SECONDS,
    ApiError,
    NatsClient,
    NoAnswer,
    answer_in,
    client_of,
    nats_errors,
)
from meup_agent.gateway.journal.nats.loop_thread import LoopThread
from meup_agent.gateway.journal.nats.monitoring import check_sync
from meup_agent.gateway.journal.nats.publisher import Publisher

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from meup_agent.gateway.config import NatsConfig

log = logging.getLogger("meup_agent.gateway")

CONNECT_SECONDS: Final = 10.0
"""For a gateway that starts to reach one of its servers; one that runs tries without end."""

INSIST_SECONDS: Final = 30.0
"""For a gateway that starts: servers that have lost one of them agree on a leader first."""

READ_SECONDS: Final = 10.0
"""For a page of messages, some mebibytes."""

OLDEST_SERVER: Final = (2, 11)
"""The first whose streams hand over many messages for one question."""

T = TypeVar("T")


class Published(NamedTuple):
    """A message that a stream holds."""

    sequence: int
    body: bytes


class Link(LoopThread):
    """A connection to NATS, made when it is opened; every call of another thread is said so."""

    def __init__(self, config: NatsConfig) -> None:
        super().__init__("nats")
        self._config = config
        self.on_away: set[Callable[[str], None]] = set()
        """Told, in its thread, why the servers cannot be reached, or empty: they can again."""
        self._client: NatsClient | None = None
        self.last_error = ""
        """The last refusal of a server, for people; set in its thread."""
        self._publishing: asyncio.Future[Publisher | None] | None = None

    # --- called on other threads --------------------------------------------------------------

    def open(self) -> None:
        """Connect; blocks.

        Raises:
            ConfigurationError: No server can be reached, or it is not one that we can use.
        """
        self.start()
        try:
            self.wait(self._connect())
        except BaseException:
            self.close()
            raise

    def insist(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for a coroutine, begun anew while no server answers; blocks.

        Raises:
            ConfigurationError: None answered for too long.
        """
        return self.wait(self._insist(work))

    async def insisted(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait as :meth:`insist` does, on another loop."""
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._insist(work), self._loop)
        )

    @property
    def place(self) -> str:
        """The servers, for people; without a user or password that stands in an address."""
        return "NATS at " + ", ".join(each.rpartition("@")[2] for each in self._config.servers)

    @property
    def version(self) -> str:
        """The version of the server."""
        client: Any = self.client
        return str(client._server_info.get("version"))

    # --- called on the gateway's loop ---------------------------------------------------------

    async def publisher(self) -> Publisher | None:
        """A connection for messages on the loop of who calls, one for all; ``None``: there is none.

        Whoever has it closes the link with :meth:`aclose`.
        """
        if self._publishing is None:
            # In a task of its own: who waits for it may end, and others wait.
            self._publishing = asyncio.ensure_future(self._connect_publisher())
        return await asyncio.shield(self._publishing)

    async def _connect_publisher(self) -> Publisher | None:
        made: Publisher | None = None
        try:
            client, options = client_of(self._config)
            made = Publisher(client)
            async with asyncio.timeout(ANSWER_SECONDS):
                await client.connect(**options, error_cb=_ignore)
                await made.begin()
        except BaseException as error:
            if made is not None:
                await made.close()
            if not isinstance(error, Exception):
                raise
            log.info("there is no second connection to %s: %s", self.place, error)
            self._publishing = None  # the next who asks tries again
            return None
        return made

    async def aclose(self) -> None:
        """Close all connections; harmless the second time."""
        with anyio.CancelScope(shield=True):
            if self._publishing is not None:
                self._publishing.cancel()  # where it connects
                with suppress(asyncio.CancelledError):
                    publisher = await self._publishing
                    if publisher is not None:
                        await publisher.close()
            await anyio.to_thread.run_sync(self.close)

    # --- called in its own thread -------------------------------------------------------------

    async def _insist(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        deadline = self._loop.time() + INSIST_SECONDS
        while True:
            try:
                return await work()
            except (NoAnswer, nats_errors.Error, TimeoutError) as error:
                if self._loop.time() > deadline:
                    why = str(error) or "no answer"
                    raise ConfigurationError(
                        f"{self.place} does not answer ({why}); look at its log, and whether"
                        " JetStream is enabled"
                    ) from None
            await asyncio.sleep(RETRY_SECONDS)

    async def find_jetstream(self) -> None:
        """Wait until JetStream answers.

        Raises:
            ConfigurationError: It does not, for too long; or one replica there is not safe.
        """
        try:
            await self._insist(lambda: self.ask("INFO"))
        except ApiError as error:
            raise ConfigurationError(
                f"journal.nats.servers: {self.place} does not serve JetStream ({error}); enable it"
            ) from None
        monitoring = self._config.monitoring
        if monitoring is not None and self._config.replicas == 1:
            client: Any = self.client
            server_id = str(client._server_info.get("server_id"))
            await asyncio.to_thread(check_sync, monitoring, server_id)

    @property
    def is_clustered(self) -> bool:
        """True if its server is one of several."""
        client: Any = self.client
        return bool(client._server_info.get("cluster"))

    @property
    def client(self) -> NatsClient:
        assert self._client is not None, "it was opened"
        return self._client

    @property
    def jetstream(self) -> Any:
        """JetStream as the client library has it, which does not say all of its types."""
        client: Any = self.client
        return client.jetstream(timeout=ANSWER_SECONDS)

    @property
    def max_payload(self) -> int:
        """Bytes of the largest message that the server takes."""
        return self.client.max_payload

    @property
    def is_connected(self) -> bool:
        return bool(self.client.is_connected)

    async def request(self, subject: str, body: bytes, timeout: float) -> bytes | None:
        """Ask whoever listens at a subject: the answer, ``None`` if nobody listens there.

        Empty bytes: somebody listens, and does not answer in time.
        """
        try:
            message = await self.client.request(subject, body, timeout=timeout)
        except nats_errors.NoRespondersError:
            return None
        except (nats_errors.Error, TimeoutError, OSError):
            return b""
        return message.data

    async def subscribe(
        self, subject: str, then: Callable[[Msg], Coroutine[Any, Any, None]]
    ) -> Any:
        """Have what comes at a subject taken, until the subscription that is returned ends."""
        client: Any = self.client
        subscription = await client.subscribe(subject, cb=then)
        await client.flush(ANSWER_SECONDS)
        return subscription

    async def publish(self, stream: str, subject: str, body: bytes, expected: int) -> int:
        """Append a message to a stream whose last one has a sequence; that of the message.

        Raises:
            ApiError: The stream refused it.
            NoAnswer: Whether it was appended is not known.
        """
        headers = {
            "Nats-Expected-Stream": stream,
            "Nats-Expected-Last-Sequence": str(expected),
        }
        sequence: int = (await self._ask(subject, body, headers))["seq"]
        return sequence

    async def ask(self, subject: str, question: object = None) -> dict[str, Any]:
        """Ask JetStream's API; its answer.

        Raises:
            ApiError: It says no.
            NoAnswer: It does not answer.
        """
        body = b"" if question is None else json.dumps(question).encode()
        return await self._ask(f"$JS.API.{subject}", body)

    async def _ask(
        self, subject: str, body: bytes, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        try:
            message = await self.client.request(
                subject, body, timeout=ANSWER_SECONDS, headers=headers
            )
        except nats_errors.MaxPayloadError:
            raise
        except (nats_errors.Error, TimeoutError, OSError) as error:
            raise NoAnswer(str(error) or type(error).__name__) from None
        return answer_in(message)

    async def fetch(
        self, stream: str, first: int, *, count: int, max_bytes: int
    ) -> AsyncGenerator[Published]:
        """The messages of a stream from a sequence on; fewer, where they are too many bytes.

        Raises:
            NoAnswer: The server does not answer.
        """
        client: Any = self.client
        inbox = client.new_inbox()
        found: list[Msg] = []
        done = self._loop.create_future()

        async def take(message: Msg) -> None:
            # All at once: asking for each by itself costs as much as all the rest.
            if "Status" not in (message.headers or {}):
                found.append(message)
            elif not done.done():
                done.set_result((message.headers or {})["Status"])

        question = {"seq": first, "batch": count, "max_bytes": max_bytes}
        subscription = await client.subscribe(inbox, cb=take)
        try:
            async with asyncio.timeout(READ_SECONDS):
                subject = f"$JS.API.DIRECT.GET.{stream}"
                await client.publish(subject, json.dumps(question).encode(), reply=inbox)
                status = await done
        except (nats_errors.Error, TimeoutError, OSError) as error:
            raise NoAnswer(str(error) or type(error).__name__) from None
        finally:
            with suppress(Exception):
                await subscription.unsubscribe()
        if status == "503":
            raise NoAnswer("no server has the stream")
        for message in found:
            headers = message.headers or {}
            yield Published(int(headers["Nats-Sequence"]), message.data)

    # --- its thread ---------------------------------------------------------------------------

    async def _connect(self) -> None:
        client, options = client_of(self._config)
        connecting = client.connect(
            **options,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
        )
        try:
            await asyncio.wait_for(connecting, CONNECT_SECONDS)
        except (nats_errors.Error, TimeoutError, OSError, ValueError) as error:
            why = self.last_error or (system_reason(error) if isinstance(error, OSError) else "")
            raise ConfigurationError(
                f"journal.nats.servers: {self.place} cannot be reached"
                f" ({why or str(error) or 'no answer'}); start it, or correct the address or the"
                " user"
            ) from None
        self._client = client
        version = client.connected_server_version
        if (version.major, version.minor) < OLDEST_SERVER:
            raise ConfigurationError(
                f"journal.nats.servers: {self.place} is version {version.major}.{version.minor};"
                f" the journal needs {'.'.join(map(str, OLDEST_SERVER))} or later"
            )

    async def _disconnect(self) -> None:
        if self._client is not None:
            with suppress(Exception):  # where the connection is away, there is nothing to say
                await self._client.close()

    async def _on_error(self, error: Exception) -> None:
        self.last_error = str(error) or type(error).__name__

    async def _on_disconnected(self) -> None:
        if self._client is not None and not self._client.is_closed:
            log.warning("the connection to %s is lost; it is tried again", self.place)
            self._tell(f"{self.place} cannot be reached")

    async def _on_reconnected(self) -> None:
        log.info("connected to %s again", self.place)
        self._tell("")

    def _tell(self, problem: str) -> None:
        for told in tuple(self.on_away):
            told(problem)


async def _ignore(_: Exception) -> None:
    """Leave out an error of a connection that is made again by itself."""
