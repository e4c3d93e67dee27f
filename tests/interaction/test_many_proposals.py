"""Many proposals at once: withdrawn together, and one after another (PROTOCOL 4.15, 4.16)."""

from contextlib import AsyncExitStack

import anyio
import pytest

from meup_agent import (
    Agent,
    Explanation,
    Fulfillment,
    Proposal,
    ProposalHandle,
    ProposalState,
    Reason,
    Rejection,
    Settings,
    Space,
    Withdrawal,
)
from meup_agent.errors import ProposalWithdrawn, UsageError
from meup_agent.protocol.dialects import PUBLISHED
from tests.interaction.people import (
    QUICK,
    Latch,
    Meeting,
    Notes,
    ended,
    gathered,
    join,
    keep_away,
    until,
)
from tests.interaction.views import is_, is_proposal, is_withdraw, state_of, taped
from tests.wire import DIALECTS, kinds


def worker(notes: Notes) -> Agent:
    agent = Agent("tools")

    @agent.tool
    async def work(step: int) -> str:
        notes(("did", step))
        if step < 0:
            raise ValueError("no such step")
        return f"step {step}"

    return agent


def approving(*, name: str = "reviewer", but: int = 0) -> Agent:
    agent = Agent(name)

    @agent.on_proposal
    async def decide(proposal: Proposal) -> None:
        if proposal.arguments["step"] == but:
            await proposal.reject(Reason.UNSAFE)
        else:
            await proposal.fulfill()

    return agent


@pytest.mark.rule("4.15.offered")
async def test_each_step_follows_the_one_that_it_depends_on(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, worker(notes), approving(), "proposer") as (_, _, space):
        async with AsyncExitStack() as stack:
            steps: list[ProposalHandle] = []
            for step in range(1, 6):
                block = space.propose("tools", "work", {"step": step}, depends_on=steps[-2:])
                steps.append(await stack.enter_async_context(block))
            assert not steps[-1].offered
            assert steps[-1].state is ProposalState.PENDING
            assert await steps[-1].result() == "step 5"
            assert all(each.offered for each in steps)
        assert notes.all == [("did", step) for step in range(1, 6)]


@pytest.mark.rule("4.15.withdrawn")
async def test_rejected_step_withdraws_what_depends_on_it(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, worker(notes), approving(but=2), "proposer") as (_, other, space):
        async with (
            taped(other) as tape,
            space.propose("tools", "work", {"step": 1}, to="reviewer") as first,
            space.propose(
                "tools", "work", {"step": 2}, to="reviewer", depends_on=[first]
            ) as second,
            space.propose("tools", "work", {"step": 3}, depends_on=[second]) as third,
            space.propose("tools", "work", {"step": 4}, depends_on=[third, first]) as fourth,
        ):
            assert isinstance(await second.outcome(), Rejection)
            for each in (third, fourth):
                outcome = await ended(each, Withdrawal)
                assert outcome.reason == Reason.UNSAFE
                assert f"{second.id}, which it depends on, was rejected" in str(outcome.cause)
                assert each.state is ProposalState.WITHDRAWN
                with pytest.raises(ProposalWithdrawn, match=r"unsafe \(proposal .* rejected by"):
                    await each.result()
            with pytest.raises(UsageError, match="depends_on takes a list"):
                await space.propose("tools", "work", depends_on="x").__aenter__()
            await tape.all_said(space)
        named = {each.id for each in tape.of(kinds.MCP_PROPOSAL)}
        named |= {name for each in tape.of(kinds.MCP_WITHDRAW) for name in each.correlation}
        assert named == {first.id, second.id}
    assert notes.all == [("did", 1)]


@pytest.mark.rule("4.15.withdrawn")
async def test_failed_step_withdraws_what_depends_on_it(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, worker(notes), approving(), "proposer") as (_, _, space):
        async with (
            space.propose("tools", "work", {"step": -1}) as first,
            space.propose("tools", "work", {"step": 2}, depends_on=[first]) as second,
        ):
            outcome = await ended(first, Fulfillment)
            assert outcome.is_error
            ending = await ended(second, Withdrawal)
            assert "failed" in str(ending.cause)
        # Its ending is known as long as there is a handle, also after its block.
        async with space.propose("tools", "work", {"step": 3}, depends_on=[first]) as late:
            assert isinstance(await late.outcome(), Withdrawal)
        assert notes.all == [("did", -1)]


@pytest.mark.rule("4.15.withdrawn")
async def test_leaving_a_block_withdraws_what_depends_on_it(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, worker(notes), "proposer") as (_, space):
        first = space.propose("tools", "work", {"step": 1})
        needed = await first.__aenter__()
        async with space.propose("tools", "work", {"step": 2}, depends_on=[needed]) as second:
            await first.__aexit__(None, None, None)
            outcome = await ended(second, Withdrawal)
            assert outcome.reason == Reason.NO_LONGER_NEEDED
        receipt = await second.withdraw()
        assert receipt.id == ""


