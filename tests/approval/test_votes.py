"""Votes at a reviewer: who may, what they decide, and what becomes of them afterwards."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Proposal, ProposalHandle, ProposalState, Rejection, Space
from meup_agent.approval import Reviewer
from meup_agent.client.space import GatewayFacts
from meup_agent.errors import NotSent, RequestError, UsageError
from meup_agent.types import Guarantees
from tests.interaction.people import InMemory, Meeting, Notes, ended, join, raw, until
from tests.interaction.views import has_state, taped
from tests.patience import PATIENCE
from tests.wire import kinds, payloads

POLICY = """
rules:
  - quorum: {tool: deploy, of: 2, among: [second, deep, mallory, proposer], name: four eyes}
  - ask: {tool: add}
end: true
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def tools(notes: Notes) -> Agent:
    agent = Agent("tools")

    @agent.tool
    async def deploy(version: int) -> int:
        notes(("deploy", version))
        return version

    @agent.tool
    async def add(a: int) -> int:
        notes("add")
        return a

    return agent


class Office:
    """A reviewer that counts, and those who vote."""

    def __init__(self, meeting: Meeting, path: Path) -> None:
        self.meeting, self.path = meeting, path
        self.spaces: dict[str, Space] = {}

    @asynccontextmanager
    async def reviewer(self, **options: Any) -> AsyncGenerator[Space]:
        connector, token = self.meeting.connector("reviewer"), self.meeting.token("reviewer")
        async with Reviewer(self.path).join(connector, token=token, **options) as space:
            yield space

    @asynccontextmanager
    async def proposed(
        self, version: int = 7, *, by: str = "proposer", **more: Any
    ) -> AsyncGenerator[ProposalHandle]:
        """A proposal of a deployment that the reviewer holds."""
        more = {"ttl": None, "to": "reviewer"} | more
        async with self.spaces[by].propose(
            "tools", "deploy", {"version": version}, **more
        ) as proposal:
            await self.held(proposal.id)
            yield proposal

    async def held(self, proposal: str) -> dict[str, Any]:
        with anyio.fail_after(PATIENCE):
            while True:
                found = await self.waiting()
                if proposal in found:
                    return found[proposal]

    async def waiting(self) -> dict[str, dict[str, Any]]:
        listed = await self.spaces["second"].request("reviewer", "dev.meup/waiting")
        return {each["proposal"]: each for each in listed["proposals"]}

    async def vote(
        self, who: str | Space, proposal: str, /, vote: str = "approve", **more: Any
    ) -> Any:
        about = {"proposal": proposal, "proposer": "proposer", "vote": vote} | more
        voter = self.spaces[who] if isinstance(who, str) else who
        return await voter.request("reviewer", "dev.meup/vote", about)


@pytest.mark.rule("5.votes.count")
@asynccontextmanager
async def office(
    meeting: Meeting, path: Path, notes: Notes, *, without: str = ""
) -> AsyncGenerator[Office]:
    """Everybody but the reviewer."""
    made = Office(meeting, path)
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            for each in ("tools", "second", "deep", "mallory", "proposer"):
                if each != without:
                    agent = tools(notes) if each == "tools" else each
                    space = await stack.enter_async_context(join(meeting, agent))
                    made.spaces[space.me] = space
            yield made


@pytest.mark.rule("5.votes.count")
async def test_votes_carry_a_call_out(meeting: Meeting, path: Path, notes: Notes) -> None:
    async with office(meeting, path, notes) as o, o.reviewer(), taped(o.spaces["second"]) as tape:
        async with o.proposed() as p:
            first = await o.vote("second", p.id)
            assert (first["outcome"], first["of"]) == ("open", 2)
            assert first["votes"] == {"second": "approve"}
            assert notes.all == []
            last = await o.vote("deep", p.id, explanation="fine")
            assert last["outcome"] == "approved"
            assert await p.result() == 7
        request = await tape.until(lambda e: e.kind == kinds.MCP_REQUEST and bool(e.correlation))
    assert notes.all == [("deploy", 7)]
    told = payloads.read_call(request.payload).meta[payloads.RULE]
    assert (told["verdict"], told["rule"], told["of"]) == ("quorum", "four eyes", 2)
    assert told["votes"] == {"second": "approve", "deep": "approve"}
    assert request.sender == "reviewer"


