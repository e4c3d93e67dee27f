"""Rejections: who may say no, the words that explain it, and that it lasts (PROTOCOL 4.3, 4.4)."""

import logging
from typing import Any

import pytest

from meup_agent import Agent, Proposal, ProposalState, Reason, Rejection, Space
from meup_agent.errors import AlreadyDecided, ProposalRejected, Refused
from tests.interaction.cast import sleeper, unwilling, willing
from tests.interaction.people import Meeting, Notes, ended, gathered, join
from tests.interaction.views import (
    call_and_give_up,
    has_state,
    is_proposal,
    lines,
    session_of,
    taped,
)
from tests.wire import kinds


@pytest.mark.rule("4.3.explained")
async def test_explanation_of_a_rejection_can_be_waited_for(meeting: Meeting, notes: Notes) -> None:
    agent = Agent("proposer")

    @agent.on_reject
    async def hear(rejection: Rejection) -> None:
        assert (rejection.by, rejection.reason, rejection.counts) == ("reviewer", "unsafe", True)
        notes(("heard", await rejection.explanation()))

    async with gathered(meeting, unwilling(explain="it smokes"), agent) as (_, space):
        async with space.propose("tools", "x", to="reviewer") as proposal:
            await ended(proposal, Rejection)
            assert await proposal.explanation() == "it smokes"
            with pytest.raises(ProposalRejected, match=r"unsafe \(it smokes\)$") as caught:
                await proposal.result()
            assert caught.value.explanation == "it smokes"
        assert await proposal.explanation() == "it smokes"
        await notes.until(("heard", "it smokes"))


@pytest.mark.rule("4.3.explained_at_once")
@pytest.mark.parametrize("by_call", [False, True], ids=["proposed", "called"])
async def test_the_error_of_a_rejection_has_its_words(meeting: Meeting, by_call: bool) -> None:
    async def propose(space: Space) -> None:
        async with space.propose("tools", "x", to="reviewer") as proposal:
            await proposal.result()

    async with gathered(meeting, unwilling(explain="it smokes"), "proposer") as (_, space):
        for _ in range(20):
            asked = space.call("tools", "x", to="reviewer") if by_call else propose(space)
            with pytest.raises(ProposalRejected, match=r"unsafe \(it smokes\)$") as caught:
                await asked
            assert caught.value.explanation == "it smokes"


@pytest.mark.rule("4.3.explained")
async def test_nobody_waits_for_an_explanation_that_does_not_come(meeting: Meeting) -> None:
    async with gathered(meeting, unwilling(), "proposer") as (_, space):
        async with space.propose("tools", "x", to="reviewer") as proposal:
            with pytest.raises(ProposalRejected, match=r"unsafe$") as caught:
                await proposal.result()
            assert caught.value.explanation == ""
            assert await proposal.explanation(timeout=0.0) == ""


@pytest.mark.rule("4.3.may_reject")
async def test_reject_without_the_capability_raises(meeting: Meeting, notes: Notes) -> None:
    observer = Agent("observer")

    @observer.on_proposal
    async def decide(proposal: Proposal) -> None:
        with pytest.raises(Refused, match="'observer' allows mcp/reject") as caught:
            await proposal.reject("busy", explain="never said")
        notes(caught.value.error)

    async with gathered(meeting, observer, "proposer") as (_, space), taped(space) as tape:
        async with space.propose("tools", "x"):
            await notes.until("capability_violation")
        await tape.all_said(space)
        assert [each for each in tape.envelopes if each.sender == "observer"] == []


