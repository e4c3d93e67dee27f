"""The participants of the interaction tests, and the spaces that they meet in."""

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Protocol, TypeVar

import anyio

from meup_agent import Agent, Backoff, Envelope, Limits, ProposalHandle, Settings, Space
from meup_agent.errors import CannotConnect
from meup_agent.gateway import Gateway, GatewayLimits, ThreadedGateway
from meup_agent.testing import MemorySpace
from tests.gateways import Connector, Transport, websocket_connector
from tests.patience import PATIENCE
from tests.wire import decode, draft, encode, kinds, payloads

T = TypeVar("T")

LONG_ENOUGH = 1.0
"""For a call to arrive and its handler to begin."""

NO_HEADERS: Mapping[str, str] = {}

EVERYTHING = [{"kind": "*"}]
PROPOSALS = [{"kind": "mcp/proposal"}, {"kind": "chat"}]
Capabilities = list[dict[str, Any]]
PARTICIPANTS: dict[str, Capabilities] = {
    "proposer": PROPOSALS,
    "reviewer": EVERYTHING,
    "second": EVERYTHING,
    "tools": EVERYTHING,
    "deep": EVERYTHING,
    "mallory": EVERYTHING,
    "observer": [{"kind": "chat"}],
}

LIMITS = GatewayLimits(messages_burst=20_000)
"""No participant waits here since another speaks too fast."""

QUICK = Settings(backoff=Backoff(first=0.005, longest=0.02))
"""Reconnects soon: nothing here is about the pauses."""

ONE_PLACE = Settings(backoff=QUICK.backoff, limits=Limits(handlers=1))
"""One handler at a time."""

Joining = AbstractAsyncContextManager[Space]


class Meeting(Protocol):
    """A gateway with everybody's tokens, in memory or behind real sockets."""

    def connector(self, participant: str) -> Connector: ...
    def token(self, participant: str) -> str: ...
    def drop(self, participant: str) -> None: ...
    def kill(self) -> None: ...
    def restart(self) -> None: ...


class InMemory:
    def __init__(self, participants: Mapping[str, Capabilities] = PARTICIPANTS) -> None:
        self.space = MemorySpace(participants=participants, limits=LIMITS)
        self.token = self.space.token
        self.connector = self.space.connector
        self.drop = self.space.drop
        self.kill = self.space.kill
        self.restart = self.space.restart


class OverSockets:
    def __init__(self, gateway: ThreadedGateway) -> None:
        self.gateway = gateway
        self.token = gateway.token
        self.drop = gateway.drop
        self.kill = gateway.kill
        self.restart = gateway.restart

    def connector(self, participant: str) -> Connector:
        return websocket_connector(self.gateway.url, space="demo")


def gateway_for_everybody() -> Gateway:
    return Gateway(participants=PARTICIPANTS, limits=LIMITS)


@contextmanager
def open_meeting(
    where: str, participants: Mapping[str, Capabilities] = PARTICIPANTS
) -> Generator[Meeting]:
    """A space to meet in, in ``memory`` or over ``sockets``."""
    if where == "memory":
        yield InMemory(participants)
    else:
        with Gateway(participants=participants, limits=LIMITS).in_thread() as gateway:
            yield OverSockets(gateway)


def files() -> Agent:
    """An agent with a tool."""
    agent = Agent("files")

    @agent.tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return agent