async def test_votes_reject_the_unreachable(meeting: Meeting, path: Path, notes: Notes) -> None:
    async with office(meeting, path, notes) as o, o.reviewer(), o.proposed() as p:
        await o.vote("second", p.id, "reject", explanation="not on a Friday")
        assert (await o.vote("deep", p.id, "reject"))["outcome"] == "rejected"
        outcome = await ended(p, Rejection)
        assert outcome.reason == "disagree"
        said = await outcome.explanation(5)
    assert "0 of 2 approvals; second, deep rejected" in said
    assert "second: not on a Friday" in said
    assert notes.all == []


async def test_what_waits_has_rule_and_votes(meeting: Meeting, path: Path, notes: Notes) -> None:
    async with office(meeting, path, notes) as o, o.reviewer(), o.proposed(ttl=60) as p:
        await o.vote("second", p.id)
        item = await o.held(p.id)
        async with o.spaces["proposer"].propose("tools", "add", {"a": 1}, ttl=None) as q:
            asked = await o.held(q.id)
            with pytest.raises(RequestError, match="takes no votes"):
                await o.vote("second", q.id)
    assert notes.all == []
    assert item["kind"] == "quorum"
    assert item["rule"]["name"] == "four eyes"
    assert item["rule"]["number"] == 0
    assert '"deploy"' in item["rule"]["text"]
    assert item["among"] == ["second", "deep", "mallory"]
    assert item["votes"] == {"second": "approve"}
    assert item["deadline"].startswith("20")
    assert (asked["kind"], asked["of"], asked["votes"], asked["deadline"]) == ("ask", 0, {}, None)
    assert asked["rule"]["name"] == "rules[1]"


@pytest.mark.rule("5.votes.voter")
async def test_votes_that_do_not_count(meeting: Meeting, path: Path, notes: Notes) -> None:
    uncounted: list[tuple[str, dict[str, Any], str]] = [
        ("mallory", {}, "a proposer's vote never counts"),
        ("tools", {}, "tools may not vote about it; these may: second, deep, proposer"),
        ("second", {"proposal": "nothing"}, "waits here"),
        ("second", {"proposer": "deep"}, "waits here"),
        ("second", {"digest": "0" * 64}, "another call"),
    ]
    async with office(meeting, path, notes) as o, o.reviewer(), o.proposed(by="mallory") as p:
        for who, change, said in uncounted:
            with pytest.raises(RequestError, match=said):
                await o.vote(who, p.id, **{"proposer": "mallory", **change})
            assert (await o.held(p.id))["votes"] == {}
        assert (await o.vote("deep", p.id, proposer="mallory"))["outcome"] == "open"
    assert notes.all == []


@pytest.mark.rule("5.votes.voter")
async def test_a_vote_about_what_is_decided(meeting: Meeting, path: Path, notes: Notes) -> None:
    async with office(meeting, path, notes) as o, o.reviewer() as reviewer:
        async with o.proposed() as p:
            await o.vote("second", p.id)
            await o.vote("deep", p.id)
            assert await p.result() == 7
            with pytest.raises(RequestError, match=r"no decision counts|waits here"):
                await o.vote("mallory", p.id, "reject")
        async with o.proposed() as q:
            await o.vote("second", q.id)
        await until(lambda: has_state(reviewer, q.id, ProposalState.WITHDRAWN))
        with pytest.raises(RequestError, match=r"is withdrawn; no decision|waits here"):
            await o.vote("deep", q.id)
        async with o.proposed(8) as another_runs:
            await o.spaces["deep"].proposals.get(another_runs.id).fulfill()
            with pytest.raises(RequestError, match=r"no decision counts|waits here"):
                await o.vote("second", another_runs.id)
    assert notes.all == [("deploy", 7), ("deploy", 8)]


@pytest.mark.rule("5.votes.call")
async def test_a_proposed_vote_does_not_count(meeting: Meeting, path: Path, notes: Notes) -> None:
    """A voter that fulfills anything would otherwise vote as the proposer pleases."""
    async with office(meeting, path, notes) as o, o.reviewer(), o.proposed() as p:
        about = {"proposal": p.id, "proposer": "proposer", "vote": "approve"}
        params = {**about, payloads.META: {payloads.TARGET: "reviewer"}}
        vote = payloads.proposal("dev.meup/vote", params)
        asked = await o.spaces["proposer"].send(kinds.MCP_PROPOSAL, vote)
        await until(lambda: has_state(o.spaces["deep"], asked, ProposalState.PENDING))
        done = await o.spaces["deep"].proposals.get(asked).fulfill()
        assert "vote by a request of your own" in str(done.error)
        assert (await o.held(p.id))["votes"] == {}


