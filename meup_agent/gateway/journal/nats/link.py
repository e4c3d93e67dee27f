"""The connection to NATS, in a thread with a loop of its own.

The gateway's loop hands work over and is called back; only while a gateway starts does it wait. So
a start may read a long log, and a network that hangs holds up nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.request import ProxyHandler, build_opener

import anyio
import anyio.to_thread

from meup_agent.errors import ConfigurationError, system_reason

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from meup_agent.gateway.config import NatsConfig

try:
    from nats import errors as nats_errors
    from nats.aio.client import Client
    from nats.aio.transport import TcpTransport
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"journal.nats needs {error.name}, not installed here; run: pip install 'meup-agent[nats]'"
    ) from None

# --- a client of NATS: how it connects, what it sends, and the answers of JetStream ---


ANSWER_SECONDS: Final = 2.0
"""For a server to answer; then what became of a message is read from the log."""

RETRY_SECONDS: Final = 0.25
"""Between two attempts to reach a server, or to have something answered."""

PENDING_BYTES: Final = 64 * 1024 * 1024
"""Bytes that wait for a connection which is away: more than one message of each of many spaces."""


AWAY: Final = (nats_errors.Error, TimeoutError, OSError)
"""A server cannot be reached, or does not answer."""


class ApiError(Exception):
    """An answer of JetStream that says no."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(description)
        self.code = code


class NoAnswer(Exception):
    """A server did not answer, or none is there: whether it did what was asked is not known."""


def why(error: Exception) -> str:
    return str(error) or type(error).__name__


def answer_in(message: Msg) -> dict[str, Any]:
    """An answer of JetStream.

    Raises:
        ApiError: It says no.
    """
    answer: dict[str, Any] = json.loads(message.data)
    if "error" in answer:
        refused = answer["error"]
        raise ApiError(int(refused.get("err_code", 0)), str(refused.get("description")))
    return answer


class NatsClient(Client):
    """A client that says who it is over TLS alone, where that is wanted, and can send at once.

    The library's goes on without TLS where the server, or who stands in for it, asks for none.
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

    async def send(self, command: bytes) -> None:
        """Send a command behind those that wait; a task of the library's would do so later."""
        await self._send_command(command)
        if self.is_connected and isinstance(self._transport, TcpTransport):
            transport: Any = self._transport
            transport.writelines(self._pending)
            self._pending, self._pending_data_size = [], 0
        else:
            await self._flush_pending()


def client_of(config: NatsConfig) -> tuple[NatsClient, dict[str, Any]]:
    """A client that is not connected, and the options with which it connects.

    Raises:
        ConfigurationError: A file that it needs cannot be used.
    """
    if config.credentials is not None and not config.credentials.is_file():
        raise ConfigurationError(f"journal.nats.credentials: there is no file {config.credentials}")
    client: Any = NatsClient()
    client.wants_tls = config.tls is not None or any(
        each.startswith("tls://") for each in config.servers
    )
    return client, {
        "servers": list(config.servers),
        "name": "meup",
        "tls": None if config.tls is None else _tls_context(config),
        "connect_timeout": ANSWER_SECONDS,
        "reconnect_time_wait": RETRY_SECONDS,
        "max_reconnect_attempts": -1,
        "ping_interval": 5,
        "pending_size": PENDING_BYTES,
        "user": config.user,
        "password": config.password,
        "user_credentials": config.credentials and str(config.credentials),
    }


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


# --- a connection on the gateway's own loop, which appends messages to streams ---
# A message and its answer are all that an envelope waits for, and neither changes threads here.
# What is not answered is settled over the :class:`~meup_agent.gateway.journal.nats.link.Link`.

SILENT_SECONDS: Final = 15.0
"""Time for which nothing is sent after a message without an answer: where this connection alone is
silent, each would wait for it, until pings have found that out."""


