"""A proposer withdraws, and everything that the proposal set going stops, wherever it runs."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio
import pytest

from meup_agent import (
    Agent,
    Context,
    Fulfillment,
    Proposal,
    ProposalHandle,
    ProposalState,
    Reason,
    Space,
    Withdrawal,
)
from meup_agent.errors import AlreadyDecided, Refused
from tests.gateways import Connector
from tests.interaction.cast import adder, onlooking, unwilling, willing
from tests.interaction.people import QUICK, Meeting, Notes, ended, gathered, raw, until
from tests.interaction.views import (
    all_idle,
    by,
    is_,
    is_error,
    is_idle,
    is_withdraw,
    session_of,
    state_of,
    taped,
)
from tests.wire import decode, encode, encode_json, kinds


def story(who: str, ctx: Context) -> tuple[str, str, tuple[str, ...]]:
    """The end that a stopped handler saw: its name, the reason code, and the chain to it."""
    assert ctx.cancelled
    assert ctx.reason is not None
    return who, ctx.reason.code, tuple(link.by for link in ctx.reason.chain)


@pytest.mark.rule(
    "5.proposal.running.withdraw",
    "5.proposal.fulfillment_out",
    "5.request.running.cancel",
    "5.children",
    "6.cause",
    "4.12.cascade",
    "4.2.withdrawn_stays_visible",
    "4.7.no_response",
    "4.8.our_cancel",
    "5.proposal.told_of_withdraw",
)
async def test_a_withdrawal_stops_everything_in_four_agents(meeting: Meeting, notes: Notes) -> None:
    """The showpiece: proposer → reviewer → tool in a third agent → tool in a fourth."""
    reviewer, tools, deep = Agent("reviewer"), Agent("tools"), Agent("deep")

    @deep.tool
    async def index(ctx: Context) -> str:
        async def part() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                notes("part of deep")

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(part)
                notes("deep runs")
        finally:
            notes(story("deep", ctx))
        return "never"

    @tools.tool
    async def reindex(ctx: Context) -> str:
        try:
            return str(await ctx.space.call("deep", "index"))
        finally:
            notes(story("tools", ctx))

    @reviewer.on_proposal(tool="*")
    async def review(proposal: Proposal, ctx: Context) -> None:
        try:
            await proposal.fulfill()
            notes("the reviewer went on")
        finally:
            notes(story("reviewer", ctx))

    @reviewer.on_withdraw
    async def withdrawn(withdrawal: Withdrawal) -> None:
        notes(("on_withdraw", withdrawal.by, withdrawal.cause.code))

    async with (
        gathered(meeting, deep, tools, reviewer, "proposer", "observer") as everybody,
        taped(everybody[4]) as tape,
        taped(everybody[3]) as proposed,
    ):
        *deciding, proposers, _ = everybody
        async with proposers.propose("tools", "reindex", to="reviewer") as proposal:
            await notes.until("deep runs")
            # The gateway may hold the others' requests back for a moment.
            await proposed.until(by(kinds.MCP_REQUEST, "reviewer"))
            assert proposal.state is ProposalState.IN_PROGRESS
            await proposal.withdraw(Reason.UNSAFE)
            outcome = await proposal.outcome()
        assert isinstance(outcome, Withdrawal)
        assert outcome.reason == Reason.UNSAFE

        await notes.until(
            ("reviewer", "unsafe", ("proposer",)),
            ("tools", "unsafe", ("reviewer", "proposer")),
            ("deep", "unsafe", ("tools", "reviewer", "proposer")),
            ("on_withdraw", "proposer", "unsafe"),
        )
        await all_idle(*everybody)
        await tape.all_said(*deciding, proposers)

        assert [e.sender for e in tape.of(kinds.MCP_RESPONSE)] == []
        assert [e.sender for e in tape.of(kinds.MCP_WITHDRAW)] == ["proposer"]
        cancels = tape.calls(kinds.CANCELLED)
        assert [(e.sender, e.to) for e in cancels] == [
            ("reviewer", ("tools",)),
            ("tools", ("deep",)),
        ]
        for space in everybody:
            assert state_of(space, proposal.id) is ProposalState.WITHDRAWN, space.me
    assert "the reviewer went on" not in notes.all
    within_deep = [note for note in notes.all if note == "part of deep" or note[0] == "deep"]
    assert within_deep[0] == "part of deep", "innermost first"
    within_reviewer = [note[0] for note in notes.all if note[0] in ("reviewer", "on_withdraw")]
    assert within_reviewer == ["reviewer", "on_withdraw"], "told after its handler has ended"


@pytest.mark.rule("5.own.waiting.gives_up", "4.12.unchosen")
async def test_leaving_the_block_withdraws_too(meeting: Meeting, notes: Notes) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def review(proposal: Proposal, ctx: Context) -> None:
        notes("reviewing")
        try:
            await anyio.sleep_forever()
        finally:
            notes(story("reviewer", ctx))

    class Changed(Exception):
        pass

    async with gathered(meeting, reviewer, "proposer") as (reviewers, proposers):
        with pytest.raises(Changed):  # noqa: PT012
            async with proposers.propose("tools", "write", to="reviewer") as proposal:
                await notes.until("reviewing")
                raise Changed
        await notes.until(("reviewer", "no_longer_needed", ("proposer",)))
        with anyio.CancelScope() as scope:
            async with proposers.propose("tools", "write", to="reviewer") as second:
                await until(lambda: notes.all.count("reviewing") == 2)
                scope.cancel()
                await second.outcome()
        await until(lambda: is_idle(reviewers))
        for each in (proposal, second):
            assert state_of(reviewers, each.id) is ProposalState.WITHDRAWN


@pytest.mark.rule("4.1.no_answer", "4.2.one_way")
async def test_a_late_withdraw_changes_nothing(meeting: Meeting) -> None:
    async with (
        gathered(meeting, adder(), willing(), "proposer") as (_, reviewers, proposers),
        taped(reviewers) as tape,
    ):
        async with proposers.propose("tools", "add", {"a": 1, "b": 2}) as proposal:
            outcome = await ended(proposal, Fulfillment)
            await proposal.withdraw()
            assert await proposal.outcome() == outcome
        await tape.all_said(proposers)
        assert tape.of(kinds.MCP_WITHDRAW) == [], "there was nothing to take back"
        async with raw(meeting) as mallory:
            await mallory.propose({"name": "x"}, id="p1")
            await mallory.withdraw("p1", id="w1")
            await mallory.withdraw("p1", id="w2")
            await until(lambda: session_of(reviewers).counters["late_withdraw"] == 1)
        assert proposal.state is ProposalState.FULFILLED
        assert state_of(reviewers, proposal.id) is ProposalState.FULFILLED


@pytest.mark.rule("4.1.only_the_proposer")
async def test_nobody_else_can_withdraw(meeting: Meeting, notes: Notes) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def review(proposal: Proposal, ctx: Context) -> None:
        notes("reviewing")
        await notes.until("go on")
        assert not ctx.cancelled
        await proposal.reject(Reason.POLICY)

    async with (
        gathered(meeting, reviewer, "proposer") as (reviewers, proposers),
        raw(meeting) as mallory,
        proposers.propose("tools", "write", to="reviewer") as proposal,
    ):
        await notes.until("reviewing")
        await mallory.withdraw(proposal.id, id="w", reason="unsafe")
        refused = await mallory.hear(is_error)
        assert refused.correlation == ("w",)
        assert state_of(reviewers, proposal.id) is ProposalState.PENDING
        notes("go on")
        outcome = await proposal.outcome()
        assert outcome.reason == "policy"  # type: ignore[union-attr]


@pytest.mark.rule("5.tombstone")
async def test_what_was_withdrawn_unseen_is_not_reviewed(meeting: Meeting, notes: Notes) -> None:
    call = {"name": "write", "arguments": {}}
    async with gathered(meeting, onlooking(notes)) as (reviewers,), raw(meeting) as mallory:
        await mallory.withdraw("p", id="w", reason="unsafe")
        await mallory.propose(call, id="p", to=("reviewer",))
        await mallory.propose(call, id="other", to=("reviewer",))
        await notes.until("other")
        assert notes.all == ["other"]
        assert state_of(reviewers, "p") is ProposalState.WITHDRAWN


@pytest.mark.rule("5.tombstone.before_fulfillment")
async def test_what_was_withdrawn_cannot_be_decided(meeting: Meeting, notes: Notes) -> None:
    reviewer, tools = Agent("reviewer"), Agent("tools")

    @tools.tool
    def write() -> str:
        notes("written")
        return "written"

    @reviewer.on_proposal
    async def review(proposal: Proposal, ctx: Context) -> None:
        notes("reviewing")
        try:
            await anyio.sleep_forever()
        finally:
            async with ctx.cleanup():
                for decide in (proposal.fulfill(), proposal.reject(Reason.OTHER)):
                    try:
                        await decide
                    except AlreadyDecided as error:
                        notes(error.state)

    async with (
        gathered(meeting, tools, reviewer, "proposer") as (_, reviewers, proposers),
        taped(proposers) as tape,
    ):
        async with proposers.propose("tools", "write", to="reviewer"):
            await notes.until("reviewing")
        await until(lambda: notes.all.count("withdrawn") == 2)
        await tape.all_said(reviewers)
        assert tape.of(kinds.MCP_REQUEST) == []
        assert tape.of(kinds.MCP_REJECT) == []
    assert "written" not in notes.all


@pytest.mark.rule("5.proposal.told_of_withdraw", "5.proposal.settled.withdraw")
async def test_one_who_decides_later_is_told_of_a_withdrawal(
    meeting: Meeting, notes: Notes
) -> None:
    """A handler may leave the decision to a person, and return."""
    reviewer = onlooking(notes)

    @reviewer.on_withdraw
    async def forget(withdrawal: Withdrawal) -> None:
        notes((withdrawal.proposal_id, withdrawal.cause.code))

    async with gathered(meeting, reviewer, "proposer") as (reviewers, proposers):
        async with proposers.propose("tools", "write") as proposal:
            await notes.until(proposal.id)
            await until(lambda: is_idle(reviewers))
            await proposal.withdraw(Reason.DUPLICATE)
        await notes.until((proposal.id, "duplicate"))


async def test_our_own_reject_is_no_news_to_us(meeting: Meeting, notes: Notes) -> None:
    """A proposer ends its wait with a withdraw (PROTOCOL 4.5): on_withdraw is not for that."""
    reviewer = unwilling()

    @reviewer.on_withdraw
    async def forget(withdrawal: Withdrawal) -> None:
        notes("withdrawn")

    async with (
        gathered(meeting, reviewer, "proposer") as (reviewers, proposers),
        taped(reviewers) as tape,
    ):
        async with proposers.propose("tools", "write", to="reviewer") as proposal:
            await proposal.outcome()
        await tape.until(is_withdraw)
        await tape.all_said(proposers)
        await until(lambda: is_idle(reviewers))
        assert state_of(reviewers, proposal.id) is ProposalState.REJECTED
        assert state_of(proposers, proposal.id) is ProposalState.REJECTED
    assert notes.all == []


class WithoutWithdraw:
    """A connection whose welcome grants proposals and chats alone."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._is_welcomed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        frame: bytes = await anext(self._transport)
        if self._is_welcomed or (welcome := decode(frame)).kind != kinds.SYSTEM_WELCOME:
            return frame
        self._is_welcomed = True
        payload = dict(welcome.payload_object)
        granted = [{"kind": kinds.MCP_PROPOSAL}, {"kind": kinds.CHAT}]
        payload["you"] = {**payload["you"], "capabilities": granted}
        return encode(welcome.replace(raw_payload=encode_json(payload)), "meup/v0.1")


