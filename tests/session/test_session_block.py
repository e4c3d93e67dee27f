"""A session from its welcome to the end of its block, whatever ends that."""

from collections.abc import Awaitable, Callable
from itertools import product

import anyio
import pytest
import trio

from meup_agent import Space
from meup_agent.errors import OutcomeUnknown, TakenOver
from meup_agent.session import ConnectedSession
from tests.gateways import MemoryTransport
from tests.patience import PATIENCE
from tests.session.gate import AT_ONCE, Caller, Gate, Recorder, method_of, present, unread
from tests.wire import kinds


async def test_nothing_is_said_before_the_welcome(gate: Gate) -> None:
    async with present(gate, settings=AT_ONCE) as (session, end):
        end.drop()
        again = await gate.accept()
        said = session.send_message("chat", {"message": "hi"})
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
    heard: list[bytes] = []

    async def read_slowly(end: MemoryTransport) -> None:
        async for frame in end:
            heard.append(frame)
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks, unread(Recorder()) as (session, end):
            tasks.start_soon(read_slowly, end)
            for number in range(20):
                session.send_message("chat", {"message": str(number)})
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
                    async with ConnectedSession(gate.connector(), token=None, handlers=Recorder()):
                        pytest.fail("nobody has welcomed us")

                tasks.start_soon(join)
                end = await gate.accept()
                outer.cancel()
        assert await end.rest() == []


class Mine(Exception):
    pass


def caused() -> Mine:
    mine = Mine("x")
    mine.__cause__ = LookupError("why")
    return mine


@pytest.mark.parametrize("mine", [caused(), ExceptionGroup("two", [Mine("a"), Mine("b")])])
async def test_what_the_block_raises_comes_out_unchanged(gate: Gate, mine: Exception) -> None:
    cause = mine.__cause__
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gate.welcomed)
            with pytest.raises(type(mine)) as caught:
                async with ConnectedSession(gate.connector(), token=None, handlers=Recorder()):
                    raise mine
    assert caught.value is mine
    assert mine.__cause__ is cause


async def take_over_when_welcomed(gate: Gate) -> None:
    end = await gate.welcomed()
    await end.close(4409)


async def in_a_task_group() -> None:
    async with anyio.create_task_group() as inner:
        inner.start_soon(anyio.sleep_forever)
        inner.start_soon(anyio.sleep_forever)


async def in_a_nursery() -> None:
    async with trio.open_nursery() as inner:
        inner.start_soon(trio.sleep_forever)
        inner.start_soon(trio.sleep_forever)


@pytest.mark.parametrize(
    ("anyio_backend", "wait"),
    [
        *product(("asyncio", "trio"), (anyio.sleep_forever, in_a_task_group)),
        ("trio", in_a_nursery),  # asyncio has none
    ],
)
async def test_the_end_of_the_session_ends_the_block_and_comes_out_as_itself(
    gate: Gate, wait: Callable[[], Awaitable[None]]
) -> None:
    cleaned_up = False
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_over_when_welcomed, gate)
            with pytest.raises(TakenOver):  # noqa: PT012
                async with ConnectedSession(gate.connector(), token=None, handlers=Recorder()):
                    try:
                        await wait()
                    finally:
                        cleaned_up = True
    assert cleaned_up


async def test_what_the_block_raises_while_it_is_ended_goes_first(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_over_when_welcomed, gate)
            with pytest.raises(Mine):  # noqa: PT012
                async with ConnectedSession(gate.connector(), token=None, handlers=Recorder()):
                    try:
                        await anyio.sleep_forever()
                    finally:
                        raise Mine
