"""A gateway that does exactly what a test says, at the other end of a memory connection."""

import itertools
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

from meup_agent import Backoff, Envelope, Settings
from meup_agent.errors import HandshakeRefused, TransportError
from meup_agent.session import ConnectedSession, Session
from meup_agent.types import Cause
from tests.gateways import Connector, MemoryTransport, memory_connector
from tests.patience import PATIENCE
from tests.tables import Key, Role, Work
from tests.wire import OURS, JsonObject, decode, draft, encode, kinds, numbered, payloads, said_by

ME = "alice"
EVERYTHING = [{"kind": "*"}]

_numbers = itertools.count(1)

# Reconnects at once: where nothing is about the pauses.
AT_ONCE = Settings(backoff=Backoff(first=0.0001, longest=0.0001))


class End:
    """The gateway's end of one connection."""

    def __init__(
        self,
        transport: MemoryTransport,
        headers: Mapping[str, str],
        dialect: str,
        gives: JsonObject,
        seq: int | None,
    ) -> None:
        self.transport = transport
        self.headers = headers
        self.dialect = dialect
        self.gives = gives
        self.seq = seq
        self.heard: list[Envelope] = []

    async def welcome(self, *present: str) -> None:
        you, *others = ({"id": name, "capabilities": EVERYTHING} for name in (ME, *present))
        payload = {"you": you, "participants": others, **self.gives}
        await self.say(kinds.SYSTEM_WELCOME, payload, sender=kinds.GATEWAY, to=(ME,))

    async def presence(self, event: str, name: str) -> None:
        payload = {"event": event, "participant": {"id": name, "capabilities": EVERYTHING}}
        await self.say(kinds.SYSTEM_PRESENCE, payload, sender=kinds.GATEWAY)

    async def refuse(self, about: Envelope, payload: Any) -> None:
        header: dict[str, Any] = {"to": (ME,), "correlation": (about.id,)}
        await self.say(kinds.SYSTEM_ERROR, payload, sender=kinds.GATEWAY, **header)

    async def say(
        self, kind: str, payload: Any, *, sender: str, id: str = "", **header: Any
    ) -> str:
        id = id or f"{sender}-{next(_numbers)}"
        await self.echo(draft(kind, payload, id=id, sender=sender, **header))
        return id

    async def request(self, method: str, *, sender: str, id: str = "", **params: Any) -> str:
        id = id or f"{sender}-{next(_numbers)}"
        payload = payloads.request(method, params, id)
        return await self.say(kinds.MCP_REQUEST, payload, sender=sender, id=id, to=(ME,))

    async def respond(self, request: Envelope, result: Any, *, sender: str) -> None:
        header: dict[str, Any] = {"to": (request.sender,), "correlation": (request.id,)}
        payload = payloads.result(request.id, result)
        await self.say(kinds.MCP_RESPONSE, payload, sender=sender, **header)

    async def raw(self, frame: bytes) -> None:
        await self.transport.send(frame)

    async def echo(self, envelope: Envelope) -> None:
        """The gateway accepts an envelope: its sender gets it back like everybody."""
        frame = encode(envelope, self.dialect)
        if self.seq is not None:
            frame = numbered(frame, self.seq)
            self.seq += 1
        await self.raw(frame)

    async def acknowledge(self, envelope_id: str) -> None:
        """The gateway accepts an envelope, and tells its sender by the id alone."""
        assert self.seq is not None
        await self.raw(b'{"id":"%b","seq":%d}' % (envelope_id.encode(), self.seq))
        self.seq += 1

    async def joined(self) -> JsonObject:
        frame: JsonObject = json.loads(await anext(self.transport))
        assert frame["type"] == "join"
        return frame

    async def hear(self, *wanted: str) -> Envelope:
        """The next envelope, which must be of one of these kinds."""
        envelope = decode(await anext(self.transport))
        self.heard.append(envelope)
        assert not wanted or envelope.kind in wanted, (envelope.kind, envelope.payload)
        return envelope

    async def rest(self) -> list[Envelope]:
        """The envelopes that come until the connection ends."""
        return [decode(frame) async for frame in self.transport]

    async def probe(self, session: Session) -> list[Envelope]:
        """The envelopes that come before a message that the session is made to say now."""
        marker = session.send_message("chat", {"message": "probe"}).id
        found: list[Envelope] = []
        while True:
            envelope = await self.hear()
            if envelope.id == marker:
                return found
            found.append(envelope)

    async def close(self, code: int, reason: str = "") -> None:
        await self.transport.aclose(code, reason)

    def drop(self) -> None:
        self.transport.drop()


