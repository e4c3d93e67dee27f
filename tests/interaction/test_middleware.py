"""Middleware around what an agent handles and what it sends."""

import logging
from typing import Any

import anyio
import pytest

from meup_agent import (
    Agent,
    CallNext,
    Chat,
    Context,
    Fulfillment,
    InboundMessage,
    OutboundMessage,
    Proposal,
    ProposalState,
    Reason,
    Rejection,
    Withdrawal,
)
from meup_agent.errors import (
    ProposalEdited,
    ProposalRejected,
    RejectMessage,
    RequestError,
    ToolError,
    UsageError,
)
from meup_agent.protocol import kinds
from meup_agent.testing import MemorySpace
from tests.interaction.people import (
    EVERYTHING,
    PATIENCE,
    Meeting,
    Notes,
    call_of,
    has_state,
    is_idle,
    join,
    lines,
    taped,
    until,
)

pytestmark = pytest.mark.anyio

AnyMessage = InboundMessage | OutboundMessage


def adder(*middleware: Any) -> Agent:
    agent = Agent("tools", middleware=middleware)

    @agent.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return agent


# --- what is handled ---


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

    with anyio.fail_after(PATIENCE):
        async with join(meeting, agent), join(meeting, "second") as second:
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

    with anyio.fail_after(PATIENCE):
        async with join(meeting, agent), join(meeting, "second") as second:
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

    with anyio.fail_after(PATIENCE):
        async with join(meeting, agent), join(meeting, "second") as second:
            with pytest.raises(RequestError, match="refused: busy: at most one call") as caught:
                await second.call("tools", "run")
            assert caught.value.code == -32000
            assert caught.value.data == {"reason": "refused"}
            with pytest.raises(RequestError, match="refused"):
                await second.tools("tools")
    assert notes.all == []


async def test_refused_proposal_is_rejected_with_its_reason(meeting: Meeting, notes: Notes) -> None:
    async def refuse(message: InboundMessage, call_next: CallNext) -> Any:
        assert message.proposal is not None
        raise RejectMessage(Reason.POLICY, f"no {message.proposal.tool} at night")

    agent = Agent("reviewer", middleware=[refuse])

    @agent.on_proposal
    async def decide(proposal: Proposal) -> None:
        notes("decide")

    with anyio.fail_after(PATIENCE):
        async with join(meeting, agent), join(meeting, "proposer") as proposer:
            async with proposer.propose("tools", "add", to="reviewer") as proposal:
                outcome = await proposal.outcome()
                assert isinstance(outcome, Rejection)
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

    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, adder(refuse_once)),
            join(meeting, reviewer),
            join(meeting, "proposer") as proposer,
        ):
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

    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, tools),
            join(meeting, reviewer),
            join(meeting, "proposer") as proposer,
        ):
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

    with anyio.fail_after(PATIENCE):
        async with join(meeting, agent), join(meeting, "second") as second:
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

    with anyio.fail_after(PATIENCE):
        async with join(meeting, agent), join(meeting, "second") as second:
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

    with anyio.fail_after(PATIENCE):
        async with join(meeting, agent) as tools, join(meeting, "second") as second:
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

    with anyio.fail_after(PATIENCE):
        async with join(meeting, adder(cached)), join(meeting, "second") as second:
            assert await second.call("tools", "add", {}) == 7
            (content,) = await second.call("tools", "missing")
            assert content["text"] == "none"
            with pytest.raises(RequestError, match="no tool 'other'"):
                await second.call("tools", "other")


async def test_changed_result_is_what_the_annotation_promised(meeting: Meeting) -> None:
    async def change(message: InboundMessage, call_next: CallNext) -> Any:
        return f"about {await call_next(message)}"

    with anyio.fail_after(PATIENCE):
        async with join(meeting, adder(change)), join(meeting, "second") as second:
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

    with anyio.fail_after(PATIENCE):
        async with join(meeting, agent), join(meeting, "second") as second:
            with pytest.raises(ToolError, match="ValueError: of the middleware"):
                await second.call("tools", "add", {"a": 1, "b": 2})
            with pytest.raises(RequestError, match=r"'ping' .* failed") as caught:
                await second.request("tools", "ping")
            assert caught.value.code == -32603
            async with second.propose("tools", "add", to="tools") as proposal:
                outcome = await proposal.outcome()
                assert isinstance(outcome, Rejection)
                assert outcome.reason == Reason.OTHER
    assert len([each for each in lines(caplog, logging.ERROR) if "failed" in each]) == 3