class _Answers(asyncio.Future["Msg"]):
    """Hands each answer over as it comes: the library has callbacks run by a task, later."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: dict[str, asyncio.Future[Msg]] = {}

    def set_result(self, message: Msg) -> None:
        """Hand an answer to who waits for it; one that comes too late is left out."""
        answer = self.wanted.get(message.subject)
        if answer is not None and not answer.done():
            answer.set_result(message)


class Publisher:
    """Appends messages to streams; used on one loop, that on which its client connects."""

    def __init__(self, client: NatsClient) -> None:
        self._client = client
        self._inbox = ""
        self._answers = _Answers()
        self._published = 0
        self._silent_until = 0.0

    async def begin(self) -> None:
        """Have answers sent here; to be called once, when the client is connected."""
        self._inbox = self._client.new_inbox()
        client: Any = self._client
        await client.subscribe(f"{self._inbox}.*", future=self._answers)

    @property
    def is_usable(self) -> bool:
        """False: it connects again by itself, was silent a moment ago, or is closed."""
        is_silent = asyncio.get_running_loop().time() < self._silent_until
        return bool(self._client.is_connected) and not is_silent

    async def publish(self, stream: str, subject: str, body: bytes, expected: int) -> int:
        """Append a message to a stream whose last one has a sequence; that of the message.

        Raises:
            ApiError: The stream refused it.
            NoAnswer: Whether it was appended is not known.
        """
        if len(body) > self._client.max_payload:
            raise NoAnswer("it takes no such message")
        headers = (
            f"NATS/1.0\r\nNats-Expected-Stream: {stream}\r\n"
            f"Nats-Expected-Last-Sequence: {expected}\r\n\r\n"
        ).encode()
        self._published += 1
        inbox = f"{self._inbox}.{self._published}"
        head = f"HPUB {subject} {inbox} {len(headers)} {len(headers) + len(body)}\r\n".encode()
        answered = asyncio.get_running_loop().create_future()
        self._answers.wanted[inbox] = answered
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._client.send(b"%b%b%b\r\n" % (head, headers, body))
                message: Msg = await answered
        except AWAY as error:
            self._silent_until = asyncio.get_running_loop().time() + SILENT_SECONDS
            raise NoAnswer(why(error)) from None
        finally:
            del self._answers.wanted[inbox]
        if not message.data:
            raise NoAnswer("no server has the stream")
        sequence: int = answer_in(message)["seq"]
        return sequence

    async def close(self) -> None:
        """Say goodbye; harmless the second time."""
        with suppress(Exception):  # where the connection is away, there is nothing to say
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._client.close()


# --- the monitoring port of a server, which tells what its clients are not told ---

MONITORING_SECONDS: Final = 2.0
"""For the monitoring port to answer."""

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Bytes of its answer that are read."""


def check_sync(address: str, server_id: str) -> None:
    """Refuse a server that does not ask its disk before it says that a message is kept; blocks.

    Args:
        address: That of its monitoring port.
        server_id: The server that is asked for.

    Raises:
        ConfigurationError: It does not, or it is another server, or it does not answer.
    """
    place = f"journal.nats.monitoring: {address}"
    try:
        # The server is at hand, whatever proxy the environment names for the rest of the world.
        opener = build_opener(ProxyHandler({}))
        with opener.open(f"{address.rstrip('/')}/varz", timeout=MONITORING_SECONDS) as answer:
            said: Any = json.loads(answer.read(MAX_ANSWER_BYTES))
            found = said["server_id"]
            is_safe = said["jetstream"]["config"].get("sync_always") is True
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{place} does not answer as the monitoring port of NATS does ({error}); correct the"
            " address, or remove the key"
        ) from None
    if found != server_id:
        raise ConfigurationError(
            f"{place} is of another server than that of journal.nats.servers; correct one of them"
        )
    if not is_safe:
        raise ConfigurationError(
            "journal.nats.replicas: of 1 copy a power cut may take what was accepted, since the"
            " server asks its disk every two minutes; set sync_interval: always under jetstream in"
            " its configuration, or replicas: 3"
        )


# --- the connection in its thread ---

END_SECONDS: Final = 2.0
"""Time for a connection to say goodbye, and for the thread to end."""

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


