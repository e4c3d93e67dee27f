"""Edits under a quorum: votes are for the call that was looked at, and for no other."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from meup_agent.approval import Reviewer
from meup_agent.errors import Refused
from meup_agent.types import CallNext, OutboundMessage
from tests.approval.test_votes import Office, office
from tests.interaction.people import Meeting, Notes
from tests.interaction.views import taped
from tests.wire import kinds, payloads

POLICY = """
rules:
  - deny: {tool: deploy, arguments: {version: 13}, name: unlucky}
  - allow: {tool: deploy, arguments: {version: 1}, name: harmless}
  - ask: {tool: deploy, arguments: {version: 2}, name: by hand}
  - quorum: {tool: deploy, of: 2, among: [second, deep], name: four eyes}
  - ask: {tool: add}
end: true
"""

IN_MEMORY = pytest.mark.parametrize("meeting", ["memory"], indirect=True)


@asynccontextmanager
async def editing(
    meeting: Meeting, path: Path, notes: Notes, *versions: int
) -> AsyncGenerator[tuple[Office, list[int]]]:
    """An office whose reviewer has a middleware that edits what it fulfills; and to what."""
    reviewer, edits = Reviewer(path), [*versions]

    @reviewer.agent.middleware
    async def edit(message: OutboundMessage, call_next: CallNext) -> Any:
        if message.verb == "fulfill" and edits:
            message = message.replace(arguments={"version": edits[0]})
        return await call_next(message)

    where, token = meeting.connector("reviewer"), meeting.token("reviewer")
    async with office(meeting, path, notes) as o, reviewer.join(where, token=token):
        yield o, edits


@IN_MEMORY
@pytest.mark.rule("4.4.edits_judged")
@pytest.mark.rule("5.votes.call")
@pytest.mark.parametrize("version", [8, 13, 2], ids=["quorum", "denied", "asked"])
async def test_votes_edit_nothing(meeting: Meeting, path: Path, notes: Notes, version: int) -> None:
    async with editing(meeting, path, notes, version) as (o, edits), o.proposed() as p:
        for voter in ("second", "deep"):
            await o.vote(voter, p.id)
        # The votes are spent; the call that they were for still takes two.
        while (await o.held(p.id))["votes"]:
            pass
        assert notes.all == []
        edits.clear()
        assert (await o.vote("second", p.id))["outcome"] == "open"
        await o.vote("deep", p.id)
        assert await p.result() == 7
    assert notes.all == [("deploy", 7)]


@IN_MEMORY
@pytest.mark.rule("4.4.edits_judged")
async def test_an_edit_is_told_by_its_own_rule(meeting: Meeting, path: Path, notes: Notes) -> None:
    async with editing(meeting, path, notes, 1) as (o, _), taped(o.spaces["second"]) as tape:
        async with o.proposed() as p:
            for voter in ("second", "deep"):
                await o.vote(voter, p.id)
            assert await p.result(accept_edits=True) == 1
        request = await tape.until(lambda e: e.kind == kinds.MCP_REQUEST and bool(e.correlation))
    meta = payloads.read_call(request.payload).meta
    assert (meta[payloads.EDITED], meta[payloads.RULE]["rule"]) == (True, "harmless")
    assert "votes" not in meta[payloads.RULE]
    assert notes.all == [("deploy", 1)]


@pytest.mark.rule("4.4.edits_judged")
async def test_people_edit_into_no_quorum(meeting: Meeting, path: Path, notes: Notes) -> None:
    """Neither what votes are counted of, nor what is asked of one person."""
    async with office(meeting, path, notes) as o, o.reviewer() as reviewer:
        for version in (7, 2):
            async with o.proposed(version) as p:
                held = reviewer.proposals.get(p.id)
                for edited in (8, 13):
                    with pytest.raises(Refused, match="as it was edited"):
                        await held.fulfill({"version": edited})
                assert p.state.is_pending
                assert (await held.fulfill({"version": 1})).result(accept_edits=True) == 1
    assert notes.all == [("deploy", 1)] * 2