async def test_error_of_a_handler_passes_the_middleware(meeting: Meeting, notes: Notes) -> None:
    async def retry_note(message: InboundMessage, call_next: CallNext) -> Any:
        try:
            return await call_next(message)
        except ZeroDivisionError:
            notes("seen")
            return 0

    agent = Agent("tools", middleware=[retry_note])

    @agent.tool
    def divide(a: int, b: int) -> float:
        return a / b

    with anyio.fail_after(PATIENCE):
        async with join(meeting, agent), join(meeting, "second") as second:
            assert await second.call("tools", "divide", {"a": 1, "b": 0}) == 0
    assert notes.all == ["seen"]


# --- cancellation ---


async def test_withdrawal_ends_the_onion_with_its_reason(meeting: Meeting, notes: Notes) -> None:
    async def around(message: InboundMessage, call_next: CallNext) -> Any:
        try:
            return await call_next(message)
        finally:
            notes(("middleware", message.reason and message.reason.code))

    agent = Agent("reviewer", middleware=[around])

    @agent.on_proposal
    async def decide(proposal: Proposal, ctx: Context) -> None:
        notes("begun")
        try:
            await anyio.sleep_forever()
        finally:
            notes(("handler", ctx.reason and ctx.reason.code))

    with anyio.fail_after(PATIENCE):
        async with join(meeting, agent) as reviewer, join(meeting, "proposer") as proposer:
            async with proposer.propose("tools", "add", to="reviewer") as proposal:
                await notes.until("begun")
                await proposal.withdraw(Reason.DUPLICATE)
            await until(lambda: is_idle(reviewer))
    assert notes.all == ["begun", ("handler", "duplicate"), ("middleware", "duplicate")]


async def test_middleware_that_waits_is_ended_before_the_handler_begins(
    meeting: Meeting, notes: Notes
) -> None:
    async def wait(message: InboundMessage, call_next: CallNext) -> Any:
        notes("waiting")
        try:
            await anyio.sleep_forever()
        except BaseException:
            notes("swallowed")
        return await call_next(message)

    agent = Agent("tools", middleware=[wait])

    @agent.tool
    async def run() -> str:
        notes("run")
        return "a result"

    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, agent) as tools,
            join(meeting, "second") as second,
            taped(second) as tape,
        ):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(second.call, "tools", "run")
                    await notes.until("waiting")
                    scope.cancel()
            await notes.until("swallowed")
            await until(lambda: is_idle(tools))
            await tape.all_said(tools)
            assert tape.of(kinds.MCP_RESPONSE, sender="tools") == []
    assert notes.all == ["waiting", "swallowed"]


async def test_swallowed_cancellation_answers_nothing(meeting: Meeting, notes: Notes) -> None:
    async def swallow(message: InboundMessage, call_next: CallNext) -> Any:
        try:
            return await call_next(message)
        except BaseException:
            notes("swallowed")
            return 42

    agent = Agent("tools", middleware=[swallow])

    @agent.tool
    async def run() -> int:
        notes("begun")
        await anyio.sleep_forever()
        return 1

    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, agent) as tools,
            join(meeting, "second") as second,
            taped(second) as tape,
        ):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(second.call, "tools", "run")
                    await notes.until("begun")
                    scope.cancel()
            await notes.until("swallowed")
            await until(lambda: is_idle(tools))
            await tape.all_said(tools)
            assert tape.of(kinds.MCP_RESPONSE, sender="tools") == []


# --- what is sent ---


def noting(notes: Notes) -> Any:
    async def note(message: OutboundMessage, call_next: CallNext) -> Any:
        notes((message.verb, message.participant, message.tool or message.method or message.kind))
        outcome = await call_next(message)
        notes((message.verb, type(outcome).__name__))
        return outcome

    return note


