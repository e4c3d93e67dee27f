"""Agents that come back read what they missed, and what they said is neither lost nor repeated."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Chat, Gap, Proposal, Rejection
from meup_agent.errors import TakenOver, TransportClosed
from meup_agent.events import Resumed
from tests.gateways import LAST_SEEN_HEADER, RESUME_HEADER, Connector, Transport
from tests.interaction.cast import unwilling
from tests.interaction.people import (
    ONE_PLACE,
    InMemory,
    Latch,
    Meeting,
    Notes,
    ended,
    gathered,
    join,
    keep_away,
    raw,
    until,
)
from tests.interaction.views import is_idle, of_kind, session_of, taped
from tests.patience import PATIENCE
from tests.wire import OURS, kinds


class Cutter(Latch):
    """Breaks a participant's connections where a test says so.

    Attributes:
        headers: Of each attempt to connect.
        before_send: Whether the connection breaks instead of sending a frame.
        after_send: Whether it breaks when a frame has left, before anything comes back.
        at_read: Whether it breaks when a frame has come, which is lost with it.
        cuts: How often it broke.
        holds: What comes after the next welcomes is not read until it is released.
    """

    def __init__(self) -> None:
        super().__init__()
        self.headers: list[Mapping[str, str]] = []
        self.before_send: Callable[[bytes], bool] | None = None
        self.after_send: Callable[[bytes], bool] | None = None
        self.at_read: Callable[[bytes], bool] | None = None
        self.cuts = 0
        self.holds = False
        self._released = anyio.Event()

    def release(self) -> None:
        """Let what was held back be read."""
        self._released.set()

    def __call__(self, connector: Connector) -> Connector:
        reachable = super().__call__(connector)

        @asynccontextmanager
        async def dial(headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
            self.headers.append(headers)
            async with reachable(headers) as transport:
                yield Cut(transport, self)

        return dial

    def cut(self, how: str) -> None:
        self.cuts += 1
        setattr(self, how, None)


class Cut:
    def __init__(self, transport: Transport, cutter: Cutter) -> None:
        self._transport = transport
        self._cutter = cutter
        self._welcomed, self._holds = False, cutter.holds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def send(self, frame: bytes) -> None:
        cutter = self._cutter
        if cutter.before_send is not None and cutter.before_send(frame):
            cutter.cut("before_send")
            await self._transport.abort()
            raise TransportClosed(1006)
        after = cutter.after_send is not None and cutter.after_send(frame)
        await self._transport.send(frame)
        if after:
            cutter.cut("after_send")
            # What the gateway says from here on is lost.
            cutter.at_read = lambda _: True

    def __aiter__(self) -> "Cut":
        return self

    async def __anext__(self) -> bytes:
        cutter = self._cutter
        if self._welcomed and self._holds:
            await cutter._released.wait()
        frame = await anext(self._transport)
        self._welcomed = True
        if cutter.at_read is not None and cutter.at_read(frame):
            cutter.cut("at_read")
            await self._transport.abort()
            raise StopAsyncIteration
        return frame


def listener(notes: Notes) -> Agent:
    agent = Agent("tools")

    @agent.on_chat
    async def said(chat: Chat) -> None:
        notes(chat.text)

    @agent.on_gap
    async def missed(gap: Gap) -> None:
        notes(gap)

    @agent.tool
    async def count(number: int) -> int:
        notes(f"count {number}")
        return number

    return agent


def is_chat(frame: bytes) -> bool:
    return b'"chat"' in frame


@pytest.mark.rule("6.resume.order", "6.resume.asks")
async def test_who_was_away_reads_what_it_missed_in_order(meeting: Meeting, notes: Notes) -> None:
    cutter = Cutter()
    agent = listener(notes)
    told: list[Resumed] = []
    agent.observe(lambda event: told.append(event) if isinstance(event, Resumed) else None)
    async with gathered(
        meeting, join(meeting, agent, latch=cutter, settings=ONE_PLACE), "second"
    ) as (tools, second):
        assert tools.gateway.guarantees == OURS
        await second.chat("before")
        await notes.until("before")
        await keep_away(meeting, cutter, tools)
        for number in range(20):
            await second.chat(str(number))
        await until(lambda: not session_of(second).outbox.unaccepted)
        cutter.closed = False
        await notes.until("19")
        await second.chat("after")
        await notes.until("after")
    texts = ["before", *map(str, range(20)), "after"]
    assert [note for note in notes.all if note in texts] == texts
    assert [note for note in notes.all if isinstance(note, Gap)] == []
    (resumed,) = told
    assert (resumed.missed >= 20, resumed.gap) == (True, False)
    first, *_, last = cutter.headers
    assert first[RESUME_HEADER] == last[RESUME_HEADER] == "1"
    assert LAST_SEEN_HEADER not in first
    assert last[LAST_SEEN_HEADER].isdigit()


@pytest.mark.rule("6.resume.known", "6.resume.order")
async def test_a_result_is_read_by_a_proposer_that_was_away(meeting: Meeting, notes: Notes) -> None:
    reviewer, latch = Agent("reviewer"), Latch()

    @reviewer.on_proposal
    async def review(proposal: Proposal) -> None:
        notes("asked")
        await notes.until("decide")
        await proposal.fulfill()
        notes("fulfilled")

    async with (
        gathered(meeting, listener(notes), reviewer),
        join(meeting, "proposer", latch=latch) as proposers,
        proposers.propose("tools", "count", {"number": 3}, to="reviewer") as proposal,
    ):
        await notes.until("asked")
        await keep_away(meeting, latch, proposers)
        notes("decide")
        await notes.until("fulfilled")
        latch.closed = False
        assert await proposal.result() == 3
    assert notes.all.count("count 3") == 1


@pytest.mark.rule("6.resume.taken_back")
async def test_what_was_withdrawn_meanwhile_is_not_shown(meeting: Meeting, notes: Notes) -> None:
    reviewer, latch = Agent("reviewer"), Latch()

    @reviewer.on_proposal
    async def review(proposal: Proposal) -> None:
        notes(proposal.id)
        await proposal.reject("unsafe")

    async with gathered(meeting, join(meeting, reviewer, latch=latch), "proposer") as (
        reviewers,
        proposers,
    ):
        await keep_away(meeting, latch, reviewers)
        async with proposers.propose("tools", "count", to="reviewer"):
            pass
        async with proposers.propose("tools", "count", to="reviewer") as kept:
            await until(lambda: not session_of(proposers).outbox.unaccepted)
            latch.closed = False
            assert isinstance(await kept.outcome(), Rejection)
    assert notes.all == [kept.id]


@pytest.mark.rule("6.resume.sent_again", "6.resume.accepted")
@pytest.mark.parametrize("how", ["before_send", "after_send"])
async def test_a_cut_loses_and_repeats_nothing(meeting: Meeting, notes: Notes, how: str) -> None:
    """Neither a request, which is sent twice nowhere else, nor talk, nor an answer."""
    cutter = Cutter()
    async with (
        gathered(meeting, listener(notes)) as (tools,),
        join(meeting, "second", latch=cutter) as second,
        join(meeting, "observer") as observer,
        taped(observer) as tape,
    ):
        for number in range(5):
            setattr(cutter, how, lambda frame: b"tools/call" in frame)
            assert await second.call("tools", "count", {"number": number}) == number
            setattr(cutter, how, is_chat)
            await second.chat(f"chat {number}")
            await notes.until(f"chat {number}")
            await until(lambda: not session_of(second).outbox.unaccepted)
        await until(lambda: is_idle(tools) and is_idle(second))
        seen = [e for e in tape.envelopes if e.sender in ("second", "tools")]
    assert cutter.cuts >= 10
    assert len({(e.sender, e.id) for e in seen}) == len(seen)
    expected = [f"{what} {number}" for number in range(5) for what in ("count", "chat")]
    assert notes.all == expected


@pytest.mark.rule("6.resume.sent_again")
async def test_an_answer_without_its_echo_is_given_once(meeting: Meeting, notes: Notes) -> None:
    cutter = Cutter()
    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, listener(notes), latch=cutter),
            join(meeting, "second") as second,
            join(meeting, "observer") as observer,
            taped(observer) as tape,
        ):
            for how in ("before_send", "after_send"):
                setattr(cutter, how, lambda frame: b"response" in frame)
                assert await second.call("tools", "count", {"number": 1}) == 1
            await second.chat("end")
            await tape.until(of_kind(kinds.CHAT))
            assert len(tape.of(kinds.MCP_RESPONSE)) == 2
    assert cutter.cuts >= 2


@pytest.mark.rule("6.resume.order", "6.resume.once")
@pytest.mark.parametrize("at", range(8))
async def test_a_cut_while_one_reads_costs_nothing(meeting: Meeting, notes: Notes, at: int) -> None:
    """Before the welcome (0), right after it, and after each of the missed."""
    cutter = Cutter()
    async with gathered(
        meeting, join(meeting, listener(notes), latch=cutter, settings=ONE_PLACE), "second"
    ) as (tools, second):
        await keep_away(meeting, cutter, tools)
        for number in range(5):
            await second.chat(str(number))
        await until(lambda: not session_of(second).outbox.unaccepted)
        left = [at]

        def due(_: bytes) -> bool:
            left[0] -= 1
            return left[0] < 0

        cutter.at_read = due
        cutter.closed = False
        await until(lambda: cutter.cuts == 1)
        await second.chat("after")
        await notes.until("after")
    assert notes.all == ["0", "1", "2", "3", "4", "after"]


@pytest.mark.rule("6.resume.gap")
async def test_a_gap_is_told_before_anything_else(meeting: Meeting, notes: Notes) -> None:
    latch = Latch()
    with anyio.fail_after(PATIENCE):
        async with join(meeting, listener(notes), latch=latch, settings=ONE_PLACE) as tools:
            seq = session_of(tools).table.seq
            assert seq is not None
            latch.closed = True
            meeting.restart()
            await until(lambda: not tools.connected)
            async with join(meeting, "second") as second:
                await second.chat("first after the restart")
                await until(lambda: not session_of(second).outbox.unaccepted)
                latch.closed = False
                await notes.until("first after the restart")
    gap, text = notes.all
    assert isinstance(gap, Gap)
    assert gap.since is not None
    assert gap.seconds >= 0
    assert gap.seq >= seq
    assert text == "first after the restart"


@pytest.mark.rule("6.resume.gap", "5.own.waiting.connection_lost")
async def test_after_a_gap_a_request_is_not_sent_again(meeting: Meeting, notes: Notes) -> None:
    cutter = Cutter()
    async with (
        gathered(meeting, listener(notes)) as (tools,),
        join(meeting, "second", latch=cutter) as second,
        anyio.create_task_group() as tasks,
    ):
        cutter.before_send = lambda frame: b"tools/call" in frame

        async def call() -> None:
            await second.call("tools", "count", {"number": 1})

        # Back before the gateway has forgotten, it would resume, and rightly send it again.
        cutter.closed = True
        tasks.start_soon(call)
        await until(lambda: cutter.cuts == 1 and not second.connected)
        meeting.restart()
        cutter.closed = False
        await until(lambda: second.connected and tools.connected)
        await until(lambda: {p.id for p in second.participants} >= {"tools", "second"})
        await second.chat("after")
        await notes.until("after")
        assert session_of(second).table.waiting == 1
        tasks.cancel_scope.cancel()
    assert "count 1" not in notes.all


@pytest.mark.rule("6.resume.gap")
async def test_a_gateway_that_remembers_little_says_so(forgetful: InMemory, notes: Notes) -> None:
    meeting, latch = forgetful, Latch()
    async with gathered(
        meeting, join(meeting, listener(notes), latch=latch, settings=ONE_PLACE), "second"
    ) as (tools, second):
        await keep_away(meeting, latch, tools)
        for number in range(10):
            await second.chat(str(number))
        await until(lambda: not session_of(second).outbox.unaccepted)
        latch.closed = False
        await notes.until("9")
    gap, *texts = notes.all
    assert isinstance(gap, Gap)
    assert texts == [str(number) for number in range(10 - len(texts), 10)]
    assert 0 < len(texts) < 5


@pytest.mark.rule("6.resume.not_said_again", "4.14.on_join")
async def test_ends_are_said_again_without_a_resume(meeting: Meeting, notes: Notes) -> None:
    async with (
        gathered(meeting, listener(notes), "observer") as (_, observer),
        taped(observer) as tape,
    ):
        async with join(meeting, "second") as second:
            await second.call("tools", "count", {"number": 1})
            meeting.drop("second")
            await until(lambda: session_of(second).connections == 2)
            await second.chat("resumed")
        async with join(meeting, "second") as second:
            await second.chat("new")
            await tape.until(of_kind(kinds.CHAT), 2)
        assert len(tape.of(kinds.MCP_RESPONSE)) == 1
        (response,) = tape.of(kinds.MCP_RESPONSE)
        async with raw(meeting, "second") as old:
            again = await old.response(response.correlation[0])
    assert again.payload == response.payload
    assert again.id != response.id


@pytest.mark.rule("6.resume.no_handler_yet", "3.takeover")
async def test_a_takeover_while_the_missed_is_read(meeting: Meeting, notes: Notes) -> None:
    """The newer process is not the one that was away: it begins with what is new."""
    older, newer, cutter = Notes(), Notes(), Cutter()
    async with gathered(meeting, "second") as (second,), anyio.create_task_group() as tasks:

        async def be_older() -> None:
            with pytest.raises(TakenOver):  # noqa: PT012
                async with join(meeting, listener(older), latch=cutter) as tools:
                    cutter.holds = True
                    meeting.drop("tools")
                    await until(lambda: session_of(tools).connections == 2)
                    notes("back")
                    await anyio.sleep_forever()
            notes("over")

        tasks.start_soon(be_older)
        await notes.until("back")
        await second.chat("held")
        await until(lambda: not session_of(second).outbox.unaccepted)
        async with join(meeting, listener(newer)):
            assert older.all == []
            cutter.release()
            await notes.until("over")
            await second.chat("new")
            await newer.until("new")
    assert newer.all == ["new"]
    assert set(older.all) <= {"held"}


@pytest.mark.rule("4.14.limits")
async def test_what_is_said_again_waits_once_however_often_it_comes_back(
    forgetful: InMemory,
) -> None:
    cutter = Cutter()

    def hang_up(_: bytes) -> bool:
        cutter.closed = True
        return True

    async with (
        gathered(forgetful, join(forgetful, unwilling(), latch=cutter), "second", "proposer") as (
            reviewer,
            second,
            proposer,
        ),
        proposer.propose("tools", "add", to="reviewer") as proposal,
    ):
        await ended(proposal, Rejection)
        await keep_away(forgetful, cutter, reviewer)
        for connections in range(2, 10):
            for number in range(8):
                await second.chat(str(number))
            cutter.before_send, cutter.closed = hang_up, False
            await until(lambda: cutter.closed and not reviewer.connected)
            assert session_of(reviewer).connections == connections
        # The rejection, and the question which proposals are open.
        assert len(session_of(reviewer).outbox) == 2
