"""Calls, requests and tool lists: what the caller gets, and the progress on the way."""

import pytest

from meup_agent import Agent, Context, Fulfillment, Progress, Rejection, Responded
from meup_agent.agent import context
from meup_agent.errors import ProposalRejected, Refused, RequestError, ToolError, UsageError
from tests.interaction.cast import calculator, unwilling, willing
from tests.interaction.people import Meeting, Notes, gathered, until
from tests.interaction.views import call_of, is_idle, taped
from tests.wire import kinds, payloads


async def test_call_is_a_request_where_that_is_allowed(meeting: Meeting) -> None:
    async with gathered(meeting, calculator(), "second") as (_, caller), taped(caller) as tape:
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


@pytest.mark.parametrize("proposes", [False, True])
async def test_invoked_call_has_an_outcome(meeting: Meeting, notes: Notes, proposes: bool) -> None:
    async with gathered(meeting, calculator(), willing(), "second") as (_, _, caller):
        outcome = await caller.invoke(
            "tools",
            "divide",
            {"a": 1, "b": 0},
            as_proposal=proposes,
            on_begun=notes,
            on_proposed=lambda proposal: notes(proposal.id),
        )
    assert isinstance(outcome, Fulfillment if proposes else Responded)
    assert (outcome.is_error, outcome.by) == (True, "reviewer" if proposes else "tools")
    assert (len(set(notes.all)), len(notes.all)) == (1, 2 if proposes else 1)
    with pytest.raises(ToolError, match="ZeroDivisionError"):
        outcome.result()


async def test_invoked_call_without_a_result_raises_it_where_asked(meeting: Meeting) -> None:

    async with gathered(meeting, unwilling("no"), "proposer") as (_, caller):
        outcome = await caller.invoke("tools", "add", to="reviewer")
    assert isinstance(outcome, Rejection)
    with pytest.raises(ProposalRejected, match="no"):
        outcome.result()


@pytest.mark.parametrize("verb", ["call", "propose"])
async def test_a_forgotten_participant_is_said(meeting: Meeting, verb: str) -> None:
    async with gathered(meeting, "second") as (caller,):
        with pytest.raises(UsageError, match=r"\{'a': 1\} is not the name of a tool; name the"):
            await getattr(caller, verb)("add", {"a": 1})


async def test_errors_of_a_call_say_whose_they_are(meeting: Meeting) -> None:
    async with gathered(meeting, calculator(), willing(), "second", "proposer") as spaces:
        for caller in spaces[2:]:
            with pytest.raises(ToolError, match="ZeroDivisionError") as failed:
                await caller.call("tools", "divide", {"a": 1, "b": 0})
            assert failed.value.result["isError"] is True
            with pytest.raises(RequestError, match="'b'") as wrong:
                await caller.call("tools", "add", {"a": 1, "b": "x"})
            assert (wrong.value.code, wrong.value.by) == (payloads.INVALID_PARAMS, "tools")


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


async def test_progress_may_come_from_a_thread_and_is_told_only_who_asked(meeting: Meeting) -> None:
    tools = Agent("tools")

    @tools.tool
    def work(ctx: Context) -> str:
        ctx.progress(1, 1)
        return "done"

    seen: list[Progress] = []
    async with gathered(meeting, tools, "second") as (_, caller), taped(caller) as tape:
        assert await caller.call("tools", "work") == "done"
        assert tape.calls(kinds.PROGRESS) == []
        assert await caller.call("tools", "work", on_progress=seen.append) == "done"
        assert seen == [Progress(1, 1)]
