"""Middleware around the messages that an agent sends."""

import logging
from typing import Any

import anyio
import pytest

from meup_agent import (
    Agent,
    Context,
    Fulfillment,
    Proposal,
    ProposalState,
    Reason,
    Rejection,
    Withdrawal,
)
from meup_agent.errors import ProposalEdited, ProposalRejected, RejectMessage, UsageError
from meup_agent.testing import MemorySpace
from meup_agent.types import CallNext, InboundMessage, OutboundMessage
from tests.interaction.cast import adder, unwilling, willing
from tests.interaction.people import EVERYTHING, Meeting, Notes, ended, gathered, join, until
from tests.interaction.views import has_state, lines, taped
from tests.patience import PATIENCE


def noting(notes: Notes) -> Any:
    async def note(message: OutboundMessage, call_next: CallNext) -> Any:
        notes((message.verb, message.participant, message.tool or message.method or message.kind))
        outcome = await call_next(message)
        notes((message.verb, type(outcome).__name__))
        return outcome

    return note


async def test_verbs_pass_once(meeting: Meeting, notes: Notes) -> None:
    sender = Agent("second", middleware=[noting(notes)])
    async with gathered(meeting, adder(), sender) as (_, second):
        assert await second.call("tools", "add", {"a": 1, "b": 2}) == 3
        assert await second.request("tools", "ping") == {}
        await second.chat("hi")
        await second.send("x.y", {})
        async with second.propose("tools", "add", {"a": 1, "b": 2}, to="reviewer"):
            pass
    assert notes.all == [
        ("invoke", "tools", "add"),
        ("invoke", "Responded"),
        ("request", "tools", "ping"),
        ("request", "dict"),
        ("send", None, "chat"),
        ("send", "str"),
        ("send", None, "x.y"),
        ("send", "str"),
        ("propose", "tools", "add"),
        ("propose", "Withdrawal"),
    ]


async def test_what_handlers_send_passes(meeting: Meeting, notes: Notes) -> None:
    agent = Agent("reviewer", middleware=[noting(notes)])

    @agent.on_proposal
    async def decide(proposal: Proposal, ctx: Context) -> None:
        await ctx.space.chat("I decide")
        if proposal.arguments["a"] > 1:
            await proposal.reject(Reason.UNSAFE, explain="too large")
        else:
            assert await ctx.space.call("tools", "add", {"a": 1, "b": 1}) == 2
            await proposal.fulfill()

    async with gathered(meeting, adder(), agent, "proposer") as (_, _, proposer):
        assert await proposer.call("tools", "add", {"a": 1, "b": 2}, to="reviewer") == 3
        with pytest.raises(ProposalRejected, match="unsafe"):
            await proposer.call("tools", "add", {"a": 2, "b": 2}, to="reviewer")
        await notes.until(("reject", "DecisionReceipt"))
    assert [each for each in notes.all if len(each) == 3] == [
        ("send", None, "chat"),
        ("invoke", "tools", "add"),
        ("fulfill", "tools", "add"),
        ("send", None, "chat"),
        ("reject", None, "add"),
    ]


async def test_changed_call_is_judged_as_the_call_that_it_is(meeting: Meeting) -> None:
    """A participant that may only propose some calls cannot get around that by a middleware."""
    chosen = {"tool": "add", "arguments": {"a": 5, "b": 5}}

    async def change(message: OutboundMessage, call_next: CallNext) -> Any:
        return await call_next(message.replace(**chosen))

    reviewer = Agent("reviewer")
    seen: list[dict[str, Any]] = []

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        seen.append(proposal.arguments)
        await proposal.fulfill()

    changing = Agent("proposer", middleware=[change])
    async with gathered(meeting, adder(), reviewer, changing) as (_, _, proposer):
        own = {"a": 1, "b": 1}
        assert await proposer.call("tools", "other", own, to="reviewer") == 10
        assert own == {"a": 1, "b": 1}
        async with proposer.propose("tools", "other", own, to="reviewer") as proposal:
            outcome = await ended(proposal, Fulfillment)
            assert outcome.as_proposed
    assert seen == [{"a": 5, "b": 5}, {"a": 5, "b": 5}]


