"""A session's bounds, and what it makes of what comes and cannot be sent."""

from typing import Any

import anyio
import pytest

from meup_agent import Space
from meup_agent.errors import NotExpressible, NotSent, Refused, RequestTimeout, UsageError
from meup_agent.protocol.wire.payloads import ASKED
from meup_agent.session.outbox import MAX_ENVELOPES
from meup_agent.session.session import WATCHED
from tests.patience import PATIENCE
from tests.session.gate import AT_ONCE, ME, Caller, Gate, Recorder, method_of, present, unread
from tests.tables import Priority
from tests.wire import MAX_FRAME_BYTES, kinds, payloads


async def test_the_reader_waits_for_nobody(gate: Gate) -> None:
    """Neither for handlers that never end, nor for a gateway that takes nothing."""
    handlers = Recorder()
    with anyio.fail_after(PATIENCE):
        async with unread(handlers) as (session, end):
            for _ in range(10):
                session.send_message("chat", {"message": "nobody reads this"})
            for number in range(50):
                said = b'{"kind":"chat","id":"%d","from":"bob","payload":{"message":"x"}}'
                await end.send(said % number)
            await handlers.has(started=50)
            assert session.table.connected
            assert len(session.outbox) >= 8
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.outbox.wait_emptied)
                for _ in range(10):
                    await anext(end)


def timers() -> int:
    return sum(task.name == "meup session: timer" for task in anyio.get_running_tasks())


async def test_there_is_a_timer_for_as_long_as_there_is_a_deadline(gate: Gate) -> None:
    async with present(gate, None, "tools") as (session, end):

        async def time_out() -> None:
            with pytest.raises(RequestTimeout):
                await Space(session).request("tools", "ping", timeout=0.05)

        for _ in range(3):
            assert timers() == 0
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(time_out)
                await end.hear(kinds.MCP_REQUEST)
                assert timers() == 1
            assert method_of(await end.hear(kinds.MCP_REQUEST)) == kinds.CANCELLED
            await anyio.wait_all_tasks_blocked()


async def test_a_deadline_before_the_one_that_is_waited_for_is_kept(gate: Gate) -> None:
    results: list[Any] = []
    async with present(gate, None, "tools") as (session, end):
        space = Space(session)

        async def be_slow() -> None:
            results.append(await space.request("tools", "slow", timeout=10 * PATIENCE))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(be_slow)
            request = await end.hear(kinds.MCP_REQUEST)
            with pytest.raises(RequestTimeout):
                await space.request("tools", "fast", timeout=0.01)
            assert results == []
            assert timers() == 1
            await end.respond(request, 5, sender="tools")
    assert results == [5]


async def test_a_call_that_finds_no_room_still_ends_in_time(gate: Gate) -> None:
    async with present(gate, settings=AT_ONCE) as (session, end):
        end.drop()
        await gate.accept()
        for _ in range(MAX_ENVELOPES):
            session.send_message("chat", {})
        with pytest.raises(RequestTimeout, match="could not be sent"):
            await Space(session).request("tools", "ping", timeout=0.01)


async def test_what_nobody_would_take_is_not_sent(gate: Gate) -> None:
    large = "x" * MAX_FRAME_BYTES
    deep: Any = {}
    for _ in range(120):
        deep = {"a": deep}
    async with present(gate) as (session, end):
        space = Space(session)
        for value in (large, deep):
            with pytest.raises(UsageError, match="cannot be sent"):
                await space.request("tools", "write", {"text": value})
            with pytest.raises(UsageError, match="cannot be sent"):
                async with space.propose("tools", "write", {"text": value}):
                    pytest.fail("it cannot be proposed")
            with pytest.raises(UsageError, match="cannot be sent"):
                await space.send("chat", {"message": value})
        with pytest.raises(NotExpressible):
            await space.send("chat", {"message": "\ud800"})
        assert await end.probe(session) == []
        assert session.table.waiting == 0