def without_withdraw(connector: Connector) -> Connector:
    @asynccontextmanager
    async def dial(headers: Mapping[str, str]) -> AsyncGenerator[Any]:
        async with connector(headers) as transport:
            yield WithoutWithdraw(transport)

    return dial


WAYS: dict[str, Callable[[Space, ProposalHandle], Awaitable[object]]] = {
    "one": lambda _, proposal: proposal.withdraw(),
    "all": lambda space, _: space.proposals.withdraw_all(),
}


@pytest.mark.rule("4.3.may_withdraw")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_withdraw_that_is_not_granted_raises_and_nothing_is_sent(
    meeting: Meeting, way: Callable[[Space, ProposalHandle], Awaitable[object]]
) -> None:
    connector = without_withdraw(meeting.connector("proposer"))
    async with (
        gathered(meeting, "observer") as (observer,),
        taped(observer) as tape,
        Agent("proposer").join(connector, token=meeting.token("proposer"), settings=QUICK) as space,
        space.propose("tools", "x") as proposal,
    ):
        await tape.until(is_(proposal.id))
        with pytest.raises(Refused, match="'proposer' allows mcp/withdraw"):
            await way(space, proposal)
        assert proposal.state.is_pending
        await tape.all_said(space)
        assert not tape.of(kinds.MCP_WITHDRAW)
