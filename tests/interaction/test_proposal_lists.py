"""Lists of proposals: open ones and lately decided ones, told to the asker alone (PROTOCOL 3)."""

from typing import Any

import anyio
import pytest

from meup_agent import Agent, Fulfillment, Proposal, ProposalState, Rejection, Settings, Space
from meup_agent.cli.commands.decisions import find_pending
from meup_agent.cli.failures import Failure
from meup_agent.client.proposal import ProposalRecord
from meup_agent.errors import OutcomeUnknown, Refused
from meup_agent.session import Session
from tests.interaction.cast import calculator, sleeper, willing
from tests.interaction.people import Meeting, Notes, gathered, join, raw, until
from tests.interaction.views import has_state, is_proposal, taped
from tests.session.gate import ME, Gate, present
from tests.wire import DIALECTS, OURS, kinds, payloads, said_by

ADD = {"a": 1, "b": 2}


async def is_heard(session: Session, proposal: str) -> None:
    await until(lambda: bool(session.table.proposal_store.under(proposal, session.now())))


async def listed(space: Space, **query: Any) -> list[ProposalRecord]:
    return [each async for each in space.proposals.list(**query)]


@pytest.mark.rule("3.list.open")
@pytest.mark.parametrize("observe", [False, True])
async def test_an_open_proposal_is_known_and_decided(meeting: Meeting, observe: bool) -> None:
    async with (
        gathered(meeting, calculator(), "observer", "proposer") as (_, onlooker, proposer),
        proposer.propose("tools", "add", ADD, ttl=60) as one,
        proposer.propose("tools", "divide", ADD, to="observer") as other,
    ):
        await until(lambda: has_state(onlooker, other.id, ProposalState.PENDING))
        async with join(meeting, Agent("late"), "reviewer", observe=observe) as late:
            found = await listed(late)
            assert [each.id for each in found] == [one.id, other.id]
            assert [each.state for each in found] == [ProposalState.PENDING] * 2
            assert found[0].expires_at == one.expires_at
            assert found[0].envelope.raw_payload == late.proposals.get(one.id).envelope.raw_payload
            for query in (
                {"id": one.id[:12]},
                {"tool": "add"},
                {"to_me": True},
                {"proposer": "proposer", "tool": "add"},
            ):
                assert [each.id for each in await listed(late, **query)] == [one.id]
            assert await listed(late, proposer="tools") == []
            if not observe:
                await late.proposals.get(found[0]).fulfill()
                assert found[0].state is ProposalState.FULFILLED


@pytest.mark.rule("3.list.open")
async def test_what_was_said_of_a_proposal_is_told(meeting: Meeting, notes: Notes) -> None:
    async with (
        gathered(meeting, sleeper(notes), willing("second"), "reviewer", "proposer") as people,
        people[3].propose("tools", "sleep", {}) as proposal,
    ):
        await notes.until("sleeps")
        await until(lambda: has_state(people[2], proposal.id, ProposalState.IN_PROGRESS))
        await people[2].send(kinds.MCP_REJECT, {"reason": "unsafe"}, correlation=proposal.id)
        async with taped(people[2]) as tape:
            await tape.all_said(people[2])
        async with join(meeting, "observer") as late:
            (seen,) = await listed(late)
            assert (seen.state, seen.in_progress_by) == (ProposalState.IN_PROGRESS, "second")
            assert [(each.by, each.reason) for each in seen.rejections] == [("reviewer", "unsafe")]


@pytest.mark.rule("3.list.decided")
async def test_decided_proposals_are_told_with_their_ends(meeting: Meeting) -> None:
    denier = Agent("reviewer")

    @denier.on_proposal
    async def deny(proposal: Proposal) -> None:
        await proposal.reject("policy", rule={"rule": "never", "verdict": "deny"})

    async with gathered(meeting, calculator(), "observer", "proposer") as (_, onlooker, proposer):
        async with proposer.propose("tools", "add", ADD) as withdrawn:
            await until(lambda: has_state(onlooker, withdrawn.id, ProposalState.PENDING))
        async with (
            join(meeting, denier),
            proposer.propose("tools", "add", ADD, to="reviewer") as rejected,
        ):
            assert isinstance(await rejected.outcome(), Rejection)
        async with join(meeting, willing("second")), proposer.propose("tools", "add", ADD) as done:
            assert isinstance(await done.outcome(), Fulfillment)
        for _ in range(2):
            found = await listed(onlooker, state="decided")
            assert [(each.id, each.state, each.decided_by) for each in found] == [
                (withdrawn.id, ProposalState.WITHDRAWN, "proposer"),
                (rejected.id, ProposalState.REJECTED, "reviewer"),
                (done.id, ProposalState.FULFILLED, "second"),
            ]
            assert [each.rule for each in found] == ["", "never", ""]
            assert found[0].reason == "no_longer_needed"
            times = [each.decided_at for each in found]
            assert times == sorted(times, key=str)
        assert await listed(onlooker) == []


