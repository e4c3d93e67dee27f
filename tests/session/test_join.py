"""Getting into a space whose gateway reads no header, and seeing that it keeps us (PROTOCOL 2)."""

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import trio
from anyio import wait_all_tasks_blocked

from meup_agent import Backoff, Envelope, Settings
from meup_agent.errors import WrongParticipant
from meup_agent.session import ConnectedSession, Session
from meup_agent.session.connection import PROBE_ATTEMPTS, PROBE_SECONDS
from tests.patience import PATIENCE
from tests.session.gate import ME, End, Gate, Recorder, present
from tests.wire import kinds, payloads

AT_ONCE = Settings(backoff=Backoff(first=0.0, longest=0.0))
JOIN = {"type": "join", "participantId": ME, "space": "demo", "token": "secret"}


@pytest.fixture
def existing(gate: Gate) -> Gate:
    """A gateway that reads no header, and may evict."""
    gate.answer, gate.gives, gate.dialect = {}, {}, "mew/v0.4"
    return gate


async def refuse(end: End, envelope: Envelope, *capabilities: object) -> None:
    """Refuse it as what a participant with these capabilities may not send."""
    error = {"error": "capability_violation", "attempted_kind": envelope.kind}
    await end.refuse(envelope, {**error, "your_capabilities": capabilities})


async def dropped(gate: Gate, end: End) -> End:
    """The connection that follows one that was lost: joined and welcomed."""
    end.drop()
    again = await gate.accept()
    await again.joined()
    await again.welcome()
    return again


@asynccontextmanager
async def joined(
    gate: Gate, handlers: Recorder | None = None
) -> AsyncGenerator[tuple[Session, End]]:
    """A session that has joined by its frame, and the gateway's end of its connection."""
    async with present(gate, handlers, settings=AT_ONCE) as (session, end):
        assert await end.joined() == JOIN
        yield session, end


@asynccontextmanager
async def rejoined(gate: Gate) -> AsyncGenerator[tuple[Session, End, Envelope]]:
    """A session that has lost its first connection, its second one, and what it wants to say."""
    async with joined(gate) as (session, end):
        again = await dropped(gate, end)
        yield session, again, session.send_message("chat", {"message": "hi"})


async def probe(end: End) -> Envelope:
    heard = await end.hear(kinds.MCP_RESPONSE)
    assert (heard.sender, heard.to, heard.correlation) == (ME, (ME,), (heard.id,))
    return heard


