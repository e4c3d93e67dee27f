"""Each case with the real program: whether it ran, what the model read, what is recorded."""

import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from anyio.abc import Process

from meup_agent import Proposal
from meup_agent.approval import Reviewer
from meup_agent.doors.hook_app import RAN_OTHERWISE
from meup_agent.doors.model_api import ModelApi
from meup_agent.errors import AlreadyDecided
from meup_agent.gateway.auth import new_token
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.doors.hooked import Hooked, hooked, permitted_after_a_restart, proposed
from tests.doors.hosts.cases import CASES, Case
from tests.doors.hosts.programs import CLAUDE, CLAUDE_VERSION, CODEX, CODEX_VERSION, version
from tests.gateways import websocket_connector
from tests.interaction.people import EVERYTHING, until
from tests.patience import PATIENCE
from tests.programs import ROOT

pytestmark = pytest.mark.anyio

SIGNALS = {
    "interrupted by INT": signal.SIGINT,
    "interrupted by TERM": signal.SIGTERM,
    "interrupted by KILL": signal.SIGKILL,
}
BY_API = "interrupted by its own API"
Started = tuple[list[str], dict[str, str]]
"""A command line, and its environment."""

JUDGE = Path(__file__).with_name("judge.py")

FAKED = ("500", "junk", "silence")


def test_the_programs_are_those_of_the_page() -> None:
    assert (version(CLAUDE), version(CODEX)) == (CLAUDE_VERSION, CODEX_VERSION)


