"""Connections that observe: beside the running agent of the same participant, without a part."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import anyio
import pytest

from meup_agent import (
    Agent,
    Chat,
    Envelope,
    Fulfillment,
    Mode,
    Participant,
    Proposal,
    Rejection,
    Space,
)
from meup_agent.errors import HandshakeRefused, Kicked, ObservingOnly, TransportClosed, UsageError
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.protocol import kinds
from meup_agent.protocol.dialects import decode
from meup_agent.transport.base import (
    LAST_SEEN_HEADER,
    OBSERVE_HEADER,
    RESUME_HEADER,
)
from tests.interaction.people import (
    PATIENCE,
    QUICK,
    Latch,
    Meeting,
    Notes,
    OverSockets,
    Raw,
    gathered,
    is_idle,
    join,
    raw,
    session_of,
    state_of,
    taped,
    until,
)

pytestmark = pytest.mark.anyio

MAX_OBSERVERS = GatewayLimits().max_observers


def tool_owner() -> Agent:
    tools = Agent("tools")

    @tools.tool
    async def write(text: str) -> str:
        return text

    return tools


def reviewer(notes: Notes) -> Agent:
    agent = Agent("reviewer")

    @agent.on_proposal
    async def decide(proposal: Proposal) -> None:
        notes(("decides", proposal.id))
        await proposal.fulfill()

    return agent


def by(kind: str, sender: str) -> Callable[[Envelope], bool]:
    return lambda envelope: (envelope.kind, envelope.sender) == (kind, sender)


def is_(id: str) -> Callable[[Envelope], bool]:
    return lambda envelope: envelope.id == id


@asynccontextmanager
async def observed(meeting: Meeting, name: str, **headers: str) -> AsyncGenerator[Raw]:
    """Look on by hand."""
    sent = {"Authorization": f"Bearer {meeting.token(name)}", OBSERVE_HEADER: "1", **headers}
    async with meeting.connector(name)(sent) as transport:
        assert transport.response_headers[OBSERVE_HEADER.lower()] == "1"
        welcome = decode(await anext(transport))
        assert welcome.kind == kinds.SYSTEM_WELCOME
        assert welcome.payload_object["observing"] is True
        yield Raw(transport, name)


@pytest.mark.rule("3.observe.takes_no_part")
async def test_running_agent_decides_while_its_participant_is_observed(
    meeting: Meeting, notes: Notes
) -> None:
    async with (
        join(meeting, tool_owner()),
        join(meeting, reviewer(notes)) as running,
        join(meeting, "proposer") as proposer,
        taped(proposer) as tape,
    ):
        with anyio.fail_after(PATIENCE):
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
    """What is addressed to the participant stays open: an observer stands in for none."""
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
            await tape.until(lambda envelope: envelope.id == "last")
            assert state_of(observer, "p-1") == "pending"
            await mallory.say(kinds.MCP_WITHDRAW, {}, id="w-1", correlation=("p-1",))
            await until(lambda: state_of(observer, "p-1") == "withdrawn")
    assert started == []
    assert {envelope.sender for envelope in tape.envelopes} <= {"mallory", "system:gateway"}
    assert is_idle(observer)


@pytest.mark.rule("3.observe.takes_no_part")
async def test_who_only_asks_answers_and_rejects_nothing(meeting: Meeting) -> None:
    """The mode of `meup tools`: it is a member, and has no handlers."""
    asking = replace(QUICK, mode=Mode.OUTGOING_ONLY)
    async with (
        join(meeting, tool_owner()),
        join(meeting, "asks", "reviewer", settings=asking) as asks,
        raw(meeting) as mallory,
        taped(asks) as tape,
    ):
        with anyio.fail_after(PATIENCE):
            call = {"method": "tools/call", "params": {"name": "write", "arguments": {}}}
            await mallory.say(kinds.MCP_PROPOSAL, call, id="p-1", to=("reviewer",))
            await mallory.request("reviewer", "tools/list", {}, id="r-1")
            await tape.until(is_("r-1"))
            [tool] = await asks.tools("tools")
            assert tool["name"] == "write"
            await tape.all_said(asks)
    [*asked, _] = [each for each in tape.envelopes if each.sender == "reviewer"]
    assert [(each.kind, each.to) for each in asked] == [(kinds.MCP_REQUEST, ("tools",))]


@pytest.mark.rule("3.observe.not_present")
async def test_an_observer_is_present_to_nobody(meeting: Meeting) -> None:
    async with join(meeting, "proposer") as proposer, taped(proposer) as tape:
        with anyio.fail_after(PATIENCE):
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
    second = Agent("second")

    @second.on_proposal
    async def no(proposal: Proposal) -> None:
        await proposal.reject("unsafe")

    async with (
        join(meeting, "looker", "reviewer", observe=True),
        join(meeting, second),
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
        await space.proposal(space.proposals[0]).reject("unsafe")

    async def fulfills(space: Space) -> None:
        await space.proposal(space.proposals[0]).fulfill()

    verbs: list[Callable[[Space], Any]] = [
        proposes,
        rejects,
        fulfills,
        lambda space: space.chat("hello"),
        lambda space: space.send("acme/news", {}),
        lambda space: space.request("tools", "tools/list"),
        lambda space: space.tools("tools"),
        lambda space: space.call("tools", "write", {"text": "x"}),
        lambda space: space.grant("proposer", [{"kind": "chat"}]),
        lambda space: space.revoke("proposer", [{"kind": "chat"}]),
        lambda space: space.invite("newcomer"),
        lambda space: space.kick("proposer"),
    ]
    async with (
        join(meeting, tool_owner()),
        join(meeting, "looker", "reviewer", observe=True) as observer,
        join(meeting, "proposer") as proposer,
        taped(proposer) as tape,
        taped(observer) as heard,
    ):
        with anyio.fail_after(PATIENCE):
            async with proposer.propose("tools", "write", {"text": "x"}):
                await heard.until(by(kinds.MCP_PROPOSAL, "proposer"))
                for verb in verbs:
                    with pytest.raises(ObservingOnly, match="only observed; join without observe"):
                        await verb(observer)
            await tape.all_said(proposer)
    assert {each.sender for each in tape.envelopes} - {"system:gateway"} == {"proposer"}


async def test_taking_over_is_a_way_to_observe(meeting: Meeting) -> None:
    with pytest.raises(UsageError, match="pass observe=True with it"):
        async with join(meeting, "reviewer", take_over=True):
            pass


@pytest.mark.rule("3.observe.limit")
async def test_several_look_on_side_by_side_up_to_a_limit(meeting: Meeting, notes: Notes) -> None:
    async with (
        join(meeting, reviewer(notes)) as running,
        join(meeting, "proposer") as proposer,
    ):
        with anyio.fail_after(PATIENCE):
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
                    assert (
                        await each.hear(lambda envelope: envelope.id == said)
                    ).sender == "proposer"
                await observers[0].transport.aclose()
                again = await joins_at_last(stack, meeting)
                said = await proposer.chat("again")
                await again.hear(lambda envelope: envelope.id == said)
                assert running.connected


async def joins_at_last(stack: AsyncExitStack, meeting: Meeting) -> Raw:
    """Look on as soon as a place is free: a gateway hears of an end a moment later."""
    while True:
        try:
            return await stack.enter_async_context(observed(meeting, "reviewer"))
        except HandshakeRefused:
            await anyio.sleep(0.001)


@pytest.mark.rule("3.observe.says_nothing")
async def test_whatever_an_observer_sends_is_refused_to_it_alone(
    meeting: Meeting, notes: Notes
) -> None:
    """Decisions, withdrawals and nonsense under its participant's name change nothing."""
    async with (
        join(meeting, tool_owner()),
        join(meeting, "reviewer") as running,
        join(meeting, "proposer") as proposer,
        observed(meeting, "reviewer") as hostile,
        observed(meeting, "reviewer") as other,
        taped(proposer) as tape,
        taped(running) as at_home,
    ):
        with anyio.fail_after(PATIENCE):
            async with proposer.propose("tools", "write", {"text": "x"}) as proposal:
                await hostile.hear(by(kinds.MCP_PROPOSAL, "proposer"))
                about = (proposal.id,)
                request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}
                await hostile.say(kinds.MCP_REJECT, {}, id="x-1", correlation=about)
                await hostile.say(kinds.MCP_WITHDRAW, {}, id="x-2", correlation=about)
                await hostile.say(kinds.MCP_REQUEST, request, id="x-3", correlation=about)
                await hostile.say(kinds.CHAT, {"message": "hi"}, id="x-4")
                await hostile.say("system/presence", {}, id="x-5")
                await hostile.say("capability/grant", {}, id="x-6")
                await hostile.say("space/invite", {"participant_id": "m"}, id="x-7")
                await hostile.say("system/heartbeat", {}, id="x-8")
                for number in range(1, 9):
                    error = await hostile.hear(lambda each: each.kind == kinds.SYSTEM_ERROR)
                    assert error.correlation == (f"x-{number}",)
                    assert error.payload_object["error"] == "observing"
                await hostile.transport.send(b"\xff nonsense")
                await hostile.transport.send(b"[" * 10_000)
                for _ in range(2):
                    error = await hostile.hear(lambda each: each.kind == kinds.SYSTEM_ERROR)
                    assert error.payload_object["error"] == "observing"
                assert state_of(proposer, proposal.id) == "pending"
            await tape.all_said(proposer, running)
            await at_home.all_said(proposer, running)
            said = await proposer.chat("last")
            heard = [await other.hear(lambda each: True)]
            while heard[-1].id != said:
                heard.append(await other.hear(lambda each: True))
    for envelopes in (tape.envelopes, at_home.envelopes, heard):
        assert not [each for each in envelopes if each.kind == kinds.SYSTEM_ERROR]
        assert not [each for each in envelopes if each.id.startswith("x-")]
    assert running.me == "reviewer"