@pytest.mark.rule("2.join_frame")
async def test_a_gateway_that_answers_with_no_dialect_gets_a_join_frame_first(
    existing: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with joined(existing) as (session, end):
        session.send_message("chat", {"message": "hi"})
        await end.hear(kinds.CHAT)
        again = await dropped(existing, end)
        for each in (end, again):
            assert each.headers["Authorization"] == "Bearer secret"
    assert "secret" not in caplog.text


@pytest.mark.rule("2.join_frame")
async def test_who_we_must_be_is_said_also_to_a_gateway_that_took_the_header(gate: Gate) -> None:
    async with present(gate, participant=ME) as (session, end):
        assert await end.joined() == JOIN | {"protocol": "meup/v0.1"}
        assert session.me == ME


async def test_a_gateway_that_takes_us_for_somebody_else_is_left(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:

            async def welcome() -> None:
                end = await gate.welcomed()
                # What is not known is not said.
                says = {"type": "join", "participantId": "bob", "protocol": "meup/v0.1"}
                assert await end.joined() == says

            tasks.start_soon(welcome)
            connector = gate.connector()
            with pytest.raises(WrongParticipant, match="'alice', not for 'bob'") as error:
                async with ConnectedSession(
                    connector, token=None, handlers=Recorder(), participant="bob"
                ):
                    pytest.fail("it was welcomed")
    assert (error.value.asked, error.value.given) == ("bob", ME)
    assert len(gate.attempts) == 1


@pytest.mark.rule("1.dialect_adopted")
@pytest.mark.parametrize(
    ("speaks", "adopted"),
    [
        ("meup/v0.2", "meup/v0.2"),
        ("mew/v0.4", "mew/v0.4"),
        ("mew/v0.3", "mew/v0.4"),
        ("other/v9", "meup/v0.1"),
    ],
)
async def test_the_dialect_is_the_one_of_the_welcome(gate: Gate, speaks: str, adopted: str) -> None:
    session = ConnectedSession(gate.connector(), token=None, handlers=Recorder())
    welcome = {
        "protocol": speaks,
        "kind": "system/welcome",
        "id": "w",
        "from": "system:gateway",
        "payload": {"you": {"id": ME, "capabilities": [{"kind": "*"}]}, "participants": []},
    }
    if speaks == "other/v9":
        del welcome["protocol"]
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:

            async def greet() -> None:
                end = await gate.accept()
                assert end.headers["MEUP-Protocol"] == "meup/v0.1"
                await end.raw(json.dumps(welcome).encode())
                sent = json.loads(await anext(end.transport))
                assert sent["protocol"] == adopted

            tasks.start_soon(greet)
            async with session:
                session.send_message("chat", {"message": "hi"})
                assert session.dialect == adopted


@pytest.mark.rule("1.dialect_adopted")
async def test_what_was_queued_is_said_in_the_dialect_of_the_next_gateway(existing: Gate) -> None:
    async with joined(existing) as (session, end):
        assert session.dialect == "mew/v0.4"
        existing.dialect = "meup/v0.2"
        again = await dropped(existing, end)
        session.send_message("chat", {"message": "hi"})
        await again.echo(await probe(again))
        chat = json.loads(await anext(again.transport))
        assert (chat["protocol"], chat["payload"]["text"]) == ("meup/v0.2", "hi")
        assert session.dialect == "meup/v0.2"


@pytest.mark.rule("1.dialect_adopted", "1.rpc_ids")
async def test_what_names_no_dialect_is_read_in_the_gateways(existing: Gate) -> None:
    recorder = Recorder()
    existing.dialect = "mcpx/v0.1"
    frame = {"id": "f1", "from": "bob", "to": [ME], "kind": "mcp"}
    async with joined(existing, recorder) as (session, end):
        call = payloads.request("tools/call", {"name": "x"}, "1")
        await end.raw(json.dumps({**frame, "payload": call}).encode())
        await recorder.has(started=1)
        assert recorder.started[0][1].envelope.kind == kinds.MCP_REQUEST
        with session.watchers.watch() as watcher:
            answer = {**frame, "to": ["bob"], "from": ME, "payload": payloads.result("1", 5)}
            await end.raw(json.dumps(answer).encode())
            heard = await anext(watcher)
            assert (heard.kind, heard.correlation) == (kinds.MCP_RESPONSE, ("f1",))


@pytest.mark.rule("2.probe")
async def test_after_a_reconnect_nothing_is_said_before_the_probe_is_back(existing: Gate) -> None:
    recorder = Recorder(lambda *_: True)
    async with joined(existing, recorder) as (session, end):
        recorder.started.clear()
        with session.watchers.watch() as watcher:
            again = await dropped(existing, end)
            said = session.send_message("chat", {"message": "hi"})
            sent = await probe(again)
            await wait_all_tasks_blocked()
            assert len(session.outbox) == 1, "it was said before we knew that we are in"
            await again.echo(sent)
            assert (await again.hear()).id == said.id
            await again.say(kinds.CHAT, {"message": "after"}, sender="bob", id="last")
            seen = []
            while "last" not in seen:
                seen.append((await anext(watcher)).id)
        assert sent.id not in seen
        assert all(work.envelope.id != sent.id for _, work in recorder.started)
        assert not session.counters


@pytest.mark.rule("2.probe")
async def test_an_error_about_the_probe_shows_as_well_that_we_are_heard(existing: Gate) -> None:
    async with rejoined(existing) as (session, again, said):
        await refuse(again, await probe(again), {"kind": "chat"})
        assert (await again.hear()).id == said.id
        assert not session.counters


@pytest.mark.rule("2.probe")
async def test_who_is_evicted_later_joins_again_when_it_shows(existing: Gate) -> None:
    """The gateway may notice the end of the older connection long after the probe."""
    async with joined(existing) as (session, end):
        session.send_message("chat", {"message": "lost"})
        await refuse(end, await end.hear(kinds.CHAT))
        assert await end.joined() == JOIN
        said = session.send_message("chat", {"message": "hi"})
        await end.welcome()
        sent = await probe(end)
        await wait_all_tasks_blocked()
        assert len(session.outbox) == 1, "it was said before we were in again"
        await end.echo(sent)
        assert (await end.hear()).id == said.id


@pytest.mark.rule("2.probe")
async def test_an_echo_of_an_older_probe_counts_too(existing: Gate) -> None:
    async with rejoined(existing) as (_, again, said):
        first = await probe(again)
        await refuse(again, first)
        await again.joined()
        await probe(again)
        await again.echo(first)
        assert (await again.hear()).id == said.id


@pytest.mark.rule("2.probe")
@pytest.mark.parametrize("forged", ["by another", "in our name", "not the gateway's"])
async def test_what_is_no_answer_proves_nothing(existing: Gate, forged: str) -> None:
    async with rejoined(existing) as (_, again, _said):
        sent = await probe(again)
        if forged == "by another":
            await again.say(sent.kind, {}, sender="bob", id=sent.id, to=(ME,))
        elif forged == "in our name":
            await again.say(sent.kind, {}, sender=ME, id="other", correlation=(sent.id,))
        else:
            error = {"error": "x"}
            await again.say(kinds.SYSTEM_ERROR, error, sender="bob", correlation=(sent.id,))
        await refuse(again, sent)
        await again.joined()


@pytest.mark.rule("2.probe")
@pytest.mark.parametrize("dialect", ["meup/v0.1", "mcpx/v0.1"])
async def test_a_gateway_that_may_answer_no_probe_gets_none(existing: Gate, dialect: str) -> None:
    """Only those of two dialects are known to do so; of another it would lock us out."""
    existing.dialect = dialect
    async with rejoined(existing) as (_, again, said):
        assert (await again.hear()).id == said.id


@pytest.mark.rule("2.probe", "4.14.on_join")
async def test_an_answer_that_nobody_heard_is_said_when_we_are_in_again(existing: Gate) -> None:
    recorder = Recorder()
    async with joined(existing, recorder) as (session, end):
        await end.request("tools/call", sender="bob", id="r1", name="x")
        await recorder.has(started=1)
        session.returned(recorder.started[0][0], {"content": []})
        lost = await end.hear(kinds.MCP_RESPONSE)
        await refuse(end, lost)
        assert await end.joined() == JOIN
        await end.echo(await probe(end))
        again = await end.hear(kinds.MCP_RESPONSE)
        assert (again.id, again.correlation) == (lost.id, ("r1",))
        # A gateway that refuses it all the same is not asked for ever.
        await refuse(end, again)
        assert await end.joined() == JOIN
        await end.echo(await probe(end))
        said = session.send_message("chat", {"message": "hi"})
        assert (await end.hear()).id == said.id


@pytest.mark.rule("2.probe")
def test_a_gateway_that_stays_silent_is_joined_again_and_then_dialled_again(
    virtual_time: tuple[str, dict[str, Any]],
) -> None:
    async def run() -> None:
        gate = Gate()
        gate.answer, gate.gives, gate.dialect = {}, {}, "meup/v0.2"
        async with rejoined(gate) as (_, again, _said):
            before = anyio.current_time()
            for _ in range(PROBE_ATTEMPTS - 1):
                await probe(again)
                assert await again.joined() == JOIN
            await probe(again)
            assert await again.rest() == []
            assert anyio.current_time() - before == PROBE_ATTEMPTS * PROBE_SECONDS
            third = await gate.accept()
            await third.joined()
            await third.welcome()
            await third.echo(await probe(third))
            await third.hear(kinds.CHAT)

    # Not by anyio.run: before 4.14 it does not pass trio's options on.
    _, options = virtual_time
    trio.run(run, **options)
