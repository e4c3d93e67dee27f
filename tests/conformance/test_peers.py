"""Agents among the TypeScript participants that exist (PROTOCOL 1 and 2)."""

from typing import Any

import anyio
import pytest

from meup_agent import Agent, Fulfillment, Proposal, Reason, Withdrawal
from meup_agent.errors import ProposalEdited, RequestError
from tests.conformance.gateways import ExistingGateway
from tests.conformance.people import SPACE, joined, only_on_v04, patiently, writer
from tests.conformance.reference_peers import Bridge, Fulfiller, Proposer, ReferencePeer, ToolOwner


def options(gateway: ExistingGateway) -> dict[str, Any]:
    return {"version": gateway.version, "space": SPACE}


ANSWERS: dict[str, Any] = {
    "five": {"result": 5},
    "text": {"result": "text"},
    "nothing": {},
    "fails": {"error": {"code": "NOT_FOUND", "message": "no such file"}},
    "content": {"result": {"content": [{"type": "text", "text": "ok"}]}},
}


@pytest.mark.rule("1.lenient")
async def test_their_tools_are_called_whatever_they_answer(gateway: ExistingGateway) -> None:
    with ToolOwner(gateway.url, "typescript", ANSWERS, **options(gateway)):
        async with joined(gateway, "caller") as space:
            assert await space.call("typescript", "five") == 5
            assert await space.call("typescript", "text") == "text"
            await space.call("typescript", "nothing")
            content = ANSWERS["content"]["result"]["content"]
            assert await space.call("typescript", "content") == content
            assert len(await space.offers.tools("typescript")) == len(ANSWERS)
            with pytest.raises(RequestError, match="no such file") as error:
                await space.call("typescript", "fails")
            assert error.value.code == "NOT_FOUND"


@pytest.mark.rule("2.answered_notification")
async def test_answers_to_notifications_are_silent(
    gateway: ExistingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "meup_agent")
    with ToolOwner(gateway.url, "typescript", {}, **options(gateway)) as owner:
        async with joined(gateway, "caller") as space:
            with space.watch() as watcher:
                notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                sent = await space.send("mcp/request", notification, to="typescript")
                while sent not in (said := await anext(watcher)).correlation:
                    pass
                assert said.kind == "mcp/response"
    assert owner.you["id"] == "typescript"
    assert caplog.text == ""


@pytest.mark.rule("2.heartbeat")
async def test_their_heartbeats_and_registrations_make_no_noise(
    gateway: ExistingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "meup_agent")
    async with joined(gateway, "caller") as space, joined(gateway, "reviewer") as other:
        with space.watch() as watcher, Bridge(gateway.url, "typescript", **options(gateway)):
            marker = await other.chat("after")
            while (await anext(watcher)).id != marker:
                pass
    assert caplog.text == ""


@pytest.mark.rule("2.repeated_ids", "race.restarted_peer")
async def test_what_they_say_after_a_restart_is_new(gateway: ExistingGateway) -> None:
    calls: list[str] = []
    with ReferencePeer(gateway.url, "typescript", **options(gateway)) as peer:
        async with joined(gateway, writer(calls)):
            for path in ("a", "b"):
                call = {"name": "write", "arguments": {"path": path}}
                payload = {"method": "tools/call", "params": call}
                sent = peer.send("mcp/request", payload, to=["files"])
                assert sent == "typescript-2"

                def answers(envelope: Any, to: str = sent, path: str = path) -> bool:
                    named = envelope.get("correlation_id") == [to]
                    return bool(named and path in str(envelope["payload"]))

                await patiently(peer.wait_heard, answers)
                await patiently(peer.restart)
    assert calls == ["a", "b"]


