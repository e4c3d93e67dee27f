"""Voters that are removed, or may vote no more: what they voted before approves nothing."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent.approval import Reviewer
from meup_agent.approval.policy.decider import Decider
from tests.approval.test_votes import POLICY as POLICY
from tests.approval.test_votes import Office, office
from tests.interaction.people import QUICK, InMemory, Latch, Notes, join

pytestmark = pytest.mark.rule("5.votes.removed")


@asynccontextmanager
async def away(path: Path, notes: Notes) -> AsyncGenerator[Office]:
    """Everybody but the reviewer, and one of its voters."""
    async with office(InMemory(), path, notes, without="second") as o:
        o.spaces["second"] = o.spaces["deep"]
        yield o


async def votes_of(o: Office, proposal: str) -> dict[str, str]:
    return dict((await o.waiting())[proposal]["votes"])


async def test_the_vote_of_one_that_is_removed_is_taken_back(path: Path, notes: Notes) -> None:
    async with away(path, notes) as o, AsyncExitStack() as stack:
        async with o.reviewer():
            p = await stack.enter_async_context(o.proposed())
            async with join(o.meeting, "second") as second:
                await o.vote(second, p.id)
            await o.spaces["deep"].members.kick("second")
            assert await votes_of(o, p.id) == {}
            assert (await o.vote("deep", p.id))["outcome"] == "open"
        # Nor is it there again after a restart, or after it may come back.
        await o.spaces["deep"].members.invite("second")
        async with o.reviewer():
            assert (await o.held(p.id))["votes"] == {"deep": "approve"}
            assert notes.all == []
            assert (await o.vote("mallory", p.id))["outcome"] == "approved"
            assert await p.result() == 7
    assert notes.all == [("deploy", 7)]


@pytest.mark.parametrize("is_here", [True, False])
async def test_votes_go_with_the_right_to_vote(path: Path, notes: Notes, is_here: bool) -> None:
    async with away(path, notes) as o, o.reviewer():
        async with o.proposed() as p, AsyncExitStack() as stack:
            await o.vote(await stack.enter_async_context(join(o.meeting, "second")), p.id)
            # What has nothing to do with it changes nothing, and neither does leaving.
            await o.spaces["deep"].members.grant("second", [{"kind": "chat"}])
            if not is_here:
                await stack.aclose()
            assert await votes_of(o, p.id) == {"second": "approve"}
            await o.spaces["deep"].members.revoke("second", [{"kind": "*"}])
            assert await votes_of(o, p.id) == {}
            assert (await o.vote("deep", p.id))["outcome"] == "open"
    assert notes.all == []


@pytest.mark.parametrize("again", [True, False])
async def test_a_reviewer_takes_back_what_it_missed(path: Path, notes: Notes, again: bool) -> None:
    latch = Latch()
    async with away(path, notes) as o:
        connector, token = latch(o.meeting.connector("reviewer")), o.meeting.token("reviewer")
        reviewer = Reviewer(path).join(connector, token=token, settings=QUICK)
        async with reviewer, o.proposed() as p, join(o.meeting, "second") as second:
            await o.vote(second, p.id)
            assert await votes_of(o, p.id) == {"second": "approve"}
            latch.closed = True
            o.meeting.drop("reviewer")
            await o.spaces["deep"].members.revoke("second", [{"kind": "*"}])
            if again:
                await o.spaces["deep"].members.grant("second", [{"kind": "*"}])
            latch.closed = False
            assert await votes_of(o, p.id) == {}
    assert notes.all == []


async def test_what_the_votes_have_decided_is_not_carried_out_without_them(
    path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A voter is removed after the last vote, and before the request."""
    decide, asked, go_on = Decider.decide, anyio.Event(), anyio.Event()

    async def late(*given: Any, again: bool = False) -> Any:
        if again:
            asked.set()
            await go_on.wait()
        return await decide(*given, again=again)

    async with away(path, notes) as o, o.reviewer(), o.proposed() as p:
        monkeypatch.setattr(Decider, "decide", late)
        async with join(o.meeting, "second") as second:
            await o.vote(second, p.id)
        assert (await o.vote("deep", p.id))["outcome"] == "approved"
        await asked.wait()
        await o.spaces["deep"].members.kick("second")
        await votes_of(o, p.id)
        go_on.set()
        while await votes_of(o, p.id):
            pass
        assert (await o.vote("deep", p.id))["outcome"] == "open"
    assert notes.all == []