class Gate:
    """Takes connections, or refuses them as told.

    Attributes:
        attempts: When each attempt to connect came, and its headers.
    """

    def __init__(self) -> None:
        self.attempts: list[tuple[float, Mapping[str, str]]] = []
        self.refusals: deque[TransportError | None] = deque()
        """The ends of the next attempts; ``None`` and any further one is accepted."""
        self.always: TransportError | None = None
        self.answer: Mapping[str, str] = {"MEUP-Protocol": "meup/v0.1"}
        """The headers of the answer; without that one, sessions send a join frame."""
        self.dialect = "meup/v0.1"
        # Of one that lists proposals each newcomer asks for these first.
        self.gives: JsonObject = said_by(msgspec.structs.replace(OURS, lists_proposals=False))
        """The gateway as each welcome describes it; nothing: it may be one that evicts."""
        self.seq: int | None = None
        """The number of each connection's first envelope; ``None``: none has one."""
        self._ends: deque[End] = deque()
        self._came = anyio.Event()

    def refuse(self, *statuses: int, retry_after: float | None = None) -> None:
        self.refusals.extend(HandshakeRefused(status, retry_after) for status in statuses)

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.attempts]

    def connector(self) -> Connector:
        async def accept(end: MemoryTransport, headers: Mapping[str, str]) -> Mapping[str, str]:
            self.attempts.append((anyio.current_time(), dict(headers)))
            refusal = self.refusals.popleft() if self.refusals else self.always
            if refusal is not None:
                raise refusal
            self._ends.append(End(end, headers, self.dialect, self.gives, self.seq))
            self._came.set()
            return self.answer

        return memory_connector(accept, capacity=1024)

    async def accept(self) -> End:
        while not self._ends:
            self._came = anyio.Event()
            await self._came.wait()
        return self._ends.popleft()

    async def welcomed(self, *present: str) -> End:
        end = await self.accept()
        await end.welcome(*present)
        return end


def everything_but_kinds(role: Role, *_: object) -> bool:
    return role is not Role.KIND


class Recorder:
    """Handlers that only note what they are asked to do."""

    def __init__(self, wants: Callable[..., bool] = everything_but_kinds):
        self.find = wants
        self.started: list[tuple[Key, Work]] = []
        self.cancelled: list[tuple[Key, Cause]] = []
        self._changed = anyio.Event()

    def start(self, key: Key, work: Work) -> None:
        self.started.append((key, work))
        self._changed.set()

    def cancel(self, key: Key, cause: Cause) -> None:
        self.cancelled.append((key, cause))
        self._changed.set()

    async def has(self, *, started: int = 0, cancelled: int = 0) -> None:
        """Wait until so many were started and cancelled."""
        while len(self.started) < started or len(self.cancelled) < cancelled:
            self._changed = anyio.Event()
            await self._changed.wait()


@asynccontextmanager
async def present(
    gate: Gate,
    handlers: Recorder | None = None,
    *others: str,
    settings: Settings | None = None,
    participant: str | None = None,
    patience: float = PATIENCE,
) -> AsyncGenerator[tuple[Session, End]]:
    """A welcomed session and the gateway's end of its connection, for a block that may not hang."""
    options: dict[str, Any] = {"settings": settings, "space": "demo", "participant": participant}
    handlers = handlers or Recorder()
    session = ConnectedSession(
        gate.connector(), token="secret", handlers=handlers, name=ME, **options
    )
    end: End | None = None

    async def welcome() -> None:
        nonlocal end
        end = await gate.welcomed(*others)

    with anyio.fail_after(patience):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(welcome)
            async with session:
                assert end is not None
                yield session, end


class Caller:
    """A call that runs beside the test, and what became of it."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None

    async def run(self, call: Any, *args: Any, **kwargs: Any) -> None:
        # Shielded, so that it hears from the session why it ends, not from its own cancellation.
        with anyio.CancelScope(shield=True):
            try:
                self.result = await call(*args, **kwargs)
            except Exception as error:
                self.error = error


@asynccontextmanager
async def unread(handlers: Recorder) -> AsyncGenerator[tuple[Session, MemoryTransport]]:
    """A session at a gateway that takes one frame at a time, and its end of the connection."""
    ends: list[MemoryTransport] = []

    async def accept(end: MemoryTransport, headers: object) -> dict[str, str]:
        ends.append(end)
        await end.send(
            b'{"kind":"system.welcome","id":"1","from":"system:gateway",'
            b'"payload":{"you":{"id":"alice","capabilities":[]},"participants":[]}}'
        )
        return {"MEUP-Protocol": "meup/v0.1"}

    connector = memory_connector(accept, capacity=1)
    async with ConnectedSession(connector, token=None, handlers=handlers) as session:
        yield session, ends[0]


def method_of(envelope: Any) -> str:
    return payloads.read_call(envelope.payload).method
