"""Open exchanges of a session: lost connections, reconnections, the end."""

import anyio
import pytest

from meup_agent import Space, Withdrawal
from meup_agent.errors import (
    NotSent,
    OutcomeUnknown,
    ProposalWithdrawn,
    RequestTimeout,
    SessionEnded,
)
from tests.patience import PATIENCE
from tests.session.gate import AT_ONCE, Caller, Gate, Recorder, present
from tests.wire import kinds

pytestmark = pytest.mark.anyio


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
