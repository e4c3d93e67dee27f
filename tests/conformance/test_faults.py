"""Connections that break at the gateways that exist (PROTOCOL 2 and 4.14)."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest

import meup_agent.session.connection as joining
from meup_agent import Agent, Proposal, Settings, Space
from meup_agent.testing import FaultPlan, Faults, FaultyConnector
from tests.conformance.gateways import ExistingGateway, Heard
from tests.conformance.people import SPACE, joined, patiently
from tests.gateways import Connector, Transport, websocket_connector
from tests.interaction.cast import willing
from tests.interaction.people import files
from tests.patience import PATIENCE


def is_probe(heard: Heard) -> bool:
    frame = heard.frame
    return isinstance(frame, dict) and frame.get("correlation_id") == [frame.get("id")]


async def calls_after(space: Space) -> None:
    assert await space.call("files", "add", {"a": 1, "b": 2}) == 3


@pytest.mark.rule("2.probe", "2.join_frame")
async def test_after_a_drop_we_join_and_probe_before_we_speak(gateway: ExistingGateway) -> None:
    async with joined(gateway, files()), joined(gateway, "caller") as space:
        await calls_after(space)
        gateway.drop("caller")
        await patiently(gateway.wait_joined, "caller", 2)
        await calls_after(space)
    mine = [heard for heard in gateway.frames if heard.who == "caller"]
    ours = [heard for heard in mine if heard.connection == mine[-1].connection]
    assert ours[0].frame["type"] == "join"
    assert is_probe(ours[1])
    assert [is_probe(heard) for heard in mine].count(True) == 1, "none after the first connect"


def pinging(gateway: ExistingGateway, interval: float, deadline: float = PATIENCE) -> Connector:
    return websocket_connector(
        gateway.url, space=SPACE, ping_interval=interval, ping_deadline=deadline, close_timeout=0.1
    )


class OneAtATime:
    """Dials, each time with the next connector; notes whether an older connection was open then."""

    def __init__(self, inner: Sequence[Connector]) -> None:
        self._inner = inner
        self._opened: list[Transport] = []
        self.found_open = 0

    @property
    def dialled(self) -> int:
        return len(self._opened)

    @asynccontextmanager
    async def __call__(self, headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
        self.found_open += sum(transport.closed is None for transport in self._opened)
        async with self._inner[self.dialled](headers) as transport:
            self._opened.append(transport)
            yield transport


@pytest.mark.thorough
@pytest.mark.rule("2.old_socket_first")
async def test_the_old_socket_is_closed_before_we_dial_again(gateway: ExistingGateway) -> None:
    """Also where the gateway never answers our close frame: its end would evict the next one."""
    dial = OneAtATime(
        [pinging(gateway, PATIENCE), pinging(gateway, 0.05, 2.0), pinging(gateway, PATIENCE)]
    )
    async with joined(gateway, files()), joined(gateway, "caller", url=dial) as space:
        gateway.say("caller", b"x" * (5 * 2**20))  # too large: we close
        await patiently(gateway.wait_joined, "caller", 2)
        await calls_after(space)
        gateway.stall("caller")
        await patiently(gateway.wait_joined, "caller", 3)
        await calls_after(space)
    assert (dial.dialled, dial.found_open) == (3, 0)
    joins = [heard for heard in gateway.frames if heard.frame.get("type") == "join"]
    assert [heard.who for heard in joins].count("caller") == 3, "it was never evicted"


@pytest.mark.rule("2.probe", "2.evicted")
async def test_who_is_evicted_by_an_older_socket_gets_back_in(gateway: ExistingGateway) -> None:
    """The gateway notices the end of the old connection right after the new one has joined."""
    async with joined(gateway, files()), joined(gateway, "caller") as space:
        gateway.hold_close("caller", release_on_join=True)
        gateway.drop("caller")
        await patiently(gateway.wait_joined, "caller", 2)
        await calls_after(space)
        assert "caller" in gateway.members(SPACE)
        assert space.connected


@pytest.mark.rule("2.probe", "2.evicted")
async def test_who_is_evicted_long_after_joining_gets_back_in(gateway: ExistingGateway) -> None:
    async with joined(gateway, files()), joined(gateway, "caller") as space:
        gateway.hold_close("caller")
        gateway.drop("caller")
        await patiently(gateway.wait_joined, "caller", 2)
        await calls_after(space)
        gateway.release_close("caller")
        assert "caller" not in gateway.members(SPACE)
        # The refusal of this is how it shows.
        await space.chat("anybody?")
        await patiently(gateway.wait_joined, "caller", 3)
        await calls_after(space)


@pytest.mark.rule("2.liveness")
async def test_an_open_and_dead_connection_is_found_by_our_ping(gateway: ExistingGateway) -> None:
    """Gateways that exist never ping, and never close."""
    hasty = True

    def dial(headers: Mapping[str, str]) -> AbstractAsyncContextManager[Transport]:
        return pinging(gateway, 0.05, 0.5 if hasty else PATIENCE)(headers)

    async with joined(gateway, files()), joined(gateway, "caller", url=dial) as space:
        gateway.stall("caller")
        hasty = False
        await patiently(gateway.wait_joined, "caller", 2)
        await calls_after(space)


@pytest.mark.rule("2.probe", "2.evicted")
async def test_where_the_probe_is_lost_we_join_again_on_the_same_connection(
    gateway: ExistingGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "PROBE_SECONDS", 0.2)
    second = FaultPlan(outgoing=Faults(drop_at=frozenset({2})))  # after the join frame
    dial = FaultyConnector(websocket_connector(gateway.url, space=SPACE), [FaultPlan(), second])
    async with joined(gateway, files()), joined(gateway, "caller", url=dial) as space:
        gateway.drop("caller")
        await patiently(gateway.wait_joined, "caller", 3)
        await calls_after(space)
    assert dial.dialled == 2


@pytest.mark.rule("2.no_close", "2.join_frame")
async def test_a_restart_without_a_word_is_survived(gateway: ExistingGateway) -> None:
    async with joined(gateway, files()), joined(gateway, "caller") as space:
        await calls_after(space)
        gateway.restart()
        await patiently(gateway.wait_joined, "files", 2)
        await patiently(gateway.wait_joined, "caller", 2)
        await calls_after(space)


@pytest.mark.rule("4.14.on_join", "2.relay.sent")
async def test_an_outcome_that_its_proposer_missed_is_said_again(gateway: ExistingGateway) -> None:
    agent, may_go_on, began = Agent("files"), anyio.Event(), anyio.Event()
    reviewer = Agent("reviewer")
    relayed = anyio.Event()

    @agent.tool
    async def slow() -> str:
        began.set()
        await may_go_on.wait()
        return "done"

    @reviewer.on_proposal
    async def review(proposal: Proposal) -> None:
        await proposal.fulfill()
        relayed.set()

    async with joined(gateway, agent), joined(gateway, reviewer):
        async with joined(gateway, "proposer", settings=Settings()) as space:
            async with space.propose("files", "slow", to="reviewer") as proposal:
                await began.wait()
                gateway.drop("proposer")
                may_go_on.set()
                await relayed.wait()
                assert await proposal.result() == "done"


@pytest.mark.rule("4.14.on_join")
async def test_a_withdrawal_that_nobody_heard_stops_the_work_later(
    gateway: ExistingGateway,
) -> None:
    agent, began, ended = Agent("files"), anyio.Event(), anyio.Event()

    @agent.tool
    async def wait() -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with joined(gateway, agent), joined(gateway, willing()):
        async with joined(gateway, "proposer") as space:
            async with space.propose("files", "wait", to="reviewer"):
                await began.wait()
                gateway.drop("reviewer")
            await ended.wait()
