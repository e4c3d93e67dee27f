"""Calls to a name that no participant has, and to a participant that is away."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import anyio
import pytest

from meup_agent import Space
from meup_agent.errors import Refused
from tests.interaction.people import QUICK, Meeting, gathered, join

pytestmark = pytest.mark.rule("3.names.unknown")

Call = Callable[[Space, str], Coroutine[Any, Any, Any]]


async def propose(space: Space, name: str) -> None:
    async with space.propose(name, "add", ttl=None) as proposal:
        await proposal.outcome()


async def propose_to(space: Space, name: str) -> None:
    async with space.propose("tools", "add", to=("reviewer", name), ttl=None) as proposal:
        await proposal.outcome()


SAID = ("mcp/request", "chat", "system/error")

CALLS: dict[str, Call] = {
    "call": lambda space, name: space.call(name, "add", timeout=None),
    "invoke": lambda space, name: space.invoke(name, "add", as_proposal=True, ttl=None),
    "request": lambda space, name: space.request(name, "ping", timeout=None),
    "propose": propose,
    "propose_to": propose_to,
}


@pytest.mark.parametrize("caller", ["proposer", "second"])
@pytest.mark.parametrize("verb", CALLS)
async def test_call_to_nobody_fails_at_once_with_the_nearest_name(
    meeting: Meeting, verb: str, caller: str
) -> None:
    if verb == "request" and caller == "proposer":
        caller = "reviewer"  # who only proposes may not ask
    async with gathered(meeting, "tools", caller) as (_, space):
        with pytest.raises(Refused) as refused:
            await CALLS[verb](space, "tolls")
        assert refused.value.error == "unknown_participant"
        assert "there is no participant 'tolls'; did you mean 'tools'?" in str(refused.value)


async def test_no_name_is_suggested_that_is_not_seen(meeting: Meeting) -> None:
    async with gathered(meeting, "second") as (space,):
        with pytest.raises(Refused, match="no participant 'tolls'; correct the name") as refused:
            await space.call("tolls", "add", timeout=None)
        assert "tools" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "dialect"), [("tools", "meup/v0.1"), ("tolls", "meup/v0.2"), ("tolls", "mew/v0.4")]
)
async def test_who_is_away_is_waited_for_and_anybody_in_the_published_dialects(
    meeting: Meeting, name: str, dialect: str
) -> None:
    caller = join(meeting, "second", settings=replace(QUICK, dialect=dialect))
    async with gathered(meeting, caller) as (space,), anyio.create_task_group() as tasks:
        with space.watch(lambda each: each.kind in SAID) as said:
            tasks.start_soon(space.call, name, "add")
            request = await anext(said)
            assert (request.kind, request.to) == ("mcp/request", (name,))
            # A refusal would come before what is said next.
            await space.chat("next")
            assert (await anext(said)).kind == "chat"
        tasks.cancel_scope.cancel()