async def test_call_that_is_changed_beyond_the_capabilities_is_proposed(notes: Notes) -> None:
    async def change(message: OutboundMessage, call_next: CallNext) -> Any:
        message.arguments["path"] = "b"
        return await call_next(message.replace(tool=f"write_{message.tool}"))

    reads = {"kind": "mcp/request", "payload": {"params": {"name": "read"}}}
    space = MemorySpace(
        participants={
            "tools": EVERYTHING,
            "reviewer": EVERYTHING,
            "second": [reads, {"kind": "mcp/proposal"}],
        }
    )
    tools, reviewer = Agent("tools"), Agent("reviewer")

    @tools.tool
    async def write_read(path: str) -> str:
        notes("written")
        return path

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        notes(f"{proposal.tool} {proposal.arguments}")
        await proposal.fulfill()

    def joining(agent: Agent) -> Any:
        return agent.join(space.connector(agent.name), token=space.token(agent.name))

    with anyio.fail_after(PATIENCE):
        async with (
            joining(tools),
            joining(reviewer),
            joining(Agent("second", middleware=[change])) as second,
        ):
            assert await second.call("tools", "read", {"path": "a"}) == "b"
    assert notes.all == ["write_read {'path': 'b'}", "written"]


@pytest.mark.parametrize("how", ["replaced", "written"])
async def test_changed_fulfillment_is_told_as_an_edit(meeting: Meeting, how: str) -> None:
    async def change(message: OutboundMessage, call_next: CallNext) -> Any:
        if message.verb == "fulfill":
            assert message.proposal is not None
            message.proposal.arguments["a"] = 9  # which is nobody's approval
            if how == "replaced":
                message = message.replace(arguments={"a": 7, "b": 2})
            else:
                message.arguments["a"] = 7
        return await call_next(message)

    reviewer = Agent("reviewer", middleware=[change])

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        assert proposal.arguments == {"a": 1, "b": 2}
        await proposal.fulfill()

    async with gathered(meeting, adder(), reviewer, "proposer") as (_, _, proposer):
        with pytest.raises(ProposalEdited) as caught:
            await proposer.call("tools", "add", {"a": 1, "b": 2}, to="reviewer")
        assert caught.value.value == 9


async def test_only_what_a_verb_has_can_be_changed(meeting: Meeting) -> None:
    async def change(message: OutboundMessage, call_next: CallNext) -> Any:
        return await call_next(message.replace(**changes))

    changes: dict[str, Any] = {"tool": "rm"}
    reviewer = Agent("reviewer", middleware=[change])
    errors: list[str] = []

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        try:
            await proposal.fulfill()
        except UsageError as error:
            errors.append(str(error))
        changes.clear()
        await proposal.reject("no")

    async with gathered(meeting, reviewer, "proposer") as (_, proposer):
        async with proposer.propose("tools", "add", to="reviewer") as proposal:
            await proposal.outcome()
    assert errors == [
        "the tool of a fulfill cannot be changed; change arguments, participant, or raise to "
        "refuse it"
    ]


async def test_refused_sending_sends_nothing(meeting: Meeting) -> None:
    async def refuse(message: OutboundMessage, call_next: CallNext) -> Any:
        if "secret" in str((message.payload, message.arguments)):
            raise RejectMessage(Reason.POLICY, "no secrets")
        return await call_next(message)

    sender = Agent("second", middleware=[refuse])
    async with gathered(meeting, adder(), sender) as (tools, second), taped(tools) as tape:
        with pytest.raises(RejectMessage, match="policy: no secrets"):
            await second.chat("a secret")
        with pytest.raises(RejectMessage):
            await second.call("tools", "add", {"secret": 1})
        with pytest.raises(RejectMessage):
            async with second.propose("tools", "add", {"secret": 1}):
                raise AssertionError("nothing was proposed")
        await tape.all_said(second)
        assert [each.kind for each in tape.envelopes if each.sender == "second"] == ["chat"]


