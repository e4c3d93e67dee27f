"""Withdrawing and rejecting return when the gateway has taken it, and raise when it has not."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from meup_agent import Envelope, Space
from meup_agent.errors import Refused
from meup_agent.session import Session
from meup_agent.session.envelope_listeners import RECEIPT_SECONDS
from meup_agent.types import Guarantees
from tests.patience import PATIENCE
from tests.session.gate import End, Gate, Recorder, present
from tests.session.test_refused_early import proposed
from tests.tables import Role
from tests.wire import kinds, said_by

pytestmark = pytest.mark.anyio

Verb = Callable[[], Awaitable[object]]


async def withdrawing(
    stack: AsyncExitStack, session: Session, end: End, _: Recorder
) -> tuple[Verb, str]:
    """A withdrawal of a proposal of ours that is on its way, and its kind."""
    proposal = await stack.enter_async_context(Space(session).propose("bob", "add"))
    await end.echo(await end.hear(kinds.MCP_PROPOSAL))
    return proposal.withdraw, kinds.MCP_WITHDRAW


async def rejecting(
    _: AsyncExitStack, session: Session, end: End, handlers: Recorder
) -> tuple[Verb, str]:
    """A rejection of another's proposal, and its kind."""
    proposal = await proposed(session, end, handlers)
    return partial(proposal.reject, "unsafe"), kinds.MCP_REJECT


VERBS: dict[str, Callable[..., Awaitable[tuple[Verb, str]]]] = {
    "withdraw": withdrawing,
    "reject": rejecting,
}


class Said:
    """A verb that runs, and how it ended."""

    def __init__(self, verb: Verb) -> None:
        self._verb = verb
        self.error: Exception | None = None
        self.done = anyio.Event()

    async def run(self) -> None:
        try:
            await self._verb()
        except Exception as error:
            self.error = error
        self.done.set()


@pytest.fixture(params=VERBS)
def begin(request: pytest.FixtureRequest) -> Any:
    return VERBS[request.param]


def wants_proposals(role: Role, *_: object) -> bool:
    return role is Role.PROPOSAL


@asynccontextmanager
async def begun(
    gate: Gate, begin: Any, *, patience: float = PATIENCE
) -> AsyncGenerator[tuple[Session, End, Verb, str]]:
    """A session, its other end, a verb to call, and the kind that it sends."""
    handlers = Recorder(wants_proposals)
    with anyio.fail_after(patience):
        async with AsyncExitStack() as stack:
            session, end = await stack.enter_async_context(present(gate, handlers, "bob"))
            verb, kind = await begin(stack, session, end, handlers)
            yield session, end, verb, kind


@asynccontextmanager
async def said(gate: Gate, begin: Any) -> AsyncGenerator[tuple[Session, End, Said, Envelope]]:
    """The same while the verb runs, and what it has sent."""
    async with begun(gate, begin) as (session, end, verb, kind):
        async with anyio.create_task_group() as tasks:
            running = Said(verb)
            tasks.start_soon(running.run)
            yield session, end, running, await end.hear(kind)


@pytest.mark.rule("3.pace.ends")
async def test_it_returns_when_the_gateway_has_taken_it(gate: Gate, begin: Any) -> None:
    async with said(gate, begin) as (session, end, verb, envelope):
        assert await end.probe(session) == []
        assert not verb.done.is_set()
        await end.echo(envelope)
        await verb.done.wait()
        assert verb.error is None


@pytest.mark.rule("3.pace.ends")
async def test_what_the_gateway_refuses_is_raised(gate: Gate, begin: Any) -> None:
    async with said(gate, begin) as (session, end, verb, envelope):
        error = {"error": "kicked", "message": "no"}
        # Not what another member says in the gateway's place.
        about: dict[str, Any] = {"to": (session.me,), "correlation": (envelope.id,)}
        await end.say(kinds.SYSTEM_ERROR, error, sender="bob", **about)
        await end.say(kinds.SYSTEM_ERROR, error, sender=kinds.GATEWAY, **about)
        await verb.done.wait()
        assert isinstance(verb.error, Refused)
        assert verb.error.error == "kicked"


async def test_a_connection_that_is_lost_keeps_nobody_waiting(gate: Gate, begin: Any) -> None:
    async with said(gate, begin) as (_, end, verb, _):
        end.drop()
        await verb.done.wait()
        assert verb.error is None


async def test_nobody_waits_for_a_gateway_that_says_nothing_back(gate: Gate, begin: Any) -> None:
    gate.gives = said_by(Guarantees())
    async with begun(gate, begin) as (_, _, verb, _):
        await verb()


@pytest.mark.parametrize(
    "anyio_backend", [pytest.param(("trio", {"clock": MockClock(autojump_threshold=0)}), id="trio")]
)
async def test_nobody_waits_for_ever(gate: Gate, begin: Any) -> None:
    async with begun(gate, begin, patience=3 * RECEIPT_SECONDS) as (_, _, verb, _):
        began = anyio.current_time()
        await verb()
        assert anyio.current_time() - began == pytest.approx(RECEIPT_SECONDS)