@pytest.mark.rule("4.15.cycles")
async def test_what_cannot_be_depended_on_is_refused(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, worker(notes), "second", "proposer") as (_, other, space):
        async with taped(other) as tape, other.propose("tools", "work", {"step": 1}) as theirs:
            await until(lambda: state_of(space, theirs.id) is not None)
            (record,) = space.proposals
            a = space.propose("tools", "work", {"step": 1})
            for wrong, words in (
                (theirs, "made in another space"),
                (theirs.id, "no proposal '.*' of ours"),
                (record, "depends_on takes proposals"),
                (a, "depends_on takes proposals"),
                (None, "depends_on takes proposals"),
            ):
                with pytest.raises(UsageError, match=words):
                    await space.propose("tools", "work", depends_on=[wrong]).__aenter__()  # type: ignore[list-item]
            async with a as entered:
                # A cycle would need a proposal before it is made.
                with pytest.raises(UsageError, match="depends_on takes proposals"):
                    await space.propose("tools", "work", depends_on=[a]).__aenter__()  # type: ignore[list-item]
                assert entered.offered
                await tape.until(is_(entered.id))
            await tape.all_said(space)
        assert {each.id for each in tape.of(kinds.MCP_PROPOSAL, sender="proposer")} == {entered.id}


@pytest.mark.rule("4.15.reconnect")
async def test_dependent_is_offered_after_a_reconnect(meeting: Meeting, notes: Notes) -> None:
    reviewer, go = Agent("reviewer"), anyio.Event()

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        if proposal.arguments["step"] == 1:
            await go.wait()
        await proposal.fulfill()

    latch = Latch()
    async with (
        gathered(meeting, worker(notes), reviewer) as (_, other),
        join(meeting, "proposer", latch=latch) as space,
        taped(other) as tape,
        space.propose("tools", "work", {"step": 1}) as first,
        space.propose("tools", "work", {"step": 2}, depends_on=[first]) as second,
    ):
        await tape.until(is_proposal)
        await keep_away(meeting, latch, space)
        go.set()  # it is fulfilled while its proposer is away
        await notes.until(("did", 1))
        await until(lambda: state_of(other, first.id) is ProposalState.FULFILLED)
        assert not second.offered
        latch.closed = False
        assert await second.result() == "step 2"


@pytest.mark.rule("4.16.one_envelope")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_all_are_withdrawn_in_as_few_envelopes_as_the_dialect_needs(
    meeting: Meeting, notes: Notes, dialect: str
) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def hold(proposal: Proposal) -> None:
        notes(("holds", proposal.arguments["step"]))
        try:
            await anyio.sleep_forever()
        finally:
            notes(("let go", proposal.arguments["step"]))

    @reviewer.on_explanation
    async def hear(explanation: Explanation) -> None:
        notes(("why", explanation.proposal_ids, explanation.text))

    settings = Settings(backoff=QUICK.backoff, dialect=dialect)
    async with (
        gathered(meeting, reviewer, join(meeting, "proposer", settings=settings)) as (other, space),
        taped(other) as tape,
        AsyncExitStack() as stack,
    ):
        steps = [
            await stack.enter_async_context(
                space.propose("tools", "work", {"step": step}, to=() if step else "reviewer")
            )
            for step in range(4)
        ]
        last = await stack.enter_async_context(
            space.propose("tools", "work", {"step": 9}, depends_on=[steps[0]])
        )
        await notes.until(*(("holds", step) for step in range(4)))
        assert (
            await space.proposals.withdraw_all(where=lambda each: each.arguments["step"] > 9) == []
        )
        receipts = await space.proposals.withdraw_all(
            where=lambda each: each.arguments["step"] != 1, reason="policy", explain="enough"
        )
        gone = [steps[0].id, steps[2].id, steps[3].id]
        joint = dialect in PUBLISHED
        expected = [tuple(gone)] if joint else [(each,) for each in gone]
        assert [receipt.proposal_ids for receipt in receipts] == expected
        await notes.until(*(("let go", step) for step in (0, 2, 3)))
        await notes.until(*(("why", names, "enough") for names in expected))
        withdraws = tape.of(kinds.MCP_WITHDRAW)
        assert [each.id for each in withdraws] == [receipt.id for receipt in receipts]
        assert [each.correlation for each in withdraws] == expected
        assert all(state_of(other, each) is ProposalState.WITHDRAWN for each in gone)
        assert state_of(other, steps[1].id) is ProposalState.PENDING
        for each in (steps[0], steps[2], steps[3], last):
            outcome = await ended(each, Withdrawal)
            assert outcome.reason == "policy"
        (only,) = await space.proposals.withdraw_all()
        assert only.proposal_ids == (steps[1].id,)


@pytest.mark.rule("4.16.one_envelope")
async def test_condition_that_raises_withdraws_nothing(meeting: Meeting) -> None:
    def odd(_: object) -> bool:
        raise ValueError("which?")

    async with (
        gathered(meeting, "proposer") as (space,),
        space.propose("tools", "work") as first,
        space.propose("tools", "work") as second,
    ):
        with pytest.raises(ValueError, match="which"):
            await space.proposals.withdraw_all(where=odd)
        assert first.state is second.state is ProposalState.PENDING


@pytest.mark.rule("4.16.one_envelope")
async def test_hundred_of_one_proposer_leave_those_of_another(meeting: Meeting) -> None:
    settings = Settings(backoff=QUICK.backoff, dialect="mew/v0.4")
    async with (
        gathered(meeting, join(meeting, "proposer", settings=settings), "second") as (space, other),
        taped(other) as tape,
        other.propose("tools", "work") as theirs,
        AsyncExitStack() as stack,
    ):
        for _ in range(100):
            await stack.enter_async_context(space.propose("tools", "work"))
        await tape.until(is_proposal, 101)
        receipts = await space.proposals.withdraw_all()
        assert [len(receipt.proposal_ids) for receipt in receipts] == [64, 36]
        await tape.until(is_withdraw, 2)
        assert theirs.state is ProposalState.PENDING
        assert _pending(other) == [theirs.id]


def _pending(space: Space) -> list[str]:
    return [each.id for each in space.proposals if each.state.is_pending]