class Link:
    """A connection to NATS, made when it is opened, in a thread with a loop of its own."""

    def __init__(self, config: NatsConfig) -> None:
        # The library cannot use the usual loop of Windows.
        is_windows = sys.platform == "win32"
        self.loop = asyncio.SelectorEventLoop() if is_windows else asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="meup-journal-nats", daemon=True)
        self._config = config
        self.place = config.place
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
        self._thread.start()
        try:
            self.wait(self._connect())
        except BaseException:
            self.close()
            raise

    def wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Wait for a coroutine; blocks.

        Raises:
            ConfigurationError: It took longer.
        """
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except (TimeoutError, CancelledError):
            future.cancel()
            raise ConfigurationError(f"{self.place} does not answer; look at its log") from None

    def call(self, then: Callable[..., object], *arguments: object) -> None:
        """Call in the thread."""
        with suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(then, *arguments)

    def begin(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Do something in the thread, without waiting for it."""
        self.call(lambda: asyncio.ensure_future(work()))

    def close(self) -> None:
        """End the thread; blocks a moment, harmless the second time."""
        if self.loop.is_closed():
            return
        if self._thread.is_alive():
            with suppress(ConfigurationError):
                self.wait(self._end(), timeout=END_SECONDS)
            self.call(self.loop.stop)
            self._thread.join(END_SECONDS)
        if not self.loop.is_running():
            self.loop.close()

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine, on another loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def insist(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for a coroutine, begun anew while no server answers; blocks.

        Raises:
            ConfigurationError: None answered for too long.
        """
        return self.wait(self._insist(work))

    async def insisted(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait as :meth:`insist` does, on another loop."""
        return await self.do(self._insist(work))

    @property
    def server(self) -> dict[str, Any]:
        """The server's facts, as it tells them to each client."""
        facts: dict[str, Any] = self.client._server_info
        return facts

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
        deadline = self.loop.time() + INSIST_SECONDS
        while True:
            try:
                return await work()
            except (NoAnswer, nats_errors.Error, TimeoutError) as error:
                if self.loop.time() > deadline:
                    said = str(error) or "no answer"
                    raise ConfigurationError(
                        f"{self.place} does not answer ({said}); look at its log, and whether"
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
            await asyncio.to_thread(check_sync, monitoring, self.server["server_id"])

    @property
    def client(self) -> Any:
        """The client, whose library does not say all of its types."""
        assert self._client is not None, "it was opened"
        return self._client

    async def bucket(self, name: str, **made: Any) -> Any:
        """A bucket, which is made as these say if it is not there; ``None``: nothing says so."""
        from nats.js.errors import BucketNotFoundError

        jetstream = self.client.jetstream(timeout=ANSWER_SECONDS)
        try:
            return await jetstream.key_value(name)
        except BucketNotFoundError:
            if not made:
                return None
            return await jetstream.create_key_value(bucket=name, history=1, direct=False, **made)

    async def value(self, bucket: str, key: str) -> bytes | None:
        """The value of a key in a bucket; ``None``: there is none."""
        from nats.js.errors import KeyNotFoundError

        found = await self.bucket(bucket)
        with suppress(KeyNotFoundError):
            return None if found is None else (await found.get(key)).value or b""
        return None

    @property
    def max_payload(self) -> int:
        """Bytes of the largest message that the server takes."""
        return int(self.client.max_payload)

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
        except AWAY:
            return b""
        return bytes(message.data)

    async def subscribe(
        self, subject: str, then: Callable[[Msg], Coroutine[Any, Any, None]]
    ) -> Any:
        """Have what comes at a subject taken, until the subscription that is returned ends."""
        subscription = await self.client.subscribe(subject, cb=then)
        await self.client.flush(ANSWER_SECONDS)
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
        except AWAY as error:
            raise NoAnswer(why(error)) from None
        return answer_in(message)

    async def fetch(
        self, stream: str, first: int, *, count: int, max_bytes: int
    ) -> AsyncGenerator[Published]:
        """The messages of a stream from a sequence on; fewer, where they are too many bytes.

        Raises:
            NoAnswer: The server does not answer.
        """
        client, inbox = self.client, self.client.new_inbox()
        found: list[Msg] = []
        done = self.loop.create_future()

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
        except AWAY as error:
            raise NoAnswer(why(error)) from None
        finally:
            await unsubscribe(subscription)
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
            said = self.last_error or (system_reason(error) if isinstance(error, OSError) else "")
            raise ConfigurationError(
                f"journal.nats.servers: {self.place} cannot be reached"
                f" ({said or str(error) or 'no answer'}); start it, or correct the address or the"
                " user"
            ) from None
        self._client = client
        version = client.connected_server_version
        if (version.major, version.minor) < OLDEST_SERVER:
            raise ConfigurationError(
                f"journal.nats.servers: {self.place} is version {version.major}.{version.minor};"
                f" the journal needs {'.'.join(map(str, OLDEST_SERVER))} or later"
            )

    async def _end(self) -> None:
        if self._client is not None:
            with suppress(Exception):  # where the connection is away, there is nothing to say
                await self._client.close()
        tasks = asyncio.all_tasks(self.loop) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:  # a connection that is being opened is closed by its own task
            await asyncio.wait(tasks, timeout=END_SECONDS / 2)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _on_error(self, error: Exception) -> None:
        self.last_error = why(error)

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


async def unsubscribe(subscription: Any) -> None:
    """End a subscription."""
    with suppress(Exception):  # where the connection is away, there is nothing to say
        await subscription.unsubscribe()


async def _ignore(_: Exception) -> None:
    """Leave out an error of a connection that is made again by itself."""
