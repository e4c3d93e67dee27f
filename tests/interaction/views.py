"""A test's view of the participants of the interaction tests."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, TypeVar

import anyio

from meup_agent import Agent, Envelope, ProposalState, Space
from meup_agent.events import Event
from meup_agent.session import Session
from tests.interaction.people import Notes, until
from tests.wire import kinds, payloads

E = TypeVar("E", bound=Event)


def session_of(space: Space) -> Session:
    return space._session


def is_idle(space: Space) -> bool:
    """True where nothing runs, waits, or is still to be sent."""
    session = session_of(space)
    table = session.table
    return not (table.running or table.queued or table.waiting or len(session.outbox))


async def all_idle(*spaces: Space) -> None:
    await until(lambda: all(is_idle(space) for space in spaces))


def state_of(space: Space, proposal_id: str) -> ProposalState | None:
    """State of a proposal, as this participant has seen it."""
    return next((r.state for r in space.proposals if r.id == proposal_id), None)


def has_state(space: Space, proposal_id: str, state: ProposalState) -> bool:
    return state_of(space, proposal_id) is state


def is_(id: str) -> Callable[[Envelope], bool]:
    return lambda envelope: envelope.id == id


def by(kind: str, sender: str) -> Callable[[Envelope], bool]:
    return lambda envelope: (envelope.kind, envelope.sender) == (kind, sender)


def of_kind(kind: str) -> Callable[[Envelope], bool]:
    return lambda envelope: envelope.kind == kind


is_proposal, is_withdraw = of_kind(kinds.MCP_PROPOSAL), of_kind(kinds.MCP_WITHDRAW)
is_request, is_response = of_kind(kinds.MCP_REQUEST), of_kind(kinds.MCP_RESPONSE)
is_error = of_kind(kinds.SYSTEM_ERROR)


class Tape:
    """Every envelope that one participant has received, as it went by."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self._more = anyio.Event()

    def put(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)
        self._more.set()

    async def until(self, match: Callable[[Envelope], bool], count: int = 1) -> Envelope:
        """Wait until so many have matched; the last one of them."""
        while len(found := [e for e in self.envelopes if match(e)]) < count:
            self._more = anyio.Event()
            await self._more.wait()
        return found[-1]

    def of(self, kind: str, *, sender: str | None = None) -> list[Envelope]:
        return [e for e in self.envelopes if e.kind == kind and sender in (None, e.sender)]

    def calls(self, method: str) -> list[Envelope]:
        return [e for e in self.of(kinds.MCP_REQUEST) if call_of(e).method == method]

    async def all_said(self, *spaces: Space) -> None:
        """Wait until everything that these participants have said so far has gone by."""
        for space in spaces:
            marker = await space.chat("so far")
            await self.until(is_(marker))


@asynccontextmanager
async def taped(space: Space) -> AsyncGenerator[Tape]:
    """The envelopes from here on: at once, where `watch` needs a task to read them."""
    tape = Tape()
    with session_of(space).watchers.listening(tape):
        yield tape


def call_of(envelope: Envelope) -> payloads.Call:
    return payloads.read_call(envelope.payload)


def lines(caplog: Any, level: int = logging.INFO) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


async def note_result(
    note: Callable[[Any], None], call: Callable[..., Awaitable[Any]], *args: Any
) -> None:
    note(await call(*args))


async def run_within(
    context: AbstractContextManager[Any], call: Callable[..., Awaitable[Any]], *args: Any
) -> None:
    with context:
        await call(*args)


async def call_and_give_up(caller: Space, tool: str, notes: Notes, begun: str = "runs") -> None:
    """Call a tool, and cancel the call when it has begun."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.call, "tools", tool)
        await notes.until(begun)
        tasks.cancel_scope.cancel()


class Seen:
    """Every event of an agent, in the order in which it was told."""

    def __init__(self, *agents: Agent) -> None:
        self.all: list[Event] = []
        for agent in agents:
            agent.observe(self.all.append)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.all if isinstance(event, kind)]

    def only(self, kind: type[E]) -> E:
        (event,) = self.of(kind)
        return event

    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.all]

    async def until(self, kind: type[Event], count: int = 1) -> None:
        await until(lambda: len(self.of(kind)) >= count)
