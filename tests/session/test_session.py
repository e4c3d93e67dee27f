"""What a session carries out, against a gateway that plays its part by hand."""

import logging
from typing import Any

import anyio
import pytest
import trio

from meup_agent.client.space import Space
from meup_agent.errors import (
    NotExpressible,
    NotSent,
    OutcomeUnknown,
    ProposalExpired,
    ProposalWithdrawn,
    Refused,
    RequestTimeout,
    SessionEnded,
    TakenOver,
    UsageError,
)
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.exchange import Limits, Priority
from meup_agent.protocol.limits import MAX_FRAME_BYTES
from meup_agent.protocol.outcomes import Expiry, Withdrawal, raise_for
from meup_agent.session import Backoff, Session, Settings
from meup_agent.session.listeners import WATCHED
from meup_agent.session.outbox import MAX_ENVELOPES
from meup_agent.transport.memory import memory_connector
from tests.session.gate import ME, PATIENCE, Gate, Recorder, present

pytestmark = pytest.mark.anyio

# Reconnects at once: nothing here is about the pauses.
AT_ONCE = Settings(backoff=Backoff(first=0.0001, longest=0.0001))


class Caller:
    """A call that runs beside the test, and what became of it."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None

    async def run(self, call: Any, *args: Any, **kwargs: Any) -> None:
        # Shielded, so that it hears from the session why it ends, not from its own cancellation.
        with anyio.CancelScope(shield=True):
            try:
                self.result = await call(*args, **kwargs)
            except Exception as error:
                self.error = error


def method_of(envelope: Any) -> str:
    return payloads.read_call(envelope.payload).method


# --- welcome and goodbye ---


async def test_nothing_is_said_before_the_welcome(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        async with present(gate, settings=AT_ONCE) as (session, end):
            end.drop()
            again = await gate.accept()
            said = session.say("chat", {"message": "hi"})
            await anyio.wait_all_tasks_blocked()
            assert len(session.outbox) == 1
            await again.welcome()
            assert (await again.hear()).id == said.id


async def test_what_is_open_at_the_end_is_withdrawn_and_cancelled_before_we_go(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        caller = Caller()
        async with anyio.create_task_group() as tasks:
            async with present(gate, None, "tools") as (session, end):
                space = Space(session)
                tasks.start_soon(caller.run, space.request, "tools", "ping")
                request = await end.hear(kinds.MCP_REQUEST)
                proposing = space.propose("tools", "write", to="tools")
                proposal = await proposing.__aenter__()
                await end.hear(kinds.MCP_PROPOSAL)
            last = await end.rest()
        assert [e.kind for e in last] == [kinds.MCP_REQUEST, kinds.MCP_WITHDRAW]
        assert method_of(last[0]) == kinds.CANCELLED
        assert last[0].correlation == (request.id,)
        assert last[1].correlation == (proposal.id,)
        assert isinstance(caller.error, OutcomeUnknown)
        await proposing.__aexit__(None, None, None)


async def test_the_last_words_leave_although_the_gateway_reads_slowly(gate: Gate) -> None:
    """The envelope that is on its way when the outbox is empty must not be cut off."""
    ends: list[Any] = []

    async def accept(end: Any, headers: object) -> dict[str, str]:
        ends.append(end)
        await end.send(
            b'{"kind":"system.welcome","id":"1","from":"system:gateway",'
            b'"payload":{"you":{"id":"alice","capabilities":[]},"participants":[]}}'
        )
        return {"MEUP-Protocol": "meup/v0.1"}

    with anyio.fail_after(PATIENCE):
        heard: list[bytes] = []

        async def read_slowly() -> None:
            async for frame in ends[0]:
                heard.append(frame)
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            connector = memory_connector(accept, capacity=1)
            async with Session(connector, token=None, handlers=Recorder()) as session:
                tasks.start_soon(read_slowly)
                for number in range(20):
                    session.say("chat", {"message": str(number)})
        assert [str(n).encode() in frame for n, frame in enumerate(heard)] == [True] * 20


async def test_a_cancelled_block_still_withdraws(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        with anyio.CancelScope() as outer:
            async with present(gate) as (session, end):
                async with Space(session).propose("tools", "write"):
                    await end.hear(kinds.MCP_PROPOSAL)
                    outer.cancel()
                    await anyio.sleep_forever()
        assert [e.kind for e in await end.rest()] == [kinds.MCP_WITHDRAW]
        assert end.transport.closed is not None
        assert end.transport.closed.code == 1000


async def test_a_cancelled_wait_for_the_welcome_leaves_nothing_behind(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        with anyio.CancelScope() as outer:
            async with anyio.create_task_group() as tasks:

                async def join() -> None:
                    async with Session(gate.connector(), token=None, handlers=Recorder()):
                        pytest.fail("nobody has welcomed us")

                tasks.start_soon(join)
                end = await gate.accept()
                outer.cancel()
        assert await end.rest() == []


class Mine(Exception):
    pass


async def test_what_the_block_raises_comes_out_unchanged(gate: Gate) -> None:
    mine = Mine("x")
    mine.__cause__ = LookupError("why")
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gate.welcomed)
            with pytest.raises(Mine) as caught:
                async with Session(gate.connector(), token=None, handlers=Recorder()):
                    raise mine
    assert caught.value is mine
    assert isinstance(mine.__cause__, LookupError)


async def test_a_group_that_the_block_raises_stays_a_group(gate: Gate) -> None:
    mine = ExceptionGroup("two", [Mine("a"), Mine("b")])
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gate.welcomed)
            with pytest.raises(ExceptionGroup) as caught:
                async with Session(gate.connector(), token=None, handlers=Recorder()):
                    raise mine
    assert caught.value is mine


async def take_over_when_welcomed(gate: Gate) -> None:
    end = await gate.welcomed()
    await end.close(4409)


async def test_the_end_of_the_session_ends_the_block_and_comes_out_as_itself(gate: Gate) -> None:
    cleaned_up = False
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_over_when_welcomed, gate)
            with pytest.raises(TakenOver):  # noqa: PT012
                async with Session(gate.connector(), token=None, handlers=Recorder()):
                    try:
                        await anyio.sleep_forever()
                    finally:
                        cleaned_up = True
    assert cleaned_up


async def test_the_end_of_the_session_comes_out_of_task_groups_in_the_block(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_over_when_welcomed, gate)
            with pytest.raises(TakenOver):  # noqa: PT012
                async with Session(gate.connector(), token=None, handlers=Recorder()):
                    async with anyio.create_task_group() as inner:
                        inner.start_soon(anyio.sleep_forever)
                        inner.start_soon(anyio.sleep_forever)


@pytest.mark.parametrize("anyio_backend", ["trio"])  # asyncio has no nurseries
async def test_the_end_of_the_session_comes_out_of_trio_s_own_nurseries(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_over_when_welcomed, gate)
            with pytest.raises(TakenOver):  # noqa: PT012
                async with Session(gate.connector(), token=None, handlers=Recorder()):
                    async with trio.open_nursery() as inner:
                        inner.start_soon(trio.sleep_forever)
                        inner.start_soon(trio.sleep_forever)


async def test_what_the_block_raises_while_it_is_ended_goes_first(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_over_when_welcomed, gate)
            with pytest.raises(Mine):  # noqa: PT012
                async with Session(gate.connector(), token=None, handlers=Recorder()):
                    try:
                        await anyio.sleep_forever()
                    finally:
                        raise Mine


@pytest.mark.rule("2.second_welcome")
async def test_a_second_welcome_is_an_update(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    with anyio.fail_after(PATIENCE):
        async with present(gate, None, "bob") as (session, end):
            space = Space(session)
            async with space.propose("bob", "write", to="bob"):
                await end.hear(kinds.MCP_PROPOSAL)
            await end.hear(kinds.MCP_WITHDRAW)
            with caplog.at_level(logging.INFO, "meup_agent"):
                assert not session.table.roster.is_allowed("carol", "chat", {})
                await end.welcome("bob", "carol")
                await anyio.wait_all_tasks_blocked()
            assert {item.id for item in space.participants} == {ME, "bob", "carol"}
            assert session.table.roster.is_allowed("carol", "chat", {})
            assert not caplog.records, "it is no connection"
            assert await end.probe(session) == [], "nothing is said again"


async def test_each_event_of_the_connection_is_one_line(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "meup_agent"), anyio.fail_after(PATIENCE):
        gate.refuse(503)
        async with present(gate, settings=AT_ONCE) as (_, end):
            await end.close(1012, "restarting")
            await gate.welcomed()
            await anyio.wait_all_tasks_blocked()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert [line.split(";")[0] for line in lines] == [
        "the gateway refused the connection with status 503",
        "connected to gateway as 'alice'",
        "the connection is closed (code 1012: restarting)",
        "connected to gateway as 'alice'",
        "leaving gateway",
    ]


# --- waits, and connections that are lost ---


@pytest.mark.rule("5.own.waiting.connection_lost")
async def test_a_request_that_may_have_been_sent_is_never_sent_again(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        caller = Caller()
        async with present(gate, None, "tools", settings=AT_ONCE) as (session, end):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(caller.run, Space(session).request, "tools", "pay")
                request = await end.hear(kinds.MCP_REQUEST)
                end.drop()
                again = await gate.welcomed("tools")
                assert await again.probe(session) == []
                await again.respond(request, {"paid": True}, sender="tools")
        assert caller.result == {"paid": True}


async def test_a_proposal_is_never_sent_again_either(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        async with present(gate, None, "tools", settings=AT_ONCE) as (session, end):
            async with Space(session).propose("tools", "pay"):
                await end.hear(kinds.MCP_PROPOSAL)
                end.drop()
                again = await gate.welcomed("tools")
                assert await again.probe(session) == []


@pytest.mark.rule("5.own.waiting.connection_lost")
async def test_an_idempotent_request_is_sent_again_under_its_id(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        caller = Caller()
        async with present(gate, None, "tools", settings=AT_ONCE) as (session, end):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(caller.run, Space(session).tools, "tools")
                request = await end.hear(kinds.MCP_REQUEST)
                end.drop()
                again = await gate.welcomed("tools")
                repeated = await again.hear(kinds.MCP_REQUEST)
                assert repeated.id == request.id
                assert repeated.payload == request.payload
                await again.respond(repeated, {"tools": []}, sender="tools")
        assert caller.result == []


@pytest.mark.rule("5.own.unsent.connection_lost")
async def test_what_was_not_sent_waits_for_the_next_connection(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        caller = Caller()
        async with present(gate, None, "tools", settings=AT_ONCE) as (session, end):
            async with anyio.create_task_group() as tasks:
                end.drop()
                again = await gate.accept()
                tasks.start_soon(caller.run, Space(session).request, "tools", "pay")
                await anyio.wait_all_tasks_blocked()
                await again.welcome("tools")
                request = await again.hear(kinds.MCP_REQUEST)
                await again.respond(request, 5, sender="tools")
        assert caller.result == 5


@pytest.mark.rule("5.own.unsent.deadline")
async def test_a_request_that_times_out_unsent_is_not_sent_later(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        async with present(gate, None, "tools", settings=AT_ONCE) as (session, end):
            end.drop()
            again = await gate.accept()
            with pytest.raises(RequestTimeout, match="could not be sent"):
                await Space(session).request("tools", "pay", timeout=0.01)
            await again.welcome("tools")
            assert await again.probe(session) == []


@pytest.mark.rule("5.own.given_up.connection_lost")
async def test_what_is_given_up_while_disconnected_is_ended_after_the_next_welcome(
    gate: Gate,
) -> None:
    with anyio.fail_after(PATIENCE):
        async with present(gate, None, "tools", settings=AT_ONCE) as (session, end):
            space = Space(session)
            async with space.propose("tools", "write") as proposal:
                await end.hear(kinds.MCP_PROPOSAL)
                with anyio.CancelScope() as calling:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(space.request, "tools", "pay")
                        request = await end.hear(kinds.MCP_REQUEST)
                        end.drop()
                        again = await gate.accept()
                        calling.cancel()
            assert isinstance(await proposal.outcome(), Withdrawal)
            await again.welcome("tools")
            cancel = await again.hear(kinds.MCP_REQUEST)
            withdraw = await again.hear(kinds.MCP_WITHDRAW)
            assert cancel.payload["method"] == kinds.CANCELLED
            assert cancel.payload["params"]["requestId"] == request.id
            assert withdraw.correlation == (proposal.id,)


@pytest.mark.rule("4.14.on_join", "6.ts")
async def test_an_ending_is_said_again_after_a_reconnect_and_the_same(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        async with present(gate, None, "tools", settings=AT_ONCE) as (session, end):
            async with Space(session).propose("tools", "write", to="tools"):
                await end.hear(kinds.MCP_PROPOSAL)
            withdraw = await end.hear(kinds.MCP_WITHDRAW)
            end.drop()
            again = await gate.welcomed("tools")
            repeated = await again.hear(kinds.MCP_WITHDRAW)
            assert (repeated.id, repeated.correlation) == (withdraw.id, withdraw.correlation)


@pytest.mark.rule("5.request.settled.connection_lost", "5.request.running.connection_lost")
async def test_an_answer_waits_for_the_next_connection(gate: Gate) -> None:
    handlers = Recorder()
    with anyio.fail_after(PATIENCE):
        async with present(gate, handlers, "bob", settings=AT_ONCE) as (session, end):
            id = await end.request("tools/call", sender="bob", name="add")
            await handlers.has(started=1)
            end.drop()
            again = await gate.accept()
            session.returned(handlers.started[0][0], {"content": []})
            await again.welcome("bob")
            response = await again.hear(kinds.MCP_RESPONSE)
            assert response.correlation == (id,)
            assert not handlers.cancelled


async def test_waits_end_with_the_session_and_say_whether_they_were_sent(gate: Gate) -> None:
    sent, unsent, proposed = Caller(), Caller(), Caller()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
                async with present(gate, None, "tools", settings=AT_ONCE) as (session, end):
                    space = Space(session)

                    async def propose() -> None:
                        async with space.propose("tools", "write") as proposal:
                            await proposal.outcome()

                    tasks.start_soon(sent.run, space.request, "tools", "pay")
                    await end.hear(kinds.MCP_REQUEST)
                    tasks.start_soon(proposed.run, propose)
                    await end.hear(kinds.MCP_PROPOSAL)
                    gate.refuse(404)
                    end.drop()
                    tasks.start_soon(unsent.run, space.request, "tools", "pay")
                    await anyio.sleep_forever()
            assert caught.group_contains(SessionEnded, depth=1)
    assert isinstance(sent.error, OutcomeUnknown), sent.error
    assert isinstance(proposed.error, OutcomeUnknown), proposed.error
    assert isinstance(unsent.error, NotSent), unsent.error


async def test_nothing_is_begun_after_the_end(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        async with present(gate) as (session, _):
            space = Space(session)
        with pytest.raises(NotSent, match="left the space"):
            await space.request("tools", "ping")
        with pytest.raises(NotSent):
            async with space.propose("tools", "write"):
                pytest.fail("there is nobody to propose to")


async def test_the_outcome_is_known_after_the_block_too(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        async with present(gate) as (session, end):
            async with Space(session).propose("tools", "write") as proposal:
                await end.hear(kinds.MCP_PROPOSAL)
            outcome = await proposal.outcome()
            assert isinstance(outcome, Withdrawal)
            assert outcome.reason == "no_longer_needed"
            with pytest.raises(ProposalWithdrawn):
                await proposal.result()


# --- bounds ---


async def test_the_reader_waits_for_nobody(gate: Gate) -> None:
    """Neither for handlers that never end, nor for a gateway that takes nothing."""
    handlers = Recorder()
    ends: list[Any] = []

    async def accept(end: Any, headers: object) -> dict[str, str]:
        ends.append(end)
        await end.send(
            b'{"kind":"system.welcome","id":"1","from":"system:gateway",'
            b'"payload":{"you":{"id":"alice","capabilities":[]},"participants":[]}}'
        )
        return {"MEUP-Protocol": "meup/v0.1"}

    with anyio.fail_after(PATIENCE):
        connector = memory_connector(accept, capacity=1)
        async with Session(connector, token=None, handlers=handlers) as session:
            for _ in range(10):
                session.say("chat", {"message": "nobody reads this"})
            for number in range(50):
                await ends[0].send(
                    b'{"kind":"chat","id":"%d","from":"bob","payload":{"message":"x"}}' % number
                )
            await handlers.has(started=50)
            assert session.table.connected
            assert len(session.outbox) >= 8
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.outbox.wait_emptied)
                for _ in range(10):
                    await anext(ends[0])


@pytest.mark.rule("5.overflow.busy")
async def test_beyond_the_limits_requests_are_answered_busy(gate: Gate) -> None:
    handlers = Recorder()
    settings = Settings(limits=Limits(handlers=2, queued=3))
    with anyio.fail_after(PATIENCE):
        async with present(gate, handlers, "bob", settings=settings) as (session, end):
            ids = [await end.request("tools/call", sender="bob", name="add") for _ in range(6)]
            response = await end.hear(kinds.MCP_RESPONSE)
            assert response.correlation == (ids[5],)
            assert response.payload["error"]["code"] == -32000
            assert response.payload["error"]["data"] == {"reason": "busy"}
            assert (session.table.running, session.table.queued) == (2, 3)
            assert session.counters["overflow"] == 1
            session.returned(handlers.started[0][0], 1)
            assert (await end.hear(kinds.MCP_RESPONSE)).correlation == (ids[0],)
            assert len(handlers.started) == 3


def timers() -> int:
    return sum(task.name == "meup session: timer" for task in anyio.get_running_tasks())


async def test_there_is_a_timer_for_as_long_as_there_is_a_deadline(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
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
    with anyio.fail_after(PATIENCE):
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
    with anyio.fail_after(PATIENCE):
        async with present(gate, settings=AT_ONCE) as (session, end):
            end.drop()
            await gate.accept()
            for _ in range(MAX_ENVELOPES):
                session.say("chat", {})
            with pytest.raises(RequestTimeout, match="could not be sent"):
                await Space(session).request("tools", "ping", timeout=0.01)


async def test_what_nobody_would_take_is_not_sent(gate: Gate) -> None:
    large = "x" * MAX_FRAME_BYTES
    deep: Any = {}
    for _ in range(120):
        deep = {"a": deep}
    with anyio.fail_after(PATIENCE):
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


async def test_nobody_is_said_to_have_let_expire_what_never_left() -> None:
    with pytest.raises(ProposalExpired, match="it could not be sent in time"):
        raise_for(Expiry("p1", sent=False))
    with pytest.raises(ProposalExpired, match="no participant decided it in time"):
        raise_for(Expiry("p1"))


async def test_who_has_left_says_nothing_more(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        async with present(gate) as (session, _):
            space = Space(session)
        with pytest.raises(NotSent, match="we have left the space"):
            await space.chat("hello")


# --- what comes ---


BAD_FRAMES = [
    (b"", "invalid_json"),
    (b"{", "invalid_json"),
    (b"[]", "invalid_envelope"),
    (b"null", "invalid_envelope"),
    (b'{"kind":"chat"}', "invalid_envelope"),
    (b'{"kind":5,"id":"1","from":"bob"}', "invalid_envelope"),
    (b'{"id":"1","from":"bob","payload":{}}', "invalid_envelope"),
    (b'{"kind":"chat","id":"1","from":"bob","to":{"a":1}}', "invalid_envelope"),
    (b'{"kind":"chat","id":"1","from":"bob","protocol":"mew/v9"}', "invalid_envelope"),
    (b'{"kind":"chat","id":"1","from":"bob","payload":{"message":"\xff"}}', "invalid_utf8"),
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
    with anyio.fail_after(PATIENCE):
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
    with anyio.fail_after(PATIENCE):
        async with present(gate, handlers, "bob") as (session, end):
            for number, kind in enumerate([*kinds.KINDS, "x/y"]):
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
    with anyio.fail_after(PATIENCE):
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


async def test_progress_that_a_callback_cannot_take_harms_nothing(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise Mine("in a callback")

    caller = Caller()
    with anyio.fail_after(PATIENCE):
        async with present(gate, None, "tools") as (session, end):
            async with anyio.create_task_group() as tasks:

                async def ask() -> Any:
                    return await Space(session).request("tools", "work", on_progress=fail)

                tasks.start_soon(caller.run, ask)
                request = await end.hear(kinds.MCP_REQUEST)
                token = request.payload["params"]["_meta"]["progressToken"]
                await end.say(
                    kinds.MCP_REQUEST,
                    payloads.progress(token, 1, 2, None),
                    sender="tools",
                    to=(ME,),
                    correlation=(request.id,),
                )
                await end.respond(request, "done", sender="tools")
    assert caller.result == "done"
    assert "on_progress failed" in caplog.text


async def test_a_watcher_sees_everything_in_order_and_counts_what_it_missed(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        async with present(gate, Recorder(lambda *_: False), "bob") as (session, end):
            with session.watchers.watch() as watcher:
                said = session.say("chat", {"message": "mine"})
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


# --- what cannot be sent ---


@pytest.mark.parametrize("too_large", ["message", "data"])
async def test_who_asks_hears_of_an_answer_that_is_too_large(
    gate: Gate, too_large: str, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Recorder()
    large = "x" * MAX_FRAME_BYTES
    message, data = (large, None) if too_large == "message" else ("m", large)
    with anyio.fail_after(PATIENCE):
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


# --- what the gateway closes the connection for ---


@pytest.mark.rule("3.codes.blamed")
async def test_what_is_too_large_for_a_gateway_fails_and_is_not_said_again(gate: Gate) -> None:
    handlers = Recorder()
    caller = Caller()
    with anyio.fail_after(PATIENCE):
        async with present(gate, handlers, "bob", settings=AT_ONCE) as (session, end):
            async with anyio.create_task_group() as tasks:
                large = {"text": "x" * 10_000}
                tasks.start_soon(caller.run, Space(session).request, "bob", "write", large)
                request = await end.hear(kinds.MCP_REQUEST)
                session.say("chat", {"message": "small, and behind it"})
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
async def test_only_what_a_connection_is_closed_for_is_given_up(
    gate: Gate, code: int, blamed: bool
) -> None:
    with anyio.fail_after(PATIENCE):
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