@pytest.mark.rule("3.observe.says_nothing")
async def test_too_large_a_message_is_refused_to_the_observer_alone(meeting: Meeting) -> None:
    async with (
        join(meeting, "reviewer") as running,
        taped(running) as at_home,
        observed(meeting, "reviewer") as hostile,
    ):
        with anyio.fail_after(PATIENCE):
            with suppress(TransportClosed):
                await hostile.transport.send(b"x" * (5 * 2**20))
            with pytest.raises(AssertionError, match="the connection has ended"):
                await hostile.hear(lambda each: False)
            assert hostile.transport.closed is not None
            await at_home.all_said(running)
    assert not at_home.of(kinds.SYSTEM_ERROR)


@pytest.mark.rule("3.observe.private")
async def test_what_is_for_others_alone_is_not_heard(meeting: Meeting) -> None:
    """Not even by an observer with the same token: an invitation's token, errors, welcomes."""
    async with (
        join(meeting, "reviewer") as running,
        observed(meeting, "reviewer") as observer,
        join(meeting, "proposer") as proposer,
    ):
        with anyio.fail_after(PATIENCE):
            invitation = await running.invite("newcomer", [{"kind": "chat"}])
            await running.grant("reviewer", [{"kind": "acme/*"}])
            async with raw(meeting) as mallory:
                await mallory.say(kinds.MCP_WITHDRAW, {}, id="nothing named")
                await mallory.hear(lambda each: each.kind == kinds.SYSTEM_ERROR)
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
    async with (
        gathered(meeting, "second") as (second,),
        observed(meeting, "reviewer") as by_hand,
    ):
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
        await space.kick(name)
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
            await tape.until(lambda each: each.id == first)
            latch.closed = True
            meeting.drop("reviewer")
            await until(lambda: not observer.connected)
            missed = await proposer.chat("missed")
            latch.closed = False
            last = await tape.until(lambda each: each.id == missed)
            assert last.payload_object == {"message": "missed"}
            assert session_of(observer).connections == 2
            said = [each.id for each in tape.of(kinds.CHAT)]
            assert said == [first, missed]