@pytest.mark.rule("3.list.alone", "3.list.pages")
async def test_nobody_else_hears_of_a_question(meeting: Meeting) -> None:
    async with (
        gathered(meeting, "observer", "proposer") as (onlooker, proposer),
        taped(onlooker) as tape,
    ):
        assert await listed(proposer) == []
        with pytest.raises(Refused, match="invalid_envelope"):
            await listed(proposer, state="lost")
        await tape.all_said(proposer)
        assert not tape.of(kinds.LIST_PROPOSALS)
        assert not tape.of(kinds.PROPOSALS)


async def test_a_whole_id_is_the_beginning_of_no_other(meeting: Meeting) -> None:
    """The gateway cannot tell of the large one: an approval of it must not become another's."""
    async with (
        gathered(meeting, "reviewer") as (space,),
        raw(meeting, "proposer") as proposer,
        raw(meeting, "second") as attacker,
    ):
        for name, size in (("large-1", 1_500_000), ("large-2", 1_500_000)):
            arguments = {"text": "x" * size}
            call = {"method": "tools/call", "params": {"name": "write", "arguments": arguments}}
            await proposer.say(kinds.MCP_PROPOSAL, call, id=name)
            await attacker.hear(is_proposal)
        call = {"method": "tools/call", "params": {"name": "wipe", "arguments": {}}}
        whole = "0123456789abcdef" * 2
        for name in ("large-2x", f"{whole}x"):
            await attacker.say(kinds.MCP_PROPOSAL, call, id=name)
            await attacker.hear(lambda each: each.sender == "second")
        for given in ("large-2", whole):
            with pytest.raises(Failure, match="knows no proposal"):
                await find_pending(space, given)
        assert (await find_pending(space, whole[:12])).id == f"{whole}x"


@pytest.mark.rule("3.list.other_gateways")
async def test_a_gateway_of_other_make_is_not_asked(gate: Gate) -> None:
    gate.gives = {}
    async with present(gate, None, "bob") as (session, end):
        call = payloads.request("tools/call", {"name": "add"}, "")
        await end.say(kinds.MCP_PROPOSAL, call, sender="bob", id="p1")
        await is_heard(session, "p1")
        assert [each.id for each in await listed(Space(session))] == ["p1"]
        assert await listed(Space(session), tool="nothing") == []
        assert not await end.probe(session)


@pytest.mark.rule("3.list.other_gateways")
async def test_an_answer_that_cannot_be_read_is_told(gate: Gate) -> None:
    gate.gives = said_by(OURS)
    async with present(gate) as (session, end), anyio.create_task_group() as tasks:

        async def answer() -> None:
            await end.hear(kinds.LIST_PROPOSALS)  # of each newcomer
            question = await end.hear(kinds.LIST_PROPOSALS)
            about, me = (question.id,), (ME,)
            for sender in ("bob", kinds.GATEWAY):  # of which one may answer
                broken = {"proposals": 5} if sender == kinds.GATEWAY else {"seq": 1}
                await end.say(kinds.PROPOSALS, broken, sender=sender, to=me, correlation=about)

        tasks.start_soon(answer)
        with pytest.raises(OutcomeUnknown, match="cannot be read"):
            await listed(Space(session))
    async with present(gate) as (session, _):
        with pytest.raises(OutcomeUnknown, match="did not answer"):
            await listed(Space(session), timeout=0.001)


@pytest.mark.rule("3.list.open")
@pytest.mark.parametrize("reader", DIALECTS)
@pytest.mark.parametrize("writer", DIALECTS)
async def test_a_list_ends_no_handler_of_what_it_has(
    meeting: Meeting, notes: Notes, reader: str, writer: str
) -> None:
    """In each pair of dialects the listed proposal is the one that was heard."""
    reviewer, forever = Agent("reviewer"), anyio.Event()

    @reviewer.on_proposal
    async def look(proposal: Proposal) -> None:
        notes(proposal.id)
        try:
            await forever.wait()
        finally:
            notes("ended")

    deciding = join(meeting, reviewer, settings=Settings(dialect=reader))
    proposing = join(meeting, "proposer", settings=Settings(dialect=writer))
    async with gathered(meeting, calculator(), deciding, proposing) as (_, reviewing, proposer):
        async with proposer.propose("tools", "add", ADD, ttl=60) as one:
            await notes.until(one.id)
            for _ in range(2):
                assert [each.id for each in await listed(reviewing)] == [one.id]
            assert notes.all == [one.id]
