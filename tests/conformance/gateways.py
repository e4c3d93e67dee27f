"""The two existing gateways as servers that a test scripts: `meup/v0.2` and `mew/v0.4`.

`ExistingGateway(MEUP_V02, tokens=…, capabilities=…).in_thread()` serves on a loop in a thread of
its own, so that tests on any loop can use it. Its methods are called from the test's thread and
return when what they ask for has been done. Those that wait for something that the test's own loop
has to do first (`wait_…`) are to be called in a worker thread: `await to_thread.run_sync(…)`.
"""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed

from tests.conformance.matcher import Json
from tests.conformance.spaces import Spaces, now
from tests.conformance.versions import MEUP_V02, MEW_V04, Version
from tests.patience import PATIENCE
from tests.transport.peers import in_thread

__all__ = ["MEUP_V02", "MEW_V04", "ExistingGateway", "Heard", "Version"]

# What their WebSocket library takes by default.
LARGEST_FRAME = 100 * 2**20

T = TypeVar("T")
P = ParamSpec("P")
G = TypeVar("G", bound="ExistingGateway")


def in_loop(
    work: Callable[Concatenate[G, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[G, P], T]:
    """Run a method in the gateway's loop, and wait for it in the calling thread."""

    def do(self: G, /, *args: P.args, **kwargs: P.kwargs) -> T:
        assert self.loop is not None, "the gateway does not serve; enter in_thread() first"
        future = asyncio.run_coroutine_threadsafe(work(self, *args, **kwargs), self.loop)
        return future.result(PATIENCE * 2)

    return do


@dataclass(frozen=True, slots=True)
class Heard:
    """One frame from a client, noted together with everything that it caused.

    Attributes:
        who: the participant of its socket, the join frame's included; None before any join.
        frame: its JSON, or the text or bytes where it held none.
        connection: which of the connections since the start, from 1 on.
    """

    who: str | None
    frame: Any
    connection: int


class Socket:
    """One connection, and what the gateway thinks of it."""

    def __init__(self, connection: ServerConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.participant: str | None = None
        self.space: str | None = None
        # Neither reads nor writes: what a half-open connection looks like from the other end.
        self.stalled = False
        # The gateway shall not notice that the connection has ended, until released.
        self.held = False
        self.ended = asyncio.Event()

    def write(self, data: str | bytes) -> None:
        # Never waits for the reader, and writes nothing to a connection that has ended.
        if not self.stalled:
            broadcast([self.connection], data)

    def abort(self) -> None:
        self.connection.transport.abort()


class ExistingGateway:
    """A gateway that behaves as those that exist do; PROTOCOL 2 lists how.

    Args:
        version: `MEUP_V02` or `MEW_V04`.
        tokens: token to participant. Any token admits any name; it decides the capabilities.
        capabilities: participant to capabilities, for the holder of that participant's token.
        defaults: the capabilities of everybody else.
        space: the space of those whose join frame names none.
    """

    def __init__(
        self,
        version: Version,
        *,
        tokens: Mapping[str, str] | None = None,
        capabilities: Mapping[str, Sequence[Json]] | None = None,
        defaults: Sequence[Json] = ({"kind": "chat"},),
        space: str = "default",
    ) -> None:
        self.version = version
        held = {name: list(one) for name, one in (capabilities or {}).items()}
        self._spaces = Spaces(version, dict(tokens or {}), held, list(defaults), home=space)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._sockets: list[Socket] = []
        self._numbers = 0
        self._grants = 0
        # By participant: the socket that `hold_close` or `stall` was last told of.
        self._old: dict[str, Socket] = {}
        self._release_on_join: set[str] = set()
        self._news = threading.Condition()
        self._frames: list[Heard] = []
        self._joins: Counter[str] = Counter()
        self._ends = 0
        self.port = 0

    @contextmanager
    def in_thread(self) -> Generator[Self]:
        """Serves until the block ends; then every socket is gone, without a close frame."""
        loop = asyncio.new_event_loop()
        self.loop = loop
        with in_thread(loop, self._run):
            yield self

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def frames(self) -> list[Heard]:
        with self._news:
            return list(self._frames)

    @in_loop
    async def members(self, space: str | None = None) -> list[str]:
        """The clients that receive a broadcast, as far as the gateway knows."""
        rooms = self._spaces.members
        named = [rooms.get(space, {})] if space is not None else list(rooms.values())
        return [name for room in named for name in room]

    def wait_joined(self, participant: str, times: int = 1) -> None:
        """Waits until the participant has joined so often since the start, and was welcomed."""
        self._wait(lambda: self._joins[participant] >= times, f"{times} joins of {participant!r}")

    def wait_frames(self, wanted: Callable[[Heard], bool], times: int = 1) -> list[Heard]:
        """Waits until so many frames that are wanted have come, and returns all that are."""

        def found() -> list[Heard]:
            return [heard for heard in self._frames if wanted(heard)]

        self._wait(lambda: len(found()) >= times, f"{times} such frames")
        with self._news:
            return found()

    def wait_ends(self, times: int) -> None:
        """Waits until the gateway has noticed the end of so many connections since the start."""
        self._wait(lambda: self._ends >= times, f"the end of {times} connections")

    @in_loop
    async def grant(
        self, participant: str, capabilities: Sequence[Json], *, by: str = "granter"
    ) -> str:
        """Does what a `capability/grant` from `by` does, whether `by` is there or not.

        The recipient is sent the second welcome (`mew/v0.4`) or the gateway's own `grant-ack`
        (`meup/v0.2`), and then the grant as it is relayed. Returns the grant's id.
        """
        self._grants += 1
        grant_id = f"grant-{self._grants}"
        payload = {"recipient": participant, "capabilities": list(capabilities)}
        self._spaces.grant(participant, list(capabilities), grant_id)
        self._relay(participant, "capability/grant", grant_id, by, payload)
        return grant_id

    @in_loop
    async def revoke(self, participant: str, grant_id: str, *, by: str = "granter") -> None:
        """Takes a grant back. The `capability/revoke` is relayed; no welcome tells of it."""
        payload = {"recipient": participant, "grant_id": grant_id}
        self._spaces.revoke(participant, grant_id, None)
        self._relay(participant, "capability/revoke", f"revoke-{grant_id}", by, payload)

    @in_loop
    async def drop(self, participant: str) -> None:
        """Ends the participant's connection without a close frame; the gateway notices it."""
        socket = self._socket(participant)
        socket.abort()
        await asyncio.wait_for(socket.ended.wait(), PATIENCE)

    @in_loop
    async def stall(self, participant: str) -> None:
        """From now on the participant's connection is open, but nothing goes in or comes out.

        Not even its end is noticed: `release_close` has the gateway learn of it.
        """
        socket = self._socket(participant)
        socket.stalled = True
        socket.connection.transport.pause_reading()
        self._old[participant] = socket

    @in_loop
    async def hold_close(self, participant: str, *, release_on_join: bool = False) -> None:
        """The end of the participant's present connection goes unnoticed until `release_close`.

        With `release_on_join` it is noticed right after the next join of the participant: the
        order of events in which the end of the old connection evicts the new one.
        """
        socket = self._socket(participant)
        socket.held = True
        self._old[participant] = socket
        if release_on_join:
            self._release_on_join.add(participant)

    @in_loop
    async def release_close(self, participant: str) -> None:
        """The gateway notices the end of the connection that was held or stalled.

        Waits for that end if it has not come yet; a stalled connection is ended here.
        """
        socket = self._old.pop(participant)
        self._release_on_join.discard(participant)
        if socket.stalled:
            socket.abort()
        await asyncio.wait_for(socket.ended.wait(), PATIENCE)
        if socket.held:
            socket.held = False
            self._notice_end(socket)

    @in_loop
    async def forge(self, frame: Json) -> None:
        """Delivers an envelope to all exactly as it is, and believes its sender."""
        for peer in self._spaces.everybody():
            peer.write(json.dumps(frame))

    @in_loop
    async def say(self, to: str, frame: Json | str | bytes) -> None:
        """Sends one participant an envelope, a text frame or a binary frame, exactly as it is."""
        data = json.dumps(frame) if isinstance(frame, dict) else frame
        self._socket(to).write(data)

    @in_loop
    async def restart(self) -> None:
        """All sockets are gone without close frames, and all but the configuration is forgotten.

        The port stays; who dials meanwhile is served by the new gateway.
        """
        self._spaces.forget()
        for socket in self._sockets:
            socket.participant = None
        await self._end_all()
        self._old.clear()
        self._release_on_join.clear()

    async def _run(self, ready: threading.Event, stop: asyncio.Event) -> None:
        async with serve(
            self._serve,
            "127.0.0.1",
            0,
            max_size=LARGEST_FRAME,
            compression=None,
            ping_interval=None,
            close_timeout=0.1,
        ) as server:
            (listener,) = server.sockets
            self.port = listener.getsockname()[1]
            self._spaces.address = f"ws://localhost:{self.port}/"
            ready.set()
            await stop.wait()
            # The server's own closing would tell everybody 1001.
            server.close(close_connections=False)
            await self._end_all()

    async def _end_all(self) -> None:
        gone = list(self._sockets)
        for socket in gone:
            socket.abort()
        for socket in gone:
            await asyncio.wait_for(socket.ended.wait(), PATIENCE)

    async def _serve(self, connection: ServerConnection) -> None:
        """Any path and any header; nothing is sent before the first frame."""
        self._numbers += 1
        socket = Socket(connection, self._numbers)
        self._sockets.append(socket)
        try:
            async for data in connection:
                if not socket.stalled:
                    self._hear(socket, data)
        except ConnectionClosed:
            pass  # An end without a close frame is an end as any other.
        finally:
            self._sockets.remove(socket)
            if not socket.held:
                self._notice_end(socket)
            socket.ended.set()

    def _hear(self, socket: Socket, data: str | bytes) -> None:
        # Under the lock, so that whoever has seen what a frame caused finds the frame noted.
        with self._news:
            before = self._spaces.joins
            frame = self._spaces.hear(socket, data)
            name = socket.participant
            self._frames.append(Heard(name, frame, socket.number))
            if name is not None and self._spaces.joins > before:
                self._joins[name] += 1
                self._release_after_join(name, socket)
            self._news.notify_all()

    def _release_after_join(self, participant: str, socket: Socket) -> None:
        if participant in self._release_on_join and self._old[participant] is not socket:
            self._release_on_join.discard(participant)
            old = self._old.pop(participant)
            old.held = False
            if old.ended.is_set():
                self._notice_end(old)

    def _notice_end(self, socket: Socket) -> None:
        with self._news:
            self._spaces.left(socket)
            self._ends += 1
            self._news.notify_all()

    def _socket(self, participant: str) -> Socket:
        """The participant's latest connection, evicted or not."""
        found = [socket for socket in self._sockets if socket.participant == participant]
        assert found, f"{participant!r} has no connection"
        return found[-1]

    def _relay(self, participant: str, kind: str, id: str, by: str, payload: Json) -> None:
        """Delivers what `by` said as this gateway does: to those named, or to everybody."""
        envelope: Json = {"protocol": self.version.protocol, "id": id, "ts": now(), "from": by}
        envelope |= {"to": [participant], "kind": kind, "payload": payload}
        peers = self._spaces.everybody()
        if self.version.to_routes:
            peers = [peer for peer in peers if peer.participant == participant]
        for peer in peers:
            peer.write(json.dumps(envelope))

    def _wait(self, arrived: Callable[[], bool], what: str) -> None:
        with self._news:
            assert self._news.wait_for(arrived, PATIENCE), f"the gateway never saw {what}"
