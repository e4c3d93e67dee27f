"""A gateway without a network: the decisions of the real one, on any loop and in virtual time."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Final

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled

from meup_agent.errors import CannotConnect, HandshakeRefused
from meup_agent.gateway.auth import UNAUTHORIZED, UNKNOWN_TOKEN, NotAdmitted, check_space
from meup_agent.gateway.config import Participants, first_token, one_space_config
from meup_agent.gateway.edge.handshake import (
    PLACE_ANSWERS,
    bearer,
    read_dialect,
    read_place,
    read_resume,
    repeats_join,
)
from meup_agent.gateway.frame_queue import TOO_SLOW, describe_overflow
from meup_agent.gateway.runtime import RESTARTING, GatewayRuntime
from meup_agent.protocol.dialects import STREAMING
from meup_agent.protocol.space.link import FrameFormat, Place
from meup_agent.transport.base import (
    ABNORMAL,
    DIALECT_HEADER,
    TOO_BIG,
    CloseInfo,
    checked_close,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from typing import Self

    from meup_agent.gateway.config import Config
    from meup_agent.gateway.limits import GatewayLimits
    from meup_agent.protocol.space.allowance import SpaceCounters
    from meup_agent.protocol.space.owner import SpaceServer
    from meup_agent.transport.base import Connector, Transport

_EPOCH: Final = round(datetime(2025, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
# The loop's clock counts from here, so that a test in virtual time sees the same times each run.


class MemorySpace:
    """A gateway in memory, to test agents with.

    It admits, decides, delivers and closes as :class:`~meup_agent.gateway.server.Gateway` does.
    A message is with every member when ``send`` returns, so a test in virtual time runs the same
    way each time. It has no tasks, and works on asyncio and trio.

    ::

        space = MemorySpace(participants={"alice": [{"kind": "chat"}]})
        async with space.connector("alice")({}) as transport:
            welcome = await anext(transport)

    Args:
        space: The id of its one space.
        participants: Participants that may join, and their capabilities; each gets a random token.
        config: A whole configuration, in place of these two.
        limits: Its limits, where no ``config`` says them.

    Raises:
        ConfigurationError: A participant's id cannot be one.
        InvalidPattern: A capability does not compile.
    """

    def __init__(
        self,
        space: str = "demo",
        *,
        participants: Participants | None = None,
        config: Config | None = None,
        limits: GatewayLimits | None = None,
    ) -> None:
        self._config = config or one_space_config(space, participants or {}, limits)
        self._ids = count(1)
        self._connections: list[_MemoryConnection] = []
        self._earliest = 0
        self._start()

    @property
    def counters(self) -> SpaceCounters:
        """Counters since it was made, or was restarted."""
        return self._runtime.counters

    def token(self, participant: str, space: str | None = None) -> str:
        """A token of a participant.

        Args:
            participant: Whose.
            space: In which space; the first one by default.

        Raises:
            KeyError: There is no such participant, or it has no token.
        """
        return first_token(self._config, participant, space)

    def connector(self, participant: str | None = None, space: str | None = None) -> Connector:
        """A way to dial this gateway.

        Args:
            participant: The participant, where the handshake has no ``Authorization`` header.
            space: The space to join; the first one by default.
        """
        asked = self._config.spaces[0].id if space is None else space

        @asynccontextmanager
        async def dial(headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
            await checkpoint_if_cancelled()
            connection = self._admit(headers, participant, asked)
            try:
                yield connection
            finally:
                await connection.aclose()
                connection.discard()

        return dial

    def drop(self, participant: str) -> None:
        """Drop a participant's connection, in whatever space it is, without a close frame."""
        for connection in self._connections:
            if connection.participant == participant:
                connection.lose()
        self.settle()

    def kill(self) -> None:
        """Drop every connection without a close frame, and refuse new ones."""
        self._running = False
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.lose()

    def restart(self) -> None:
        """Begin anew, having forgotten everything; kills it first if it runs."""
        self.kill()
        # Where no time passes, numbers would be given out twice.
        spaces = self._runtime.spaces.values()
        self._earliest = 1 + max(each.journal.latest(each.name) for each in spaces)
        self._start()

    def stop(self) -> None:
        """Close every connection with 1012, and refuse new ones."""
        self._running = False
        self._runtime.close(RESTARTING, "the gateway stops; connect again")
        self._connections.clear()

    def settle(self) -> None:
        """Take out of their spaces those whose connection has ended, and tell the others."""
        while ended := [each for each in self._connections if each.closed]:
            self._connections = [each for each in self._connections if not each.closed]
            for each in ended:
                each.host.leave(each)
        for host in self._runtime.spaces.values():
            host.owner.expire()

    def _start(self) -> None:
        self._runtime = GatewayRuntime(
            self._config, new_id=lambda: f"gateway-{next(self._ids)}", now=self._now
        )
        self._running = True

    def _now(self) -> int:
        try:
            now = _EPOCH + round(anyio.current_time() * 1_000_000)
        except anyio.NoEventLoopError:  # made before the loop runs
            now = _EPOCH
        return max(now, self._earliest)

    def _admit(
        self, headers: Mapping[str, str], participant: str | None, space: str
    ) -> _MemoryConnection:
        """Decide about a handshake."""
        if not self._running:
            raise CannotConnect("there is no gateway here now; restart it")
        said = {name.lower(): value for name, value in headers.items()}

        def header(name: str) -> str | None:
            return said.get(name.lower())

        try:
            dialect = read_dialect(header(DIALECT_HEADER))
            resumes, last_seen, acked = read_resume(header)
            place = read_place(header)
            if "authorization" in said:
                token = bearer(said["authorization"])
            elif participant is not None:
                token = self.token(participant, space)
            else:
                raise NotAdmitted(UNAUTHORIZED, "the handshake has no Authorization header")
            identity = self._runtime.tokens.identify(token)
            if identity is None:
                raise NotAdmitted(UNAUTHORIZED, UNKNOWN_TOKEN)
            check_space(identity, space, self._runtime.spaces)
            self._runtime.check_members(identity, place)
            dialect = dialect or self._runtime.dialect(identity)
        except NotAdmitted as refused:
            self.counters.not_admitted[refused.status] += 1
            wait = refused.retry_after
            raise HandshakeRefused(refused.status, wait, body=str(refused)) from None
        host = self._runtime.spaces[space]
        frames = bytes if dialect in STREAMING else None
        form = FrameFormat(dialect, resumes, acked, pack_frame=frames)
        connection = _MemoryConnection(
            self, host, identity.participant, form, last_seen, self._config.limits, place
        )
        self._connections.append(connection)
        host.join(connection)
        self.settle()
        return connection


