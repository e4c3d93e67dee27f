"""The connection to one MCP server: started, spoken with, subscribed, started again.

Older servers are told of each resource once for all who want it; newer ones by the one stream of
notifications that the bridge listens to, which is opened anew when the resources change.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import mcp_types as types
from anyio import to_thread
from mcp.client import Client, ClientRequestContext, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from meup_agent.agent.tool import own_version
from meup_agent.causes import Reason
from meup_agent.errors import MeupError, RequestError, leaves_of, printable
from meup_agent.mcp.bridge.config import HttpServer, Server
from meup_agent.mcp.bridge.sign_in import SIGN_IN_SECONDS, sign_in_at
from meup_agent.mcp.bridge.transports import ServerMonitor, ServerStarter, connect
from meup_agent.mcp.sdk.messages import (
    ANSWERS,
    ELICITATION,
    ROOTS,
    SAMPLING,
    RawResult,
    as_json,
    first_problem,
    mcp_error,
)
from meup_agent.processes.guarded import (
    RESTART,
    FailedRun,
    LineLimiter,
    RepeatedLines,
    StderrTail,
    keep_running,
)
from meup_agent.protocol.wire import payloads
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.dispatcher import ProgressFnT

    from meup_agent.protocol.wire.payloads import JsonObject
    from meup_agent.session.settings import Backoff


# --- the connection to one MCP server ---
# Started, spoken with, and started again when it ends.

log = logging.getLogger("meup_agent.mcp")

START_SECONDS: Final = 120.0
"""Seconds from the start of a server to the end of its handshake: the first start of one may fetch
its packages."""

OLDER_SECONDS: Final = 7 * 86_400.0
"""Seconds for which a server is known to be an older one; then it may have been replaced."""

STOP_SECONDS: Final = 10.0
"""Seconds that the end of a connection may take: the SDK gives a server four to end by itself."""

READY_SECONDS: Final = 5.0
"""Seconds that a request waits for a server that is being started again."""

MAX_ERROR_CHARS: Final = 2_000
"""Characters of a server's words in an error of ours."""

