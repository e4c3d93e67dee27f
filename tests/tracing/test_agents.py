"""Spans of an agent: of what it calls, proposes, decides and handles."""

from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import StatusCode

from meup_agent import Agent, CallScope, Context, Request, Settings
from meup_agent.approval import AllowRule, DenyRule, Policy
from meup_agent.errors import (
    ConfigurationError,
    ProposalRejected,
    RequestError,
    ToolError,
    UsageError,
)
from meup_agent.tracing import tracing
from tests.interaction.cast import adder, calculator, unwilling, willing
from tests.interaction.people import Meeting, Notes, gathered, join
from tests.tracing.spans import ABOUT_ADD, ADD, Traces, id_of, linked, trace_of


def waiting(notes: Notes) -> Agent:
    """Tools of which one waits until it is cancelled, and another one calls that."""
    tools = Agent("tools")

    @tools.tool
    async def wait() -> None:
        notes("begun")
        await anyio.sleep_forever()

    return tools


def between() -> Agent:
    """A tool that calls another participant's."""
    deep = Agent("deep")

    @deep.tool
    async def ask(tool: str, ctx: Context) -> Any:
        return await ctx.space.call("tools", tool, {} if tool == "wait" else {"a": 1, "b": 2})

    return deep


async def test_a_call_is_one_span_at_each_end(meeting: Meeting, traces: Traces) -> None:
    second, tools = traces.traced(Agent("second")), traces.traced(adder())
    async with gathered(meeting, tools, second) as (_, caller):
        assert await caller.call(*ADD) == 3
    assert traces.tree() == ["second: client tools/call add", "  tools: server tools/call add"]
    client, server = traces.spans
    assert client.attributes == {**ABOUT_ADD, "meup.outcome": "responded"}
    assert server.attributes == ABOUT_ADD
    assert {each.status.status_code for each in traces.spans} == {StatusCode.UNSET}


async def test_calls_of_a_handler_belong_to_its_span(meeting: Meeting, traces: Traces) -> None:
    second, tools = traces.traced(Agent("second")), traces.traced(adder())
    async with gathered(meeting, tools, traces.traced(between()), second) as (_, _, caller):
        await caller.call("deep", "ask", {"tool": "add"})
        assert await caller.request("tools", "ping") == {}
    assert traces.tree() == [
        "second: client tools/call ask",
        "  deep: server tools/call ask",
        "    deep: client tools/call add",
        "      tools: server tools/call add",
        "second: client ping",
        "  tools: server ping",
    ]


async def test_a_proposal_is_a_span_until_its_outcome(meeting: Meeting, traces: Traces) -> None:
    """Who decides begins a trace of its own, linked to the proposer's."""
    agents = (traces.traced(adder()), traces.traced(willing()), traces.traced(Agent("proposer")))
    async with gathered(meeting, *agents) as (*_, proposer):
        assert await proposer.call(*ADD) == 3
    assert traces.tree() == [
        "proposer: client meup.proposal",
        "reviewer: internal meup.decision",
        "  reviewer: client tools/call add",
        "    tools: server tools/call add",
    ]
    proposal, decision = traces.named("meup.proposal"), traces.named("meup.decision")
    assert trace_of(decision) != trace_of(proposal)
    assert linked(decision) == [id_of(proposal)]
    assert proposal.attributes is not None
    given = dict(proposal.attributes)
    proposal_id = given.pop("meup.proposal.id")
    assert given == {
        **ABOUT_ADD,
        "meup.outcome": "fulfilled",
        "meup.decision.by": "reviewer",
        "meup.decision.edited": False,
        "meup.executor": "tools",
    }
    assert decision.attributes == {
        **ABOUT_ADD,
        "meup.proposal.id": proposal_id,
        "meup.decision.verdict": "fulfill",
        "meup.decision.by": "reviewer",
    }


async def test_an_open_block_of_a_proposal_does_not_lengthen_its_span(
    meeting: Meeting, traces: Traces
) -> None:
    agents = (adder(), willing(), traces.traced(Agent("proposer")))
    async with gathered(meeting, *agents) as (*_, space), space.propose(*ADD) as proposal:
        await proposal.outcome()
        assert [each.name for each in traces.spans] == ["meup.proposal"]