@dataclass(eq=False)
class _MemoryConnection:
    """Both ends of one connection: a member of the space, and the transport of its participant."""

    _space: MemorySpace
    host: SpaceServer
    participant: str
    form: FrameFormat
    last_seen: int | None
    _limits: GatewayLimits
    place: Place
    closed: CloseInfo | None = None
    _first: bool = True
    _unread_bytes: int = 0
    _then: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        answered = {DIALECT_HEADER: self.form.dialect, **PLACE_ANSWERS[self.place]}
        self.response_headers = {name.lower(): value for name, value in answered.items()}
        self._inbox, self._unread = anyio.create_memory_object_stream[bytes](
            self._limits.max_queued_frames
        )

    # --- the gateway's end ------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        return bool(self._unread.statistics().current_buffer_used)

    def deliver(self, packed: bytes) -> None:
        if self.closed:
            return
        self._unread_bytes += len(packed)
        try:
            if self._unread_bytes > self._limits.max_queued_bytes:
                raise anyio.WouldBlock
            self._inbox.send_nowait(packed)
        except anyio.WouldBlock:
            waiting = self._unread.statistics().current_buffer_used + 1
            _, why = describe_overflow(self._limits, waiting)
            self.close(TOO_SLOW, f"you read too slowly: {why}; connect again")

    def ready(self, then: Callable[[], None]) -> None:
        self._then = then
        self._go_on()

    def _go_on(self) -> None:
        if self._then is not None and not self.paused:
            then, self._then = self._then, None
            if not self.closed:
                then()

    def close(self, code: int, reason: str) -> None:
        if not self.closed:
            self.host.counters.closed[code] += 1
            self._end(CloseInfo(code, reason))

    def lose(self) -> None:
        """End without a close frame; what was not read is lost."""
        if not self.closed:
            while self.paused:
                self._unread.receive_nowait()
            self._end(CloseInfo(ABNORMAL))

    def discard(self) -> None:
        self._unread.close()

    def _end(self, info: CloseInfo) -> None:
        self.closed = info
        self._inbox.close()

    # --- the participant's end --------------------------------------------------------------

    async def send(self, frame: bytes) -> None:
        await checkpoint_if_cancelled()
        if self.closed is not None:
            raise self.closed.error()
        first, self._first = self._first, False
        most, wait = self._limits.max_message_bytes, 0.0
        if first and repeats_join(frame, self.participant, self.host.name):
            pass  # the handshake has said it all
        elif len(frame) > most:
            message = f"a message may have at most {most} bytes"
            self.host.refuse_frame(self, "too_large", message, limit="max_message_bytes", max=most)
            self.close(TOO_BIG, message)
        else:
            wait = self.host.receive(self, frame)
        self._space.settle()
        if not wait:
            await cancel_shielded_checkpoint()
            return
        # A socket would take no more for so long; shielded, since the frame is on its way.
        with anyio.CancelScope(shield=True):
            await anyio.sleep(wait)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            frame = await self._unread.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise StopAsyncIteration from None
        self._unread_bytes -= len(frame)
        self._go_on()
        return frame

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        info = checked_close(code, reason)
        if not self.closed:
            self._end(info)
            self._space.settle()

    async def abort(self) -> None:
        self.lose()
        self._space.settle()