LOG_LEVELS: Final[dict[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL,
    "emergency": logging.CRITICAL,
}
"""Levels of a server's messages, and ours."""


class ServerGone(MeupError):
    """A server ended, or could not be started.

    Attributes:
        why: The reason in words.
        stderr: The last lines of its standard error, safe to print.
    """

    def __init__(self, server: str, why: str, stderr: list[str]) -> None:
        super().__init__(f"the MCP server {server!r} {why}")
        self.why = why
        self.stderr = stderr

    def __str__(self) -> str:
        """The reason, with the last lines."""
        said = super().__str__()
        if not self.stderr:
            return said
        lines = "\n".join(f"  | {line}" for line in self.stderr)
        return f"{said}; the last lines of its standard error:\n{lines}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Callbacks of a connection, to its owner.

    Attributes:
        connected: Awaited after each handshake; the connection is used when it has returned.
        beside: Runs as long as the connection is used, and is cancelled at its end.
        lost: Told that the server has gone, and in how many seconds it is started again.
        notified: Told of a notification of the server; returns at once.
        logged: Told of a log message of the server, as JSON values, at a bounded pace; returns at
            once.
        asked: Answers a question of the server: its method and parameters; may raise RequestError.
        clean: Takes what is unusable out of the result of a ``tools/list``.
    """

    connected: Callable[[], Awaitable[None]]
    beside: Callable[[], Coroutine[Any, Any, None]]
    lost: Callable[[ServerGone, float], Awaitable[None]]
    notified: Callable[[types.ServerNotification], None]
    logged: Callable[[JsonObject], None]
    asked: Callable[[str, JsonObject], Awaitable[JsonObject]]
    clean: Callable[[JsonObject], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Limits of a connection.

    Attributes:
        log_level: The least level of the messages that the server is asked for.
        start_seconds: Seconds until its handshake must be over.
        mode: ``auto``: the newest revision that both know; ``legacy``: one with a handshake, up to
            2025-11-25; or the newer revision itself, which is then not asked for.
        restart: Pauses before it is started again.
        sign_in_folder: The folder in which sign-ins at servers behind an address are kept;
            ``None``: one that asks for a sign-in cannot be spoken with.
        older_folder: The folder in which is kept which programs end at the question that only newer
            servers know; ``None``: each start asks it.
        open_link: Shows the link of a sign-in to a person, in place of the log.
    """

    log_level: types.LoggingLevel = "info"
    start_seconds: float = START_SECONDS
    mode: str = "auto"
    restart: Backoff = RESTART
    sign_in_folder: Path | None = None
    older_folder: Path | None = None
    open_link: Callable[[str], object] | None = None


def busy(said: str) -> RequestError:
    """The answer to a request that may be sent again later."""
    return RequestError(payloads.EXCHANGE_ERROR, said, {"reason": str(Reason.BUSY)})


class ServerConnection:
    """One MCP server, which runs for the length of :meth:`running`.

    Args:
        name: Its name, for the log and for errors.
        server: How to reach it.
        callbacks: The owner's.
        settings: Its limits.
        starter: Starts its program, if it has one, and may have done so before.
    """

    _traffic: ServerMonitor  # of the connection that was made last

    def __init__(
        self,
        name: str,
        server: Server,
        callbacks: Callbacks,
        settings: ConnectionSettings | None = None,
        starter: ServerStarter | None = None,
    ) -> None:
        self.name = name
        self._server = server
        self._starter = starter
        self._repeated = RepeatedLines() if starter is None else starter.repeated
        self._callbacks = callbacks
        self._settings = settings or ConnectionSettings()
        self._mode = self._settings.mode
        self._older = _older_note(server, self._settings)
        self._noted = False  # the mode is what is noted of an earlier start
        self._client: Client | None = None
        self._auth: OAuthClientProvider | None = None
        self._ready = anyio.Event()
        self._ended = anyio.Event()
        self._gone = anyio.Event()
        self._error: ServerGone | None = None
        self._leaving = anyio.Event()
        self._limiter = LineLimiter(
            lambda text, level: log.log(level, "%s: %s", name, printable(text))
        )

    # --- what the owner asks ---

    @property
    def client(self) -> Client:
        """The SDK's client.

        Raises:
            RequestError: There is no connection at this moment.
        """
        if self._client is None:
            raise self._busy()
        return self._client

    def _busy(self) -> RequestError:
        why = f"; before: {self._error.why}" if self._error is not None else ""
        return busy(f"the MCP server {self.name!r} is not running; it is started again{why}")

    async def wait_ready(self) -> None:
        """Wait a moment for a server that is being started again.

        Raises:
            RequestError: There is no connection after that, either.
        """
        with anyio.move_on_after(READY_SECONDS):
            await self._ready.wait()
        if not self._ready.is_set():  # its tools may be others now, and are not known yet
            raise self._busy()

    @property
    def is_modern(self) -> bool:
        """True for revisions in which each request stands for itself."""
        return self.client.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def closes_streams(self) -> bool:
        # Also asked while there is no connection, of a call that is cancelled for want of one.
        is_connected = self._client is not None
        return is_connected and isinstance(self._server, HttpServer) and self.is_modern

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """The block in which the server runs; entered once it has been spoken with.

        Raises:
            ServerGone: It could not be started the first time.
        """
        async with background_tasks() as tasks:
            await tasks.start(self._run)
            try:
                yield
            finally:
                self._leaving.set()
                self._ended.set()
                with anyio.move_on_after(STOP_SECONDS, shield=True):
                    await self._gone.wait()

    async def request(
        self,
        method: str,
        params: JsonObject,
        on_progress: ProgressFnT | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> JsonObject:
        """Send a request; the result as the server gave it. A cancelled caller cancels it there.

        What it may send is checked anew where the server was started again meanwhile.

        Raises:
            RequestError: The server answered with an error, or with what is not such a result.
            ServerGone: It ended.
        """
        try:
            return await self._request(method, params, on_progress)
        except SessionForgotten:
            # A server behind an address that was started again knows no older session.
            self._ended.set()
            with anyio.move_on_after(STOP_SECONDS):
                await self._gone.wait()
            await self.wait_ready()
            check()
            return await self._request(method, params, on_progress)

    async def _request(
        self, method: str, params: JsonObject, on_progress: ProgressFnT | None
    ) -> JsonObject:
        gone, session = self._gone, self.client.session
        request = types.Request[dict[str, Any], str](method=method, params=params)
        try:
            result = await session.send_request(request, RawResult, progress_callback=on_progress)
        except MCPError as error:
            # Over HTTP a server says so of a session that it does not know.
            if self._traffic.session_lost and error.code == types.INVALID_REQUEST:
                raise SessionForgotten(error.code, error.message) from None
            # The SDK's word of a connection that has ended; servers have the code, too.
            if error.code == types.CONNECTION_CLOSED and error.message == "Connection closed":
                # Its last words are read first.
                with anyio.move_on_after(STOP_SECONDS):
                    await gone.wait()
                if gone.is_set() and self._error is not None:
                    raise self._error from None
            message = error.message[:MAX_ERROR_CHARS]
            # An integer that no double holds is refused on its way, and the caller would wait.
            code = error.code if abs(error.code) < 2**53 else payloads.INTERNAL_ERROR
            raise RequestError(code, message, error.data) from None
        except ValidationError as error:
            raise RequestError(
                payloads.INTERNAL_ERROR,
                f"the MCP server {self.name!r} answered {method} with no valid result:"
                f" {first_problem(error)}",
            ) from None
        return result.root

    # --- the server's life ---

    async def _run(self, *, task_status: TaskStatus[None]) -> None:
        first = True

        if self._older is not None and await to_thread.run_sync(_is_fresh, self._older):
            self._mode, self._noted = "legacy", True

        async def connected() -> None:
            nonlocal first
            await self._callbacks.connected()
            if first:
                first = False
                task_status.started()

        async def run_once() -> FailedRun:
            self._ended, self._gone = anyio.Event(), anyio.Event()
            self._error = await self._connect_once(connected)
            if first and not self._leaving.is_set():
                self._gone.set()
                raise self._error
            return FailedRun(self._error.why, self._error.stderr)

        async def failed(failure: FailedRun, delay: float) -> None:
            said = failure.said
            log.warning(
                "%s %s; it is started again in %.1f s%s", self.name, failure.why, delay, said
            )
            self._gone.set()
            assert self._error is not None
            await self._callbacks.lost(self._error, delay)

        await keep_running(run_once, failed, self._leaving, self._settings.restart)
        self._gone.set()

    async def _connect_once(self, connected: Callable[[], Awaitable[None]]) -> ServerGone:
        """One start of the server until its end; the reason of the end."""
        tail = StderrTail(self.name, repeated=self._repeated)
        self._traffic = ServerMonitor(self._ended.set, self._callbacks.clean)
        shaken = False
        why = "ended"
        start_seconds = self._settings.start_seconds
        try:
            if await self._sign_in() is not None:
                start_seconds += SIGN_IN_SECONDS  # a person may have to
            with anyio.move_on_after(start_seconds) as scope:
                async with self._build_client(tail) as client:
                    self._client, shaken = client, True
                    tail.log_all()
                    try:
                        await self._note_older()
                        await self._ask_for_log()
                        await connected()
                        scope.deadline = float("inf")
                        self._ready.set()
                        async with background_tasks() as tasks:
                            tasks.start_soon(self._callbacks.beside)
                            await self._ended.wait()
                    finally:
                        self._forget_client()
                        scope.deadline = anyio.current_time() + STOP_SECONDS
            if scope.cancelled_caught and not self._ended.is_set():
                why = f"did not answer in {start_seconds:g} s"
        except MeupError as error:
            why = f"cannot be spoken with: {error}"
        except Exception as error:
            why = self._describe(error)
        if not shaken and not self._leaving.is_set() and await self._changes_mode():
            self._ended = anyio.Event()
            return await self._connect_once(connected)
        # Over HTTP the transport's end hides why we ended it.
        return ServerGone(self.name, self._traffic.excess or why, tail.lines)

    async def _changes_mode(self) -> bool:
        """True if a server that did not come to a handshake is started anew to be asked otherwise.

        Some old servers end at the question that only newer ones know.
        """
        if self._noted:
            assert self._older is not None, "it was noted there"
            self._mode, self._noted = self._settings.mode, False
            with suppress(OSError):
                await to_thread.run_sync(partial(self._older.unlink, missing_ok=True))
            self._log_once("started anew, and asked as a newer one, too")
            return True
        if self._mode == "auto" and self._ended.is_set():
            self._mode = "legacy"
            self._log_once("ended before it answered; started anew, and asked as an older one")
            return True
        return False

    def _log_once(self, text: str) -> None:
        """Log what is so at each start."""
        if self._repeated.is_new(text):
            log.info("%s: %s", self.name, text)

    async def _note_older(self) -> None:
        """Note that an older server answered only when it was asked as one."""
        if self._older is None or self._noted or self._mode != "legacy":
            return
        self._noted = True
        try:
            await to_thread.run_sync(_note, self._older)
        except OSError as error:
            log.debug("%s: that it is an older one is not kept: %s", self.name, error)

    async def _sign_in(self) -> OAuthClientProvider | None:
        """The OAuth client for the server; ``None``: it is no server that may ask for a sign-in."""
        server, folder = self._server, self._settings.sign_in_folder
        if folder is None or not isinstance(server, HttpServer) or not server.may_sign_in:
            return None
        if self._auth is None:
            self._auth = await sign_in_at(self.name, server, folder, self._settings.open_link)
        return self._auth

    def _build_client(self, tail: StderrTail) -> Client:
        return Client(
            connect(self._server, self._traffic, tail, self._starter, self._auth),
            mode=self._mode,
            cache=None,
            log_level=self._settings.log_level,
            logging_callback=self._receive_message,
            message_handler=self._receive,
            elicitation_callback=partial(self._ask, ELICITATION),
            sampling_callback=partial(self._ask, SAMPLING),
            list_roots_callback=partial(self._ask, ROOTS),
            client_info=types.Implementation(name="meup-bridge", version=own_version()),
        )

    async def _ask_for_log(self) -> None:
        """Ask an older server for its messages: newer ones are asked with each request."""
        if self.is_modern or self.client.server_capabilities.logging is None:
            return
        try:
            await self.request("logging/setLevel", {"level": self._settings.log_level})
        except RequestError as error:
            log.debug("%s sets no log level: %s", self.name, error)

    def _forget_client(self) -> None:
        self._client = None
        if self._ready.is_set():
            # Requests that wait for the next connection wait for one event.
            self._ready = anyio.Event()

    def _describe(self, error: BaseException) -> str:
        """The reason for which a connection ended, in words."""
        error = next(leaves_of(error))
        if isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED:
            return "ended before it answered"
        if isinstance(error, MeupError):
            return str(error)
        said = printable(str(error))[:MAX_ERROR_CHARS] or type(error).__name__
        return f"cannot be spoken with: {said}"

    # --- what the server says ---

    async def _receive(self, message: IncomingMessage) -> None:
        if isinstance(message, Exception):
            # What is not a message of MCP: old servers print to their standard output.
            why = first_problem(message) if isinstance(message, ValidationError) else str(message)
            self._limiter.line(f"sent what is not a message: {why[:200]}")
        else:
            self._callbacks.notified(message)

    async def _receive_message(self, params: types.LoggingMessageNotificationParams) -> None:
        said = params.data if isinstance(params.data, str) else json.dumps(params.data, default=str)
        source = f"{params.logger}: " if params.logger else ""
        level = LOG_LEVELS.get(params.level, logging.INFO)
        if self._limiter.line(f"{source}{said}"[:MAX_ERROR_CHARS], level):
            short = len(said) <= MAX_ERROR_CHARS
            data = params.data if short else said[:MAX_ERROR_CHARS]
            self._callbacks.logged({**as_json(params), "data": data})

    # --- what the server asks ---

    async def _ask(self, method: str, context: ClientRequestContext, params: object = None) -> Any:
        try:
            asked = self._traffic.take_asked(context.request_id)
            answer = await self._callbacks.asked(method, asked)
            return ANSWERS[method].validate_python(answer)
        except RequestError as error:
            log.info("%s asked for %s, and got an error: %s", self.name, method, error)
            return mcp_error(error).error
        except ValidationError as error:
            return types.ErrorData(
                code=payloads.INTERNAL_ERROR,
                message=f"the answer to {method} is not a valid one: {first_problem(error)}",
            )


class SessionForgotten(RequestError):
    """The server knows the session no longer, and has not looked at the request."""


# --- subscriptions ---

MAX_SUBSCRIPTIONS: Final = 1_000
"""Resources of a server that are watched, times the participants that do."""

MAX_URI_CHARS: Final = 2_048
"""Characters of a URI that is remembered."""

LISTEN_AGAIN_SECONDS: Final = 5.0
"""Pause before a stream of notifications that was lost is opened again."""


class Subscriptions:
    """The resources of a server that participants watch.

    Args:
        connection: The connection to the server.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._watchers: dict[str, set[str]] = {}
        self._listening: anyio.CancelScope | None = None  # for these resources

    def watchers(self, uri: str) -> tuple[str, ...]:
        """The participants that watch a resource, or what it is a part of."""
        found: set[str] = set()
        for watched, names in self._watchers.items():
            if uri == watched or uri.startswith(f"{watched.rstrip('/')}/"):
                found |= names
        return tuple(sorted(found))

    async def subscribe(self, participant: str, uri: str) -> None:
        """Let a participant watch a resource.

        Raises:
            RequestError: The server does not allow it, or there are too many.
        """
        if not uri or len(uri) > MAX_URI_CHARS:
            raise RequestError(
                payloads.INVALID_PARAMS, "a subscription needs the URI of a resource"
            )
        names = self._watchers.get(uri, set())
        if participant in names:
            return
        if sum(map(len, self._watchers.values())) >= MAX_SUBSCRIPTIONS:
            raise busy("too many resources are watched")
        if not names and not self._connection.is_modern:
            await self._connection.request("resources/subscribe", {"uri": uri})
        self._watchers.setdefault(uri, set()).add(participant)
        self._listen_anew()

    async def unsubscribe(self, participant: str, uri: str) -> None:
        """Let a participant no longer watch a resource.

        Raises:
            RequestError: The server answered with an error.
        """
        names = self._watchers.get(uri, set())
        names.discard(participant)
        if not names and self._watchers.pop(uri, None) is not None:
            self._listen_anew()
            if not self._connection.is_modern:
                await self._connection.request("resources/unsubscribe", {"uri": uri})

    async def drop(self, participant: str) -> None:
        """Forget a participant that left."""
        for uri in [uri for uri, names in self._watchers.items() if participant in names]:
            try:
                await self.unsubscribe(participant, uri)
            except RequestError as error:
                log.debug("%s: %s", self._connection.name, error)

    async def renew(self) -> None:
        """Tell a server that was started again of the resources that are watched."""
        if self._connection.is_modern:
            return
        for uri in list(self._watchers):
            try:
                await self._connection.request("resources/subscribe", {"uri": uri})
            except RequestError as error:
                log.warning("%s: %r is not watched: %s", self._connection.name, uri, error)

    async def listen(self, client: Client) -> None:
        """Keep the stream of notifications of a newer server open, until cancelled."""
        capabilities = client.server_capabilities
        wanted = {
            f"{kind}_list_changed": bool(
                getattr(getattr(capabilities, kind), "list_changed", False)
            )
            for kind in ("tools", "prompts", "resources")
        }
        while True:
            with anyio.CancelScope() as self._listening:
                await self._listen_once(client, wanted)

    def _listen_anew(self) -> None:
        if self._listening is not None:
            self._listening.cancel()

    async def _listen_once(self, client: Client, wanted: dict[str, bool]) -> None:
        uris = list(self._watchers)
        if not uris and not any(wanted.values()):
            await anyio.sleep_forever()
        try:
            async with client.listen(**wanted, resource_subscriptions=uris) as stream:
                # Each event also comes to the session's handler, as in older revisions.
                async for _ in stream:
                    pass
        except SubscriptionLost:
            pass
        except MCPError as error:
            said = printable(str(error))[:200]
            log.info("%s has no stream of notifications: %s", self._connection.name, said)
            await anyio.sleep_forever()
        await anyio.sleep(LISTEN_AGAIN_SECONDS)


# --- servers that are known to be older ones ---


def _older_note(server: Server, settings: ConnectionSettings) -> Path | None:
    """The file whose presence says that a program is an older server; ``None``: none is kept."""
    if settings.older_folder is None or settings.mode != "auto" or isinstance(server, HttpServer):
        return None
    known = json.dumps([server.command, *server.args, str(server.cwd or Path.cwd())])
    return settings.older_folder / hashlib.sha256(known.encode("utf-8", "replace")).hexdigest()[:32]


def _is_fresh(note: Path) -> bool:
    with suppress(OSError):
        return 0 <= time.time() - note.stat().st_mtime < OLDER_SECONDS
    return False


def _note(note: Path) -> None:
    note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    note.touch(mode=0o600)
