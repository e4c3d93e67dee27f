"""Proposals from their proposer's side: fulfilled, edited, rejected, expired."""

import json
from datetime import datetime, timedelta
from typing import Any

import anyio
import pytest

from meup_agent import (
    Agent,
    Chat,
    Expiry,
    Fulfillment,
    Proposal,
    ProposalState,
    Reason,
    Rejection,
    Withdrawal,
)
from meup_agent.errors import (
    ProposalEdited,
    ProposalExpired,
    ProposalRejected,
    RejectMessage,
    RequestError,
    UsageError,
)
from meup_agent.types import CallNext, Change, InboundMessage
from tests.interaction.cast import calculator, unwilling, willing
from tests.interaction.people import Meeting, Notes, ended, gathered, join, until
from tests.interaction.views import call_of, is_request, is_withdraw, state_of, taped
from tests.patience import PATIENCE
from tests.wire import kinds, payloads


@pytest.mark.rule("6.digest", "6.target")
async def test_a_proposal_carries_what_the_protocol_adds(meeting: Meeting) -> None:
    arguments = {"b": 2, "a": 1}
    async with (
        gathered(meeting, calculator(), willing(), "proposer") as (_, _, proposers),
        taped(proposers) as tape,
    ):
        before = proposers.gateway.now
        async with proposers.propose("tools", "add", arguments, ttl=60) as proposal:
            outcome = await proposal.outcome()
        (sent,) = tape.of(kinds.MCP_PROPOSAL)
        meta = call_of(sent).meta
        assert meta["dev.meup/target"] == "tools"
        expected = payloads.digest(
            "tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, "tools"
        )
        assert meta["dev.meup/digest"] == expected
        expires = datetime.fromisoformat(meta["dev.meup/expires_at"])
        assert timedelta(seconds=58) < expires - before < timedelta(seconds=62)
        (request,) = tape.of(kinds.MCP_REQUEST)
        assert call_of(request).meta["dev.meup/digest"] == expected
        assert "dev.meup/edited" not in call_of(request).meta
        assert call_of(request).meta["dev.meup/proposer"] == "proposer"
        assert "dev.meup/proposer" not in meta
        assert isinstance(outcome, Fulfillment)
        assert (outcome.by, outcome.executor) == ("reviewer", "tools")
        assert not outcome.edited
        assert outcome.result() == 3
        for envelope in (sent, request):
            wire = json.loads(envelope.frame)
            assert wire["protocol"] == "meup/v0.1"
            assert wire["kind"] in ("mcp.proposal", "mcp.request")


@pytest.mark.rule("6.digest", "4.4.follow")
async def test_the_proposer_learns_what_was_edited(meeting: Meeting) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def edit(proposal: Proposal) -> None:
        fulfilled = await proposal.fulfill({**proposal.arguments, "a": 10})
        assert fulfilled.edited

    async with (
        gathered(meeting, calculator(), reviewer, "proposer") as (_, _, proposers),
        taped(proposers) as tape,
        proposers.propose("tools", "add", {"a": 1, "b": 2}) as proposal,
    ):
        outcome = await ended(proposal, Fulfillment)
        assert outcome.changes == (Change("arguments.a", 1, 10),)
        assert outcome.result(accept_edits=True) == 12
        (request,) = tape.of(kinds.MCP_REQUEST)
        meta = call_of(request).meta
        assert meta["dev.meup/edited"] is True
        assert (
            meta["dev.meup/digest"]
            != call_of(tape.of(kinds.MCP_PROPOSAL)[0]).meta["dev.meup/digest"]
        )


@pytest.mark.rule("4.4.follow")
async def test_a_call_that_was_edited_is_no_plain_result(meeting: Meeting) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def edit(proposal: Proposal) -> None:
        # Editing in place is how it is done first.
        arguments = proposal.arguments
        arguments["a"] = 10
        fulfilled = await proposal.fulfill(arguments)
        assert fulfilled.edited

    async with gathered(meeting, calculator(), reviewer, "proposer") as (_, _, proposers):
        with pytest.raises(ProposalEdited, match=r"arguments\.a: 10 instead of 1") as caught:
            await proposers.call("tools", "add", {"a": 1, "b": 2})
        assert caught.value.value == 12
        assert caught.value.by == "reviewer"
        assert caught.value.changes == (Change("arguments.a", 1, 10),)
        call = {"a": 1, "b": 2}
        assert await proposers.call("tools", "add", call, accept_edits=True) == 12


