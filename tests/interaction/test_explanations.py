"""Explanations of rejects and withdraws: said later, by their sender alone (PROTOCOL 4.3)."""

from collections.abc import Generator
from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest

from meup_agent import Agent, Explanation, Proposal, Reason, Rejection
from meup_agent.errors import NotSent, ProposalRejected, Refused, UsageError
from tests.interaction.people import (
    PARTICIPANTS,
    QUICK,
    InMemory,
    Latch,
    Meeting,
    Notes,
    ended,
    gathered,
    join,
    open_meeting,
    raw,
    until,
)
from tests.interaction.views import is_, is_proposal, is_withdraw, of_kind, session_of, taped
from tests.patience import PATIENCE
from tests.tables import EXPLANATION_CHARS
from tests.wire import DIALECTS, kinds

MUTE = {
    **PARTICIPANTS,
    "reviewer": [{"kind": "mcp/reject"}],
    "proposer": [{"kind": "mcp/proposal"}],
}


@pytest.fixture(params=["memory", "sockets"])
def mute(request: pytest.FixtureRequest) -> Generator[Meeting]:
    """A space in which neither the proposer nor the reviewer may chat."""
    with open_meeting(request.param, MUTE) as meeting:
        yield meeting


def undecided(name: str = "reviewer") -> Agent:
    agent = Agent(name)

    @agent.on_proposal
    async def look(proposal: Proposal) -> None: ...

    return agent


def listening(name: str, notes: Notes) -> Agent:
    agent = Agent(name)

    @agent.on_explanation
    async def hear(explanation: Explanation) -> None:
        notes(explanation)

    return agent


@pytest.mark.rule("4.3.explained_later")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_rejection_is_explained_after_the_wait_for_it(
    meeting: Meeting, notes: Notes, dialect: str
) -> None:
    rejecting = join(meeting, undecided(), settings=replace(QUICK, dialect=dialect))
    async with gathered(meeting, rejecting, listening("proposer", notes)) as (reviewer, space):
        async with taped(reviewer) as tape, space.propose("tools", "x", to="reviewer") as proposal:
            await tape.until(is_proposal)
            receipt = await reviewer.proposals.get(proposal.id).reject(Reason.UNSAFE)
            outcome = await ended(proposal, Rejection)
            assert (outcome.id, receipt.proposal_ids) == (receipt.id, (proposal.id,))
            assert await outcome.explanation(timeout=0.0) == ""
        await receipt.explain("it smokes")
        await notes.until(
            Explanation((proposal.id,), "reviewer", receipt.id, "it smokes", of_withdrawal=False)
        )
        assert await outcome.explanation() == "it smokes"
        with pytest.raises(UsageError, match="was explained already"):
            await receipt.explain("it burns")
        with pytest.raises(UsageError, match="needs words"):
            await receipt.explain("")


@pytest.mark.rule("4.3.explained_later")
async def test_withdrawal_is_explained_to_those_who_saw_it(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, listening("reviewer", notes), "proposer") as (reviewer, space):
        async with taped(reviewer) as tape:
            async with space.propose("tools", "x") as first:
                await tape.until(is_proposal)
                receipt = await first.withdraw(Reason.DUPLICATE)
            async with space.propose("tools", "x") as second:
                await tape.until(is_proposal, 2)
                at_once = await second.withdraw(explain="the other one is enough")
            await tape.until(is_withdraw, 2)
            withdraws = [each.id for each in tape.of(kinds.MCP_WITHDRAW)]
            assert withdraws == [receipt.id, at_once.id]
            await notes.until(
                Explanation((second.id,), "proposer", at_once.id, "the other one is enough", True)
            )
            await receipt.explain("made twice")
            await notes.until(Explanation((first.id,), "proposer", receipt.id, "made twice", True))
            with pytest.raises(UsageError, match="already"):
                await at_once.explain("once more")


async def test_withdrawal_of_what_is_decided_has_nothing_to_explain(meeting: Meeting) -> None:
    async with gathered(meeting, undecided(), "proposer") as (reviewer, space):
        async with taped(reviewer) as tape, space.propose("tools", "x", to="reviewer") as proposal:
            await tape.until(is_proposal)
            await reviewer.proposals.get(proposal.id).reject("busy")
            await proposal.outcome()
            receipt = await proposal.withdraw(explain="never said")
        assert receipt.id == ""
        with pytest.raises(NotSent, match="decided before"):
            await receipt.explain("why")
        assert [each for each in tape.of(kinds.CHAT) if each.correlation] == []


