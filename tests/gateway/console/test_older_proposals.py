"""A desk over open proposals that are older than what a session hears again.

After a restart of a gateway all of them are: its numbers begin anew, far behind those of before.
"""

import math

import anyio
import pytest

from meup_agent import Agent, Envelope, Reason
from meup_agent.client.proposal_feed import MAX_READINGS
from meup_agent.gateway.console.desk import DeskOpener
from tests.gateway.console.test_open_proposals import Hall, hall, numbers
from tests.gateways import Identity
from tests.interaction.people import raw, until
from tests.patience import PATIENCE
from tests.wire import kinds

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is too old to be heard again, and nobody waits for it."""
    monkeypatch.setattr("meup_agent.gateway.console.desk.MAX_REPLAYED", 0)
    monkeypatch.setattr("meup_agent.gateway.console.desk.REPLAY_SECONDS", math.inf)


def slow() -> tuple[Agent, anyio.Event]:
    """Tools that answer when they are told."""
    agent, go = Agent("deep"), anyio.Event()

    @agent.tool
    async def deploy(version: int) -> int:
        await go.wait()
        return version

    return agent, go


async def is_decided(h: Hall) -> None:
    host = h.meeting.space._runtime.spaces["demo"]
    await until(lambda: not any(each.is_proposal for each in host.in_flight))


async def test_they_are_listed_at_once() -> None:
    async with hall() as h:
        await h.propose(1)
        with anyio.fail_after(PATIENCE):
            async with h.desk("second") as desk:
                assert numbers(desk.inbox) == [1]


async def test_one_that_is_decided_while_they_are_read_is_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, readings = DeskOpener._older, list[int]()
    async with hall() as h:
        await h.propose(1)
        second = await h.propose(2)

        async def older(opener: DeskOpener, identity: Identity) -> list[list[Envelope]]:
            found = await read(opener, identity)
            readings.append(len(found))
            if len(readings) == 1:
                async with h.desk("reviewer") as desk:
                    item = desk.inbox.find("proposer", second.id)
                    assert item is not None
                    await desk.inbox.approve(item)
            return found

        monkeypatch.setattr(DeskOpener, "_older", older)
        inbox = await h.inbox()
        # Read once by who approved meanwhile, and once more by who heard of it.
        assert readings == [2, 2, 1]
        assert numbers(inbox) == [1]


async def test_who_names_them_without_end_keeps_nobody_from_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, readings = DeskOpener._older, list[int]()
    async with hall() as h, raw(h.meeting) as mallory:
        proposal = await h.propose(1)

        async def older(opener: DeskOpener, identity: Identity) -> list[list[Envelope]]:
            found = await read(opener, identity)
            readings.append(len(found))
            named, id = (proposal.id,), f"m{len(readings)}"
            await mallory.say(kinds.MCP_REJECT, {"reason": "busy"}, id=id, correlation=named)
            await anyio.wait_all_tasks_blocked()
            return found

        monkeypatch.setattr(DeskOpener, "_older", older)
        assert numbers(await h.inbox()) == [1]
        assert len(readings) == MAX_READINGS


async def test_one_that_is_carried_out_meanwhile_waits_for_nobody() -> None:
    agent, go = slow()
    async with hall(agent) as h:
        await h.propose(1)
        proposal = h.proposer.propose("deep", "deploy", {"version": 7}, ttl=600)
        async with proposal as handle, anyio.create_task_group() as tasks:
            async with h.desk("reviewer") as desk:
                await until(lambda: len(desk.inbox) == 2)
                item = desk.inbox.find("proposer", handle.id)
                assert item is not None
                tasks.start_soon(desk.inbox.approve, item)
                await until(lambda: len(desk.inbox) == 1)
                async with h.desk("second") as mine:
                    assert numbers(mine.inbox) == [1]
                    go.set()
                    assert await handle.result() == 7
                    assert numbers(mine.inbox) == [1]


async def test_one_that_a_person_has_rejected_does_not_come_again() -> None:
    async with hall() as h:
        proposal = await h.propose(1)
        async with h.desk("reviewer") as desk:
            await desk.inbox.reject(desk.inbox.items[0], Reason.UNSAFE)
        assert numbers(await h.inbox("reviewer")) == []
        [item] = (await h.inbox()).items
        assert item.id == proposal.id
        assert [(each.by, each.reason) for each in item.rejections] == [("reviewer", "unsafe")]
