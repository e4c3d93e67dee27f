"""Withdrawing and rejecting return when the gateway has taken it, and raise when it has not."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from meup_agent import Space
from meup_agent.errors import Refused
from meup_agent.protocol import kinds
from meup_agent.protocol.exchange import Role
from meup_agent.protocol.guarantees import Guarantees, said_by
from meup_agent.session import Session
from meup_agent.session.listeners import RECEIPT_SECONDS
from tests.session.gate import PATIENCE, End, Gate, Recorder, present
from tests.session.test_refused_early import proposed

pytestmark = pytest.mark.anyio

Verb = Callable[[], Awaitable[None]]


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
    """A rejection of somebody's proposal, and its kind."""
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


@pytest.mark.rule("3.pace.ends")
async def test_it_returns_when_the_gateway_has_taken_it(gate: Gate, begin: Any) -> None:
    handlers = Recorder(wants_proposals)
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            session, end = await stack.enter_async_context(present(gate, handlers, "bob"))
            verb, kind = await begin(stack, session, end, handlers)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            said = Said(verb)
            tasks.start_soon(said.run)
            envelope = await end.hear(kind)
            assert await end.probe(session) == []
            assert not said.done.is_set()
            await end.echo(envelope)
            await said.done.wait()
            assert said.error is None


@pytest.mark.rule("3.pace.ends")
async def test_what_the_gateway_refuses_is_raised(gate: Gate, begin: Any) -> None:
    handlers = Recorder(wants_proposals)
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            session, end = await stack.enter_async_context(present(gate, handlers, "bob"))
            verb, kind = await begin(stack, session, end, handlers)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            said = Said(verb)
            tasks.start_soon(said.run)
            envelope = await end.hear(kind)
            error = {"error": "kicked", "message": "no"}
            # Not what another member says in the gateway's place.
            about: dict[str, Any] = {"to": (session.me,), "correlation": (envelope.id,)}
            await end.say(kinds.SYSTEM_ERROR, error, sender="bob", **about)
            await end.say(kinds.SYSTEM_ERROR, error, sender=kinds.GATEWAY, **about)
            await said.done.wait()
            assert isinstance(said.error, Refused)
            assert said.error.error == "kicked"


async def test_a_connection_that_is_lost_keeps_nobody_waiting(gate: Gate, begin: Any) -> None:
    handlers = Recorder(wants_proposals)
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            session, end = await stack.enter_async_context(present(gate, handlers, "bob"))
            verb, kind = await begin(stack, session, end, handlers)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            said = Said(verb)
            tasks.start_soon(said.run)
            await end.hear(kind)
            end.drop()
            await said.done.wait()
            assert said.error is None


async def test_nobody_waits_for_a_gateway_that_says_nothing_back(gate: Gate, begin: Any) -> None:
    gate.gives = said_by(Guarantees())
    handlers = Recorder(wants_proposals)
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            session, end = await stack.enter_async_context(present(gate, handlers, "bob"))
            verb, _ = await begin(stack, session, end, handlers)
            await verb()


@pytest.mark.parametrize(
    "anyio_backend", [pytest.param(("trio", {"clock": MockClock(autojump_threshold=0)}), id="trio")]
)
async def test_nobody_waits_for_ever(gate: Gate, begin: Any) -> None:
    handlers = Recorder(wants_proposals)
    with anyio.fail_after(3 * RECEIPT_SECONDS):
        async with AsyncExitStack() as stack:
            session, end = await stack.enter_async_context(present(gate, handlers, "bob"))
            verb, _ = await begin(stack, session, end, handlers)
            began = anyio.current_time()
            await verb()
            assert anyio.current_time() - began == pytest.approx(RECEIPT_SECONDS)
