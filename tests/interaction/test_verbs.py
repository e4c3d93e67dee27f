"""What a participant can do in a space, and what the others get to see of it."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from meup_agent import (
    Agent,
    Change,
    Chat,
    Context,
    Expiry,
    Fulfillment,
    Progress,
    Proposal,
    ProposalState,
    Reason,
    Rejection,
    Withdrawal,
)
from meup_agent.agent import context
from meup_agent.errors import (
    ProposalEdited,
    ProposalExpired,
    ProposalRejected,
    Refused,
    RequestError,
    ToolError,
    UsageError,
)
from meup_agent.protocol import kinds, payloads
from tests.interaction.people import (
    PATIENCE,
    Meeting,
    Notes,
    call_of,
    gathered,
    is_idle,
    join,
    raw,
    state_of,
    taped,
    until,
)

pytestmark = pytest.mark.anyio


def calculator() -> Agent:
    tools = Agent("tools")

    @tools.tool
    def add(a: int, b: int) -> int:
        return a + b

    @tools.tool
    def divide(a: int, b: int) -> float:
        return a / b

    @tools.tool
    async def read(path: str) -> dict[str, str]:
        return {"path": path, "text": "…"}

    return tools


def willing() -> Agent:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def approve(proposal: Proposal) -> None:
        await proposal.fulfill()

    return reviewer


# --- call, request, tools ---


async def test_call_is_a_request_where_that_is_allowed(meeting: Meeting) -> None:
    async with (
        gathered(meeting, calculator(), "second") as (_, caller),
        taped(caller) as tape,
    ):
        assert await caller.call("tools", "add", {"a": 1, "b": 2}) == 3
        assert await caller.call("tools", "read", {"path": "a"}) == {"path": "a", "text": "…"}
        assert len(tape.of(kinds.MCP_REQUEST)) == 2
        assert tape.of(kinds.MCP_PROPOSAL) == []


async def test_call_is_a_proposal_otherwise(meeting: Meeting) -> None:
    async with (
        gathered(meeting, calculator(), willing(), "proposer") as (_, _, caller),
        taped(caller) as tape,
    ):
        assert await caller.call("tools", "add", {"a": 1, "b": 2}, to="reviewer") == 3
        (proposal,) = tape.of(kinds.MCP_PROPOSAL)
        assert (proposal.sender, proposal.to) == ("proposer", ("reviewer",))
        (request,) = tape.of(kinds.MCP_REQUEST)
        assert (request.sender, request.to) == ("reviewer", ("tools",))
        assert request.correlation == (proposal.id,)
        (response,) = tape.of(kinds.MCP_RESPONSE)
        assert (response.sender, response.correlation) == ("tools", (request.id,))


async def test_errors_of_a_call_say_whose_they_are(meeting: Meeting) -> None:
    async with gathered(meeting, calculator(), willing(), "second", "proposer") as (
        _,
        _,
        requester,
        proposer,
    ):
        for caller in (requester, proposer):
            with pytest.raises(ToolError, match="ZeroDivisionError") as failed:
                await caller.call("tools", "divide", {"a": 1, "b": 0})
            assert failed.value.result["isError"] is True
            with pytest.raises(RequestError, match="'b'") as wrong:
                await caller.call("tools", "add", {"a": 1, "b": "x"})
            assert (wrong.value.code, wrong.value.by) == (payloads.INVALID_PARAMS, "tools")


async def test_request_and_tools(meeting: Meeting) -> None:
    async with gathered(meeting, calculator(), "second") as (_, caller):
        assert await caller.request("tools", "ping") == {}
        listed = await caller.tools("tools")
        assert [tool["name"] for tool in listed] == ["add", "divide", "read"]
        with pytest.raises(RequestError) as unknown:
            await caller.request("tools", "resources/list")
        assert unknown.value.code == payloads.METHOD_NOT_FOUND


async def test_tools_reads_every_page(meeting: Meeting) -> None:
    pages: dict[str | None, dict[str, Any]] = {
        None: {"tools": [{"name": "a"}], "nextCursor": "2"},
        "2": {"tools": [{"name": "b"}, "nonsense"], "nextCursor": "3"},
        "3": {"tools": [{"name": "c"}]},
    }
    found: list[Any] = []
    with anyio.fail_after(PATIENCE):
        async with (
            raw(meeting) as mallory,
            join(meeting, "second") as caller,
            anyio.create_task_group() as tasks,
        ):

            async def ask() -> None:
                found.extend(await caller.tools("mallory"))
                tasks.cancel_scope.cancel()

            tasks.start_soon(ask)
            while True:
                request = await mallory.hear(lambda e: e.kind == kinds.MCP_REQUEST)
                page = pages[call_of(request).params.get("cursor")]
                await mallory.say(
                    kinds.MCP_RESPONSE,
                    payloads.result(request.id, page),
                    id=f"answer to {request.id}",
                    to=("second",),
                    correlation=(request.id,),
                )
    assert [tool.get("name") for tool in found] == ["a", "b", None, "c"]


@pytest.mark.rule("5.own.waiting.refused")
async def test_what_the_gateway_refuses_raises_with_its_words(meeting: Meeting) -> None:
    async with gathered(meeting, calculator(), "observer", "proposer") as (_, observer, proposer):
        with pytest.raises(Refused) as refused:
            await proposer.request("tools", "ping")
        assert refused.value.error == "capability_violation"
        with pytest.raises(Refused):
            await observer.call("tools", "add", {"a": 1, "b": 2})
        async with observer.propose("tools", "add") as proposal:
            with pytest.raises(Refused):
                await proposal.outcome()
        await until(lambda: is_idle(observer))


# --- proposals ---


@pytest.mark.rule("6.digest", "6.target")
async def test_a_proposal_carries_what_the_protocol_adds(meeting: Meeting) -> None:
    arguments = {"b": 2, "a": 1}
    async with (
        gathered(meeting, calculator(), willing(), "proposer") as (_, _, proposers),
        taped(proposers) as tape,
    ):
        before = datetime.now(UTC)
        async with proposers.propose("tools", "add", arguments, ttl=60) as proposal:
            outcome = await proposal.outcome()
        (sent,) = tape.of(kinds.MCP_PROPOSAL)
        meta = call_of(sent).meta
        assert meta["dev.meup/target"] == "tools"
        expected = payloads.digest(
            "tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, "tools"
        )
        assert meta["dev.meup/digest"] == expected
        expires = datetime.fromisoformat(meta["dev.meup/expires_at"])
        assert timedelta(seconds=58) < expires - before < timedelta(seconds=62)
        (request,) = tape.of(kinds.MCP_REQUEST)
        assert call_of(request).meta["dev.meup/digest"] == expected
        assert "dev.meup/edited" not in call_of(request).meta
        assert call_of(request).meta["dev.meup/proposer"] == "proposer"
        assert "dev.meup/proposer" not in meta
        assert isinstance(outcome, Fulfillment)
        assert (outcome.by, outcome.executor) == ("reviewer", "tools")
        assert not outcome.edited
        assert outcome.value == 3
        for envelope in (sent, request):
            wire = json.loads(envelope.frame)
            assert wire["protocol"] == "meup/v0.1"
            assert wire["kind"] in ("mcp.proposal", "mcp.request")


@pytest.mark.rule("6.digest", "4.4.follow")
async def test_the_proposer_learns_what_was_edited(meeting: Meeting) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def edit(proposal: Proposal) -> None:
        fulfilled = await proposal.fulfill({**proposal.arguments, "a": 10})
        assert fulfilled.edited

    async with (
        gathered(meeting, calculator(), reviewer, "proposer") as (_, _, proposers),
        taped(proposers) as tape,
        proposers.propose("tools", "add", {"a": 1, "b": 2}) as proposal,
    ):
        outcome = await proposal.outcome()
        assert isinstance(outcome, Fulfillment)
        assert outcome.changes == (Change("arguments.a", 1, 10),)
        assert outcome.value == 12
        (request,) = tape.of(kinds.MCP_REQUEST)
        meta = call_of(request).meta
        assert meta["dev.meup/edited"] is True
        assert (
            meta["dev.meup/digest"]
            != call_of(tape.of(kinds.MCP_PROPOSAL)[0]).meta["dev.meup/digest"]
        )


@pytest.mark.rule("4.4.follow")
async def test_a_call_that_was_edited_is_no_plain_result(meeting: Meeting) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def edit(proposal: Proposal) -> None:
        # Editing in place is how it is done first.
        arguments = proposal.arguments
        arguments["a"] = 10
        fulfilled = await proposal.fulfill(arguments)
        assert fulfilled.edited

    async with gathered(meeting, calculator(), reviewer, "proposer") as (_, _, proposers):
        with pytest.raises(ProposalEdited, match=r"arguments\.a: 10 instead of 1") as caught:
            await proposers.call("tools", "add", {"a": 1, "b": 2})
        assert caught.value.value == 12
        assert caught.value.by == "reviewer"
        assert caught.value.changes == (Change("arguments.a", 1, 10),)
        call = {"a": 1, "b": 2}
        assert await proposers.call("tools", "add", call, accept_edits=True) == 12


async def test_a_fulfillment_passes_on_what_others_put_into_meta(meeting: Meeting) -> None:
    async with (
        gathered(meeting, calculator(), willing(), "proposer") as (_, _, proposers),
        taped(proposers) as tape,
    ):
        params = {
            "name": "add",
            "arguments": {"a": 1, "b": 2},
            "_meta": {"traceparent": "00-1-2-01", "dev.meup/target": "tools"},
        }
        await proposers.send("mcp/proposal", {"method": "tools/call", "params": params})
        request = await tape.until(lambda envelope: envelope.kind == kinds.MCP_REQUEST)
        assert call_of(request).meta["traceparent"] == "00-1-2-01"


async def test_somebody_else_may_be_named_to_execute(meeting: Meeting) -> None:
    reviewer, deep = Agent("reviewer"), calculator()
    errors: list[str] = []

    @reviewer.on_proposal
    async def delegate(proposal: Proposal) -> None:
        try:
            await proposal.fulfill()
        except UsageError as error:
            errors.append(str(error))
            await proposal.fulfill(executor="deep")
        else:
            pytest.fail("nobody was named")

    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, deep, "deep"),
            join(meeting, reviewer),
            join(meeting, "proposer") as proposers,
            proposers.propose(None, "add", {"a": 1, "b": 2}) as proposal,
        ):
            outcome = await proposal.outcome()
            assert isinstance(outcome, Fulfillment)
            assert (outcome.executor, outcome.changes) == ("deep", ())
    assert "executor" in errors[0]


@pytest.mark.rule("4.5.addressed", "4.5.withdraw_follows", "5.own.waiting.rejection")
async def test_a_rejection_and_its_explanation(meeting: Meeting, notes: Notes) -> None:
    reviewer, proposer = Agent("reviewer"), Agent("proposer")

    @reviewer.on_proposal
    async def refuse(proposal: Proposal) -> None:
        await proposal.reject(Reason.UNSAFE, explain="it leaves the workspace")

    @proposer.on_reject
    async def rejected(rejection: Rejection) -> None:
        notes((rejection.reason, rejection.by, rejection.counts))

    @proposer.on_chat
    async def explained(chat: Chat) -> None:
        notes((chat.text, chat.about))

    async with gathered(meeting, reviewer, proposer) as (_, proposers):
        async with proposers.propose("tools", "write", to="reviewer") as proposal:
            outcome = await proposal.outcome()
            assert isinstance(outcome, Rejection)
            assert (outcome.reason, outcome.by) == ("unsafe", "reviewer")
            assert proposal.state is ProposalState.REJECTED
        await notes.until(
            ("unsafe", "reviewer", True),
            ("it leaves the workspace", outcome.id),
        )
        with pytest.raises(ProposalRejected, match="unsafe"):
            await proposers.call("tools", "write", to="reviewer")


@pytest.mark.rule("4.5.broadcast")
async def test_of_a_broadcast_proposal_everybody_who_could_must_reject(meeting: Meeting) -> None:
    reviewer, second = Agent("reviewer"), Agent("second")

    async def refuse(proposal: Proposal) -> None:
        await proposal.reject(Reason.POLICY)

    reviewer.on_proposal(refuse)
    second.on_proposal(refuse)
    async with gathered(meeting, reviewer, "observer", "proposer") as (_, _, proposers):
        async with proposers.propose("tools", "write") as proposal:
            assert isinstance(await proposal.outcome(), Rejection)
        async with join(meeting, "tools") as slow, join(meeting, second):
            async with proposers.propose("tools", "write", ttl=None) as proposal:
                await until(lambda: any(r.rejections for r in slow.proposals))
                assert proposal.state is ProposalState.PENDING
                await slow.proposal(slow.proposals[-1]).reject(Reason.BUSY)
                outcome = await proposal.outcome()
            assert isinstance(outcome, Rejection)
            assert outcome.by == "tools"


@pytest.mark.rule("4.5.choice")
@pytest.mark.parametrize(
    ("wait", "ttl", "ends"), [("first", 60.0, Rejection), ("deadline", 0.2, Expiry)]
)
async def test_the_caller_chooses_which_rejection_counts(
    meeting: Meeting, wait: str, ttl: float, ends: type[Any]
) -> None:
    second = Agent("second")

    @second.on_proposal
    async def refuse(proposal: Proposal) -> None:
        await proposal.reject(Reason.POLICY)

    async with (
        gathered(meeting, second, "reviewer", "proposer") as (_, _, proposers),
        proposers.propose("tools", "write", wait=wait, ttl=ttl) as proposal,
    ):
        assert isinstance(await proposal.outcome(), ends)


@pytest.mark.rule("5.own.waiting.deadline")
async def test_a_proposal_that_nobody_decides_expires_and_is_withdrawn(meeting: Meeting) -> None:
    async with (
        gathered(meeting, "reviewer", "proposer") as (reviewers, proposers),
        taped(reviewers) as tape,
    ):
        async with proposers.propose("tools", "write", ttl=0.5) as proposal:
            assert isinstance(await proposal.outcome(), Expiry)
            assert proposal.state is ProposalState.EXPIRED
        withdraw = await tape.until(lambda e: e.kind == kinds.MCP_WITHDRAW)
        assert withdraw.payload == {"reason": "timeout"}
        assert state_of(reviewers, proposal.id) is ProposalState.WITHDRAWN
        with pytest.raises(ProposalExpired):
            await proposers.call("tools", "write", timeout=0.05)


@pytest.mark.rule("4.2.fulfilled_by_response")
async def test_a_tool_that_fails_fulfills_with_an_error(meeting: Meeting) -> None:
    seen: list[Fulfillment] = []
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def approve(proposal: Proposal) -> None:
        seen.append(await proposal.fulfill())

    async with (
        gathered(meeting, calculator(), reviewer, "proposer") as (_, _, proposers),
        proposers.propose("tools", "divide", {"a": 1, "b": 0}) as proposal,
    ):
        outcome = await proposal.outcome()
        assert isinstance(outcome, Fulfillment)
        assert outcome.is_error
        assert outcome.error is None
        await until(lambda: bool(seen))
        assert seen[0].is_error
        assert seen[0].result == outcome.result


@pytest.mark.rule("4.4.incapable")
async def test_a_proposal_that_no_handler_is_for_is_rejected_if_it_was_addressed(
    meeting: Meeting, notes: Notes
) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal(name="read_*")
    async def approve(proposal: Proposal) -> None:
        notes("reviewed")

    async with gathered(meeting, reviewer, "proposer") as (reviewers, proposers):
        async with proposers.propose("tools", "write_file", to="reviewer") as proposal:
            outcome = await proposal.outcome()
            assert isinstance(outcome, Rejection)
            assert outcome.reason == "incapable"
        async with proposers.propose("tools", "write_file") as proposal:
            await until(lambda: state_of(reviewers, proposal.id) is not None)
        assert state_of(reviewers, proposal.id) in (
            ProposalState.PENDING,
            ProposalState.WITHDRAWN,
        )
        assert isinstance(await proposal.outcome(), Withdrawal)
    assert notes.all == []


async def test_proposals_can_be_decided_outside_of_handlers(meeting: Meeting) -> None:
    async with (
        gathered(meeting, calculator(), "reviewer", "proposer") as (_, person, proposers),
        proposers.propose("tools", "add", {"a": 1, "b": 2}) as proposal,
    ):
        await until(lambda: state_of(person, proposal.id) is ProposalState.PENDING)
        record = person.proposals[-1]
        theirs = person.proposal(record)
        assert (theirs.proposer, theirs.tool, theirs.target) == ("proposer", "add", "tools")
        fulfilled = await theirs.fulfill()
        assert fulfilled.value == 3
        outcome = await proposal.outcome()
        assert outcome == fulfilled


# --- progress ---


@pytest.mark.rule("4.9.token", "4.9.increases", "4.9.none_after_completion")
async def test_progress_grows_and_ends_with_the_result(
    meeting: Meeting, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "PROGRESS_SECONDS", 3600.0)
    tools = Agent("tools")

    @tools.tool
    async def work(ctx: Context) -> str:
        for done in (1, 2, 2, 1):
            await ctx.progress(done, 4, f"{done} of 4")
        ctx.progress(4, 4)
        ctx.progress(5, 4)
        notes(ctx)
        return "done"

    seen: list[Progress] = []
    async with (
        gathered(meeting, tools, willing(), "second", "proposer") as (
            tools_space,
            _,
            requester,
            proposer,
        ),
        taped(requester) as tape,
    ):
        for caller in (requester, proposer):
            seen.clear()
            assert await caller.call("tools", "work", on_progress=seen.append) == "done"
            notes.all[-1].progress(6, 6)
            # What follows too soon is left out, but for what completes it.
            assert [told.done for told in seen] == [1, 4, 5]
            assert seen[0] == Progress(1, 4, "1 of 4")
        await tape.all_said(tools_space)
        assert len(tape.calls(kinds.PROGRESS)) == 6
        kinds_of_tools = [
            "progress" if call_of(e).method == kinds.PROGRESS else e.kind
            for e in tape.envelopes
            if e.sender == "tools" and e.kind.startswith("mcp")
        ]
        assert kinds_of_tools == ["progress"] * 3 + [kinds.MCP_RESPONSE] + (
            ["progress"] * 3 + [kinds.MCP_RESPONSE]
        )


async def test_progress_may_come_from_a_thread_and_is_told_only_who_asked(
    meeting: Meeting,
) -> None:
    tools = Agent("tools")

    @tools.tool
    def work(ctx: Context) -> str:
        ctx.progress(1, 1)
        return "done"

    seen: list[Progress] = []
    async with (
        gathered(meeting, tools, "second") as (_, caller),
        taped(caller) as tape,
    ):
        assert await caller.call("tools", "work") == "done"
        assert tape.calls(kinds.PROGRESS) == []
        assert await caller.call("tools", "work", on_progress=seen.append) == "done"
        assert seen == [Progress(1, 1)]


# --- talk ---


@pytest.mark.rule("4.11.echo")
async def test_chat_reaches_those_it_is_for(meeting: Meeting, notes: Notes) -> None:
    def listener(name: str) -> Agent:
        agent = Agent(name)

        @agent.on_chat
        async def said(chat: Chat, ctx: Context) -> None:
            notes((name, chat.sender, chat.text, chat.about))
            if chat.text == "hello?":
                await ctx.chat("yes", to=chat.sender, about=chat.id)

        return agent

    async with gathered(
        meeting, listener("reviewer"), listener("second"), listener("observer")
    ) as (_, _, observer):
        asked = await observer.chat("hello?", to="reviewer")
        await notes.until(("observer", "reviewer", "yes", asked))
        await observer.chat("all")
        await notes.until(
            ("reviewer", "observer", "all", None), ("second", "observer", "all", None)
        )
    assert ("second", "observer", "hello?", None) not in notes.all
    assert ("observer", "observer", "all", None) not in notes.all, "an echo is no message"


async def test_participants_come_and_go(meeting: Meeting) -> None:
    async with gathered(meeting, "observer") as (observer,):
        assert [p.id for p in observer.participants] == ["observer"]
        async with join(meeting, "tools") as tools:
            await until(lambda: len(observer.participants) == 2)
            assert {p.id for p in tools.participants} == {"observer", "tools"}
            found = {p.id: p.capabilities for p in observer.participants}
            assert found["tools"] == ({"kind": "*"},)
            assert observer.me == "observer"
            assert observer.connected
        await until(lambda: len(observer.participants) == 1)


async def test_any_kind_can_be_sent_and_watched(meeting: Meeting) -> None:
    async with gathered(meeting, "second", "observer") as (speaker, observer):
        with observer.watch() as watcher:
            id = await speaker.send("reasoning.start", {"about": 1}, correlation="x")
            async for envelope in watcher:
                if envelope.id == id:
                    break
        assert envelope.kind == "reasoning/start"
        assert envelope.correlation == ("x",)
        assert json.loads(envelope.frame)["kind"] == "reasoning.start"