@pytest.mark.rule("5.votes.call")
async def test_a_vote_counts_for_the_call_seen(meeting: Meeting, path: Path, notes: Notes) -> None:
    """A proposer that uses its id again gets no vote for another call."""
    async with (
        office(meeting, path, notes, without="mallory") as o,
        o.reviewer(),
        raw(meeting, "mallory") as peer,
    ):

        async def say(version: int) -> None:
            meta = {payloads.TARGET: "tools"}
            params = {"name": "deploy", "arguments": {"version": version}, "_meta": meta}
            payload = payloads.proposal("tools/call", params)
            await peer.say(kinds.MCP_PROPOSAL, payload, id="p1", to=("reviewer",))

        await say(1)
        seen = (await o.held("p1"))["digest"]
        await o.vote("second", "p1", proposer="mallory", digest=seen)
        await peer.say(kinds.MCP_WITHDRAW, {"reason": "other"}, id="w1", correlation=("p1",))
        await say(666)
        while (await o.held("p1"))["digest"] == seen:
            pass
        for more in ({"digest": seen}, {}):
            with pytest.raises(RequestError, match=r"another call|one of several"):
                await o.vote("deep", "p1", proposer="mallory", **more)
        assert (await o.held("p1"))["votes"] == {}
    assert notes.all == []