@pytest.mark.rule("2.relay.sent", "2.routing", "1.lenient")
async def test_their_proposal_is_fulfilled_and_they_learn_it(gateway: ExistingGateway) -> None:
    calls: list[str] = []
    seen: list[Fulfillment] = []
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def review(proposal: Proposal) -> None:
        seen.append(await proposal.fulfill(executor="files"))

    async with joined(gateway, writer(calls)), joined(gateway, reviewer):
        with Proposer(gateway.url, "typescript", **options(gateway)) as proposer:
            params = {"name": "write", "arguments": {"path": "a"}}
            proposal = proposer.propose("tools/call", params, to=["reviewer"])
            await patiently(proposer.wait_heard, lambda said: said.get("kind") == "mcp/response")
            result = proposer.outcomes[proposal]["payload"]["result"]
    assert result["structuredContent"] == {"result": "wrote a"}
    assert calls == ["a"]
    assert [one.executor for one in seen] == ["files"]


@pytest.mark.rule("1.lenient")
@only_on_v04  # the others withdraw nothing
async def test_their_withdraw_stops_our_handler(gateway: ExistingGateway) -> None:
    reviewer, began, told = Agent("reviewer"), anyio.Event(), anyio.Event()
    seen: list[Withdrawal] = []

    @reviewer.on_proposal
    async def review(proposal: Proposal) -> None:
        began.set()
        await anyio.sleep_forever()

    @reviewer.on_withdraw
    async def withdrawn(withdrawal: Withdrawal) -> None:
        seen.append(withdrawal)
        told.set()

    async with joined(gateway, reviewer):
        with Proposer(gateway.url, "typescript", **options(gateway)) as proposer:
            proposal = proposer.propose("tools/call", {"name": "write"}, to=["reviewer"])
            await began.wait()
            proposer.give_up(proposal)
            await told.wait()
    assert [one.cause.code for one in seen] == [Reason.TIMEOUT]


@pytest.mark.rule("1.lenient")
async def test_they_learn_of_our_rejection(gateway: ExistingGateway) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def review(proposal: Proposal) -> None:
        await proposal.reject(Reason.UNSAFE)

    async with joined(gateway, reviewer):
        with Proposer(gateway.url, "typescript", **options(gateway)) as proposer:
            proposal = proposer.propose("tools/call", {"name": "write"})
            (reject,) = await patiently(
                proposer.wait_heard, lambda envelope: envelope.get("kind") == "mcp/reject"
            )
    assert reject["correlation_id"] == [proposal]
    assert reject["payload"] == {"reason": "unsafe"}


@pytest.mark.rule("2.relay.accepted", "2.routing")
@only_on_v04  # the others tell the proposer by a chat, which decides nothing
@pytest.mark.parametrize("to", [(), ("typescript",)], ids=["broadcast", "addressed"])
async def test_their_answer_to_a_proposal_ends_it(
    gateway: ExistingGateway, to: tuple[str, ...]
) -> None:
    calls: list[str] = []
    async with joined(gateway, writer(calls)):
        with Fulfiller(gateway.url, "typescript", executor="files", **options(gateway)):
            async with joined(gateway, "proposer") as space:
                async with space.propose("files", "write", {"path": "a"}, to=to) as proposal:
                    outcome = await proposal.outcome()
                call = ("files", "write", {"path": "a"})
                with pytest.raises(ProposalEdited, match="perhaps not as it was") as error:
                    await space.call(*call, to=to)
                assert not error.value.certain
                assert await space.call(*call, to=to, accept_edits=True) == error.value.value
    assert isinstance(outcome, Fulfillment)
    assert outcome.by == "typescript"
    assert (outcome.relayed, outcome.knows_edits, outcome.edited) == (True, False, False)
    assert outcome.result(accept_edits=True) == "wrote a"
    assert calls == ["a", "a", "a"]


@pytest.mark.rule("5.who.response")
async def test_their_answers_for_others_are_left_out(gateway: ExistingGateway) -> None:
    calls: list[str] = []
    answers = {"write": {"result": "not mine to answer"}}
    async with joined(gateway, writer(calls)):
        with ToolOwner(gateway.url, "typescript", answers, **options(gateway)):
            async with joined(gateway, "caller") as space:
                for _ in range(10):
                    assert await space.call("files", "write", {"path": "a"}) == "wrote a"