@pytest.mark.rule("6.meta_not_repeated")
async def test_a_fulfillment_repeats_the_trace_and_nothing_unseen(meeting: Meeting) -> None:
    async with (
        gathered(meeting, calculator(), willing(), "proposer") as (_, _, proposers),
        taped(proposers) as tape,
    ):
        params = {
            "name": "add",
            "arguments": {"a": 1, "b": 2},
            "_meta": {
                "traceparent": "00-1-2-01",
                "dev.meup/target": "tools",
                "acme/force": True,
                "baggage": "admin=1",
            },
        }
        await proposers.send("mcp/proposal", {"method": "tools/call", "params": params})
        request = await tape.until(is_request)
        meta = call_of(request).meta
        assert meta["traceparent"] == "00-1-2-01"
        assert meta.keys() == {"traceparent", "dev.meup/digest", "dev.meup/proposer"}


async def test_somebody_else_may_be_named_to_execute(meeting: Meeting) -> None:
    reviewer, deep, second = Agent("reviewer"), calculator(), calculator()
    errors: list[str] = []

    @reviewer.on_proposal
    async def delegate(proposal: Proposal) -> None:
        try:
            await proposal.fulfill()
        except UsageError as error:
            errors.append(str(error))
            await proposal.fulfill(executor="deep")
        else:
            pytest.fail("two have it")

    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, deep, "deep"),
            join(meeting, second, "second"),
            join(meeting, reviewer),
            join(meeting, "proposer") as proposers,
            proposers.propose(None, "add", {"a": 1, "b": 2}) as proposal,
        ):
            outcome = await ended(proposal, Fulfillment)
            assert (outcome.executor, outcome.changes) == ("deep", ())
    assert "'deep', 'second'" in errors[0]


@pytest.mark.rule("4.5.addressed", "4.5.withdraw_follows", "5.own.waiting.rejection")
async def test_a_rejection_and_its_explanation(meeting: Meeting, notes: Notes) -> None:
    reviewer, proposer = unwilling(explain="it leaves the workspace"), Agent("proposer")

    @proposer.on_reject
    async def rejected(rejection: Rejection) -> None:
        notes((rejection.reason, rejection.by, rejection.counts))

    @proposer.on_chat
    async def explained(chat: Chat) -> None:
        notes((chat.text, chat.about))

    async with gathered(meeting, reviewer, proposer) as (_, proposers):
        async with proposers.propose("tools", "write", to="reviewer") as proposal:
            outcome = await ended(proposal, Rejection)
            assert (outcome.reason, outcome.by) == ("unsafe", "reviewer")
            assert proposal.state is ProposalState.REJECTED
        await notes.until(("unsafe", "reviewer", True), ("it leaves the workspace", outcome.id))
        with pytest.raises(ProposalRejected, match="unsafe"):
            await proposers.call("tools", "write", to="reviewer")


@pytest.mark.rule("4.5.broadcast")
async def test_of_a_broadcast_proposal_everybody_who_could_must_reject(meeting: Meeting) -> None:
    reviewer, second = (unwilling(Reason.POLICY, name) for name in ("reviewer", "second"))
    async with gathered(meeting, reviewer, "observer", "proposer") as (_, _, proposers):
        async with proposers.propose("tools", "write") as proposal:
            assert isinstance(await proposal.outcome(), Rejection)
        async with join(meeting, "tools") as slow, join(meeting, second):
            await until(lambda: len(proposers.participants) == 5)
            async with proposers.propose("tools", "write", ttl=None) as proposal:
                await until(lambda: any(r.rejections for r in slow.proposals))
                assert proposal.state is ProposalState.PENDING
                await slow.proposals.get(slow.proposals[-1]).reject(Reason.BUSY)
                outcome = await proposal.outcome()
            assert isinstance(outcome, Rejection)
            assert outcome.by == "tools"


@pytest.mark.rule("4.5.choice")
@pytest.mark.parametrize(
    ("wait", "ttl", "ends"), [("first", 60.0, Rejection), ("deadline", 0.2, Expiry)]
)
async def test_the_caller_chooses_which_rejection_counts(
    meeting: Meeting, wait: str, ttl: float, ends: type[Any]
) -> None:
    second = unwilling(Reason.POLICY, "second")
    async with (
        gathered(meeting, second, "reviewer", "proposer") as (_, _, proposers),
        proposers.propose("tools", "write", wait=wait, ttl=ttl) as proposal,
    ):
        assert isinstance(await proposal.outcome(), ends)


@pytest.mark.rule("5.own.waiting.deadline")
async def test_a_proposal_that_nobody_decides_expires_and_is_withdrawn(meeting: Meeting) -> None:
    async with (
        gathered(meeting, "reviewer", "proposer") as (reviewers, proposers),
        taped(reviewers) as tape,
    ):
        async with proposers.propose("tools", "write", ttl=0.5) as proposal:
            assert isinstance(await proposal.outcome(), Expiry)
            assert proposal.state is ProposalState.EXPIRED
        withdraw = await tape.until(is_withdraw)
        assert withdraw.payload == {"reason": "timeout"}
        assert state_of(reviewers, proposal.id) is ProposalState.EXPIRED
        with pytest.raises(ProposalExpired):
            await proposers.call("tools", "write", timeout=0.05)


