"""Connections that observe: beside the running agent of the same participant, without a part."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Chat, Envelope, Fulfillment, Participant, Proposal, Rejection, Space
from meup_agent.errors import HandshakeRefused, Kicked, ObservingOnly, UsageError
from tests.interaction.cast import unwilling
from tests.interaction.observed import MAX_OBSERVERS, observed, reviewer, tool_owner
from tests.interaction.people import (
    Latch,
    Meeting,
    Notes,
    Raw,
    gathered,
    join,
    keep_away,
    raw,
    until,
)
from tests.interaction.views import by, is_, is_error, is_idle, session_of, state_of, taped
from tests.patience import PATIENCE
from tests.wire import kinds


@pytest.mark.rule("3.observe.takes_no_part")
async def test_an_agent_decides_while_it_is_observed(meeting: Meeting, notes: Notes) -> None:
    async with (
        gathered(meeting, tool_owner(), reviewer(notes), "proposer") as (_, running, proposer),
        taped(proposer) as tape,
    ):
        async with join(meeting, Agent("looker"), "reviewer", observe=True) as observer:
            assert (observer.me, observer.observing) == ("reviewer", True)
            names = [each.id for each in observer.participants]
            assert sorted(names) == ["proposer", "reviewer", "tools"]
            async with taped(observer) as heard:
                for to in ((), ("reviewer",)):
                    async with proposer.propose("tools", "write", {"text": "x"}, to=to) as one:
                        assert isinstance(await one.outcome(), Fulfillment)
                await tape.all_said(proposer, running)
                await heard.all_said(proposer, running)
            assert heard.of(kinds.MCP_PROPOSAL, sender="proposer")
            assert not heard.of(kinds.MCP_REJECT)
        await tape.all_said(running)
    assert not tape.of(kinds.MCP_REJECT)
    presences = [each.payload_object for each in tape.of(kinds.SYSTEM_PRESENCE)]
    assert {each["participant"]["id"] for each in presences} <= {"proposer"}


@pytest.mark.rule("3.observe.takes_no_part")
async def test_nothing_is_rejected_where_no_agent_runs(meeting: Meeting) -> None:
    """Messages to the participant stay open: an observer stands in for none."""
    looker = Agent("looker")
    started: list[str] = []

    @looker.on_proposal
    async def decide(proposal: Proposal) -> None:
        started.append(proposal.id)

    @looker.on_chat
    async def hear(chat: Chat) -> None:
        started.append(chat.text)

    @looker.on_join
    async def greet(participant: Participant) -> None:
        started.append(participant.id)

    @looker.on("acme/news")
    async def read(envelope: Envelope) -> None:
        started.append(envelope.id)

    @looker.tool
    async def write(text: str) -> None:
        started.append(text)

    async with (
        join(meeting, looker, "reviewer", observe=True) as observer,
        raw(meeting) as mallory,
        taped(observer) as tape,
    ):
        with anyio.fail_after(PATIENCE):
            call = {"method": "tools/call", "params": {"name": "write", "arguments": {}}}
            await mallory.say(kinds.MCP_PROPOSAL, call, id="p-1", to=("reviewer",))
            await mallory.call("reviewer", "write", id="r-1")
            await mallory.request("reviewer", "tools/list", {}, id="r-2")
            await mallory.request("reviewer", "initialize", {}, id="r-3")
            await mallory.request("reviewer", "nonsense", {}, id="r-4", rpc_id="x" * 10_000)
            await mallory.cancel("reviewer", "r-1", id="c-1")
            await mallory.say(kinds.CHAT, {"message": "hi"}, id="chat-1", to=("reviewer",))
            await mallory.say("acme/news", {}, id="n-1")
            grant = {"recipient": "reviewer", "capabilities": [{"kind": "acme/*"}]}
            await mallory.say("capability/grant", grant, id="g-1")
            await mallory.say(kinds.CHAT, {"message": "last"}, id="last")
            await tape.until(is_("last"))
            assert state_of(observer, "p-1") == "pending"
            await mallory.say(kinds.MCP_WITHDRAW, {}, id="w-1", correlation=("p-1",))
            await until(lambda: state_of(observer, "p-1") == "withdrawn")
    assert started == []
    assert {envelope.sender for envelope in tape.envelopes} <= {"mallory", "system:gateway"}
    assert is_idle(observer)


@pytest.mark.rule("3.observe.not_present")
async def test_an_observer_is_present_to_nobody(meeting: Meeting) -> None:
    async with gathered(meeting, "proposer") as (proposer,), taped(proposer) as tape:
        async with join(meeting, "looker", "reviewer", observe=True) as observer:
            assert [each.id for each in observer.participants] == ["proposer"]
            async with join(meeting, "second") as second:
                assert {each.id for each in second.participants} == {"proposer", "second"}
                await until(lambda: len(observer.participants) == 2)
            await until(lambda: len(observer.participants) == 1)
        await tape.all_said(proposer)
        said = [each.payload_object["participant"]["id"] for each in tape.of(kinds.SYSTEM_PRESENCE)]
        assert [name for name in said if name != "proposer"] == ["second", "second"]


@pytest.mark.rule("3.observe.not_present")
async def test_an_observer_sees_its_own_participant_come_and_go(meeting: Meeting) -> None:
    async with join(meeting, "looker", "reviewer", observe=True) as observer:
        with anyio.fail_after(PATIENCE):
            async with join(meeting, "reviewer"):
                await until(lambda: [each.id for each in observer.participants] == ["reviewer"])
            await until(lambda: not observer.participants)


@pytest.mark.rule("3.observe.not_present")
async def test_a_broadcast_waits_for_no_observer(meeting: Meeting) -> None:
    """All who are present and could have rejected it; who looks on could not (PROTOCOL 4.5)."""

    async with (
        join(meeting, "looker", "reviewer", observe=True),
        join(meeting, unwilling(name="second")),
        join(meeting, "proposer") as proposer,
    ):
        with anyio.fail_after(PATIENCE):
            async with proposer.propose(None, "write", {}, ttl=None) as proposal:
                assert isinstance(await proposal.outcome(), Rejection)


async def test_every_verb_says_that_one_only_looks_on(meeting: Meeting) -> None:
    async def proposes(space: Space) -> None:
        async with space.propose("tools", "write", {"text": "x"}):
            pass

    async def rejects(space: Space) -> None:
        await space.proposals.get(space.proposals[0]).reject("unsafe")

    async def fulfills(space: Space) -> None:
        await space.proposals.get(space.proposals[0]).fulfill()

    verbs: list[Callable[[Space], Any]] = [
        proposes,
        rejects,
        fulfills,
        lambda space: space.chat("hello"),
        lambda space: space.send("acme/news", {}),
        lambda space: space.request("tools", "tools/list"),
        lambda space: space.offers.tools("tools"),
        lambda space: space.call("tools", "write", {"text": "x"}),
        lambda space: space.members.grant("proposer", [{"kind": "chat"}]),
        lambda space: space.members.revoke("proposer", [{"kind": "chat"}]),
        lambda space: space.members.invite("newcomer"),
        lambda space: space.members.kick("proposer"),
    ]
    async with (
        gathered(meeting, tool_owner()),
        join(meeting, "looker", "reviewer", observe=True) as observer,
        join(meeting, "proposer") as proposer,
        taped(proposer) as tape,
        taped(observer) as heard,
    ):
        async with proposer.propose("tools", "write", {"text": "x"}):
            await heard.until(by(kinds.MCP_PROPOSAL, "proposer"))
            for verb in verbs:
                with pytest.raises(ObservingOnly, match="only observed; join without observe"):
                    await verb(observer)
        await tape.all_said(proposer)
    assert {each.sender for each in tape.envelopes} - {"system:gateway"} == {"proposer"}


async def test_taking_over_is_a_way_to_observe(meeting: Meeting) -> None:
    with pytest.raises(UsageError, match="goes with beside=True or observe=True"):
        async with join(meeting, "reviewer", take_over=True):
            pass


@pytest.mark.rule("3.observe.limit")
async def test_several_look_on_side_by_side_up_to_a_limit(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, reviewer(notes), "proposer") as (running, proposer):
        async with AsyncExitStack() as stack:
            observers = [
                await stack.enter_async_context(observed(meeting, "reviewer"))
                for _ in range(MAX_OBSERVERS)
            ]
            with pytest.raises(HandshakeRefused) as refused:
                await stack.enter_async_context(observed(meeting, "reviewer"))
            assert refused.value.status == 429
            assert "(max_observers)" in refused.value.body
            other = await stack.enter_async_context(observed(meeting, "second"))
            said = await proposer.chat("hello")
            for each in (*observers, other):
                assert (await each.hear(is_(said))).sender == "proposer"
            await observers[0].transport.aclose()
            again = await joins_at_last(stack, meeting)
            said = await proposer.chat("again")
            await again.hear(is_(said))
            assert running.connected


async def joins_at_last(stack: AsyncExitStack, meeting: Meeting) -> Raw:
    """Look on as soon as a place is free: a gateway hears of an end a moment later."""
    while True:
        try:
            return await stack.enter_async_context(observed(meeting, "reviewer"))
        except HandshakeRefused:
            await anyio.sleep(0.001)


@pytest.mark.rule("3.observe.private")
async def test_what_is_for_others_alone_is_not_heard(meeting: Meeting) -> None:
    """Not even by an observer with the same token: an invitation's token, errors, welcomes."""
    async with (
        gathered(meeting, "reviewer") as (running,),
        observed(meeting, "reviewer") as observer,
        join(meeting, "proposer") as proposer,
    ):
        invitation = await running.members.invite("newcomer", [{"kind": "chat"}])
        await running.members.grant("reviewer", [{"kind": "acme/*"}])
        async with raw(meeting) as mallory:
            await mallory.say(kinds.MCP_WITHDRAW, {}, id="nothing named")
            await mallory.hear(is_error)
        said = await proposer.chat("last")
        heard = [await observer.hear(lambda each: True)]
        while heard[-1].id != said:
            heard.append(await observer.hear(lambda each: True))
    assert invitation.token
    assert not [each for each in heard if invitation.token.encode() in each.frame]
    private = {kinds.SYSTEM_WELCOME, kinds.SYSTEM_ERROR, "space/invite-ack"}
    assert not [each for each in heard if each.kind in private]
    assert [each for each in heard if each.kind == "space/invite"]