async def test_a_second_reject_raises_and_none_of_its_words_is_lost(meeting: Meeting) -> None:
    async with (
        gathered(meeting, "observer", "second", "proposer") as (onlooker, reviewer, space),
        taped(reviewer) as shown,
        taped(onlooker) as tape,
        space.propose("tools", "x", wait="deadline"),
    ):
        proposal = reviewer.proposals.get(await shown.until(is_proposal))
        await proposal.reject(Reason.UNSAFE)
        with pytest.raises(AlreadyDecided, match="is rejected"):
            await proposal.reject(Reason.POLICY, explain="never said")
        await tape.all_said(reviewer)
        assert [each.payload["reason"] for each in tape.of(kinds.MCP_REJECT)] == ["unsafe"]
        assert [each.payload["message"] for each in tape.of(kinds.CHAT)] == ["so far"]


@pytest.mark.rule("4.3.may_reject")
async def test_refusal_that_nobody_waits_for_is_an_error_in_the_log(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    async with gathered(meeting, "observer") as (observer,), taped(observer) as tape:
        id = (
            session_of(observer)
            .send_message(kinds.MCP_REJECT, {"reason": "busy"}, correlation=("p",))
            .id
        )
        await tape.until(lambda e: e.kind == kinds.SYSTEM_ERROR and id in e.correlation)
    (line,) = lines(caplog, logging.ERROR)
    assert "refused_by_gateway" in line
    assert "capability_violation" in line


@pytest.mark.rule("4.7.logged")
async def test_each_cancel_of_ours_is_logged_with_its_reason(
    meeting: Meeting, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with gathered(meeting, sleeper(notes), "second") as (_, caller):
        async with taped(caller) as tape:
            await call_and_give_up(caller, "sleep", notes, "sleeps")
        (request,) = tape.calls("tools/call")
    ours: list[Any] = [line for line in lines(caplog) if line.startswith("cancelled our request")]
    assert ours == [f"cancelled our request {request.id!r} to 'tools': 'no_longer_needed'"]


def refusing(notes: Notes, reason: Reason) -> Agent:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def refuse(proposal: Proposal) -> None:
        await proposal.reject(reason)
        notes(proposal.id)

    return reviewer


def files(notes: Notes) -> Agent:
    tools = Agent("tools")

    @tools.tool
    async def delete(path: str) -> None:
        notes(f"deleted {path}")

    return tools


@pytest.mark.rule("4.4.own_rejection_lasts")
async def test_what_was_rejected_does_not_run_later(meeting: Meeting, notes: Notes) -> None:
    async with (
        gathered(meeting, "observer", "proposer") as (onlooker, proposer),
        proposer.propose("tools", "delete", {"path": "a"}, wait="deadline") as rejected,
    ):
        async with join(meeting, files(notes)), join(meeting, refusing(notes, Reason.UNSAFE)):
            await notes.until(rejected.id)
        async with (
            join(meeting, files(notes)),
            join(meeting, willing()) as again,
            proposer.propose("tools", "delete", {"path": "b"}) as other,
        ):
            await other.outcome()
            (known,) = [each for each in again.proposals if each.id == rejected.id]
            said = [(each.by, each.reason) for each in known.rejections]
            assert said == [("reviewer", Reason.UNSAFE)]
            with pytest.raises(AlreadyDecided, match="rejected"):
                await again.proposals.get(rejected.id).fulfill()
        assert notes.all == [rejected.id, "deleted b"]
        # To others it says nothing.
        assert has_state(onlooker, rejected.id, ProposalState.PENDING)
        second = willing("second")
        async with join(meeting, files(notes)), join(meeting, second):
            await notes.until("deleted a")


@pytest.mark.rule("4.4.own_rejection_lasts")
@pytest.mark.parametrize("reason", [Reason.BUSY, Reason.INCAPABLE])
async def test_who_had_no_time_decides_after_its_restart(
    meeting: Meeting, notes: Notes, reason: Reason
) -> None:
    async with (
        gathered(meeting, files(notes), "proposer") as (_, proposer),
        proposer.propose("tools", "delete", {"path": "a"}, wait="deadline") as proposal,
    ):
        async with join(meeting, refusing(notes, reason)):
            await notes.until(proposal.id)
        async with join(meeting, willing()):
            await notes.until("deleted a")