@pytest.mark.rule("4.2.expiry.tried")
async def test_expiry_tells_who_tried_before_and_why_it_failed(
    meeting: Meeting, notes: Notes
) -> None:
    async def refuse(message: InboundMessage, call_next: CallNext) -> Any:
        if message.tool == "locked":
            raise RejectMessage(Reason.POLICY, "not at night")
        return await call_next(message)

    tools, reviewer = Agent("tools", middleware=[refuse]), Agent("reviewer")

    @tools.tool
    async def locked() -> None: ...

    @tools.tool
    async def endless() -> None:
        notes("begun")
        await anyio.sleep_forever()

    @reviewer.on_proposal(tool="endless")
    async def give_up(proposal: Proposal) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(proposal.fulfill)
            await notes.until("begun")
            tasks.cancel_scope.cancel()

    @reviewer.on_proposal(tool="locked")
    async def fulfill_locked(proposal: Proposal) -> None:
        with pytest.raises(RequestError):
            (await proposal.fulfill()).result()

    async with (
        gathered(meeting, tools, reviewer, "proposer") as (_, _, space),
        space.propose("tools", "locked", ttl=2) as first,
        space.propose("tools", "endless", ttl=2) as second,
    ):
        refused, cancelled = await first.outcome(), await second.outcome()
    assert isinstance(refused, Expiry)
    assert isinstance(cancelled, Expiry)
    assert (refused.begun_by, cancelled.begun_by) == ("", "")
    assert refused.failed is not None
    assert cancelled.failed is not None
    assert refused.failed.refused
    assert (refused.failed.by, refused.failed.cause.by) == ("reviewer", "tools")
    assert "not at night" in refused.failed.cause.text
    assert not cancelled.failed.refused
    assert (cancelled.failed.by, cancelled.failed.cause.by) == ("reviewer", "reviewer")
    with pytest.raises(ProposalExpired, match=r"'reviewer' .* which 'tools' refused: .*not at n"):
        refused.result()
    with pytest.raises(ProposalExpired, match=r"'reviewer' .* which 'reviewer' cancelled"):
        cancelled.result()


@pytest.mark.rule("4.2.fulfilled_by_response")
async def test_a_tool_that_fails_fulfills_with_an_error(meeting: Meeting) -> None:
    seen: list[Fulfillment] = []
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def approve(proposal: Proposal) -> None:
        seen.append(await proposal.fulfill())

    async with (
        gathered(meeting, calculator(), reviewer, "proposer") as (_, _, proposers),
        proposers.propose("tools", "divide", {"a": 1, "b": 0}) as proposal,
    ):
        outcome = await ended(proposal, Fulfillment)
        assert outcome.is_error
        assert outcome.error is None
        await until(lambda: bool(seen))
        assert seen[0].is_error
        assert seen[0].response == outcome.response


@pytest.mark.rule("4.4.incapable")
async def test_a_proposal_without_a_handler_is_rejected(meeting: Meeting, notes: Notes) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal(tool="read_*")
    async def approve(proposal: Proposal) -> None:
        notes("reviewed")

    async with gathered(meeting, reviewer, "proposer") as (reviewers, proposers):
        async with proposers.propose("tools", "write_file", to="reviewer") as proposal:
            outcome = await ended(proposal, Rejection)
            assert outcome.reason == "incapable"
        async with proposers.propose("tools", "write_file") as proposal:
            await until(lambda: state_of(reviewers, proposal.id) is not None)
        assert state_of(reviewers, proposal.id) in (ProposalState.PENDING, ProposalState.WITHDRAWN)
        assert isinstance(await proposal.outcome(), Withdrawal)
    assert notes.all == []


async def test_proposals_can_be_decided_outside_of_handlers(meeting: Meeting) -> None:
    async with (
        gathered(meeting, calculator(), "reviewer", "proposer") as (_, person, proposers),
        proposers.propose("tools", "add", {"a": 1, "b": 2}) as proposal,
    ):
        await until(lambda: state_of(person, proposal.id) is ProposalState.PENDING)
        record = person.proposals[-1]
        theirs = person.proposals.get(record)
        assert (theirs.proposer, theirs.tool, theirs.target) == ("proposer", "add", "tools")
        fulfilled = await theirs.fulfill()
        assert fulfilled.result() == 3
        outcome = await proposal.outcome()
        assert outcome == fulfilled