class Latch:
    """Keeps a participant from connecting, for as long as a test wants it away."""

    def __init__(self) -> None:
        self.closed = False

    def __call__(self, connector: Connector) -> Connector:
        @asynccontextmanager
        async def dial(headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
            if self.closed:
                raise CannotConnect("the test keeps it away")
            async with connector(headers) as transport:
                yield transport

        return dial


def join(
    meeting: Meeting,
    agent: Agent | str,
    name: str | None = None,
    *,
    latch: Latch | None = None,
    **options: Any,
) -> Joining:
    """Let an agent, or a participant without handlers, join under its own name."""
    agent = agent if isinstance(agent, Agent) else Agent(agent)
    who = name or agent.name
    connector = meeting.connector(who)
    options.setdefault("settings", QUICK)
    return agent.join(
        connector if latch is None else latch(connector), token=meeting.token(who), **options
    )


async def keep_away(meeting: Meeting, latch: Latch, space: Space) -> None:
    """Drop a participant's connection; it comes back once its latch is open."""
    latch.closed = True
    meeting.drop(space.me)
    await until(lambda: not space.connected)


@asynccontextmanager
async def gathered(
    meeting: Meeting, *agents: Agent | str | Joining
) -> AsyncGenerator[tuple[Space, ...]]:
    """Let these join in their order, for the length of a block that may not hang."""
    joins = [join(meeting, each) if isinstance(each, Agent | str) else each for each in agents]
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            yield tuple([await stack.enter_async_context(each) for each in joins])


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a state that no event tells of."""
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await anyio.sleep(0.001)


async def ended(proposal: ProposalHandle, kind: type[T]) -> T:
    """The outcome of a proposal, which must be of this kind."""
    outcome = await proposal.outcome()
    assert isinstance(outcome, kind)
    return outcome


class Notes:
    """A record of what happened, in order, and events for it."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._events: dict[Any, anyio.Event] = {}

    def __call__(self, what: Any) -> None:
        self.all.append(what)
        self._event(what).set()

    async def until(self, *what: Any) -> None:
        for each in what:
            await self._event(each).wait()

    def from_thread(self, what: Any) -> None:
        anyio.from_thread.run_sync(self, what)

    def _event(self, what: Any) -> anyio.Event:
        return self._events.setdefault(what, anyio.Event())


class Raw:
    """A participant that says what no correct one would."""

    def __init__(self, transport: Transport, name: str) -> None:
        self.transport = transport
        self.name = name

    async def say(
        self,
        kind: str,
        payload: Any,
        *,
        id: str,
        to: tuple[str, ...] = (),
        correlation: tuple[str, ...] = (),
    ) -> None:
        envelope = draft(kind, payload, id=id, sender=self.name, to=to, correlation=correlation)
        await self.transport.send(encode(envelope, "meup/v0.1"))

    async def request(
        self,
        to: str,
        method: str,
        params: Any,
        *,
        id: str,
        rpc_id: int | str | None = None,
        about: tuple[str, ...] = (),
    ) -> None:
        payload = {"jsonrpc": "2.0", "method": method, "params": params}
        payload["id"] = id if rpc_id is None else rpc_id
        await self.say(kinds.MCP_REQUEST, payload, id=id, to=(to,), correlation=about)

    async def propose(self, params: Any, *, id: str, to: tuple[str, ...] = ()) -> None:
        """Propose a call of a tool by its parameters."""
        await self.say(kinds.MCP_PROPOSAL, payloads.proposal("tools/call", params), id=id, to=to)

    async def withdraw(self, *proposals: str, id: str, reason: str = "other") -> None:
        await self.say(kinds.MCP_WITHDRAW, {"reason": reason}, id=id, correlation=proposals)

    async def answer(self, request: Envelope, payload: Any) -> None:
        id, about = f"answer to {request.id}", (request.id,)
        await self.say(kinds.MCP_RESPONSE, payload, id=id, to=(request.sender,), correlation=about)

    async def call(self, to: str, tool: str, *, id: str, rpc_id: int | str | None = None) -> None:
        params = {"name": tool, "arguments": {}}
        await self.request(to, "tools/call", params, id=id, rpc_id=rpc_id)

    async def cancel(self, to: str, request_id: int | str, *, id: str, **more: Any) -> None:
        params = {"requestId": request_id, **more}
        await self.say(
            kinds.MCP_REQUEST, payloads.notification(kinds.CANCELLED, params), id=id, to=(to,)
        )

    async def hear(self, match: Callable[[Envelope], bool]) -> Envelope:
        """The next envelope that matches."""
        async for frame in self.transport:
            envelope = decode(frame)
            if match(envelope):
                return envelope
        raise AssertionError("the connection has ended")

    async def response(self, to: str) -> Envelope:
        """The next response to one of this participant's envelopes."""
        return await self.hear(lambda e: e.kind == kinds.MCP_RESPONSE and to in e.correlation)


@asynccontextmanager
async def raw(
    meeting: Meeting, name: str = "mallory", more: Mapping[str, str] = NO_HEADERS
) -> AsyncGenerator[Raw]:
    """Join by hand, with further headers of the handshake."""
    headers = {"Authorization": f"Bearer {meeting.token(name)}", **more}
    async with meeting.connector(name)(headers) as transport:
        welcome = decode(await anext(transport))
        assert welcome.kind == kinds.SYSTEM_WELCOME
        yield Raw(transport, name)
