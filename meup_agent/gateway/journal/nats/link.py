"""The connection to NATS, in a thread with a loop of its own.

The gateway's loop hands work over and is called back; only while a gateway starts does it wait. So
a start may read a long log, and a network that hangs holds up nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.gateway.journal.loop_thread import LoopThread
from meup_agent.gateway.journal.nats.monitoring import check_sync

try:
    from nats import errors as nats_errors
    from nats.aio.client import Client
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"journal.nats needs {error.name}, not installed here; run: pip install 'meup-agent[nats]'"
    ) from None

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from meup_agent.gateway.config import NatsConfig

log = logging.getLogger("meup_agent.gateway")

CONNECT_SECONDS: Final = 10.0
"""For a gateway that starts to reach one of its servers; one that runs tries without end."""

ANSWER_SECONDS: Final = 2.0
"""For a server to answer; then what became of a message is read from the log."""

INSIST_SECONDS: Final = 30.0
"""For a gateway that starts: servers that have lost one of them agree on a leader first."""

READ_SECONDS: Final = 10.0
"""For a page of messages, some mebibytes."""

RETRY_SECONDS: Final = 0.25
"""Between two attempts to reach a server, or to have something answered."""

OLDEST_SERVER: Final = (2, 11)
"""The first whose streams hand over many messages for one question."""

PENDING_BYTES: Final = 64 * 1024 * 1024
"""Bytes that wait for a connection which is away: more than one message of each of many spaces."""

T = TypeVar("T")


class ApiError(Exception):
    """An answer of JetStream that says no."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(description)
        self.code = code


class NoAnswer(Exception):
    """A server did not answer, or none is there: whether it did what was asked is not known."""


class Published(NamedTuple):
    """A message that a stream holds."""

    sequence: int
    body: bytes


class _Client(Client):
    """A client that says who it is over TLS alone, where that is wanted.

    The library's goes on without where the server, or who stands in for it, asks for none.
    """

    wants_tls = False

    def _connect_command(self) -> bytes:
        if self.wants_tls and not self._server_info.get("tls_required"):
            raise nats_errors.Error("it does not ask for TLS")
        return super()._connect_command()

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        # As a server writes them. The library's own takes half the time of reading a long log.
        lines = raw.decode(errors="replace").split("\r\n")
        return dict([line.split(": ", 1) for line in lines if ": " in line])


class Link(LoopThread):
    """A connection to NATS, made when it is opened; every call of another thread is said so."""

    def __init__(self, config: NatsConfig) -> None:
        super().__init__("nats")
        self._config = config
        self.on_away: set[Callable[[str], None]] = set()
        """Told, in its thread, why the servers cannot be reached, or empty: they can again."""
        self._client: Client | None = None
        self.last_error = ""
        """The last refusal of a server, for people; set in its thread."""

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
    def client(self) -> Client:
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
        answer = await self._ask(subject, body, headers)
        sequence: int = answer["seq"]
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
        answer: dict[str, Any] = json.loads(message.data)
        if "error" in answer:
            refused = answer["error"]
            raise ApiError(int(refused.get("err_code", 0)), str(refused.get("description")))
        return answer

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
        config = self._config
        context = None if config.tls is None else _tls_context(config)
        options: dict[str, Any] = {}
        if config.user is not None:
            options |= {"user": config.user, "password": config.password}
        if config.credentials is not None:
            if not config.credentials.is_file():
                raise ConfigurationError(
                    f"journal.nats.credentials: there is no file {config.credentials}"
                )
            options["user_credentials"] = str(config.credentials)
        client: Any = _Client()
        client.wants_tls = config.tls is not None or any(
            each.startswith("tls://") for each in config.servers
        )
        connecting = client.connect(
            list(config.servers),
            name="meup",
            tls=context,
            connect_timeout=ANSWER_SECONDS,
            reconnect_time_wait=RETRY_SECONDS,
            max_reconnect_attempts=-1,
            ping_interval=5,
            pending_size=PENDING_BYTES,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            **options,
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


def _tls_context(config: NatsConfig) -> ssl.SSLContext:
    tls = config.tls
    assert tls is not None, "it was asked before"
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"journal.nats.tls: a file cannot be used ({error})") from None
    return context