@pytest.mark.usefixtures("changes_at_once")
async def test_a_changed_policy_takes_the_votes_back(
    meeting: Meeting, path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The vote that decides finds that its rule has changed, before the reviewer sees it by itself.
    monkeypatch.setattr("meup_agent.approval.reviewer.reviewer.POLL_SECONDS", 3_600.0)
    async with office(meeting, path, notes) as o, o.reviewer(), o.proposed() as p:
        await o.vote("second", p.id)
        write(path, POLICY.replace("second, ", ""))
        await o.vote("deep", p.id)
        while (item := await o.held(p.id))["votes"] or len(item["among"]) != 2:
            pass
        with pytest.raises(RequestError, match="may not vote"):
            await o.vote("second", p.id)
        write(path, "rules: [{allow: {tool: deploy}}]\nend: true\n")
        await o.vote("deep", p.id)
        await o.vote("mallory", p.id)
        while (await o.held(p.id))["kind"] != "ask":
            pass
        assert notes.all == []
        write(path, "rules: [{quorum: {tool: deploy, of: 1, among: [deep]}}]\nend: true\n")
        async with o.proposed() as q:
            write(path, "rules: [{deny: {tool: deploy}}]\nend: true\n")
            await o.vote("deep", q.id)
            outcome = await ended(q, Rejection)
            assert outcome.reason == "policy"
    assert notes.all == []


@pytest.mark.usefixtures("changes_at_once")
async def test_a_no_is_enough_once_a_changed_policy_leaves_it_to_people(
    meeting: Meeting, path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meup_agent.approval.reviewer.reviewer.POLL_SECONDS", 0.01)
    async with office(meeting, path, notes) as o, o.reviewer(), o.proposed(to=()) as p:
        for who in ("second", "deep", "mallory", "tools"):
            await o.spaces[who].proposals.get(p.id, proposer="proposer").reject("unsafe")
        assert p.state is ProposalState.PENDING, "the votes may still decide it"
        write(path, "rules: [{ask: {tool: deploy}}]\nend: true\n")
        assert (await ended(p, Rejection)).reason == "unsafe"


@pytest.mark.usefixtures("changes_at_once")
async def test_a_no_is_not_enough_once_a_changed_policy_counts_votes(
    meeting: Meeting, path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meup_agent.approval.reviewer.reviewer.POLL_SECONDS", 0.01)
    write(path, "rules: [{ask: {tool: deploy}}]\nend: true\n")
    async with office(meeting, path, notes) as o, taped(o.spaces["proposer"]) as tape:
        async with o.reviewer() as reviewer, o.proposed(to=()) as p:
            await until(lambda: len(tape.calls(kinds.PROGRESS)) == 1)
            write(path, POLICY)
            await until(lambda: len(tape.calls(kinds.PROGRESS)) == 2)
            for who in ("second", "deep", "mallory", "tools"):
                await o.spaces[who].proposals.get(p.id, proposer="proposer").reject("unsafe")
            await tape.all_said(reviewer)
            assert p.state is ProposalState.PENDING
            await reviewer.proposals.get(p.id, proposer="proposer").reject("policy")
            assert (await ended(p, Rejection)).by == "reviewer"


@pytest.mark.rule("5.votes.once")
@pytest.mark.rule("5.votes.call")
async def test_votes_outlive_the_reviewer(meeting: Meeting, path: Path, notes: Notes) -> None:
    async with office(meeting, path, notes) as o, AsyncExitStack() as stack:
        async with o.reviewer():
            p = await stack.enter_async_context(o.proposed())
            await o.vote("mallory", p.id)
            await o.vote("mallory", p.id, "reject")
            await o.vote("second", p.id)
        write(path, POLICY.replace("second, ", ""))
        async with o.reviewer():
            assert (await o.held(p.id))["votes"] == {}, "another rule finds none"
        write(path, POLICY)
        async with o.reviewer():
            assert (await o.held(p.id))["votes"] == {"second": "approve", "mallory": "reject"}
            assert notes.all == []
            await o.vote("deep", p.id)
            assert await p.result() == 7
    assert notes.all == [("deploy", 7)]


@pytest.mark.rule("5.votes.once")
async def test_votes_are_spent_where_the_call_was_not_carried_out(
    meeting: Meeting, path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with office(meeting, path, notes) as o, o.reviewer(), o.proposed() as p:
        with monkeypatch.context() as patch:

            async def lost(self: Proposal, **_: Any) -> None:
                raise NotSent("the connection was lost")

            patch.setattr(Proposal, "fulfill", lost)
            await o.vote("second", p.id)
            assert (await o.vote("deep", p.id))["outcome"] == "approved"
            while (await o.held(p.id))["votes"]:
                pass
        assert (await o.vote("deep", p.id))["outcome"] == "open"
        assert notes.all == []
        await o.vote("mallory", p.id)
        assert await p.result() == 7
    assert notes.all == [("deploy", 7)]


@pytest.mark.rule("5.votes.voter")
async def test_no_vote_counts_where_the_gateway_does_not_check_who_speaks(
    meeting: Meeting, path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with office(meeting, path, notes) as o, o.reviewer(), o.proposed() as p:
        unchecked = property(lambda _: Guarantees(echo=True, resume=True))
        monkeypatch.setattr(GatewayFacts, "guarantees", unchecked)
        for voter in ("second", "deep"):
            with pytest.raises(RequestError, match="does not check who speaks"):
                await o.vote(voter, p.id)
    assert notes.all == []


@pytest.mark.rule("5.votes.once")
async def test_votes_of_before_a_restart_are_told_once_the_tool_is_known(
    meeting: Meeting, path: Path, notes: Notes
) -> None:
    async with office(meeting, path, notes, without="tools") as o, AsyncExitStack() as stack:
        async with join(meeting, tools(notes)), o.reviewer():
            p = await stack.enter_async_context(o.proposed())
            await o.vote("second", p.id)
        async with o.reviewer():
            assert (await o.held(p.id))["votes"] == {}
            async with join(meeting, tools(notes)):
                while (await o.held(p.id))["votes"] != {"second": "approve"}:
                    await anyio.lowlevel.checkpoint()
                await o.vote("deep", p.id)
                assert await p.result() == 7


async def test_a_restart_after_the_votes_have_decided_carries_nothing_out(
    meeting: Meeting, path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reviewer ends between the last vote and the request: people vote anew."""
    async with office(meeting, path, notes) as o, AsyncExitStack() as stack:
        with monkeypatch.context() as patch:

            async def never(self: Proposal, **_: Any) -> None:
                await anyio.sleep_forever()

            patch.setattr(Proposal, "fulfill", never)
            async with o.reviewer(grace=0.0):
                p = await stack.enter_async_context(o.proposed())
                await o.vote("second", p.id)
                await o.vote("deep", p.id)
                with pytest.raises(RequestError, match="is being carried out"):
                    await o.vote("mallory", p.id)
        async with o.reviewer():
            assert (await o.held(p.id))["votes"] == {}
            assert (await o.vote("second", p.id))["outcome"] == "open"
    assert notes.all == []


@pytest.mark.rule("5.votes.voter")
async def test_a_reviewer_counts_the_votes_of_one_space_alone(path: Path, notes: Notes) -> None:
    """Of another space it would count those of a participant that has a voter's name there."""
    here, elsewhere = InMemory(), InMemory()
    reviewer = Reviewer(path)
    async with office(here, path, notes) as o, join(elsewhere, "deep") as namesake:
        async with reviewer.join(here.connector("reviewer"), token=here.token("reviewer")):
            there = elsewhere.connector("reviewer"), elsewhere.token("reviewer")
            with pytest.raises(UsageError, match="in a space already"):
                async with reviewer.join(there[0], token=there[1]):
                    pass
            async with o.proposed() as p:
                assert (await o.vote("second", p.id))["outcome"] == "open"
        # Once it has left, it knows nothing of what waited there.
        async with reviewer.join(there[0], token=there[1]):
            listed = await namesake.request("reviewer", "dev.meup/waiting")
            assert listed["proposals"] == []