async def test_verbs_pass_once(meeting: Meeting, notes: Notes) -> None:
    sender = Agent("second", middleware=[noting(notes)])
    with anyio.fail_after(PATIENCE):
        async with join(meeting, adder()), join(meeting, sender) as second:
            assert await second.call("tools", "add", {"a": 1, "b": 2}) == 3
            assert await second.request("tools", "ping") == {}
            await second.chat("hi")
            await second.send("x.y", {})
            async with second.propose("tools", "add", {"a": 1, "b": 2}, to="reviewer"):
                pass
    assert notes.all == [
        ("call", "tools", "add"),
        ("call", "int"),
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
        await ctx.chat("I decide")
        if proposal.arguments["a"] > 1:
            await proposal.reject(Reason.UNSAFE, explain="too large")
        else:
            assert await ctx.call("tools", "add", {"a": 1, "b": 1}) == 2
            await proposal.fulfill()

    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, adder()),
            join(meeting, agent),
            join(meeting, "proposer") as proposer,
        ):
            assert await proposer.call("tools", "add", {"a": 1, "b": 2}, to="reviewer") == 3
            with pytest.raises(ProposalRejected, match="unsafe"):
                await proposer.call("tools", "add", {"a": 2, "b": 2}, to="reviewer")
            await notes.until(("reject", "NoneType"))
    assert [each for each in notes.all if len(each) == 3] == [
        ("send", None, "chat"),
        ("call", "tools", "add"),
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

    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, adder()),
            join(meeting, reviewer),
            join(meeting, Agent("proposer", middleware=[change])) as proposer,
        ):
            own = {"a": 1, "b": 1}
            assert await proposer.call("tools", "other", own, to="reviewer") == 10
            assert own == {"a": 1, "b": 1}
            async with proposer.propose("tools", "other", own, to="reviewer") as proposal:
                outcome = await proposal.outcome()
                assert isinstance(outcome, Fulfillment)
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

    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, adder()),
            join(meeting, reviewer),
            join(meeting, "proposer") as proposer,
        ):
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

    with anyio.fail_after(PATIENCE):
        async with join(meeting, reviewer), join(meeting, "proposer") as proposer:
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
    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, adder()) as tools,
            join(meeting, sender) as second,
            taped(tools) as tape,
        ):
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

    with anyio.fail_after(PATIENCE):
        async with join(meeting, Agent("second", middleware=[forget])) as second:
            with pytest.raises(UsageError, match="returned without call_next"):
                async with second.propose("tools", "add"):
                    raise AssertionError("nothing was proposed")


async def test_middleware_times_a_proposal_until_its_outcome(
    meeting: Meeting, notes: Notes
) -> None:
    """The layers are told of the outcome while the block goes on."""
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        await proposal.fulfill()

    proposing = Agent("proposer", middleware=[noting(notes)])
    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, adder()),
            join(meeting, reviewer),
            join(meeting, proposing) as proposer,
        ):
            arguments = {"a": 1, "b": 2}
            async with proposer.propose("tools", "add", arguments, to="reviewer") as proposal:
                await notes.until(("propose", "Fulfillment"))
                assert await proposal.result() == 3
                assert proposal.state is ProposalState.FULFILLED


async def test_block_that_raises_withdraws_and_tells_the_layers(
    meeting: Meeting, notes: Notes
) -> None:
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

    with anyio.fail_after(PATIENCE):
        async with join(meeting, Agent("second", middleware=[see])) as second:
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

    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        await proposal.reject("no")

    outcomes: list[Any] = []
    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, reviewer),
            join(meeting, Agent("proposer", middleware=[fail])) as proposer,
        ):
            with pytest.raises(ValueError, match="of the middleware"):
                async with proposer.propose("tools", "add", to="reviewer") as proposal:
                    outcomes.append(await proposal.outcome())
    assert [type(each) for each in outcomes] == [Rejection]
    assert any("a middleware failed" in each for each in lines(caplog, logging.ERROR))


async def test_cancelled_caller_ends_the_layers(meeting: Meeting, notes: Notes) -> None:
    async def around(message: OutboundMessage, call_next: CallNext) -> Any:
        try:
            return await call_next(message)
        finally:
            notes(f"{message.verb} ended")

    tools = Agent("tools")

    @tools.tool
    async def run() -> None:
        notes("begun")
        try:
            await anyio.sleep_forever()
        finally:
            notes("stopped")

    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, tools),
            join(meeting, Agent("second", middleware=[around])) as second,
        ):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(second.call, "tools", "run")
                    await notes.until("begun")
                    scope.cancel()
            await notes.until("call ended", "stopped")
            with anyio.CancelScope() as scope:
                async with second.propose("tools", "run", to="reviewer") as proposal:
                    scope.cancel()
                    await anyio.sleep_forever()
            await notes.until("propose ended")
            await until(lambda: has_state(second, proposal.id, ProposalState.WITHDRAWN))


async def test_what_a_middleware_sends_passes_none(meeting: Meeting, notes: Notes) -> None:
    async def both(message: AnyMessage, call_next: CallNext) -> Any:
        notes(type(message).__name__)
        await message.space.chat("from the middleware")
        return await call_next(message)

    agent = Agent("tools", middleware=[both])

    @agent.tool
    async def run(ctx: Context) -> None:
        await ctx.chat("from the tool")

    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, agent),
            join(meeting, "second") as second,
            taped(second) as tape,
        ):
            await second.call("tools", "run")
            said = [e.payload_object["message"] for e in tape.of("chat", sender="tools")]
            assert said == ["from the middleware", "from the middleware", "from the tool"]
    assert notes.all == ["InboundMessage", "OutboundMessage"]


async def test_middleware_comes_before_the_start(meeting: Meeting) -> None:
    agent = adder()
    async with join(meeting, agent):
        with pytest.raises(UsageError, match=r"middleware .*late comes too late: the agent has"):

            @agent.middleware
            async def late(message: InboundMessage, call_next: CallNext) -> Any: ...