@pytest.mark.rule("3.observe.ends")
async def test_who_is_removed_looks_on_no_more(meeting: Meeting) -> None:
    async with gathered(meeting, "second") as (second,), observed(meeting, "reviewer") as by_hand:
        with pytest.raises(Kicked):
            await _kicks(second, "reviewer", meeting)
        with pytest.raises(AssertionError, match="the connection has ended"):
            await by_hand.hear(lambda each: False)
        assert by_hand.transport.closed is not None
        assert by_hand.transport.closed.code == 4403
        with pytest.raises(HandshakeRefused) as refused:
            await observed(meeting, "reviewer").__aenter__()
        assert refused.value.status == 403


async def _kicks(space: Space, name: str, meeting: Meeting) -> None:
    async with join(meeting, "looker", name, observe=True):
        await space.members.kick(name)
        await anyio.sleep_forever()


@pytest.mark.rule("3.observe.resume")
async def test_an_observer_reads_what_it_missed(meeting: Meeting) -> None:
    latch = Latch()
    async with (
        join(meeting, "looker", "reviewer", observe=True, latch=latch) as observer,
        join(meeting, "proposer") as proposer,
        taped(observer) as tape,
    ):
        with anyio.fail_after(PATIENCE):
            first = await proposer.chat("first")
            await tape.until(is_(first))
            await keep_away(meeting, latch, observer)
            missed = await proposer.chat("missed")
            latch.closed = False
            last = await tape.until(is_(missed))
            assert last.payload_object == {"message": "missed"}
            assert session_of(observer).connections == 2
            said = [each.id for each in tape.of(kinds.CHAT)]
            assert said == [first, missed]
