"""An inbox session over open proposals: the first screen, the rest, and who leaves it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from meup_agent import Agent, ProposalHandle, ProposalState, Reason, Space
from meup_agent.approval import Inbox, InboxItem, InboxRenewed, ItemArrived, Reviewer, Verb
from meup_agent.errors import ParticipantGone
from meup_agent.gateway.console.presence import InboxSession, InboxSessionOpener, PersonPresences
from meup_agent.gateway.console.sign_in import RequestDenied
from meup_agent.gateway.frame_queue import WriteBatcher
from tests.gateways import Identity
from tests.interaction.cast import calculator
from tests.interaction.people import InMemory, gathered, until
from tests.patience import PATIENCE
from tests.spaces import AbsenceTracker
from tests.wire import draft, encode, payloads

POLICY = """
rules:
  - quorum: {tool: add, arguments: {a: 3}, of: 2, among: [second, deep], name: two}
end: true
"""


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One proposal is many here, and a screen shows one."""
    for name, value in (("MAX_AT_FIRST", 1), ("MAX_AWAITED", 0), ("MAX_AT_A_TURN", 1)):
        monkeypatch.setattr(f"meup_agent.approval.inbox.item.{name}", value)
    begin_turns_after(monkeypatch, 0.0)
    return monkeypatch


