"""Middleware around the messages that an agent handles."""

import logging
from typing import Any

import pytest

from meup_agent import Agent, Chat, Context, Proposal, Reason, Rejection
from meup_agent.errors import RejectMessage, RequestError, ToolError, UsageError
from meup_agent.types import CallNext, InboundMessage
from tests.interaction.cast import adder
from tests.interaction.people import Meeting, Notes, ended, gathered, join, until
from tests.interaction.views import call_of, is_idle, lines


async def test_first_middleware_is_the_outermost(meeting: Meeting, notes: Notes) -> None:
    async def outer(message: InboundMessage, call_next: CallNext) -> Any:
        notes(f"outer {message.role} {message.handler} {message.sender} {message.arguments}")
        value = await call_next(message)
        notes(f"outer {value}")
        return value

    agent = adder(outer)

    @agent.middleware
    async def inner(message: InboundMessage, call_next: CallNext) -> Any:
        notes("inner")
        return 10 * await call_next(message)

    async with gathered(meeting, agent, "second") as (_, second):
        assert await second.call("tools", "add", {"a": 1, "b": 2}) == 30
    assert notes.all == ["outer request add second {'a': 1, 'b': 2}", "inner", "outer 30"]


async def test_every_role_passes_once(meeting: Meeting, notes: Notes) -> None:
    agent = Agent("reviewer")

    @agent.middleware
    async def note(message: InboundMessage, call_next: CallNext) -> Any:
        if message.sender == "second" or message.role not in ("join", "leave"):
            notes((message.role, message.handler.rpartition(".")[2], message.method, message.tool))
        return await call_next(message)

    @agent.on_chat
    async def first(chat: Chat) -> None: ...

    @agent.on_chat
    async def again(chat: Chat) -> None: ...

    @agent.on("x/y")
    async def kind(ctx: Context) -> None: ...

    @agent.on_proposal
    async def decide(proposal: Proposal) -> None:
        await proposal.reject("no")

    async with gathered(meeting, agent, "second") as (_, second):
        assert await second.request("reviewer", "ping") == {}
        await second.send("x/y", {})
        await second.chat("hi")
        async with second.propose("tools", "add", to="reviewer") as proposal:
            assert isinstance(await proposal.outcome(), Rejection)
        await notes.until(("chat", "again", "", ""))
    assert sorted(notes.all) == [
        ("chat", "again", "", ""),
        ("kind", "kind", "", ""),
        ("proposal", "decide", "tools/call", "add"),
        ("request", "ping", "ping", ""),
    ]


async def test_refused_request_is_answered_and_not_run(meeting: Meeting, notes: Notes) -> None:
    async def refuse(message: InboundMessage, call_next: CallNext) -> Any:
        if message.role == "request":
            raise RejectMessage(Reason.BUSY, "at most one call")
        return await call_next(message)

    agent = Agent("tools", middleware=[refuse])

    @agent.tool
    async def run() -> None:
        notes("run")

    async with gathered(meeting, agent, "second") as (_, second):
        with pytest.raises(RequestError, match="refused: busy: at most one call") as caught:
            await second.call("tools", "run")
        assert caught.value.code == -32000
        assert caught.value.data == {"reason": "refused"}
        with pytest.raises(RequestError, match="refused"):
            await second.offers.tools("tools")
    assert notes.all == []


async def test_refused_proposal_is_rejected_with_its_reason(meeting: Meeting, notes: Notes) -> None:
    async def refuse(message: InboundMessage, call_next: CallNext) -> Any:
        assert message.proposal is not None
        raise RejectMessage(Reason.POLICY, f"no {message.proposal.tool} at night")

    agent = Agent("reviewer", middleware=[refuse])

    @agent.on_proposal
    async def decide(proposal: Proposal) -> None:
        notes("decide")

    async with gathered(meeting, agent, "proposer") as (_, proposer):
        async with proposer.propose("tools", "add", to="reviewer") as proposal:
            outcome = await ended(proposal, Rejection)
            assert (outcome.reason, outcome.by) == (Reason.POLICY, "reviewer")
            assert await outcome.explanation() == "no add at night"
    assert notes.all == []


async def test_refused_fulfillment_leaves_the_proposal_pending(meeting: Meeting) -> None:
    """A refused request has begun nothing: the proposal is carried out at the second attempt."""
    attempts: list[str] = []

    async def refuse_once(message: InboundMessage, call_next: CallNext) -> Any:
        attempts.append(message.tool)
        if len(attempts) == 1:
            raise RejectMessage(Reason.BUSY)
        return await call_next(message)

    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        first = await proposal.fulfill()
        assert first.error is not None
        await proposal.fulfill()

    async with gathered(meeting, adder(refuse_once), reviewer, "proposer") as (_, _, proposer):
        arguments = {"a": 1, "b": 2}
        async with proposer.propose("tools", "add", arguments, to="reviewer") as proposal:
            assert await proposal.result() == 3
    assert attempts == ["add", "add"]