@pytest.mark.rule("3.observe.resume")
async def test_an_observer_by_hand_goes_on_from_a_number(meeting: Meeting) -> None:
    async with join(meeting, "proposer") as proposer:
        with anyio.fail_after(PATIENCE):
            async with observed(meeting, "second", **{RESUME_HEADER: "1"}) as first:
                await proposer.chat("one")
                heard = await first.hear(lambda each: each.kind == kinds.CHAT)
                seq = json.loads(heard.frame)["seq"]
            await proposer.chat("two")
            headers = {RESUME_HEADER: "1", LAST_SEEN_HEADER: str(seq)}
            async with observed(meeting, "second", **headers) as again:
                heard = await again.hear(lambda each: True)
                assert heard.payload_object == {"message": "two"}


@pytest.mark.rule("3.observe.header")
@pytest.mark.parametrize("value", ["0", "true", "", "1, 1", "11", "1;q=1"])
async def test_an_odd_header_takes_nobody_over(meeting: Meeting, value: str) -> None:
    """Taken for a member, it would throw the running agent out."""
    async with join(meeting, "reviewer") as running:
        with anyio.fail_after(PATIENCE):
            with pytest.raises(HandshakeRefused) as refused:
                async with observed(meeting, "reviewer", **{OBSERVE_HEADER: value}):
                    pass
            assert refused.value.status == 400
            assert "MEUP-Observe must be 1" in refused.value.body
            await running.chat("still here")


