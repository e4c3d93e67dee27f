"""One connection, frame by frame."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
import trio
from trio.testing import MockClock

from meup_agent import Envelope, Space
from meup_agent.session import ConnectedSession, Session
from meup_agent.session.connection import ECHO_SECONDS
from meup_agent.testing import FaultPlan, Faults, FaultyConnector
from tests.gateways import LAST_SEEN_HEADER
from tests.patience import PATIENCE
from tests.session.gate import AT_ONCE, End, Gate, Recorder, present
from tests.wire import decode, kinds, numbered


@pytest.mark.rule("6.ts")
async def test_what_is_sent_twice_is_the_same_twice(gate: Gate) -> None:
    """A reader tells a repetition from a new envelope of the same id by what is in it."""
    gate.seq, gate.gives = 6, {**gate.gives, "until": 6, "resumed": True}
    async with present(gate, settings=AT_ONCE) as (session, end):
        session.send_message("chat", {"message": "hi"})
        first = await anext(end.transport)
        end.drop()
        again = await gate.welcomed()
        assert await anext(again.transport) == first


async def test_what_was_cut_off_is_sent_on_the_next_connection(gate: Gate) -> None:
    """Also at a gateway that numbers nothing."""
    cut = FaultyConnector(gate.connector(), [FaultPlan(outgoing=Faults(cut_after=0))])
    session = ConnectedSession(cut, token=None, handlers=Recorder(), settings=AT_ONCE)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gate.welcomed)
            async with session:
                said = session.send_message("chat", {"message": "hi"})
                again = await gate.welcomed()
                assert (await again.hear()).id == said.id


@pytest.mark.rule("3.codes.blamed")
@pytest.mark.parametrize(("came_back", "blamed"), [(None, None), (0, 1), (1, None)])
async def test_of_several_sent_none_is_blamed(
    gate: Gate, came_back: int | None, blamed: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with present(gate, settings=AT_ONCE) as (session, end):
        sent = [session.send_message("chat", {"message": text}) for text in ("one", "two")]
        heard = [await end.hear() for _ in sent]
        if came_back is not None:
            await end.echo(heard[came_back])
        await end.close(1007, "bad bytes")
        await gate.welcomed()
    said = [f"{each.id} of ours could not be sent" in caplog.text for each in sent]
    assert said == [number == blamed for number in range(2)]


async def owed(answers: bool) -> float:
    """Send one more than is kept; for how long that waits, where the gateway answers or not."""
    gate = Gate()
    gate.seq, gate.gives = 6, {**gate.gives, "until": 6}
    async with present(gate) as (session, end):
        for _ in range(3):
            session.send_message("chat", {})
        first = await end.hear()
        await end.hear()
        began = anyio.current_time()
        if answers:
            await end.echo(first)
        await end.hear()
        assert session.outbox.unaccepted == (2 if answers else 1)
        return anyio.current_time() - began


@pytest.mark.rule("6.resume.accepted")
@pytest.mark.parametrize("answers", [True, False])
def test_what_a_gateway_owes_is_waited_for_and_not_for_ever(
    answers: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("meup_agent.session.outbox.MAX_UNACCEPTED", 2)
    waited = trio.run(owed, answers, clock=MockClock(autojump_threshold=0))
    assert waited == pytest.approx(0 if answers else ECHO_SECONDS)
    assert ("nothing of what we say back" in caplog.text) is not answers


@asynccontextmanager
async def given_up(gate: Gate) -> AsyncGenerator[tuple[Session, End, Envelope, Envelope]]:
    """A session that gave a request up before the gateway told that it was accepted."""
    gate.seq, gate.gives = 6, {**gate.gives, "until": 6, "resumed": True}
    async with present(gate, None, "tools", settings=AT_ONCE) as (session, end):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Space(session).request, "tools", "ping")
            request = await end.hear(kinds.MCP_REQUEST)
            tasks.cancel_scope.cancel()
        yield session, end, request, await end.hear(kinds.MCP_REQUEST)


@pytest.mark.rule("6.ack.agent")
async def test_what_was_given_up_is_known_until_it_is_acknowledged(gate: Gate) -> None:
    async with given_up(gate) as (session, end, request, cancel):
        with session.watchers.watch() as heard:
            assert session.outbox.unaccepted == 1
            for each in (request, cancel):
                await end.acknowledge(each.id)
                own = await anext(heard)
                assert own == decode(numbered(each.frame, session.table.seq or 0))
        assert session.outbox.unaccepted == 0
    assert len(gate.attempts) == 1


@pytest.mark.rule("6.ack.unknown")
async def test_what_is_acknowledged_and_not_known_is_read_whole_after_a_resume(gate: Gate) -> None:
    async with given_up(gate) as (session, end, request, _):
        seen = session.table.seq
        session.outbox.forget_ended()
        await end.acknowledge(request.id)
        again = await gate.accept()
    assert again.headers[LAST_SEEN_HEADER] == str(seen)