async def test_a_trusted_proposer_has_one_trace(meeting: Meeting, traces: Traces) -> None:
    tools, decider = traces.traced(adder()), traces.traced(willing(), trust_proposers=True)
    async with gathered(meeting, tools, decider, traces.traced(Agent("proposer"))) as (*_, space):
        await space.call(*ADD)
    assert traces.tree() == [
        "proposer: client meup.proposal",
        "  reviewer: internal meup.decision",
        "    reviewer: client tools/call add",
        "      tools: server tools/call add",
    ]


@pytest.mark.parametrize("trusted", [False, True], ids=["linked", "trusted"])
async def test_what_a_decider_without_traces_repeats_is_the_proposers(
    meeting: Meeting, traces: Traces, trusted: bool
) -> None:
    tools = traces.traced(adder(), trust_proposers=trusted)
    async with gathered(meeting, tools, willing(), traces.traced(Agent("proposer"))) as (*_, space):
        await space.call(*ADD)
    proposal, server = traces.named("meup.proposal"), traces.named("tools/call add")
    assert (trace_of(server) == trace_of(proposal)) is trusted
    assert linked(server) == ([] if trusted else [id_of(proposal)])


async def test_a_proposer_does_not_decide_what_is_sampled(meeting: Meeting, traces: Traces) -> None:
    silent = ParentBased(ALWAYS_OFF)
    proposer = traces.traced(Agent("proposer"), silent)
    async with gathered(meeting, traces.traced(adder()), willing(), proposer) as (*_, space):
        await space.call(*ADD)
    assert traces.tree() == ["tools: server tools/call add"]


async def test_a_caller_decides_what_is_sampled(meeting: Meeting, traces: Traces) -> None:
    caller = traces.traced(Agent("second"), ParentBased(ALWAYS_OFF))
    async with gathered(meeting, traces.traced(adder()), caller) as (_, space):
        await space.call(*ADD)
    assert traces.tree() == []


async def test_a_rejection_tells_its_reason(meeting: Meeting, traces: Traces) -> None:
    agents = traces.traced(unwilling()), traces.traced(Agent("proposer"))
    async with gathered(meeting, adder(), *agents) as (*_, space):
        with pytest.raises(ProposalRejected):
            await space.call(*ADD, to="reviewer")
    proposal, decision = traces.named("meup.proposal"), traces.named("meup.decision")
    assert proposal.attributes is not None
    assert decision.attributes is not None
    assert proposal.attributes["error.type"] == "rejected"
    assert proposal.attributes["meup.decision.by"] == "reviewer"
    assert proposal.attributes["meup.decision.reason"] == "unsafe"
    assert proposal.status.status_code is StatusCode.ERROR
    assert decision.attributes["meup.decision.verdict"] == "reject"
    assert linked(decision) == [id_of(proposal)]


@pytest.mark.parametrize(
    ("rule", "verdict"), [(AllowRule("add"), "fulfill"), (DenyRule("add"), "reject")]
)
async def test_a_rule_that_decided_is_named(
    meeting: Meeting, traces: Traces, rule: Any, verdict: str
) -> None:
    decider = traces.traced(Agent("reviewer"))
    decider.use(Policy([rule]))
    async with gathered(meeting, adder(), decider, "proposer") as (*_, space):
        async with space.propose(*ADD, to="reviewer") as proposal:
            await proposal.outcome()
    decision = traces.named("meup.decision")
    assert decision.attributes is not None
    assert decision.attributes["meup.decision.verdict"] == verdict
    assert decision.attributes["meup.decision.rule"] == "rules[0]"


async def test_failures_have_a_type(meeting: Meeting, traces: Traces) -> None:
    tools = calculator()

    @tools.on_request("x/fail")
    async def refuse(request: Request) -> dict[str, Any]:
        raise RequestError(-32001, "no")

    @tools.on_request("x/whole")
    async def whole(request: Request) -> dict[str, Any]:
        return {"content": [], "isError": True}

    async with gathered(meeting, traces.traced(tools), traces.traced(Agent("second"))) as (_, me):
        with pytest.raises(ToolError):
            await me.call("tools", "divide", {"a": 1, "b": 0})
        with pytest.raises(RequestError):
            await me.request("tools", "x/fail")
        await me.request("tools", "x/whole")
        with pytest.raises(RequestError):
            await me.request("tools", "tools/call", {"name": "no" * 5000, "arguments": {}})
    found = [
        (each.kind.name, each.name[:20], (each.attributes or {}).get("error.type"))
        for each in traces.spans
    ]
    assert found == [
        ("CLIENT", "tools/call divide", "tool_error"),
        ("SERVER", "tools/call divide", "tool_error"),
        ("CLIENT", "x/fail", "-32001"),
        ("SERVER", "x/fail", "-32001"),
        ("CLIENT", "x/whole", "tool_error"),
        ("SERVER", "x/whole", "tool_error"),
        ("CLIENT", "tools/call nonononon", "-32602"),
        # A name that a stranger made up is not a name of a span.
        ("SERVER", "tools/call", "-32602"),
    ]
    assert all(
        len(str(value)) <= 140
        for each in traces.spans
        for value in (each.name, *(each.attributes or {}).values())
    )