@pytest.mark.rule("3.observe.header")
async def test_a_member_stays_one_whatever_it_claims_later(meeting: Meeting) -> None:
    headers = {"Authorization": f"Bearer {meeting.token('mallory')}"}
    async with (
        join(meeting, "proposer") as proposer,
        taped(proposer) as tape,
        meeting.connector("mallory")(headers) as transport,
    ):
        with anyio.fail_after(PATIENCE):
            frame = {"type": "join", "participantId": "mallory", "space": "demo", "observe": True}
            await transport.send(json.dumps({**frame, "MEUP-Observe": "1"}).encode())
            await Raw(transport, "mallory").say(kinds.CHAT, {"message": "hi"}, id="m-1")
            await tape.until(lambda each: each.id == "m-1")
            assert OBSERVE_HEADER.lower() not in transport.response_headers


@pytest.mark.rule("3.observe.header")
async def test_a_join_frame_repeats_what_the_handshake_said(meeting: Meeting) -> None:
    """As of a member: a client that names its participant sends one in any case."""
    async with (
        join(meeting, "proposer") as proposer,
        join(meeting, "l", "reviewer", observe=True, participant="reviewer") as observer,
        taped(observer) as tape,
    ):
        with anyio.fail_after(PATIENCE):
            said = await proposer.chat("hello")
            await tape.until(lambda each: each.id == said)
        assert observer.observing
    assert not tape.of(kinds.SYSTEM_ERROR)


@pytest.mark.rule("3.observe.says_nothing")
async def test_a_flood_of_an_observer_slows_down_itself_alone(meeting: Meeting) -> None:
    """It has a pace of its own: the agent with the same token speaks as before."""
    if not isinstance(meeting, OverSockets):
        return  # in memory a sender waits in `send`, and there is nothing to flood
    async with (
        observed(meeting, "reviewer") as hostile,
        join(meeting, "reviewer") as running,
        taped(running) as tape,
    ):

        async def flood() -> None:
            try:
                while True:
                    await hostile.say(kinds.CHAT, {"message": "x" * 10_000}, id="x")
            except TransportClosed:
                pass

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(flood)
                for _ in range(100):
                    said = await running.chat("hello")
                    await tape.until(is_(said))
                tasks.cancel_scope.cancel()
    assert not tape.of(kinds.SYSTEM_ERROR)