async def test_who_has_left_says_nothing_more(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        async with present(gate) as (session, _):
            space = Space(session)
        with pytest.raises(NotSent, match="we have left the space"):
            await space.chat("hello")


BAD_FRAMES = [
    (b"{", "invalid_json"),
    (b"null", "invalid_envelope"),
    (b'{"kind":"chat"}', "invalid_envelope"),
    (b'{"kind":"chat","id":"1","from":"bob","protocol":"mew/v9"}', "invalid_envelope"),
    (b'{"kind":"chat","id":"1","from":"b\xc3","payload":{}}', "invalid_utf8"),
    (b'{"kind":"chat","payload":' + b"[" * 101 + b"]" * 101 + b"}", "too_deep"),
    (b'"' + b"x" * MAX_FRAME_BYTES + b'"', "too_large"),
]


@pytest.mark.parametrize(
    ("frame", "problem"), BAD_FRAMES, ids=[f"{n} {p}" for n, (_, p) in enumerate(BAD_FRAMES)]
)
async def test_a_frame_that_is_no_envelope_is_counted_and_harms_nothing(
    gate: Gate, frame: bytes, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Recorder()
    async with present(gate, handlers, "bob") as (session, end):
        # The largest is cut off by the transport where it came from a network.
        end.transport._peer._max_frame_bytes = 2 * MAX_FRAME_BYTES
        await end.raw(frame)
        await end.say("chat", {"message": "hi"}, sender="bob")
        await handlers.has(started=1)
        assert session.counters[problem] == 1
        assert session.table.connected
    assert "left out a frame" in caplog.text


ODD_PAYLOADS = ["null", "[]", "5", '"x"', '{"message":5}', '{"reason":{}}', '{"\\ud800":"\\udfff"}']


@pytest.mark.rule("5.hostile")
@pytest.mark.parametrize("payload", ODD_PAYLOADS)
async def test_odd_payloads_of_any_kind_harm_nothing(gate: Gate, payload: str) -> None:
    handlers = Recorder()
    async with present(gate, handlers, "bob") as (session, end):
        # Odd or not, a pause or a shutdown is meant: then nothing new is handled.
        harmless = sorted({*kinds.KINDS, "x/y"} - ASKED)
        for number, kind in enumerate(harmless):
            for sender in ("bob", ME, kinds.GATEWAY):
                await end.raw(
                    f'{{"kind":"{kind}","id":"odd-{number}","from":"{sender}","to":["{ME}"],'
                    f'"correlationId":"c","payload":{payload}}}'.encode()
                )
        before = len(handlers.started)
        await end.welcome("bob")
        await end.say("chat", {"message": "still there"}, sender="bob", id="last")
        await handlers.has(started=before + 1)
        while handlers.started[-1][1].envelope.id != "last":
            await handlers.has(started=len(handlers.started) + 1)
        assert session.me == ME


@pytest.mark.rule("4.10.only_the_gateway", "5.who.system")
async def test_what_only_the_gateway_may_say_is_believed_from_nobody_else(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    async with present(gate, None, "bob") as (session, end):
        forged = {"you": {"id": "mallory", "capabilities": []}, "participants": []}
        await end.say(kinds.SYSTEM_WELCOME, forged, sender="bob")
        leave = {"event": "leave", "participant": {"id": "bob"}}
        await end.say(kinds.SYSTEM_PRESENCE, leave, sender="bob")
        await end.presence("join", "carol")
        while "carol" not in session.table.roster:
            await anyio.lowlevel.checkpoint()
        assert session.me == ME
        assert "bob" in session.table.roster
        assert session.counters["forged_system"] == 2
    assert "forged_system" in caplog.text


async def test_callback_that_fails_harms_nothing(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise LookupError("in a callback")

    caller = Caller()
    async with present(gate, None, "tools") as (session, end):
        async with anyio.create_task_group() as tasks:

            async def ask() -> Any:
                return await Space(session).request("tools", "work", on_progress=fail)

            tasks.start_soon(caller.run, ask)
            request = await end.hear(kinds.MCP_REQUEST)
            token = request.payload["params"]["_meta"]["progressToken"]
            progress = payloads.progress(token, 1, 2, None)
            header: dict[str, Any] = {"to": (ME,), "correlation": (request.id,)}
            await end.say(kinds.MCP_REQUEST, progress, sender="tools", **header)
            await end.respond(request, "done", sender="tools")
    assert caller.result == "done"
    assert "on_progress failed" in caplog.text


async def test_a_watcher_sees_everything_in_order_and_counts_what_it_missed(gate: Gate) -> None:
    async with present(gate, Recorder(lambda *_: False), "bob") as (session, end):
        with session.watchers.watch() as watcher:
            said = session.send_message("chat", {"message": "mine"})
            await end.echo(await end.hear("chat"))
            assert (await anext(watcher)).id == said.id
            for number in range(WATCHED + 3):
                await end.say("chat", {}, sender="bob", id=str(number))
                await anyio.lowlevel.checkpoint()
            await end.say("chat", {}, sender="bob", id="last")
            seen = []
            async for envelope in watcher:
                seen.append(envelope.id)
                if envelope.id == "last":
                    break
            assert seen == [*map(str, range(watcher.missed, WATCHED + 3)), "last"]


@pytest.mark.parametrize("too_large", ["message", "data"])
async def test_who_asks_hears_of_an_answer_that_is_too_large(
    gate: Gate, too_large: str, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Recorder()
    large = "x" * MAX_FRAME_BYTES
    message, data = (large, None) if too_large == "message" else ("m", large)
    async with present(gate, handlers, "bob") as (session, end):
        id = await end.request("tools/call", sender="bob", name="read")
        await handlers.has(started=1)
        session.raised(handlers.started[0][0], -32000, message, data)
        instead = await end.hear(kinds.MCP_RESPONSE)
        assert instead.correlation == (id,)
        assert instead.payload["id"] == id
        error = instead.payload["error"]
        assert error["code"] == payloads.INTERNAL_ERROR
        assert error["message"].startswith("the answer could not be sent: the frame has")
        assert await end.probe(session) == []
    assert "could not be sent: the frame has" in caplog.text


@pytest.mark.rule("3.codes.blamed")
async def test_what_is_too_large_for_a_gateway_fails_and_is_not_said_again(gate: Gate) -> None:
    handlers = Recorder()
    caller = Caller()
    async with present(gate, handlers, "bob", settings=AT_ONCE) as (session, end):
        async with anyio.create_task_group() as tasks:
            large = {"text": "x" * 10_000}
            tasks.start_soon(caller.run, Space(session).request, "bob", "write", large)
            request = await end.hear(kinds.MCP_REQUEST)
            session.send_message("chat", {"message": "small, and behind it"})
            await end.hear("chat")
            await end.close(1009, "at most 5000 bytes")
            again = await gate.welcomed("bob")
        assert isinstance(caller.error, Refused)
        assert "at most 5000 bytes" in str(caller.error)

        id = await again.request("tools/call", sender="bob", name="read")
        await handlers.has(started=1)
        session.returned(handlers.started[0][0], {"text": "x" * 10_000})
        response = await again.hear(kinds.MCP_RESPONSE)
        await again.close(1009, "at most 5000 bytes")
        third = await gate.welcomed("bob")
        instead = await third.hear(kinds.MCP_RESPONSE)
        assert instead.id != response.id
        assert instead.correlation == (id,)
        assert "at most 5000 bytes" in instead.payload["error"]["message"]
        assert await third.probe(session) == []
        assert session.counters == {}
    assert request.id != instead.id


@pytest.mark.rule("3.codes.blamed")
@pytest.mark.parametrize(("code", "blamed"), [(1007, True), (1009, True), (1011, False)])
async def test_what_a_connection_ends_for_is_given_up(gate: Gate, code: int, blamed: bool) -> None:
    async with present(gate, None, "bob", settings=AT_ONCE) as (session, end):
        async with Space(session).propose("bob", "write", to="bob"):
            await end.hear(kinds.MCP_PROPOSAL)
        withdraw = await end.hear(kinds.MCP_WITHDRAW)
        await end.echo(withdraw)
        await anyio.wait_all_tasks_blocked()
        session.outbox.put(withdraw, Priority.END, session.now())
        await end.hear(kinds.MCP_WITHDRAW)
        await end.close(code)
        again = await gate.welcomed("bob")
        repeated = [envelope.kind for envelope in await again.probe(session)]
        # The largest of all was the proposal; what is invalid was the last.
        assert repeated == ([] if blamed and code == 1007 else [kinds.MCP_WITHDRAW])
