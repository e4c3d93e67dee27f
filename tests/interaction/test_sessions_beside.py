"""A session beside the agent of the same participant: what it asks, and leaves to the agent."""

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from meup_agent import Agent, Mode, Proposal, Rejection, Settings, Space, StreamReader
from meup_agent.errors import Refused, RequestError
from meup_agent.gateway import Gateway, ThreadedGateway
from tests.gateways import Transport, websocket_connector
from tests.interaction.people import (
    LIMITS,
    PARTICIPANTS,
    QUICK,
    Notes,
    OverSockets,
    gathered,
    join,
    until,
)
from tests.interaction.views import is_, is_request, is_withdraw, of_kind, session_of, taped
from tests.patience import PATIENCE
from tests.wire import kinds

BESIDE = replace(QUICK, mode=Mode.BESIDE)


@pytest.fixture
def meeting() -> Generator[OverSockets]:
    with Gateway(participants=PARTICIPANTS, limits=LIMITS).in_thread() as gateway:
        yield OverSockets(gateway)


class Streams:
    """Connects to wherever the gateway is now, and keeps the connections."""

    def __init__(self, gateway: ThreadedGateway) -> None:
        self.gateway = gateway
        self.all: list[Transport] = []
        self.open = anyio.Event()
        self.open.set()

    @asynccontextmanager
    async def __call__(self, headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
        await self.open.wait()
        async with websocket_connector(self.gateway.url, space="demo")(headers) as transport:
            self.all.append(transport)
            yield transport


@asynccontextmanager
async def beside(
    meeting: OverSockets,
    name: str,
    *,
    agent: Agent | None = None,
    streams: Streams | None = None,
    settings: Settings = BESIDE,
) -> AsyncGenerator[Space]:
    """A participant's second session."""
    async with (agent or Agent(name)).join(
        streams or Streams(meeting.gateway), token=meeting.token(name), settings=settings, grace=0.0
    ) as space:
        yield space


def rejecting(name: str, notes: Notes) -> Agent:
    """An agent that answers its tool, rejects proposals, and notes both."""
    agent = Agent(name)

    @agent.tool
    async def write(text: str) -> str:
        notes(f"ran {text}")
        return text

    @agent.on_proposal
    async def decide(proposal: Proposal) -> None:
        notes(f"{name} decides")
        await proposal.reject("policy")

    return agent


@pytest.mark.rule("5.who.me.beside")
async def test_it_answers_and_rejects_nothing_for_the_agent_beside_it(meeting: OverSockets) -> None:
    theirs, ours = Notes(), Notes()
    async with (
        gathered(meeting, rejecting("reviewer", theirs)) as (first,),
        beside(meeting, "reviewer", agent=rejecting("reviewer", ours)) as second,
        join(meeting, "tools") as asking,
        taped(asking) as tape,
    ):
        # What the agent answers, what it rejects, and what no handler of its takes.
        assert await asking.call("reviewer", "write", {"text": "a"}) == "a"
        async with asking.propose("tools", "write", {}, to="reviewer") as proposal:
            assert isinstance(await proposal.outcome(), Rejection)
        with pytest.raises(RequestError):
            await asking.call("reviewer", "missing")
        with pytest.raises(RequestError):
            await asking.request("reviewer", "prompts/list", {})
        await asking.members.grant("reviewer", [{"kind": "chat"}])
        await tape.until(of_kind("capability/grant-ack"))
        await tape.all_said(second, first)
        assert len(tape.of("capability/grant-ack")) == 1
        assert len(tape.of(kinds.MCP_RESPONSE, sender="reviewer")) == 3
        assert len(tape.of(kinds.MCP_REJECT, sender="reviewer")) == 1
        assert first.connected
    assert theirs.all == ["ran a", "reviewer decides"]
    assert ours.all == []


@pytest.mark.rule("5.control.onlooker")
async def test_one_that_joins_in_a_pause_goes_on_after_it(meeting: OverSockets) -> None:
    notes = Notes()
    async with gathered(
        meeting, rejecting("tools", notes), rejecting("reviewer", notes), "second"
    ) as (_, agent, boss):
        pause = await boss.control.pause("reviewer")
        async with beside(meeting, "reviewer") as space:
            assert (agent.control.paused, space.control.paused) == (pause, None)
            # The gateway holds the participant to its pause, by whichever connection.
            with pytest.raises(Refused):
                await space.call("tools", "write", {"text": "a"})
            with pytest.raises(RequestError, match="busy"):
                await boss.call("reviewer", "write", {"text": "b"})
            await boss.control.resume("reviewer", pause=pause)
            assert await space.call("tools", "write", {"text": "c"}) == "c"
            assert await boss.call("reviewer", "write", {"text": "d"}) == "d"
    assert notes.all == ["ran c", "ran d"]


@pytest.mark.rule("4.6.gone")
async def test_it_waits_for_an_executor_that_comes_back(meeting: OverSockets) -> None:
    tools, notes, go = Agent("tools"), Notes(), anyio.Event()

    @tools.tool
    async def write() -> str:
        notes("began")
        await go.wait()
        return "written"

    async def call(space: Space) -> None:
        assert await space.call("tools", "write") == "written"
        notes("answered")

    async with (
        gathered(meeting, tools, "reviewer") as (executor, _),
        beside(meeting, "reviewer") as space,
        taped(space) as tape,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(call, space)
        await notes.until("began")
        meeting.drop("tools")
        await tape.until(lambda each: each.payload_object.get("event") == "leave")
        await tape.until(lambda each: each.payload_object.get("event") == "join")
        await until(lambda: executor.connected)
        go.set()
        await notes.until("answered")


@pytest.mark.rule("5.own.waiting.connection_lost")
async def test_what_is_idempotent_is_sent_again_to_a_gateway_that_forgot_it(
    meeting: OverSockets,
) -> None:
    notes, streams = Notes(), Streams(meeting.gateway)

    async def call(space: Space) -> None:
        assert await space.call("tools", "write", {"text": "b"}, idempotent=True) == "b"
        notes("answered")

    with anyio.fail_after(PATIENCE):
        async with (
            beside(meeting, "reviewer", streams=streams) as space,
            taped(space) as tape,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(call, space)
            await tape.until(is_request)
            streams.open = anyio.Event()
            meeting.restart()
            # Nobody hears of a request that was made before they came.
            async with join(meeting, rejecting("tools", notes)):
                streams.open.set()
                await notes.until("answered")
    assert notes.all == ["ran b", "answered"]


@pytest.mark.rule("6.resume.sent_again", "6.resume.order", "3.beside.resume")
async def test_nothing_is_lost_or_said_twice_when_the_stream_breaks(meeting: OverSockets) -> None:
    streams = Streams(meeting.gateway)
    async with (
        gathered(meeting, "tools") as (other,),
        beside(meeting, "reviewer", streams=streams) as space,
        taped(space) as ours,
        taped(other) as theirs,
    ):
        said = list[str]()
        for number in range(3):
            said.append(await space.chat(f"said {number}"))
            await streams.all[-1].abort()
            await other.chat(f"missed {number}")
            await until(lambda: session_of(space).connections == len(streams.all))
        await theirs.all_said(space)
        await ours.all_said(other)
        assert [each.id for each in theirs.of(kinds.CHAT, sender="reviewer")][:-1] == said
        texts = [each.payload_object["message"] for each in ours.of(kinds.CHAT, sender="tools")]
        assert texts == ["missed 0", "missed 1", "missed 2", "so far"]


async def test_who_leaves_withdraws_all(meeting: OverSockets) -> None:
    async with gathered(meeting, "tools") as (other,), taped(other) as tape:
        async with beside(meeting, "proposer") as space:
            async with space.propose("tools", "write", {}, ttl=None) as proposal:
                await tape.until(is_(proposal.id))
        withdraw = await tape.until(is_withdraw)
        assert withdraw.correlation == (proposal.id,)


async def test_it_writes_in_streams(meeting: OverSockets) -> None:
    listener, frames = Agent("second"), list[bytes]()

    @listener.on_stream
    async def read(stream: StreamReader) -> None:
        async for chunk in stream:
            frames.append(chunk)

    async with gathered(meeting, listener), beside(meeting, "reviewer") as space:
        async with space.streams.open(to="second") as out:
            for number in range(20):
                await out.send(b"%d\xff" % number)
        await until(lambda: len(frames) == 20)
        assert frames == [b"%d\xff" % number for number in range(20)]
        assert not space.streams
