"""One trace over MCP client, `meup mcp`, gateway, `meup bridge` and MCP server, each a process."""

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from meup_agent import Agent
from tests.mcp.conftest import ANYTHING, PROPOSES
from tests.mcp.test_chain import BRIDGED
from tests.patience import PATIENCE
from tests.programs import ROOT, Program, program
from tests.tracing.spans import tree_of

EXPORTING = Path(__file__).parent / "exporting"

CLI = ("-m", "meup_agent.cli")

POLICY = "rules: [{allow: {tool: echo, arguments: {text: hello}}}]\nend: true\n"

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

WHOLE = [
    "client: client MCP send tools/call slow_echo",
    "  door: server tools/call slow_echo",
    "    door: client {call}",
    "      bridge: server tools/call echo",
    "        bridge: client MCP send tools/call echo",
    "          server: server tools/call echo",
]


def tree_in(folder: Path, tool: str) -> list[str]:
    """The trace in which a client calls a tool."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    spans: list[dict[str, Any]] = sorted(
        map(json.loads, lines), key=lambda each: each["start_time"]
    )
    (root,) = [each for each in spans if each["name"] == f"MCP send tools/call {tool}"]
    trace = root["context"]["trace_id"]
    return tree_of([each for each in spans if each["context"]["trace_id"] == trace])


async def test_a_call_that_is_allowed_is_one_trace(tmp_path: Path) -> None:
    spans = await run_chain(tmp_path, "alice", "1")
    assert tree_in(spans, "slow_echo") == [each.format(call="tools/call echo") for each in WHOLE]


@pytest.mark.parametrize("trusted", [False, True], ids=["linked", "trusted"])
async def test_an_approval_is_one_trace_where_proposers_are_trusted(
    tmp_path: Path, trusted: bool
) -> None:
    spans = await run_chain(tmp_path, "bob", "trust" if trusted else "1")
    expected = [each.format(call="meup.proposal") for each in WHOLE]
    gateway = ["      gateway: server meup.proposal", "        gateway: internal meup.decision"]
    expected[3:3] = gateway
    assert tree_in(spans, "slow_echo") == (expected if trusted else expected[:3])


async def run_chain(folder: Path, participant: str, tracing: str) -> Path:
    """Let a client call a tool as a participant; the folder with the spans of all."""
    spans = folder / "spans"
    spans.mkdir()

    def exports(service: str) -> dict[str, str]:
        path = f"{EXPORTING}:{ROOT}"
        return {"SPANS_FOLDER": str(spans), "OTEL_SERVICE_NAME": service, "PYTHONPATH": path}

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
    server = [sys.executable, "-W", "ignore", "-m", "tests.mcp.servers.slow"]
    variables = [part for each in exports("server").items() for part in ("--env", "=".join(each))]
    policy = folder / "policy.yaml"
    policy.write_text(POLICY, "utf-8")
    with ExitStack() as running:

        def start(service: str, *arguments: str | Path, **variables: str) -> Program:
            # Not forked: Python sets up the SDK as it starts.
            everything = {**exports(service), **variables}
            return running.enter_context(program(arguments, everything, fork=False))

        gateway = start("gateway", *CLI, "gateway", "--config", config)
        (line,) = gateway.wait_for("listening at ws://")
        where = {"MEUP_URL": line.partition("listening at ")[2].split()[0], "MEUP_SPACE": "demo"}

        def member(name: str) -> dict[str, str]:
            return {**where, "MEUP_TOKEN": f"t-{name}"}

        bridged = ("bridge", "--name", "slow", *variables, "--", *server)
        start("bridge", *CLI, *bridged, **member("slow"), MEUP_TRACING=tracing)
        start("reviewer", *CLI, "reviewer", "--policy", policy, **member("reviewer"))
        async with Agent("watcher").join(
            where["MEUP_URL"], space="demo", token="t-watcher"
        ) as space:
            for each in ("slow", "reviewer"):
                await space.present(each, timeout=PATIENCE)
        called = ("-m", "tests.tracing.mcp_client", "slow_echo", sys.executable, *CLI, "mcp")
        client = start("client", *called, **member(participant))
        assert await to_thread.run_sync(client.wait) == 0, str(client)
        assert client.stdout == ["hello"]
    return spans
