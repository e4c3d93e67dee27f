"""One trace over MCP client, `meup mcp`, gateway, `meup bridge` and MCP server, each a process."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from meup_agent import Agent
from tests.forkserver import launched
from tests.mcp.conftest import ANYTHING, PROPOSES
from tests.mcp.test_chain import BRIDGED
from tests.patience import PATIENCE
from tests.programs import Program, program
from tests.tracing.spans import tree_of

EXPORTING = ("-m", "tests.tracing.exporting")

MEUP = "meup_agent.cli"

POLICY = "rules: [{allow: {tool: echo, arguments: {text: hello}}}]\nend: true\n"

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])

WHOLE = [
    "client: client MCP send tools/call slow_echo",
    "  door: server tools/call slow_echo",
    "    door: client {call}",
    "      bridge: server tools/call echo",
    "        bridge: client MCP send tools/call echo",
    "          server: server tools/call echo",
]


def trees_in(folder: Path, tool: str) -> list[list[str]]:
    """The traces in which a client calls a tool, in order."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    spans: list[dict[str, Any]] = sorted(
        map(json.loads, lines), key=lambda each: each["start_time"]
    )
    roots = [each for each in spans if each["name"] == f"MCP send tools/call {tool}"]
    traces = [root["context"]["trace_id"] for root in roots]
    return [
        tree_of([each for each in spans if each["context"]["trace_id"] == trace])
        for trace in traces
    ]


async def test_allowed_call_is_one_trace_and_an_approval_is_linked(tmp_path: Path) -> None:
    spans = await run_chain(tmp_path, "1", "alice", "bob")
    allowed, approved = trees_in(spans, "slow_echo")
    assert allowed == [each.format(call="tools/call echo") for each in WHOLE]
    assert approved == [each.format(call="meup.proposal") for each in WHOLE[:3]]


@pytest.mark.thorough
async def test_approval_is_one_trace_where_proposers_are_trusted(tmp_path: Path) -> None:
    spans = await run_chain(tmp_path, "trust", "bob")
    expected = [each.format(call="meup.proposal") for each in WHOLE]
    gateway = ["      gateway: server meup.proposal", "        gateway: internal meup.decision"]
    expected[3:3] = gateway
    assert trees_in(spans, "slow_echo") == [expected]


async def run_chain(folder: Path, tracing: str, *callers: str) -> Path:
    """Let a client call a tool as each of these participants; the folder with the spans of all."""
    spans = folder / "spans"
    spans.mkdir()

    def exports(service: str) -> dict[str, str]:
        return {"SPANS_FOLDER": str(spans), "OTEL_SERVICE_NAME": service}

    members = {
        "slow": BRIDGED,
        "alice": ANYTHING,
        "bob": PROPOSES,
        "reviewer": ANYTHING,
        "watcher": [],
    }
    participants = {
        name: {"tokens": [f"t-{name}"], "capabilities": capabilities}
        for name, capabilities in members.items()
    }
    said = {
        "gateway": {"port": 0, "tracing": tracing if tracing == "trust" else True},
        "spaces": {"demo": {"participants": participants}},
    }
    config = folder / "gateway.yaml"
    config.write_text(json.dumps(said), "utf-8")
    server = launched("-W", "ignore", *EXPORTING, "tests.mcp.servers.slow")
    variables = [part for each in exports("server").items() for part in ("--env", "=".join(each))]
    policy = folder / "policy.yaml"
    policy.write_text(POLICY, "utf-8")
    with ExitStack() as running:

        def start(service: str, *arguments: str | Path, **variables: str) -> Program:
            everything = {**exports(service), **variables}
            return running.enter_context(program([*EXPORTING, *arguments], everything))

        gateway = start("gateway", MEUP, "gateway", "--config", config)
        (line,) = gateway.wait_for("listening at ws://")
        where = {"MEUP_URL": line.partition("listening at ")[2].split()[0], "MEUP_SPACE": "demo"}

        def member(name: str) -> dict[str, str]:
            return {**where, "MEUP_TOKEN": f"t-{name}"}

        bridged = ("bridge", "--name", "slow", *variables, "--", *server)
        start("bridge", MEUP, *bridged, **member("slow"), MEUP_TRACING=tracing)
        start("reviewer", MEUP, "reviewer", "--policy", policy, **member("reviewer"))
        async with Agent("watcher").join(
            where["MEUP_URL"], space="demo", token="t-watcher"
        ) as space:
            for each in ("slow", "reviewer"):
                await space.present(each, timeout=PATIENCE)
        called = ("tests.tracing.mcp_client", "slow_echo", *launched(*EXPORTING, MEUP, "mcp"))
        for each in callers:
            client = start("client", *called, **member(each))
            assert await to_thread.run_sync(client.wait) == 0, str(client)
            assert client.stdout == ["hello"]
    return spans