def begin_turns_after(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("meup_agent.approval.inbox.item.SCREEN_SECONDS", seconds)


class OpenSpace:
    """A space in memory, with a proposer and the inbox sessions of people."""

    def __init__(self, meeting: InMemory, proposer: Space, stack: AsyncExitStack) -> None:
        self.meeting = meeting
        self.proposer = proposer
        self._stack = stack
        self._opener = InboxSessionOpener(meeting.space._runtime)

    def session(self, name: str) -> AbstractAsyncContextManager[InboxSession]:
        return self._opener.open(Identity("demo", name))

    async def join(self, reviewer: Reviewer) -> None:
        connector, token = self.meeting.connector("reviewer"), self.meeting.token("reviewer")
        await self._stack.enter_async_context(reviewer.join(connector, token=token))

    async def inbox(self, name: str = "second") -> Inbox:
        return (await self._stack.enter_async_context(self.session(name))).inbox

    async def propose(self, a: int, ttl: float | None = 600, to: str = "") -> ProposalHandle:
        """Propose until the test ends; what is proposed is open then for all."""
        call = {"a": a, "b": 1}
        proposal = self.proposer.propose("tools", "add", call, ttl=ttl, to=to or ())
        handle = await self._stack.enter_async_context(proposal)
        host = self.meeting.space._runtime.spaces["demo"]
        await until(lambda: any(each.envelope.id == handle.id for each in host.owner.in_flight))
        return handle


@asynccontextmanager
async def open_space(*others: Agent | str) -> AsyncGenerator[OpenSpace]:
    """A space in which inbox sessions can be opened, for the length of a block."""
    meeting = InMemory()
    # Desks are written to as members over sockets are.
    meeting.space._runtime.batcher = WriteBatcher(asyncio.get_running_loop())
    async with gathered(meeting, calculator(), "proposer", *others) as (_, proposer, *_):
        async with AsyncExitStack() as stack:
            yield OpenSpace(meeting, proposer, stack)


@pytest.fixture
async def opened() -> AsyncGenerator[OpenSpace]:
    async with open_space() as opened:
        yield opened


def numbers(inbox: Inbox) -> list[int]:
    return [item.arguments["a"] for item in inbox.items]


async def found(inbox: Inbox, id: str, proposer: str = "proposer") -> InboxItem:
    await until(lambda: inbox.find(proposer, id) is not None)
    item = inbox.find(proposer, id)
    assert item is not None
    return item


async def test_the_most_urgent_of_ours_is_there_at_once_and_the_rest_follows(
    opened: OpenSpace,
) -> None:
    for a, ttl in ((1, None), (2, 60), (3, 600)):
        await opened.propose(a, ttl)
    await opened.propose(4, 30, to="mallory")
    inbox = await opened.inbox()
    assert (numbers(inbox), inbox.unlisted) == ([2], 3)
    changes = inbox.changes()
    await inbox.settle(PATIENCE)
    assert (numbers(inbox), inbox.unlisted) == ([2, 3, 1], 0)
    told = changes.taken()
    assert any(isinstance(each, InboxRenewed) for each in told)
    assert not any(isinstance(each, ItemArrived) for each in told)
    # Of what comes from now on, each is told.
    await opened.propose(5, 20)
    await until(lambda: numbers(inbox) == [5, 2, 3, 1])


async def test_one_decided_before_its_turn_is_not_listed(
    opened: OpenSpace, turns: pytest.MonkeyPatch
) -> None:
    begin_turns_after(turns, 0.1)
    first, second = await opened.propose(1, 60), await opened.propose(2)
    third = await opened.propose(3)
    inbox = await opened.inbox()
    assert (numbers(inbox), inbox.unlisted) == ([1], 2)
    await second.withdraw()
    await inbox.settle(PATIENCE)
    assert (numbers(inbox), inbox.unlisted) == ([1, 3], 0)
    assert inbox.find("proposer", second.id) is None
    for each in (first, third):
        await inbox.approve(await found(inbox, each.id))
        assert await each.result() in (2, 4)


async def test_rejections_of_before_are_known(opened: OpenSpace) -> None:
    proposals = [await opened.propose(1, 60), await opened.propose(2)]
    async with opened.session("reviewer") as session:
        for each in proposals:
            await session.inbox.reject(
                await found(session.inbox, each.id), Reason.UNSAFE, "x" * 9_999
            )
    inbox = await opened.inbox()
    for each in proposals:
        [rejection] = (await found(inbox, each.id)).rejections
        assert (rejection.by, rejection.reason) == ("reviewer", Reason.UNSAFE)
    # What one has rejected does not come again.
    again = await opened.inbox("reviewer")
    await again.settle(PATIENCE)
    assert again.items == []


async def test_one_in_progress_waits_again_when_its_request_is_cancelled() -> None:
    begun = anyio.Event()
    deep = Agent("deep")

    @deep.tool
    async def dig() -> None:
        begun.set()
        await anyio.sleep_forever()

    approval = anyio.CancelScope()

    async def approve(inbox: Inbox) -> None:
        await until(lambda: len(inbox) == 1)
        with approval:
            await inbox.approve(inbox.items[0])

    async with (
        open_space(deep) as opened,
        opened.proposer.propose("deep", "dig", ttl=60),
        opened.session("reviewer") as theirs,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(approve, theirs.inbox)
        await begun.wait()
        async with opened.session("second") as mine:
            assert mine.inbox.items == []
            approval.cancel()
            await until(lambda: len(mine.inbox) == 1)


async def test_one_that_is_carried_out_meanwhile_waits_for_nobody() -> None:
    agent, go = Agent("deep"), anyio.Event()

    @agent.tool
    async def deploy(version: int) -> int:
        await go.wait()
        return version

    async with open_space(agent) as opened:
        await opened.propose(1)
        proposal = opened.proposer.propose("deep", "deploy", {"version": 7}, ttl=600)
        async with proposal as handle, anyio.create_task_group() as tasks:
            async with opened.session("reviewer") as session:
                await until(lambda: len(session.inbox) == 2)
                tasks.start_soon(session.inbox.approve, await found(session.inbox, handle.id))
                await until(lambda: len(session.inbox) == 1)
                async with opened.session("second") as mine:
                    await mine.inbox.settle(PATIENCE)
                    assert numbers(mine.inbox) == [1]
                    go.set()
                    assert await handle.result() == 7
                    assert numbers(mine.inbox) == [1]


async def test_deadline_is_the_one_that_was_renewed(opened: OpenSpace) -> None:
    first = await opened.propose(1, 60)
    await first.renew(6_000)
    inbox = await opened.inbox()
    [item] = inbox.items
    assert item.seconds_left is not None
    assert item.seconds_left > 600


async def test_what_a_gateway_does_not_keep_counts(
    opened: OpenSpace, turns: pytest.MonkeyPatch
) -> None:
    turns.setattr("meup_agent.protocol.space.state.inflight.MAX_OPEN_BYTES", 0)
    for a in range(3):
        await opened.propose(a, 60 + a)
    inbox = await opened.inbox()
    await inbox.settle(PATIENCE)
    assert (inbox.items, inbox.left_out) == ([], 3)


async def test_decided_proposals_are_read_afterwards(opened: OpenSpace) -> None:
    before = await opened.propose(1)
    async with opened.session("second") as session:
        await session.inbox.approve(await found(session.inbox, before.id))
    await opened.propose(2)
    await opened.propose(3)
    inbox = await opened.inbox()
    changes = inbox.changes()
    item = inbox.items[0]
    await until(lambda: bool(item.record.endings))
    await inbox.settle(PATIENCE)
    assert any(isinstance(each, InboxRenewed) for each in changes.taken())
    similar = item.similar
    assert similar is not None
    assert similar.past.id == before.id
    assert item.record.counts == {ProposalState.FULFILLED: 1}


async def test_votes_count_among_many(opened: OpenSpace, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    await opened.join(Reviewer(policy))
    for a in range(3):
        await opened.propose(a, 60 + a)
    third = await opened.propose(3, to="reviewer")
    mine, yours = await opened.inbox(), await opened.inbox("deep")
    for inbox in (mine, yours):
        item = await found(inbox, third.id)
        while Verb.VOTE not in item.may:
            await anyio.lowlevel.checkpoint()
        assert await inbox.approve(item) is None
    assert await third.result() == 4


@pytest.mark.rule("4.6.proposer_left", "4.4.before_it_is_sent")
async def test_what_its_proposer_left_is_refused(
    opened: OpenSpace, turns: pytest.MonkeyPatch
) -> None:
    turns.setattr(AbsenceTracker, "left_after", lambda _, who, accepted: accepted - 31_000_000)
    call = {"name": "add", "arguments": {"a": 1, "b": 1}}
    said = payloads.build_proposal("tools/call", call, target="tools", expires=None)
    frame = encode(draft("mcp/proposal", said, id="left", sender="mallory"), "meup/v0.1")
    host = opened.meeting.space._runtime.spaces["demo"]
    host.owner.receive_as("mallory", frame, "meup/v0.1", lambda _: None)
    inbox = await opened.inbox()
    item = await found(inbox, "left", "mallory")
    with pytest.raises(ParticipantGone):
        await inbox.approve(item)
    assert item.state is ProposalState.PENDING


async def test_page_that_is_asked_for_as_a_gateway_stops_keeps_nobody_waiting(
    opened: OpenSpace,
) -> None:
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            presences = PersonPresences(opened.meeting.space._runtime, tasks)
            presences.close()
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True), pytest.raises(RequestDenied, match="stops"):
                await presences.open(Identity("demo", "second"))


async def test_page_begins_anew_as_its_person_leaves(
    opened: OpenSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            presences = PersonPresences(opened.meeting.space._runtime, tasks)
            first = await presences.open(Identity("demo", "second"))
            monkeypatch.setattr("meup_agent.gateway.console.presence.IDLE_SECONDS", 0.0)
            first.touch()
            await until(lambda: first.ended)
            monkeypatch.undo()
            second = await presences.open(Identity("demo", "second"))
            assert second is not first
            assert not second.ended
            tasks.cancel_scope.cancel()