async def test_middleware_that_forgets_call_next_proposes_nothing(meeting: Meeting) -> None:
    async def forget(message: OutboundMessage, call_next: CallNext) -> Any:
        return None

    async with gathered(meeting, Agent("second", middleware=[forget])) as (second,):
        with pytest.raises(UsageError, match="returned without call_next"):
            async with second.propose("tools", "add"):
                raise AssertionError("nothing was proposed")
        with pytest.raises(UsageError, match="returned None for a call"):
            await second.call("tools", "add")


async def test_middleware_is_told_of_the_outcome(meeting: Meeting, notes: Notes) -> None:
    """The layers are told of the outcome while the block goes on."""

    proposing = Agent("proposer", middleware=[noting(notes)])
    async with gathered(meeting, adder(), willing(), proposing) as (_, _, proposer):
        arguments = {"a": 1, "b": 2}
        async with proposer.propose("tools", "add", arguments, to="reviewer") as proposal:
            await notes.until(("propose", "Fulfillment"))
            assert await proposal.result() == 3
            assert proposal.state is ProposalState.FULFILLED


async def test_block_that_raises_withdraws_and_tells_the_layers(meeting: Meeting) -> None:
    seen: list[Any] = []

    async def see(message: OutboundMessage, call_next: CallNext) -> Any:
        seen.append(await call_next(message))

    async with join(meeting, Agent("second", middleware=[see])) as second:
        with anyio.fail_after(PATIENCE), pytest.raises(ZeroDivisionError):
            async with second.propose("tools", "add") as proposal:
                raise ZeroDivisionError
        await until(lambda: has_state(second, proposal.id, ProposalState.WITHDRAWN))
    assert [type(each) for each in seen] == [Withdrawal]


async def test_proposal_that_cannot_be_made_fails_in_the_layers_too(meeting: Meeting) -> None:
    seen: list[Any] = []

    async def see(message: OutboundMessage, call_next: CallNext) -> Any:
        try:
            return await call_next(message)
        except UsageError as error:
            seen.append(error)
            raise

    async with gathered(meeting, Agent("second", middleware=[see])) as (second,):
        with pytest.raises(UsageError) as caught:
            async with second.propose("tools", "add", ttl=-1):
                raise AssertionError("nothing was proposed")
    assert seen == [caught.value]


async def test_failing_layer_does_not_take_the_outcome_away(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(message: OutboundMessage, call_next: CallNext) -> Any:
        await call_next(message)
        raise ValueError("of the middleware")

    outcomes: list[Any] = []
    failing = Agent("proposer", middleware=[fail])
    async with gathered(meeting, unwilling("no"), failing) as (_, proposer):
        with pytest.raises(ValueError, match="of the middleware"):
            async with proposer.propose("tools", "add", to="reviewer") as proposal:
                outcomes.append(await proposal.outcome())
    assert [type(each) for each in outcomes] == [Rejection]
    assert any("a middleware failed" in each for each in lines(caplog, logging.ERROR))


async def test_what_a_middleware_sends_passes_none(meeting: Meeting, notes: Notes) -> None:
    async def both(message: InboundMessage | OutboundMessage, call_next: CallNext) -> Any:
        notes(type(message).__name__)
        await message.space.chat("from the middleware")
        return await call_next(message)

    agent = Agent("tools", middleware=[both])

    @agent.tool
    async def run(ctx: Context) -> None:
        await ctx.space.chat("from the tool")

    async with gathered(meeting, agent, "second") as (_, second), taped(second) as tape:
        await second.call("tools", "run")
        said = [e.payload_object["message"] for e in tape.of("chat", sender="tools")]
        assert said == ["from the middleware", "from the middleware", "from the tool"]
    assert notes.all == ["InboundMessage", "OutboundMessage"]