@pytest.mark.rule("4.3.explained_later")
async def test_only_the_first_words_of_the_sender_count(meeting: Meeting, notes: Notes) -> None:
    with anyio.fail_after(PATIENCE):
        async with (
            raw(meeting) as mallory,
            raw(meeting, "reviewer") as reviewer,
            join(meeting, listening("proposer", notes)) as space,
            taped(space) as tape,
            space.propose("tools", "x", to="reviewer") as proposal,
        ):
            found = await reviewer.hear(is_proposal)
            about = {"to": ("proposer",), "correlation": ("r1",)}
            await mallory.say(kinds.CHAT, {"message": "too soon"}, id="c0", **about)
            await tape.until(is_("c0"))
            for each, id in ((mallory, "m1"), (reviewer, "r1")):
                await each.say(
                    kinds.MCP_REJECT,
                    {"reason": "unsafe"},
                    id=id,
                    to=("proposer",),
                    correlation=(found.id,),
                )
            outcome = await proposal.outcome()
            # By another, of what it did reject, of nothing, of a number, and to others.
            await mallory.say(kinds.CHAT, {"message": "forged"}, id="c1", **about)
            await reviewer.say(
                kinds.CHAT, {"message": "not mine"}, id="c2", to=("proposer",), correlation=("m1",)
            )
            await reviewer.say(kinds.CHAT, {"message": 5}, id="c3", **about)
            await reviewer.say(
                kinds.CHAT, {"message": "aside"}, id="c4", to=("tools",), correlation=("r1",)
            )
            await reviewer.say(kinds.CHAT, {"message": "\x1b[2J" + "x" * 9000}, id="c5", **about)
            for number in range(300):
                await reviewer.say(kinds.CHAT, {"message": "again"}, id=f"d{number}", **about)
            await tape.until(is_("d299"))
            assert isinstance(outcome, Rejection)
            words = ("\x1b[2J" + "x" * 9000)[:EXPLANATION_CHARS]
            assert await outcome.explanation() == words
            await notes.until(Explanation((proposal.id,), "reviewer", "r1", words, False))
            with pytest.raises(ProposalRejected) as caught:
                await proposal.result()
            assert "\x1b" not in str(caught.value)
            assert len(str(caught.value)) < 1_000
        assert len(notes.all) == 1


@pytest.mark.rule("4.3.may_explain")
async def test_words_that_no_capability_allows_raise_and_nothing_is_sent(mute: Meeting) -> None:
    async with gathered(mute, "tools", undecided(), "proposer") as (tools, reviewer, space):
        async with (
            taped(tools) as tape,
            taped(reviewer) as shown,
            space.propose("tools", "x", to="reviewer") as proposal,
        ):
            await shown.until(is_proposal)
            with pytest.raises(Refused, match=r"was not rejected: .*'reviewer' allows chat"):
                await reviewer.proposals.get(proposal.id).reject("busy", explain="why")
            with pytest.raises(Refused, match=r"was not withdrawn: .*'proposer' allows chat"):
                await proposal.withdraw(explain="why")
            receipt = await reviewer.proposals.get(proposal.id).reject("busy")
            await tape.until(of_kind(kinds.MCP_REJECT))
            with pytest.raises(Refused, match="allows chat"):
                await receipt.explain("why")
        assert not tape.of(kinds.CHAT)


@pytest.mark.rule("4.3.may_explain")
async def test_refusal_of_the_words_by_the_gateway_is_raised(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gathered(meeting, "observer", "proposer") as (observer, space):
        async with taped(observer) as tape, space.propose("tools", "x") as proposal:
            await tape.until(is_proposal)
            # As where a capability was revoked, and the word of that is still on its way.
            roster = session_of(observer).table.roster
            roster.my_capabilities = ({"kind": "*"},)
            roster._compiled.clear()
            with pytest.raises(Refused, match="capability_violation"):
                await observer.proposals.get(proposal.id).reject("busy", explain="why")


async def test_explanation_passes_the_middleware_as_a_chat(meeting: Meeting, notes: Notes) -> None:
    from meup_agent.types import CallNext, OutboundMessage

    reviewer = Agent("reviewer")

    @reviewer.middleware
    async def redact(message: OutboundMessage, call_next: CallNext) -> object:
        if message.kind == kinds.CHAT and message.correlation:
            message = message.replace(payload={"message": "redacted"})
        return await call_next(message)

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        receipt = await proposal.reject("unsafe")
        await receipt.explain("the key is 1234")

    async with gathered(meeting, reviewer, listening("proposer", notes)) as (speaker, space):
        async with space.propose("tools", "x", to="reviewer") as proposal:
            assert await proposal.explanation() == "redacted"
        async with taped(speaker) as tape, speaker.propose("tools", "x") as own:
            await tape.until(is_(own.id))
            await own.withdraw(explain="the key is 1234")
        while len(notes.all) < 2:
            await anyio.lowlevel.checkpoint()
        assert [each.text for each in notes.all] == ["redacted", "redacted"]


@pytest.mark.rule("4.14.words")
@pytest.mark.parametrize("later", [False, True], ids=["missed", "said later"])
async def test_a_missed_reject_has_its_words(
    forgetful: InMemory, notes: Notes, later: bool
) -> None:
    """The gateway keeps too little, so the proposer hears of a copy of the reject alone."""
    meeting, latch = forgetful, Latch()
    async with (
        gathered(meeting, undecided()) as (reviewer,),
        join(meeting, listening("proposer", notes), latch=latch) as proposer,
        proposer.propose("tools", "add", to="reviewer", ttl=None) as proposal,
    ):
        await until(lambda: bool(reviewer.proposals))
        latch.closed = True
        meeting.drop("proposer")
        words = None if later else "too much"
        receipt = await reviewer.proposals.get(proposal.id).reject("unsafe", explain=words)
        for number in range(10):
            await reviewer.chat(str(number))
        latch.closed = False
        outcome = await ended(proposal, Rejection)
        if later:
            await receipt.explain("too much")
        assert await outcome.explanation(PATIENCE) == "too much"
    assert outcome.id != receipt.id
    assert [each.text for each in notes.all] == ["too much"]
