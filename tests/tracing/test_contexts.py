"""A ``traceparent`` that a participant wrote: right, wrong, huge or forged."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.tracing import read_traceparent, write_traceparent
from tests.interaction.cast import adder, willing
from tests.interaction.people import Meeting, gathered, raw
from tests.tracing.spans import Traces, linked, trace_of
from tests.wire import kinds

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
RIGHT = f"00-{TRACE}-{SPAN}-01"

WRONG: list[object] = [
    "",
    "00-1-2-01",
    f"00-{TRACE}-{SPAN}",
    f"00-{TRACE}-{SPAN}-01-more",
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE.upper()}-{SPAN}-01",
    f" {RIGHT}",
    f"{RIGHT}\n",
    f"01-{TRACE}-{SPAN}-01-{'x' * 100_000}",
    "x" * 1_000_000,
    "00-٤bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    17,
    None,
    [RIGHT],
    {"traceparent": RIGHT},
]


@pytest.mark.parametrize("said", WRONG, ids=[str(number) for number in range(len(WRONG))])
def test_what_names_no_span_is_none(said: object) -> None:
    assert read_traceparent(said) is None


@pytest.mark.parametrize(
    ("said", "sampled"),
    [
        (RIGHT, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-ff", True),
        (f"01-{TRACE}-{SPAN}-01-later", True),
    ],
)
def test_what_names_a_span_is_read(said: str, sampled: bool) -> None:
    read = read_traceparent(said)
    assert read is not None
    assert (read.trace_id, read.span_id) == (int(TRACE, 16), int(SPAN, 16))
    assert (read.trace_flags.sampled, read.is_remote) == (sampled, True)
    assert write_traceparent(read) == f"00-{TRACE}-{SPAN}-{'01' if sampled else '00'}"


@given(st.one_of(st.text(), st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.*")))
def test_any_text_is_read_or_none(said: str) -> None:
    read = read_traceparent(said)
    assert read is None or said[3:52] == write_traceparent(read)[3:52]


def meta_of(said: object) -> dict[str, Any]:
    return {"traceparent": said, "tracestate": "vendor=1", "baggage": "admin=true"}


@pytest.mark.parametrize("said", [*WRONG[:4], 17, "x" * 1_000_000], ids=str)
async def test_a_wrong_one_in_a_request_begins_a_trace(
    meeting: Meeting, traces: Traces, said: object
) -> None:
    async with gathered(meeting, traces.traced(adder()), "second") as (_, space):
        params = {"name": "add", "arguments": {"a": 1, "b": 2}, "_meta": meta_of(said)}
        await space.request("tools", "tools/call", params)
    span = traces.named("tools/call add")
    assert (span.parent, span.links) == (None, ())


async def test_a_forged_one_in_a_proposal_is_linked_and_nothing_else_crosses(
    meeting: Meeting, traces: Traces
) -> None:
    decider = traces.traced(willing())
    async with gathered(meeting, traces.traced(adder()), decider, "observer") as (*_, onlooker):
        async with raw(meeting, "proposer") as proposer:
            meta = {**meta_of(RIGHT), "dev.meup/target": "tools"}
            params = {"name": "add", "arguments": {"a": 1, "b": 2}, "_meta": meta}
            with onlooker.watch(lambda each: each.kind == kinds.MCP_REQUEST) as requests:
                await proposer.propose(params, id="p")
                request = await anext(requests)
                await proposer.hear(lambda each: each.kind == kinds.MCP_RESPONSE)
    meta = request.payload_object["params"]["_meta"]
    assert "tracestate" not in meta
    assert "baggage" not in meta
    decision, server = traces.named("meup.decision"), traces.spans[-1]
    assert meta["traceparent"][3:35] == f"{trace_of(decision):032x}" != TRACE
    assert trace_of(server) == trace_of(decision)
    assert linked(decision) == [int(SPAN, 16)]


OFF = """
import sys
from meup_agent import Agent, Settings
from meup_agent.gateway import Gateway
from meup_agent.testing import MemorySpace
import anyio

async def main():
    agent = Agent("a")
    agent.tool(name="f")(f)
    async with Gateway(participants={"a": [{"kind": "*"}], "b": [{"kind": "*"}]}) as gateway:
        join = lambda who, name: who.join(gateway.url, space="demo", token=gateway.token(name))
        async with join(agent, "a"), join(Agent("b"), "b") as space:
            print(await space.call("a", "f"))

def f() -> int:
    return 1

anyio.run(main)
print([name for name in sys.modules if name.partition(".")[0] == "opentelemetry"])
"""


@pytest.mark.thorough
def test_off_means_that_nothing_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1\n[]\n", "")


def test_what_is_missing_is_named() -> None:
    without = "import sys; sys.modules['opentelemetry.context'] = None; import meup_agent.tracing"
    done = subprocess.run(
        [sys.executable, "-c", without], capture_output=True, text=True, check=False
    )
    assert "pip install 'meup-agent[otel]'" in done.stderr
