"""What a gateway traces: each proposal with its decision; and its metrics."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from anyio import to_thread
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from meup_agent import Agent
from meup_agent.approval import AllowRule, Policy
from meup_agent.gateway import Gateway
from meup_agent.gateway.config import Tracing
from meup_agent.gateway.config_file import load_config
from meup_agent.testing import MemorySpace
from tests.gateways import one_space_config
from tests.interaction.cast import adder, onlooking, unwilling, willing
from tests.interaction.people import (
    LIMITS,
    PARTICIPANTS,
    InMemory,
    Meeting,
    Notes,
    OverSockets,
    gathered,
)
from tests.tracing.spans import ABOUT_ADD, ADD, Traces, id_of, linked, service_of, trace_of, tree

CONFIG = replace(one_space_config("demo", PARTICIPANTS), limits=LIMITS, tracing=True, port=0)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    traces = Traces()
    provider = traces.provider("gateway")
    monkeypatch.setattr("meup_agent.gateway.tracing.get_tracer", provider.get_tracer)
    return traces


def of_gateway(traces: Traces) -> list[str]:
    return tree([each for each in traces.spans if service_of(each) == "gateway"])


def meeting_with(tracing: Tracing) -> Meeting:
    meeting = InMemory()
    meeting.space = MemorySpace(config=replace(CONFIG, tracing=tracing))
    meeting.token, meeting.connector = meeting.space.token, meeting.space.connector
    meeting.kill, meeting.restart = meeting.space.kill, meeting.space.restart
    return meeting


@pytest.fixture(params=["memory", "sockets"])
def traced(request: pytest.FixtureRequest, traces: Traces) -> Iterator[Meeting]:
    if request.param == "memory":
        yield meeting_with(True)
        return
    with Gateway(config=CONFIG).in_thread() as gateway:
        yield OverSockets(gateway)


async def test_a_proposal_that_is_fulfilled(traced: Meeting, traces: Traces) -> None:
    decider = Agent("reviewer")
    decider.use(Policy([AllowRule("add")]))
    proposer = traces.traced(Agent("proposer"))
    async with gathered(traced, adder(), decider, proposer) as (*_, space):
        await space.call(*ADD)
    assert of_gateway(traces) == [
        "gateway: server meup.proposal",
        "  gateway: internal meup.decision",
    ]
    ours = traces.named("meup.proposal", "gateway")
    theirs = traces.named("meup.proposal", "proposer")
    assert linked(ours) == [id_of(theirs)]
    assert trace_of(ours) != trace_of(theirs)
    assert theirs.attributes is not None
    proposal_id = theirs.attributes["meup.proposal.id"]
    assert ours.attributes == {
        **ABOUT_ADD,
        "meup.space": "demo",
        "meup.proposal.id": proposal_id,
        "meup.proposer": "proposer",
        "meup.outcome": "fulfilled",
    }
    assert traces.named("meup.decision").attributes == {
        "meup.proposal.id": proposal_id,
        "meup.decision.verdict": "fulfill",
        "meup.decision.by": "reviewer",
        "meup.decision.rule": "rules[0]",
        "meup.executor": "tools",
    }


async def test_a_proposal_that_is_rejected_and_one_that_is_withdrawn(
    traced: Meeting, traces: Traces, notes: Notes
) -> None:
    onlooker = onlooking(notes, "second")
    async with gathered(traced, unwilling(), onlooker, "proposer") as (*_, space):
        async with space.propose(*ADD, to="reviewer") as proposal:
            await proposal.outcome()
        async with space.propose(*ADD, to="second") as proposal:
            await notes.until(proposal.id)
            await proposal.withdraw("duplicate")
    assert of_gateway(traces) == [
        "gateway: server meup.proposal",
        "  gateway: internal meup.decision",
        "gateway: server meup.proposal",
    ]
    _, decision, withdrawn = traces.spans
    assert decision.attributes is not None
    assert withdrawn.attributes is not None
    assert decision.attributes["meup.decision.verdict"] == "reject"
    assert decision.attributes["meup.decision.reason"] == "unsafe"
    assert withdrawn.attributes["meup.outcome"] == "withdrawn"
    assert withdrawn.attributes["meup.cancel.by"] == "proposer"
    assert withdrawn.attributes["meup.cancel.reason"] == "duplicate"


@pytest.mark.parametrize("tracing", [True, "trust"])
async def test_proposers_are_sampled_as_they_say_only_where_they_are_trusted(
    traces: Traces, tracing: Tracing
) -> None:
    meeting = meeting_with(tracing)
    silent = traces.traced(Agent("proposer"), ParentBased(ALWAYS_OFF))
    async with gathered(meeting, adder(), willing(), silent) as (*_, space):
        await space.call(*ADD)
    assert bool(of_gateway(traces)) is (tracing is True)


async def test_a_gateway_that_stops_ends_its_spans(traces: Traces, notes: Notes) -> None:
    with ExitStack() as running:
        gateway = running.enter_context(Gateway(config=CONFIG).in_thread())
        everyone = onlooking(notes, "second"), "proposer"
        async with gathered(OverSockets(gateway), *everyone) as (_, space):
            async with space.propose(*ADD, to="second") as proposal:
                await notes.until(proposal.id)
                assert of_gateway(traces) == []
                await to_thread.run_sync(running.close)
                assert of_gateway(traces) == ["gateway: server meup.proposal"]


async def test_metrics_have_the_names_that_prometheus_has(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr("meup_agent.gateway.tracing.get_meter", meters.get_meter)
    with Gateway(config=CONFIG).in_thread() as gateway:
        meeting = OverSockets(gateway)
        async with gathered(meeting, "second") as (space,):
            await space.chat("hello")
            read = reader.get_metrics_data()
    assert read is not None
    found = {
        metric.name: {
            tuple((point.attributes or {}).items()): getattr(point, "value", None)
            for point in metric.data.data_points
        }
        for resource in read.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert found["meup_connections_joined"] == {(): 1}
    assert found["meup_members"] == {(("space", "demo"),): 1}


@pytest.mark.parametrize(("said", "read"), [("true", True), ("trust", "trust"), ("false", False)])
def test_the_configuration_says_it(tmp_path: Any, said: str, read: Tracing) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(
        f"gateway: {{tracing: {said}}}\n"
        "spaces: {demo: {participants: {a: {tokens: [t]}}}}\n"
    )
    assert load_config(path).tracing == read