async def test_a_cancelled_call_tells_by_whom_why_and_how_far_it_came(
    meeting: Meeting, traces: Traces, notes: Notes
) -> None:
    agents = (
        traces.traced(waiting(notes)),
        traces.traced(between()),
        traces.traced(Agent("second")),
    )
    async with gathered(meeting, *agents) as (*_, space), anyio.create_task_group() as tasks:
        with CallScope() as scope:

            async def cancel() -> None:
                await notes.until("begun")
                scope.cancel("unsafe", text="stop")

            tasks.start_soon(cancel)
            await space.call("deep", "ask", {"tool": "wait"})
    assert traces.tree() == [
        "second: client tools/call ask",
        "  deep: server tools/call ask",
        "    deep: client tools/call wait",
        "      tools: server tools/call wait",
    ]
    told = [
        tuple(
            (each.attributes or {}).get(f"meup.{key}")
            for key in ("outcome", "cancel.by", "cancel.reason", "cancel.chain_length")
        )
        for each in traces.spans
    ]
    assert told == [
        ("cancelled", "second", "unsafe", 0),
        ("cancelled", "second", "unsafe", 1),
        ("cancelled", "second", "unsafe", 1),
        ("cancelled", "deep", "unsafe", 2),
    ]


async def test_what_was_not_sent_ends_as_well(meeting: Meeting, traces: Traces) -> None:
    async with gathered(meeting, traces.traced(Agent("second"))) as (space,):
        with pytest.raises(UsageError):
            await space.request("tools", "x/large", {"text": "x" * 5_000_000})
    (span,) = traces.spans
    assert (span.attributes or {})["error.type"] == "UsageError"


async def test_a_tracer_comes_before_the_start(meeting: Meeting, traces: Traces) -> None:
    agent = Agent("second")
    async with join(meeting, agent):
        with pytest.raises(UsageError, match="too late"):
            traces.traced(agent)


@pytest.mark.parametrize("said", ["1", "trust", "on"])
async def test_the_environment_asks_for_traces(
    meeting: Meeting, traces: Traces, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr(
        "meup_agent.tracing.get_tracer",
        lambda name, tracer_provider: traces.provider("it").get_tracer(name),
    )
    monkeypatch.setattr("meup_agent.tracing.get_tracer_provider", object)
    monkeypatch.setenv("MEUP_TRACING", said)
    async with gathered(meeting, join(meeting, adder(), settings=Settings()), "second") as (_, me):
        await me.call(*ADD)
    assert traces.tree() == ["it: server tools/call add"]


def test_a_wrong_word_in_the_environment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEUP_TRACING", "maybe")
    with pytest.raises(ConfigurationError, match="MEUP_TRACING is 'maybe'"):
        Settings()


async def test_without_an_sdk_nothing_is_added(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")

    @tools.on_request("x/meta")
    async def tell(request: Request) -> dict[str, Any]:
        return {"meta": request.params.get("_meta")}

    second = Agent("second")
    tools.use(tracing())
    second.use(tracing())
    async with gathered(meeting, tools, second) as (_, space):
        assert await space.request("tools", "x/meta", {}) == {"meta": None}


async def test_a_withdrawn_proposal_tells_why(meeting: Meeting, traces: Traces) -> None:
    proposer = traces.traced(Agent("proposer"))
    async with gathered(meeting, adder(), proposer) as (_, space):
        async with space.propose(*ADD) as proposal:
            await proposal.withdraw("duplicate")
    (span,) = traces.spans
    given = dict(span.attributes or {})
    assert given["meup.outcome"] == "withdrawn"
    assert (given["meup.cancel.by"], given["meup.cancel.reason"]) == ("proposer", "duplicate")
    assert "error.type" not in given
