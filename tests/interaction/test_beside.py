"""Connections beside the running agent of the same participant, which take part (PROTOCOL 3)."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Context, Fulfillment, Proposal, Request, Space
from meup_agent.errors import Kicked, OwnerUnknown, ParticipantGone, Refused, UsageError
from tests.gateways import BESIDE_HEADER
from tests.interaction.observed import reviewer, tool_owner
from tests.interaction.people import (
    NO_HEADERS,
    QUICK,
    Meeting,
    Notes,
    Raw,
    gathered,
    join,
    raw,
    until,
)
from tests.interaction.views import (
    call_of,
    is_,
    is_error,
    is_idle,
    is_request,
    is_withdraw,
    of_kind,
    session_of,
    taped,
)
from tests.patience import PATIENCE
from tests.wire import kinds

QUESTION = "elicitation/create"


def asker(name: str = "tools") -> Agent:
    """An agent whose tool asks the participant whose call it carries out."""
    tools = Agent(name)

    @tools.tool
    async def ask(ctx: Context) -> str:
        meta = {"dev.meup/request": ctx.envelope.id}
        to = ctx.sender
        if ctx.envelope.correlation:
            meta["dev.meup/proposal"] = ctx.envelope.correlation[0]
            to = call_of(ctx.envelope).meta["dev.meup/proposer"]
        return str((await ctx.space.request(to, QUESTION, {"_meta": meta}))["said"])

    return tools


def answering(name: str, said: str) -> Agent:
    """An agent that answers questions, and decides and answers as any other besides."""
    agent = Agent(name)

    @agent.on_request(QUESTION)
    async def answer(request: Request) -> dict[str, Any]:
        return {"said": said}

    @agent.on_proposal
    async def decide(proposal: Proposal) -> None:
        await proposal.fulfill()

    @agent.tool
    async def who() -> str:
        return said

    return agent


@asynccontextmanager
async def by_hand(meeting: Meeting, name: str = "reviewer") -> AsyncGenerator[Raw]:
    async with raw(meeting, name, {BESIDE_HEADER: "1"}) as found:
        assert found.transport.response_headers[BESIDE_HEADER.lower()] == "1"
        yield found


@pytest.mark.rule("3.beside.takes_part")
async def test_it_takes_part_and_the_agent_runs_on(meeting: Meeting, notes: Notes) -> None:
    async with (
        gathered(meeting, tool_owner(), reviewer(notes), "proposer") as (_, running, proposer),
        taped(proposer) as tape,
        join(meeting, answering("reviewer", "beside"), beside=True) as beside,
        taped(beside) as heard,
    ):
        assert (beside.me, beside.observing) == ("reviewer", False)
        assert "reviewer" in {each.id for each in beside.participants}
        assert await beside.call("tools", "write", {"text": "x"}) == "x"
        said = await beside.chat("hello")
        await tape.until(lambda each: each.id == said and each.sender == "reviewer")
        async with proposer.propose("tools", "write", {"text": "y"}) as proposal:
            assert isinstance(await proposal.outcome(), Fulfillment)
        assert notes.all == [("decides", proposal.id)]
        async with beside.propose("tools", "write", {"text": "z"}, to="second", ttl=None):
            pass
        await tape.all_said(running, beside)
        await heard.all_said(proposer)
        assert running.connected
    presences = [each.payload_object for each in tape.of(kinds.SYSTEM_PRESENCE)]
    assert {each["participant"]["id"] for each in presences} <= {"proposer"}
    assert not tape.of(kinds.MCP_REJECT)
    for space in (running, beside):
        assert session_of(space).counters == {}


@pytest.mark.parametrize("dialect", ["mcpx/v0.1", "meup/v0.1", "meup/v0.2", "mew/v0.4"])
@pytest.mark.rule("3.beside.own")
async def test_each_connection_answers_about_its_own_calls(meeting: Meeting, dialect: str) -> None:
    settings = replace(QUICK, dialect=dialect)
    async with (
        gathered(meeting, asker(), answering("reviewer", "agent")) as (_, running),
        join(meeting, answering("reviewer", "one"), beside=True, settings=settings) as one,
        join(meeting, answering("reviewer", "two"), beside=True, settings=settings) as two,
    ):
        spaces, answers = {"agent": running, "one": one, "two": two}, dict[str, str]()

        async def call(name: str) -> None:
            answers[name] = await spaces[name].call("tools", "ask")

        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                for name in spaces:
                    tasks.start_soon(call, name)
            assert answers == {name: name for name in spaces}
            answers.clear()
        await until(lambda: all(is_idle(each) for each in (one, two)))


@pytest.mark.rule("3.beside.own")
async def test_an_agent_that_comes_later_answers_for_no_other(meeting: Meeting) -> None:
    """It has heard nothing of the call that the question is about."""
    async with (
        raw(meeting, "tools") as tools,
        by_hand(meeting) as beside,
        gathered(meeting, "second") as (second,),
        taped(second) as tape,
    ):
        await beside.call("tools", "ask", id="call-1")
        await tape.until(is_("call-1"))
        async with join(meeting, answering("reviewer", "agent")) as running:
            meta = {"_meta": {"dev.meup/request": "call-1"}}
            await tools.request("reviewer", QUESTION, meta, id="ask-1")
            await beside.hear(is_("ask-1"))
            assert await second.call("reviewer", "who") == "agent"
            await tape.all_said(running)
            assert not [each for each in tape.of(kinds.MCP_RESPONSE) if "ask-1" in each.correlation]


@pytest.mark.rule("3.beside.own")
async def test_who_proposed_is_asked_about_the_proposal(meeting: Meeting) -> None:
    async with (
        gathered(meeting, asker(), answering("reviewer", "reviewer")),
        join(meeting, answering("proposer", "agent")) as running,
        join(meeting, answering("proposer", "beside"), beside=True) as beside,
    ):
        for space, said in ((beside, "beside"), (running, "agent")):
            async with space.propose("tools", "ask") as proposal:
                assert await proposal.result() == said


@pytest.mark.rule("3.beside.own")
async def test_what_was_approved_runs_at_the_agent_whatever_it_names(meeting: Meeting) -> None:
    """A gateway of other make passes on a proposal whose ``_meta`` terminals repeat."""
    async with (
        gathered(meeting, answering("tools", "agent")),
        join(meeting, answering("tools", "beside"), beside=True) as beside,
        raw(meeting, "proposer") as proposer,
        raw(meeting, "reviewer") as terminal,
        beside.propose("second", "who", to="proposer", ttl=None) as begun,
    ):
        for number, named in enumerate((begun.id, "unknown")):
            call = {"method": "tools/call", "params": {"name": "who", "arguments": {}}}
            await proposer.say(kinds.MCP_PROPOSAL, call, id=f"p-{number}", to=("reviewer",))
            await terminal.hear(lambda each: each.id.startswith("p-"))
            call["params"] |= {"_meta": {"dev.meup/request": named}}  # type: ignore[operator]
            request, about = {"jsonrpc": "2.0", "id": number, **call}, (f"p-{number}",)
            await terminal.say(
                kinds.MCP_REQUEST, request, id=f"r-{number}", to=("tools",), correlation=about
            )
            answer = await terminal.hear(
                lambda each: each.kind in (kinds.MCP_RESPONSE, kinds.SYSTEM_ERROR)
            )
            assert '"agent"' in answer.raw_payload.decode()


@pytest.mark.rule("3.beside.own")
async def test_a_question_is_refused_whose_connection_is_gone(meeting: Meeting) -> None:
    """The agent would answer in vain, and nobody else will."""
    async with gathered(meeting, answering("reviewer", "agent")), raw(meeting, "tools") as tools:
        with anyio.fail_after(PATIENCE):
            async with by_hand(meeting) as beside:
                await beside.call("tools", "ask", id="call-1")
                await tools.hear(is_("call-1"))
            meta = {"_meta": {"dev.meup/request": "call-1"}}
            for number in count():  # a gateway hears of an end a moment later
                await tools.request("reviewer", QUESTION, meta, id=f"ask-{number}")
                await tools.say(kinds.CHAT, {}, id=f"said-{number}")
                heard = await tools.hear(lambda each: each.kind in (kinds.SYSTEM_ERROR, kinds.CHAT))
                if heard.kind == kinds.SYSTEM_ERROR:
                    assert heard.payload_object["error"] == "not_answering"
                    break


@pytest.mark.rule("3.beside.alone")
async def test_beside_alone_it_is_present_and_answers_no_request(meeting: Meeting) -> None:
    async with (
        gathered(meeting, "proposer", tool_owner()) as (proposer, tools),
        taped(proposer) as tape,
    ):
        async with join(meeting, "reviewer", beside=True) as beside:

            def is_aside() -> list[bool]:
                return [each.aside for each in proposer.participants if each.id == "reviewer"]

            await until(lambda: is_aside() == [True])
            with pytest.raises(Refused, match="not_answering") as refused:
                await tools.request("reviewer", "tools/list")
            assert "start its agent" in str(refused.value)
            async with proposer.propose("tools", "write", {"text": "x"}, to="reviewer") as proposal:
                await until(lambda: bool(beside.proposals))
                await beside.proposals.get(beside.proposals[0]).fulfill()
                assert await proposal.result() == "x"
            async with join(meeting, answering("reviewer", "agent")):
                await until(lambda: is_aside() == [False])
                assert await tools.call("reviewer", "who") == "agent"
            await until(lambda: is_aside() == [True])
            with pytest.raises(Refused, match="not_answering"):
                await tools.request("reviewer", "tools/list")
            async with join(meeting, "tools", "tools", beside=True) as other:
                with pytest.raises(Refused, match="not_answering"):
                    await other.request("reviewer", "tools/list")
        await until(lambda: not is_aside())
        presences = [each.payload_object for each in tape.of(kinds.SYSTEM_PRESENCE)]
    events = [each["event"] for each in presences if each["participant"]["id"] == "reviewer"]
    assert events == ["join", "join", "update", "leave"]


async def test_tools_of_a_person_at_a_browser_are_no_news(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "meup_agent.client")
    async with (
        gathered(meeting, "proposer", tool_owner()) as (_, tools),
        join(meeting, "reviewer", beside=True),
    ):
        with pytest.raises(OwnerUnknown):
            await tools.call(None, "nothing")
    # Others may say that they connect, where a test before has left their level so.
    assert [each for each in caplog.records if each.name.startswith("meup_agent.client")] == []


@pytest.mark.rule("3.beside.alone", "4.6.gone")
async def test_a_request_ends_whose_agent_left_others_beside(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meup_agent.protocol.exchange.table_context.ABSENCE_SECONDS", 0.01)
    asked = anyio.Event()
    async with gathered(meeting, "second") as (space,), by_hand(meeting):
        async with raw(meeting, "reviewer", NO_HEADERS) as agent:
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    with pytest.raises(ParticipantGone):
                        await space.call("reviewer", "who")
                    asked.set()

                tasks.start_soon(call)
                await agent.hear(is_request)
                await agent.transport.aclose()
                await asked.wait()


@pytest.mark.rule("3.beside.begun")
async def test_what_is_begun_beside_outlives_the_agents_process(meeting: Meeting) -> None:
    async with gathered(meeting, "second") as (second,), taped(second) as tape:
        async with join(meeting, "proposer", beside=True) as beside:
            async with join(meeting, "proposer"):
                pass
            async with raw(meeting, "proposer", {"MEUP-Resume": "1"}) as agent:
                await agent.propose({"name": "x"}, id="old")
                await tape.until(is_("old"))
            async with beside.propose("tools", "write", {"text": "x"}, ttl=None) as proposal:
                await tape.until(is_(proposal.id))
                async with join(meeting, "proposer"):
                    ended = await tape.until(is_withdraw)
                    assert ended.correlation == ("old",)
                await tape.all_said(beside)
                assert len(tape.of(kinds.MCP_WITHDRAW)) == 1
                assert str(proposal.state) == "pending"


async def test_a_first_connection_that_is_half_open_mutes_neither(meeting: Meeting) -> None:
    """Another takes over its place, and what is beside it goes on."""
    async with (
        gathered(meeting, tool_owner(), "second") as (_, second),
        raw(meeting, "reviewer", NO_HEADERS) as half_open,
        join(meeting, "reviewer", beside=True) as beside,
    ):
        assert await beside.call("tools", "write", {"text": "x"}) == "x"
        assert half_open.transport.closed is None
        async with join(meeting, answering("reviewer", "agent")):
            await _is_closed(half_open, 4409)
            assert await second.call("reviewer", "who") == "agent"
            assert await beside.call("tools", "write", {"text": "y"}) == "y"


@pytest.mark.rule("3.beside.private")
async def test_what_answers_one_connection_goes_to_that_one(meeting: Meeting) -> None:
    async with (
        raw(meeting, "reviewer", NO_HEADERS) as agent,
        by_hand(meeting) as one,
        by_hand(meeting) as two,
        gathered(meeting, "second") as (second,),
    ):
        await one.say(kinds.MCP_WITHDRAW, {}, id="names nothing")
        invite = {"participant_id": "guest", "initial_capabilities": [{"kind": "chat"}]}
        await two.say("space/invite", invite, id="invites")
        refused = await one.hear(is_error)
        assert refused.correlation == ("names nothing",)
        invited = await two.hear(of_kind("space/invite-ack"))
        assert invited.payload_object["token"]
        await second.members.grant("reviewer", [{"kind": "chat"}])
        last = await second.chat("last")
        private = (kinds.SYSTEM_ERROR, "space/invite-ack")
        for each in (agent, one, two):
            # All of them may do more now.
            await each.hear(of_kind(kinds.SYSTEM_WELCOME))
            heard = [await each.hear(lambda _: True)]
            while heard[-1].id != last:
                heard.append(await each.hear(lambda _: True))
            assert not [it for it in heard if it.kind in private]


async def _is_closed(connection: Raw, code: int) -> None:
    with pytest.raises(AssertionError, match="the connection has ended"):
        await connection.hear(lambda _: False)
    assert connection.transport.closed is not None
    assert connection.transport.closed.code == code


async def _is_kicked(meeting: Meeting, by: Space) -> None:
    async with join(meeting, "reviewer", beside=True):
        await by.members.kick("reviewer")
        await anyio.sleep_forever()


@pytest.mark.rule("3.beside.ends")
async def test_a_removed_participant_is_removed_with_all_connections(meeting: Meeting) -> None:
    async with gathered(meeting, "second") as (second,), by_hand(meeting) as one:
        async with by_hand(meeting) as two, raw(meeting, "reviewer", NO_HEADERS) as agent:
            with pytest.raises(Kicked):
                await _is_kicked(meeting, second)
            for each in (one, two, agent):
                await _is_closed(each, 4403)
        await until(lambda: "reviewer" not in {each.id for each in second.participants})


@pytest.mark.rule("3.beside.resume")
async def test_it_is_told_of_open_proposals(meeting: Meeting) -> None:
    async with gathered(meeting, "proposer", reviewer(Notes())) as (proposer, _):
        async with proposer.propose("deep", "write", {"text": "x"}, to="second", ttl=None) as one:
            async with join(meeting, "reviewer", beside=True) as beside:
                await until(lambda: [each.id for each in beside.proposals] == [one.id])


async def test_beside_and_observing_exclude_each_other(meeting: Meeting) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        async with join(meeting, "reviewer", beside=True, observe=True):
            pass
