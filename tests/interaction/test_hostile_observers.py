"""Observers that say what they must not, too much, or too often."""

import json
from contextlib import suppress

import anyio
import pytest

from meup_agent.errors import TransportClosed
from tests.gateways import OBSERVE_HEADER
from tests.interaction.observed import observed, tool_owner
from tests.interaction.people import Meeting, OverSockets, Raw, gathered, join
from tests.interaction.views import by, is_, is_error, state_of, taped
from tests.patience import PATIENCE
from tests.wire import kinds


@pytest.mark.rule("3.observe.says_nothing")
async def test_whatever_an_observer_sends_is_refused_to_it_alone(meeting: Meeting) -> None:
    """Decisions, withdrawals and nonsense under its participant's name change nothing."""
    async with (
        gathered(meeting, tool_owner(), "reviewer", "proposer") as (_, running, proposer),
        observed(meeting, "reviewer") as hostile,
        observed(meeting, "reviewer") as other,
        taped(proposer) as tape,
        taped(running) as at_home,
    ):
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
                error = await hostile.hear(is_error)
                assert error.correlation == (f"x-{number}",)
                assert error.payload_object["error"] == "observing"
            await hostile.transport.send(b"\xff nonsense")
            await hostile.transport.send(b"[" * 10_000)
            for _ in range(2):
                error = await hostile.hear(is_error)
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
        gathered(meeting, "reviewer") as (running,),
        taped(running) as at_home,
        observed(meeting, "reviewer") as hostile,
    ):
        with suppress(TransportClosed):
            await hostile.transport.send(b"x" * (5 * 2**20))
        with pytest.raises(AssertionError, match="the connection has ended"):
            await hostile.hear(lambda each: False)
        assert hostile.transport.closed is not None
        await at_home.all_said(running)
    assert not at_home.of(kinds.SYSTEM_ERROR)


@pytest.mark.rule("3.observe.header")
async def test_a_member_stays_one_whatever_it_claims_later(meeting: Meeting) -> None:
    headers = {"Authorization": f"Bearer {meeting.token('mallory')}"}
    async with (
        gathered(meeting, "proposer") as (proposer,),
        taped(proposer) as tape,
        meeting.connector("mallory")(headers) as transport,
    ):
        frame = {"type": "join", "participantId": "mallory", "space": "demo", "observe": True}
        await transport.send(json.dumps({**frame, "MEUP-Observe": "1"}).encode())
        await Raw(transport, "mallory").say(kinds.CHAT, {"message": "hi"}, id="m-1")
        await tape.until(is_("m-1"))
        assert OBSERVE_HEADER.lower() not in transport.response_headers


@pytest.mark.rule("3.observe.header")
async def test_a_join_frame_repeats_what_the_handshake_said(meeting: Meeting) -> None:
    """As of a member: a client that names its participant sends one in any case."""
    async with (
        gathered(meeting, "proposer") as (proposer,),
        join(meeting, "l", "reviewer", observe=True, participant="reviewer") as observer,
        taped(observer) as tape,
    ):
        said = await proposer.chat("hello")
        await tape.until(is_(said))
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
