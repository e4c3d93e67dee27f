"""Calls that cannot be: they raise, and nothing has left."""

import math
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import pytest

from meup_agent import Proposal, ProposalHandle, Space
from meup_agent.errors import UsageError
from meup_agent.session import Session
from meup_agent.session.deadlines import checked_timeout
from tests.patience import PATIENCE
from tests.session.gate import ME, End, Gate, Recorder, present
from tests.tables import Role
from tests.wire import MAX_FRAME_BYTES, kinds, payloads

pytestmark = pytest.mark.anyio


async def proposed(session: Session, end: End, handlers: Recorder) -> Proposal:
    """Another's proposal, as our handler has it."""
    params = {"name": "write", "_meta": {payloads.TARGET: "files"}}
    body = payloads.proposal("tools/call", params)
    await end.say(kinds.MCP_PROPOSAL, body, sender="bob", id="p1", to=(ME,))
    await handlers.has(started=1)
    (record,) = Space(session).proposals
    return Space(session).proposal(record)


async def propose(space: Space, seconds: float) -> None:
    async with space.propose("bob", "add", ttl=seconds) as proposal:
        assert isinstance(proposal, ProposalHandle)


VERBS: dict[str, Callable[[Space, Proposal, float], Awaitable[object]]] = {
    "request": lambda space, _, seconds: space.request("bob", "ping", timeout=seconds),
    "call": lambda space, _, seconds: space.call("bob", "add", timeout=seconds),
    "tools": lambda space, _, seconds: space.tools("bob", timeout=seconds),
    "propose": lambda space, _, seconds: propose(space, seconds),
    "fulfill": lambda _, proposal, seconds: proposal.fulfill(timeout=seconds),
}


@pytest.mark.parametrize("seconds", [math.nan, -1.0, -math.inf], ids=["nan", "negative", "-inf"])
@pytest.mark.parametrize("verb", VERBS)
async def test_no_verb_waits_for_a_time_that_is_none(gate: Gate, verb: str, seconds: float) -> None:
    handlers = Recorder(lambda role, *_: role is Role.PROPOSAL)
    with anyio.fail_after(PATIENCE):
        async with present(gate, handlers, "bob") as (session, end):
            proposal = await proposed(session, end, handlers)
            with pytest.raises(UsageError, match="is no time to wait"):
                await VERBS[verb](Space(session), proposal, seconds)
            assert await end.probe(session) == []


def test_for_ever_is_as_good_as_no_deadline() -> None:
    assert checked_timeout(math.inf) is None
    assert checked_timeout(None) is None
    assert checked_timeout(0) == 0


@pytest.mark.parametrize("too_large", ["explain", "reason"])
async def test_a_rejection_that_is_too_large_leaves_not_even_in_part(
    gate: Gate, too_large: str
) -> None:
    handlers = Recorder(lambda role, *_: role is Role.PROPOSAL)
    words = {"reason": "unsafe", "explain": "because"} | {too_large: "x" * MAX_FRAME_BYTES}
    with anyio.fail_after(PATIENCE):
        async with present(gate, handlers, "bob") as (session, end):
            proposal = await proposed(session, end, handlers)
            with pytest.raises(UsageError, match="cannot be sent"):
                await proposal.reject(words["reason"], explain=words["explain"])
            assert await end.probe(session) == []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(proposal.reject, "unsafe", explain="because"))
                reject = await end.hear(kinds.MCP_REJECT)
                chat = await end.hear(kinds.CHAT)
                assert chat.correlation == (reject.id,)
                await end.echo(reject)
                await end.echo(chat)