async def test_handler_that_says_refused_has_run(meeting: Meeting, notes: Notes) -> None:
    """The word of a handler does not let an approved call run twice, as a layer's refusal does."""
    tools, reviewer = Agent("tools"), Agent("reviewer")

    @tools.tool
    async def run() -> None:
        notes("run")
        raise RequestError(-32000, "refused", {"reason": "refused"})

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        assert (await proposal.fulfill()).error == {
            "code": -32000,
            "message": "refused",
            "data": {"reason": "refused"},
        }
        again = await proposal.fulfill()
        assert again.error is not None
        notes(again.error["message"])

    async with gathered(meeting, tools, reviewer, "proposer") as (_, _, proposer):
        async with proposer.propose("tools", "run", to="reviewer") as proposal:
            await until(lambda: len(notes.all) == 2)
            said = f"refused: proposal {proposal.id} is fulfilled by 'reviewer'"
    assert notes.all == ["run", said]


async def test_refused_notice_is_not_handled(meeting: Meeting, notes: Notes) -> None:
    async def refuse(message: InboundMessage, call_next: CallNext) -> Any:
        if message.envelope.payload_object.get("message") == "spam":
            raise RejectMessage(Reason.POLICY)
        return await call_next(message)

    agent = Agent("reviewer", middleware=[refuse])

    @agent.on_chat
    async def chat(chat: Chat) -> None:
        notes(chat.text)

    async with gathered(meeting, agent, "second") as (_, second):
        await second.chat("spam")
        await second.chat("end")
        await notes.until("end")
    assert notes.all == ["end"]


@pytest.mark.parametrize("how", ["new", "written"])
async def test_what_is_handled_cannot_be_changed(meeting: Meeting, notes: Notes, how: str) -> None:
    """The approved call is what runs, and the context tells what was asked."""
    kept: list[InboundMessage] = []

    async def attack(message: InboundMessage, call_next: CallNext) -> Any:
        message.arguments["path"] = "/etc/passwd"
        message.envelope.payload_object.clear()
        kept.append(message)
        return await call_next(kept[0] if how == "new" else message)

    agent = Agent("tools", middleware=[attack])

    @agent.tool
    async def read(path: str, ctx: Context) -> str:
        notes(path)
        return str(call_of(ctx.envelope).arguments["path"])

    async with gathered(meeting, agent, "second") as (_, second):
        assert await second.call("tools", "read", {"path": "a"}) == "a"
        if how == "new":
            # The message that came before is another one, and its handler has ended.
            with pytest.raises(ToolError, match="UsageError: call_next got another message"):
                await second.call("tools", "read", {"path": "b"})
    assert notes.all == ["a"]


async def test_message_is_handled_once(meeting: Meeting, notes: Notes) -> None:
    later: list[Any] = []

    async def twice(message: InboundMessage, call_next: CallNext) -> Any:
        value = await call_next(message)
        later.append((call_next, message))
        if message.tool == "twice":
            return await call_next(message)
        return value

    agent = Agent("tools", middleware=[twice])

    @agent.tool(name="once")
    @agent.tool(name="twice")
    async def run() -> None:
        notes("run")

    async with gathered(meeting, agent, "second") as (tools, second):
        await second.call("tools", "once")
        with pytest.raises(ToolError, match="a second time; a message is handled once"):
            await second.call("tools", "twice")
        await until(lambda: is_idle(tools))
        call_next, message = later[0]
        with pytest.raises(UsageError, match="after the handler's end"):
            await call_next(message)
    assert notes.all == ["run", "run"]


async def test_middleware_may_answer_in_place_of_a_handler(meeting: Meeting) -> None:
    async def cached(message: InboundMessage, call_next: CallNext) -> Any:
        return {"add": 7, "missing": "none"}.get(message.tool) or await call_next(message)

    async with gathered(meeting, adder(cached), "second") as (_, second):
        assert await second.call("tools", "add", {}) == 7
        (content,) = await second.call("tools", "missing")
        assert content["text"] == "none"
        with pytest.raises(RequestError, match="no tool 'other'"):
            await second.call("tools", "other")


async def test_changed_result_is_what_the_annotation_promised(meeting: Meeting) -> None:
    async def change(message: InboundMessage, call_next: CallNext) -> Any:
        return f"about {await call_next(message)}"

    async with gathered(meeting, adder(change), "second") as (_, second):
        with pytest.raises(ToolError, match="cannot be its result"):
            await second.call("tools", "add", {"a": 1, "b": 2})


async def test_error_of_a_middleware_is_reported_like_a_handlers(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(message: InboundMessage, call_next: CallNext) -> Any:
        await call_next(message)
        raise ValueError("of the middleware")

    agent = adder(fail)

    @agent.on_proposal
    async def decide(proposal: Proposal) -> None: ...

    async with gathered(meeting, agent, "second") as (_, second):
        with pytest.raises(ToolError, match="ValueError: of the middleware"):
            await second.call("tools", "add", {"a": 1, "b": 2})
        with pytest.raises(RequestError, match=r"'ping' .* failed") as caught:
            await second.request("tools", "ping")
        assert caught.value.code == -32603
        async with second.propose("tools", "add", to="tools") as proposal:
            outcome = await ended(proposal, Rejection)
            assert outcome.reason == Reason.OTHER
    assert len([each for each in lines(caplog, logging.ERROR) if "failed" in each]) == 3


async def test_middleware_comes_before_the_start(meeting: Meeting) -> None:
    agent = adder()
    async with join(meeting, agent):
        with pytest.raises(UsageError, match=r"middleware .*late comes too late: the agent has"):

            @agent.middleware
            async def late(message: InboundMessage, call_next: CallNext) -> Any: ...
