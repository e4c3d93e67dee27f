"""Participants that answer as reviewers: who is asked, and which answers count."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Envelope, Request
from meup_agent.approval import Inbox, Verb
from meup_agent.errors import RequestError
from tests.approval.test_inbox_rules import VIRTUAL, office, ruled
from tests.approval.test_judge_answers import HandReviewer, answering
from tests.gateways import Connector, Transport
from tests.interaction.people import EVERYTHING, InMemory, Latch, Meeting, join, raw
from tests.interaction.views import Tape, session_of
from tests.patience import PATIENCE
from tests.wire import kinds, payloads

pytestmark = pytest.mark.rule("5.reviewers.capability")

CALLS: dict[str, Any] = {
    "kind": "mcp/request",
    "payload": {"method": "tools/call", "params": {"name": "wipe"}},
}
WIPE = {"disk": "old"}


def claim(proposal: str, name: str = "mine") -> dict[str, Any]:
    """The answer of a reviewer whose rule asks for the vote of the person."""
    about = {"proposal": proposal, "proposer": "proposer", "rule": {"name": name}}
    count = {"kind": "quorum", "of": 1, "among": ["mallory"], "votes": {}}
    return {"proposals": [about | count], "omitted": 0}


class Claimant:
    """An agent that claims, once it is told a proposal, that its rule asks about that."""

    def __init__(self, name: str) -> None:
        self.agent = Agent(name)
        self.asked = list[str]()
        self.answer: dict[str, Any] = {"proposals": []}
        self.agent.on_request("dev.meup/waiting", "dev.meup/vote", "dev.meup/judge")(self._answer)

    async def _answer(self, request: Request) -> dict[str, Any]:
        self.asked.append(request.method)
        return {**self.answer, "verdict": "deny"}


async def test_one_that_may_not_carry_the_call_out_is_not_asked() -> None:
    claimants = {name: Claimant(name) for name in ("guest", "other")}
    meeting = InMemory(
        {
            **dict.fromkeys(("tools", "proposer", "mallory"), EVERYTHING),
            "guest": [{"kind": "mcp/response"}, {"kind": "chat"}],
            "other": [{**CALLS, "to": ["mallory"]}, {"kind": "mcp/proposal"}],
        }
    )
    async with (
        join(meeting, claimants["guest"].agent),
        join(meeting, claimants["other"].agent),
        office(meeting, "mallory", policy=None) as o,
        o.proposer.propose("tools", "wipe", WIPE) as proposal,
    ):
        for each in claimants.values():
            each.answer = claim(proposal.id)
        item = await o.until("mallory", lambda item: item.tool_facts)
        await o.inboxes["mallory"].settle()
        assert item.rule is None
        assert item.may == {Verb.APPROVE, Verb.REJECT}
        assert await o.inboxes["mallory"].approve(item, {"disk": "new"}) is not None
    assert [each.asked for each in claimants.values()] == [[], []]


async def test_one_that_may_carry_it_out_no_more_is_believed_no_more(meeting: Meeting) -> None:
    claimant = Claimant("deep")
    async with (
        join(meeting, claimant.agent),
        office(meeting, "mallory", "second", policy=None) as o,
        o.proposer.propose("tools", "wipe", WIPE) as proposal,
    ):
        claimant.answer = claim(proposal.id)
        item = await o.until("mallory", ruled)
        assert item.may == {Verb.VOTE, Verb.REJECT}
        await o.spaces["second"].members.revoke("deep", [{"kind": "*"}])
        await o.until("mallory", lambda item: item.rule is None)
        assert item.may == {Verb.APPROVE, Verb.REJECT}
        # Nor is it asked to judge an edit.
        assert await o.inboxes["mallory"].approve(item, {"disk": "new"}) is not None
    assert "dev.meup/judge" not in claimant.asked


async def test_one_that_is_allowed_to_later_is_asked_then(meeting: Meeting) -> None:
    claimant = Claimant("observer")
    async with (
        join(meeting, claimant.agent),
        office(meeting, "mallory", "second", policy=None) as o,
        o.proposer.propose("tools", "wipe", WIPE) as proposal,
    ):
        claimant.answer = claim(proposal.id)
        item = await o.until("mallory", lambda item: item.tool_facts)
        assert (item.rule, claimant.asked) == (None, [])
        await o.spaces["second"].members.grant("observer", [{"kind": "mcp/request"}])
        await o.until("mallory", ruled)


def came(envelope: Envelope, name: str) -> bool:
    said = envelope.payload_object
    is_join = envelope.kind == kinds.SYSTEM_PRESENCE and said["event"] == "join"
    return is_join and said["participant"]["id"] == name


class ForgetfulLatch(Latch):
    """A latch whose participant is told nothing of what it has missed."""

    def __call__(self, connector: Connector) -> Connector:
        def dial(headers: Mapping[str, str]) -> AbstractAsyncContextManager[Transport]:
            asked = {name: each for name, each in headers.items() if name != "MEUP-Resume"}
            return latched(asked)

        latched = super().__call__(connector)
        return dial


async def test_one_that_became_a_reviewer_while_we_were_away_is_found() -> None:
    """Where nothing is resumed, no presence tells that another process has its name now."""
    meeting, latch, tape, claimant = InMemory(), ForgetfulLatch(), Tape(), Claimant("deep")
    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, "tools"),
            join(meeting, "proposer") as proposer,
            join(meeting, "mallory", latch=latch) as space,
            Inbox(space) as inbox,
        ):
            session_of(proposer).watchers.listen(tape)
            async with join(meeting, "deep"):
                async with proposer.propose("tools", "wipe", WIPE):
                    await tape.until(
                        lambda each: each.kind == kinds.MCP_RESPONSE and each.sender == "deep"
                    )
                latch.closed = True
                meeting.drop("mallory")
            async with join(meeting, claimant.agent):
                latch.closed = False
                await tape.until(lambda each: came(each, "mallory"))
                async with proposer.propose("tools", "wipe", WIPE) as proposal:
                    claimant.answer = claim(proposal.id)
                    changes = inbox.changes()
                    while not any(item.rule for item in inbox.items):
                        await anext(changes)


class Evader(HandReviewer):
    """A participant that answers the question for what waits with an error, or not at all."""

    code: int | str | None = None

    async def list_waiting(self, asked: Envelope) -> None:
        if self.code is not None:
            await self.error(asked, self.code)


async def test_a_list_of_what_no_participant_proposed_here_changes_nothing(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of another space; and of a list without end the first ones count."""
    monkeypatch.setattr("meup_agent.approval.inbox.rules.MAX_RULES", 1_000)
    claimant = Claimant("deep")
    async with (
        join(meeting, claimant.agent),
        office(meeting, "mallory", policy=None) as o,
        o.proposer.propose("tools", "wipe", WIPE) as proposal,
        o.proposer.propose("tools", "wipe", {"disk": "other"}) as second,
    ):
        [mine], [late] = claim(proposal.id)["proposals"], claim(second.id)["proposals"]
        foreign = [{**mine, "proposal": f"elsewhere{number}"} for number in range(999)]
        claimant.answer = {"proposals": [mine, *foreign, late]}
        changes = o.inboxes["mallory"].changes()
        while (found := o.inboxes["mallory"].find("proposer", proposal.id)) is None or not (
            found.rule
        ):
            await anext(changes)
        other = o.inboxes["mallory"].find("proposer", second.id)
        assert other is not None
        assert other.rule is None
        assert len(o.inboxes["mallory"]) == 2