@contextmanager
def broken(what: str) -> Generator[str]:
    """A server in the gateway's place that answers wrongly; its address."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            body = {"500": b"{}", "junk": b'{"hookSpecificOutput": {"perm', "silence": b""}[what]
            self.send_response(500 if what == "500" else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST  # noqa: N815 - the server finds it by this name

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


TOO_LATE = "answered too late"

RESTARTED = "gateway restarted as it ran"
OTHER_TOKEN = "another gateway's token"
BROKEN_POLICY = "policy broken as it waits"


class _PolicyKept(logging.Handler):
    """Hears that a reviewer goes on by the policy before one that is broken."""

    is_heard = False

    def emit(self, record: logging.LogRecord) -> None:
        self.is_heard = self.is_heard or "the policy before it stays" in record.getMessage()


@asynccontextmanager
async def policy_that_breaks(case: Case, at: Hooked, folder: Path) -> AsyncGenerator[None]:
    """A reviewer whose policy breaks once a call waits, where that is the case."""
    if case.what != BROKEN_POLICY:
        yield
        return
    policy, heard = folder / "policy.yaml", _PolicyKept()
    policy.write_text("rules: [{ask: {tool: '*'}}]\nend: true\n")
    connector = websocket_connector(at.gateway.url, space="demo")
    logging.getLogger("meup_agent").addHandler(heard)

    async def break_it() -> None:
        await proposed(at.space)
        policy.write_text("rules: [")
        await until(lambda: heard.is_heard)

    try:
        async with (
            Reviewer(policy).join(connector, token=at.tokens["bob"]),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(break_it)
            yield
    finally:
        logging.getLogger("meup_agent").removeHandler(heard)


AS_IT_RUNS = (RESTARTED, "meup codex killed as it runs")


class Times(NamedTuple):
    """The waits of a case, in seconds.

    Attributes:
        host: The host's own time-out: so long that a hook that starts slowly is not given up.
        told: The host's time-out as the door is told.
        ttl: The wait of a call for a decision; ``None``: by default.
    """

    host: float = 60.0
    told: float = 60.0
    ttl: float | None = None


def times(case: Case) -> Times:
    """How long is waited in a case."""
    match case.what:
        case "time-out" if case.door == "codex-mcp-tool":
            return Times(host=3.0)  # its own server would answer a minute later
        case "answered too late":
            return Times(host=8.0)  # it is told another
        case "time-out":
            return Times(ttl=2.0)
        case "ask" if case.recorded == "expired":
            return Times(ttl=2.0)
        case "policy broken as it waits":
            return Times(ttl=10.0)
        case "gateway killed" | "refused connection" if case.door == "claude-approve":
            return Times(ttl=5.0)  # it waits for its gateway to come back, and says no at its end
        case _:
            return Times()


def hook_command(agent: str, url: str, case: Case) -> str:
    program = f"{sys.executable} -c 'from meup_agent.doors.hook_client import main; main()'"
    prefer = " --prefer terminal" if case.what == "ask" else ""
    _, told, ttl = times(case)
    waits = f"--timeout {told:g}" + (f" --ttl {ttl:g}" if ttl else "")
    return f"{program} {agent} --url {url} {waits}{prefer}"


def http_hook(case: Case, url: str) -> dict[str, Any]:
    prefer = "&prefer=terminal" if case.what == "ask" else ""
    _, told, ttl = times(case)
    waits = f"timeout={told:g}" + (f"&ttl={ttl:g}" if ttl else "")
    return {
        "type": "http",
        "url": f"{url}/hooks/claude-code?{waits}{prefer}",
        "headers": {"Authorization": "Bearer $MEUP_TOKEN"},
        "allowedEnvVars": ["MEUP_TOKEN"],
    }


def claude(case: Case, home: Path, url: str, api: str) -> Started:
    """Claude Code's command line and environment."""
    hook = http_hook(case, url)
    if case.door == "claude-command":
        hook = {"type": "command", "command": hook_command("claude-code", url, case)}
    host = times(case).host
    hook |= {"timeout": host, "onFailure": "block"}
    events = ["PreToolUse", "PostToolUse", "PostToolUseFailure"]
    settings: dict[str, Any] = {"permissions": {"allow": ["Bash"]}}
    if case.door == "claude-dialog":
        settings, events = {}, ["PermissionRequest", *events[1:]]
    settings["hooks"] = {each: [{"matcher": "*", "hooks": [hook]}] for each in events}
    if case.door == "claude-approve":
        settings = {}
    file = home / "settings.json"
    file.write_text(json.dumps(settings))
    env = {
        "ANTHROPIC_BASE_URL": api,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CONFIG_DIR": str(home / "claude"),
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    command = [str(CLAUDE), "-p", "--settings", str(file)]
    if case.what == BY_API:
        streams = ("--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
        command += streams
    else:
        command.append("go")
    if case.door == "claude-approve":
        command += approving(home, url, times(case).ttl or 55.0)
        # It waits as long for the program to start, which waits for its gateway first.
        env["MCP_TIMEOUT"] = f"{PATIENCE * 1000:g}"
        if case.what == TOO_LATE:
            env["MCP_TOOL_TIMEOUT"] = f"{host * 1000:g}"
    return command, env


def approving(home: Path, url: str, ttl: float) -> list[str]:
    """The options of Claude Code by which it asks our tool."""
    at = ["--url", url, "--space", "demo", "--ttl", f"{ttl:g}"]
    program = ["-m", "meup_agent.cli", "mcp", "--approve-tool", *at]
    servers = {"meup": {"command": sys.executable, "args": program}}
    file = home / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    tool = "mcp__meup__approve"
    return ["--mcp-config", str(file), "--strict-mcp-config", "--permission-prompt-tool", tool]


def codex(case: Case, home: Path, url: str, api: str) -> Started:
    """Codex's command line and environment."""
    or_else = "{ echo meup did not answer >&2; exit 2; }"
    # As `meup guard` writes it.
    command = f"trap : HUP INT TERM; {hook_command('codex', url, case)} || {or_else}"
    host = times(case).host
    hooks = "".join(
        f'[[hooks.{event}]]\nmatcher = "*"\n[[hooks.{event}.hooks]]\ntype = "command"\n'
        f"command = {json.dumps(command)}\ntimeout = {host:g}\n"
        for event in ("PreToolUse", "PostToolUse")
    )
    if case.door == "codex-mcp-tool":
        hooks = (
            '[[hooks.PreToolUse]]\nmatcher = "*"\n[[hooks.PreToolUse.hooks]]\ntype = "mcp_tool"\n'
            'server = "judge"\ntool = "judge"\ninput = { command = "${tool_input.command}" }\n'
            f"timeout = {host:g}\n"
        )
    if case.door in MCP_DOORS:
        args = [str(JUDGE), case.what, str(home / "mark.edited")]
        hooks += f"[mcp_servers.judge]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\n"
    if case.what.startswith(TYPED):
        hooks += f"[features]\nunified_exec_tty = {json.dumps(case.what == TYPED)}\n"
    (home / "codex").mkdir()
    (home / "codex" / "config.toml").write_text(
        'model = "test"\nmodel_provider = "fake"\napproval_policy = "never"\n'
        'sandbox_mode = "danger-full-access"\n[analytics]\nenabled = false\n'
        f'[model_providers.fake]\nname = "fake"\nbase_url = "{api}/v1"\nwire_api = "responses"\n'
        'env_key = "FAKE_KEY"\nsupports_websockets = false\nrequest_max_retries = 0\n' + hooks
    )
    flags = ["--json", "--skip-git-repo-check", "--dangerously-bypass-hook-trust"]
    env = {"CODEX_HOME": str(home / "codex"), "FAKE_KEY": "none"}
    return [str(CODEX), "exec", *flags, "go"], env


MCP_DOORS = ("codex-mcp-call", "codex-mcp-tool")
TYPED = "typed into a terminal"


class McpModelApi(ModelApi):
    """A model that asks for a call of an MCP server's tool."""

    def responses(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for event in super().responses(body):
            item = event.get("item", {})
            if item.get("type") == "function_call":
                path = self.arguments["command"].removeprefix("touch ")
                called = {"namespace": "mcp__judge", "name": "mark"}
                item.update(called, arguments=json.dumps({"path": path}))
            yield event


class TypingModelApi(ModelApi):
    """A model that opens a shell, and types its command into that."""

    def responses(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        said = self.results
        for event in super().responses(body):
            item = event.get("item", {})
            if item.get("type") == "function_call":
                item["arguments"] = json.dumps({"cmd": "sh", "tty": True, "yield_time_ms": 250})
            elif item and len(said) == 1:
                opened = re.search(r"session ID (\d+)", said[0])
                typed = {
                    "session_id": int(opened[1]) if opened else 0,
                    "chars": f"{self.arguments['command']}\n",
                    "yield_time_ms": 250,
                }
                event = {
                    **event,
                    "item": {
                        "type": "function_call",
                        "id": "fc_2",
                        "call_id": "call_2",
                        "name": "write_stdin",
                        "arguments": json.dumps(typed),
                    },
                }
            yield event


def decider(case: Case, mark: Path) -> Any:
    async def decide(proposal: Proposal) -> None:
        match case.what:
            case "allow" | "typed into a terminal":
                await proposal.fulfill()
            case _ if case.what in AS_IT_RUNS:
                await proposal.fulfill()
            case "typed into a terminal, which is switched off":
                await proposal.fulfill()
            case "deny":
                await proposal.reject("unsafe", explain="not on Fridays")
            case "edit":
                await proposal.fulfill({**proposal.arguments, "command": f"touch {mark}.edited"})
            case _:
                pass

    decides = case.what in ("allow", "deny", "edit", *AS_IT_RUNS) or case.what.startswith(TYPED)
    return decide if decides else None


async def decided(at: Hooked) -> str:
    """The last state of the only proposal, as the space has it, also after a new start."""
    with anyio.fail_after(PATIENCE):
        while True:
            listed = [each async for each in at.space.proposals.list(state="decided")]
            if listed and listed[0].state != "permitted":
                (record,) = listed
                return str(record.state)
            await anyio.sleep(0.05)


@asynccontextmanager
async def deciding(case: Case, mark: Path, folder: Path) -> AsyncGenerator[tuple[Hooked, str, str]]:
    """A gateway where a case is decided; its address for a door, and the agent's token."""
    decides = hooked(decider(case, mark), journal=folder / "journal.db", more={"bob": EVERYTHING})
    async with decides as at, policy_that_breaks(case, at, folder):
        # The other way to the gateway ends with it.
        url = at.gateway.url if case.what == "gateway restarted midway" else at.door_url
        yield at, url, new_token() if case.what == OTHER_TOKEN else at.tokens["coder"]


async def assert_recorded(case: Case, at: Hooked) -> None:
    """Hold the space against the page; a call that was given up is decided by nobody."""
    if case.recorded in ("permitted", "pending"):
        await until(lambda: at.space.proposals[0].state == case.recorded)
    elif case.recorded:
        assert await decided(at) == case.recorded
    if case.what == "answered too late":
        with pytest.raises(AlreadyDecided):
            await at.space.proposals.get(at.space.proposals[0]).fulfill()


def line(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"


GO = line({"type": "user", "message": {"role": "user", "content": "go"}})
INTERRUPT = line(
    {"type": "control_request", "request_id": "1", "request": {"subtype": "interrupt"}}
)


def hook_processes(url: str, *, with_shell: bool) -> list[int]:
    """The processes of a hook that asks a gateway: its shell before its program."""
    found: dict[int, list[str]] = {}
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (each / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "hook_client" in " ".join(words) and url in " ".join(words):
                found[int(each.name)] = words
    programs = [pid for pid, words in found.items() if Path(words[0]).name.startswith("python")]
    shells = [pid for pid, words in found.items() if Path(words[0]).name in ("sh", "bash", "dash")]
    assert programs
    return [*shells, *programs] if with_shell else programs


async def happen(case: Case, at: Hooked, process: Process, mark: Path) -> None:
    """Let happen to a call that waits, or runs, what the case says."""
    match case.what:
        case "gateway killed":
            await proposed(at.space)
            at.kill()
        case "gateway restarted midway" if case.door == "claude-approve":
            await permitted_after_a_restart(at)
        case "gateway restarted midway":
            await proposed(at.space)
            await at.restart()
        case "gateway restarted as it ran":
            await until(mark.exists)
            await at.restart()
            mark.with_suffix(".go").touch()
        case "interrupted by its own API":
            await proposed(at.space)
            assert process.stdin is not None
            await process.stdin.send(INTERRUPT)
            await decided(at)
            await process.stdin.aclose()
        case "hook ended by TERM" | "hook and its shell ended by TERM":
            await proposed(at.space)
            for each in hook_processes(at.url, with_shell="shell" in case.what):
                os.kill(each, signal.SIGTERM)
        case _ if case.what in SIGNALS:
            await proposed(at.space)
            # The agent alone: what it leaves behind must not wait on.
            process.send_signal(SIGNALS[case.what])
        case _:
            pass


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.door}-{case.what}")
async def test_it_does_what_the_page_says(case: Case, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    is_tool = case.door == "claude-approve"
    command_line = f"touch {mark}"
    if case.what == RESTARTED:
        # Not for ever: what an agent runs outlives a test that fails.
        command_line += f"; timeout 60 sh -c 'while [ ! -e {mark}.go ]; do sleep 0.1; done'"
    asked = {"command": command_line, "description": "leave a mark"}
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(2 * PATIENCE))
        model = McpModelApi if case.door == "codex-mcp-call" else ModelApi
        model = TypingModelApi if case.what.startswith(TYPED) else model
        api = stack.enter_context(model("Bash", asked))
        at: Hooked | None = None
        token = "none"
        if case.door == "codex-mcp-tool":
            url = "http://127.0.0.1:9"  # its own server decides
        elif case.what in FAKED:
            url = stack.enter_context(broken(case.what))
        elif case.what == "refused connection":
            url = "ws://127.0.0.1:9" if is_tool else "http://127.0.0.1:9"
        else:
            decided_here = deciding(case, mark, tmp_path)
            gateway, door_url, token = await stack.enter_async_context(decided_here)
            at, url = gateway, door_url if is_tool else gateway.url
        make = codex if case.door.startswith("codex") else claude
        command, env = make(case, tmp_path, url, api.url)
        env |= {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "MEUP_TOKEN": token,
            "PYTHONPATH": str(ROOT),
        }
        process = await anyio.open_process(command, env=env, cwd=tmp_path, start_new_session=True)
        stack.push_async_callback(process.aclose)
        output: list[bytes] = []

        async def drain(stream: Any) -> None:
            output.extend([piece async for piece in stream])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain, process.stdout)
            tasks.start_soon(drain, process.stderr)
            assert process.stdin is not None
            if case.what == BY_API:
                await process.stdin.send(GO)
            else:
                await process.stdin.aclose()
            if at is not None:
                await happen(case, at, process, mark)
            await process.wait()
            if case.what == TOO_LATE and at is not None:
                late = at.space.proposals.get(at.space.proposals[0])
                with pytest.raises(AlreadyDecided):
                    await late.fulfill()
        said = b"".join(output).decode(errors="replace")
        ran = mark.exists() or mark.with_suffix(".edited").exists()
        assert ran is case.ran, said
        assert mark.with_suffix(".edited").exists() is (case.what == "edit")
        assert case.told in " ".join(api.results), said
        if case.what == OTHER_TOKEN and at is not None:
            assert len(at.space.proposals) == 0
        if case.recorded and at is not None:
            if case.recorded == "permitted":
                await until(lambda: at.space.proposals[0].state == "permitted")
            else:
                assert await decided(at) == case.recorded
            listed = [each async for each in at.space.proposals.list(state="decided")]
            reports = [each.report for each in listed if each.report is not None]
            assert case.ran or not any(each.has_run for each in reports)
            assert not any(each.output.startswith(RAN_OTHERWISE) for each in reports)
