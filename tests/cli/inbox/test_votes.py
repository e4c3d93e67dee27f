"""Votes at the inbox's screen: `v`, and `a` where a reviewer counts the person's vote."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from meup_agent import ProposalHandle, Rejection
from meup_agent.approval import Inbox
from meup_agent.cli.render.card import MAX_SHOWN
from tests.cli.commands import ScreenQuestion
from tests.cli.inbox.people import Desk, desk
from tests.cli.inbox.people import anyio_backend as anyio_backend
from tests.interaction.people import ended, join

POLICY = """
rules:
  - quorum: {tool: [deploy, read], of: 2, among: [reviewer, deep], name: four eyes}
end: true
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


@asynccontextmanager
async def voting(
    policy: Path, tool: str = "deploy", **arguments: str
) -> AsyncGenerator[tuple[Desk, ProposalHandle]]:
    """A proposal on the screen whose votes the reviewer counts."""
    async with (
        desk(policy=policy, size=(80, 30)) as d,
        d.proposer.propose("tools", tool, arguments or {"version": 7}, to="second") as proposal,
    ):
        await d.arrived()
        await d.until(lambda: "votes 0 of 2" in d.text("#card"))
        yield d, proposal


async def test_two_keys_vote_and_a_vote_may_be_changed(policy: Path) -> None:
    async with voting(policy) as (d, proposal):
        assert "asked by four eyes (rule 1) of second" in d.text("#card")
        assert "not yet: reviewer, deep" in d.text("#card")
        assert " a  vote for it " in d.text("#keys")
        assert " v  vote" in d.text("#keys")
        assert " e  edit" not in d.text("#keys")
        await d.press("v")
        assert d.asks(ScreenQuestion.VOTE)
        assert "a for it" in d.text("#ask")
        await d.press("a")
        await d.until(lambda: "you voted for tools.deploy" in d.text("#note"))
        await d.until(lambda: "votes 1 of 2  ✓ reviewer" in d.text("#card"))
        # It waits for the others, and for another vote of ours.
        assert len(d.inbox) == 1
        await d.press("v", "w", *"no", "enter", "r")
        await d.until(lambda: "you voted against tools.deploy" in d.text("#note"))
        assert "no" in await (await ended(proposal, Rejection)).explanation()


async def test_a_vote_names_what_was_not_shown_before_its_second_key(policy: Path) -> None:
    async with voting(policy, "read", path="\n".join(map(str, range(100)))) as (d, _):
        await d.press("v")
        assert "lines of it have not been on the screen" in d.text("#ask")
        await d.press("a")
        await d.until(lambda: "you voted for tools.read" in d.text("#note"))


async def test_what_the_screen_cuts_is_voted_against_alone(policy: Path) -> None:
    async with voting(policy, "read", path="x" * (MAX_SHOWN)) as (d, proposal):
        await d.press("v", "a")
        assert "too long to be shown here: meup inbox show" in d.text("#note")
        assert d.inbox.items[0].votes == {}
        await d.press("r")
        await ended(proposal, Rejection)


async def test_approving_is_a_vote_there(policy: Path) -> None:
    async with voting(policy) as (d, proposal):
        await d.press("a")
        await d.until(lambda: "you voted for tools.deploy" in d.text("#note"))
        assert d.inbox.items[0].votes == {"reviewer": "approve"}
        assert proposal.state.is_pending


async def test_another_key_votes_nothing(policy: Path) -> None:
    async with voting(policy) as (d, _):
        await d.press("v", "y", "v", "escape", "e")
        assert d.asks(ScreenQuestion.NOTHING)
        assert d.text("#note") == "you may not carry it out"
        assert d.inbox.items[0].votes == {}


async def test_a_vote_of_another_guards_the_keys(policy: Path) -> None:
    """A count that changes as a key is on its way is another picture than the one decided by."""
    async with voting(policy) as (d, _), join(d.meeting, "deep") as other, Inbox(other) as theirs:
        await d.until(lambda: bool(theirs.items) and theirs.items[0].rule is not None)
        await theirs.vote(theirs.items[0], approve=True)
        await d.until(lambda: "✓ deep" in d.text("#card"))
        await d.pilot.press("a")
        assert "has just changed" in d.text("#note")
        assert d.inbox.items[0].votes == {"deep": "approve"}