def questions(tape: Tape, to: str) -> int:
    return len([each for each in tape.calls("dev.meup/waiting") if each.to == (to,)])


@pytest.mark.thorough
@VIRTUAL
@pytest.mark.parametrize(
    ("code", "most"),
    [(payloads.METHOD_NOT_FOUND, 1), ("NOT_IMPLEMENTED", 1), (None, 12)],
    ids=["lacks it", "lacks it in mew/v0.4", "silent"],
)
async def test_one_that_is_no_reviewer_is_asked_seldom(code: int | str | None, most: int) -> None:
    tape, meeting = Tape(), InMemory()
    async with raw(meeting, "deep") as peer, anyio.create_task_group() as tasks:
        evader = Evader(peer, answering())
        evader.code = code
        tasks.start_soon(evader.serve)
        async with office(meeting, "mallory", policy=None, seconds=3 * 3_600) as o:
            session_of(o.proposer).watchers.listen(tape)
            async with o.proposer.propose("tools", "wipe", WIPE, ttl=None):
                await anyio.sleep(2 * 3_600)
        tasks.cancel_scope.cancel()
    assert 1 <= questions(tape, "deep") <= most


@VIRTUAL
async def test_a_reviewer_that_was_busy_at_first_is_found() -> None:
    busy, known = [True], list[str]()
    reviewer = Agent("deep")

    @reviewer.on_request("dev.meup/waiting")
    async def answer() -> dict[str, Any]:
        if busy:
            raise RequestError(payloads.EXCHANGE_ERROR, "busy", {"reason": "busy"})
        return claim(known[-1])

    meeting = InMemory()
    async with (
        join(meeting, reviewer),
        office(meeting, "mallory", policy=None, seconds=3_600) as o,
        o.proposer.propose("tools", "wipe", WIPE, ttl=None) as proposal,
    ):
        known.append(proposal.id)
        await anyio.sleep(10)
        item = o.item("mallory")
        assert item is not None
        assert item.rule is None
        busy.clear()
        await o.until("mallory", ruled)


@pytest.mark.rule("5.reviewers.methods")
async def test_nothing_but_what_was_approved_is_a_call(meeting: Meeting, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "rules: [quorum: {tool: deploy, of: 2, among: [second, mallory]}, ask: {tool: wipe}]\n"
        "end: true\n"
    )
    tape = Tape()
    async with office(meeting, "second", "mallory", policy=path) as o:
        session_of(o.proposer).watchers.listen(tape)
        async with o.proposer.propose("tools", "deploy", {"version": 7}) as voted:
            for name in ("second", "mallory"):
                await o.inboxes[name].approve(await o.until(name, ruled))
            assert await voted.result() == 7
        async with o.proposer.propose("tools", "wipe", WIPE) as edited:
            item = await o.until("mallory", lambda item: item.id == edited.id and item.rule)
            await o.inboxes["mallory"].approve(item, {"disk": "new"})
            assert await edited.result(accept_edits=True) == "new"
    called = [(each.sender, each.to, each.correlation) for each in tape.calls("tools/call")]
    assert called == [("reviewer", ("tools",), (voted.id,)), ("mallory", ("tools",), (edited.id,))]
