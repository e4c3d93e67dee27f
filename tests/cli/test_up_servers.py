"""`meup up --servers`: the servers of an MCP client's configuration, behind approval."""

import json
import os
import re
import select
import signal
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent, ToolListChangedNotification

from meup_agent import Agent, Fulfillment
from meup_agent.cli.signals import end_by_signals
from meup_agent.errors import ConfigurationError, Refused
from tests.cli.commands import ListenOptions, exit_codes, read_servers_plan
from tests.cli.conftest import assert_fails
from tests.cli.participants import variables_printed
from tests.cli.processes import INTERRUPT, TERMINATE, Running, environment, is_there, meup, up
from tests.cli.servers import mcp_server
from tests.forkserver import launched
from tests.mcp.conftest import hello
from tests.mcp.servers import pretender
from tests.no_tls import NO_TLS
from tests.patience import PATIENCE

SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("adder")


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


server.run()
"""

ADD = '[{"name": "add", "inputSchema": {"type": "object"}}]'
SERVERS = ("--servers", "mcp.json")
SMALL = {
    "command": sys.executable,
    "args": ["-IS", "-c", mcp_server(ADD, "str(sum(arguments.values()))")],
}


def command_lines(process: int) -> list[list[str]]:
    """The arguments of a process and of all that it has started, as `ps` shows them."""
    words = Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8").split("\0")
    lists = Path(f"/proc/{process}/task").glob("*/children")
    started = [int(child) for found in lists for child in found.read_text("ascii").split()]
    return [words, *(each for child in started for each in command_lines(child))]


def write(folder: Path, text: str = "") -> None:
    """A configuration with two servers that work, and what a text adds to it."""
    (folder / "adder.py").write_text(SERVER)
    command, *arguments = launched("-W", "ignore", "adder.py")
    works = {"command": command, "args": arguments, "cwd": "."}
    entries = ", ".join(f'"{name}": {json.dumps(works)}' for name in ("first", "second"))
    (folder / "mcp.json").write_text(f'{{"mcpServers": {{{text}{entries}}}}}')


def printed(process: Running, state: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The entry for a client, and the variables of `you`."""
    process.until("meup inbox list")
    pasted, _ = json.JSONDecoder().raw_decode(process.out, process.out.index("{"))
    asked = re.search(r'eval "\$\(meup env (you --port \d+)\)"', process.out)
    assert asked
    variables = variables_printed(*asked[1].split(), variables=state)
    return pasted["mcpServers"]["meup"], state | variables


async def decide(you: dict[str, str], verb: str, *options: str) -> None:
    """Decide the first proposal that waits for `you`."""
    waiting: list[dict[str, str]] = []
    with anyio.fail_after(PATIENCE):
        while not waiting:
            command = partial(meup, "inbox", "list", "--json", variables=you)
            listed = await anyio.to_thread.run_sync(command)
            waiting = json.loads(listed.stdout)["proposals"]
    identified = (*verb.split(), waiting[0]["proposal"], *options)
    done = await anyio.to_thread.run_sync(partial(meup, *identified, variables=you))
    assert done.returncode == exit_codes.OK, done.stderr


async def call(mcp: Client, **arguments: int) -> list[str]:
    done = await mcp.call_tool("calc_add", arguments)
    return [each.text for each in done.content if isinstance(each, TextContent)]


def configure(folder: Path, **servers: object) -> None:
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))


def test_a_call_of_a_server_waits_for_the_user(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path)
    with up(tmp_path, state, *SERVERS) as process:
        process.until("is 'first' in the space 'mcp'", stream="err")
        process.until("is 'second' in the space 'mcp'", stream="err")
        client, you = printed(process, state)
        assert client["args"][:2] == ["mcp", "--token-file"]
        agent_file = Path(client["args"][2])
        you_file = agent_file.with_name("you.token")
        tokens = [agent_file.read_text().strip(), you_file.read_text().strip()]
        assert you["MEUP_TOKEN"] == tokens[1]
        for each in (agent_file, you_file):
            assert stat.S_IMODE(each.stat().st_mode) == 0o600
            assert stat.S_IMODE(each.parent.stat().st_mode) == 0o700

        shown = command_lines(process.process.pid)
        assert any("adder.py" in words for words in shown)
        assert not any(token in word for words in shown for word in words for token in tokens)
        # Nor that of a server, which is in no file: it has the form of the others.
        form = re.compile(rf"[\w-]{{{len(tokens[0])}}}", re.ASCII)
        assert all(form.fullmatch(token) for token in tokens)
        assert not any(form.fullmatch(word) for words in shown for word in words)

        async def propose() -> None:
            async with Agent("x").join(
                client["env"]["MEUP_URL"], space=client["env"]["MEUP_SPACE"], token=tokens[0]
            ) as space:
                assert space.me == "agent"
                assert [tool["name"] for tool in await space.offers.tools("second")] == ["add"]
                with pytest.raises(Refused):
                    await space.request("second", "add", {"a": 1, "b": 2})
                async with space.propose("second", "add", {"a": 1, "b": 2}) as proposal:
                    fulfill = partial(meup, "fulfill", proposal.id, "--yes", variables=you)
                    done = await anyio.to_thread.run_sync(fulfill)
                    assert done.returncode == exit_codes.OK
                    assert json.loads(done.stdout) == {"result": 3}
                    with anyio.fail_after(PATIENCE):
                        outcome = await proposal.outcome()
                    assert isinstance(outcome, Fulfillment)
                    assert outcome.by == "you"

        anyio.run(propose)
    assert not any(token in process.out + process.err for token in tokens)
    assert "Traceback" not in process.err


def test_what_is_wrong_is_said_and_the_rest_served(tmp_path: Path, state: dict[str, str]) -> None:
    wrong = (
        '// what does not work\n"twice": {"command": "sh"}, "twice": {"command": "sh"},'
        '"none": {"command": "there-is-no-such-command"}, "you": {"command": "sh"},'
        '"unset": {"command": "sh", "args": ["${THERE_IS_NO_SUCH_VARIABLE}"]},'
        '"key": {"command": "sh", "argz": []}, "off": {"command": "sh", "disabled": true},'
    )
    write(tmp_path, wrong)
    with up(tmp_path, state, *SERVERS) as process:
        process.until("wait for you: first, second\n")
        process.until("is 'first' in the space 'mcp'", stream="err")
    assert re.findall(r"(?m)^meup: warning: (.*)$", process.err) == [
        "mcp.json: has comments or commas that JSON does not know; they are read over",
        "mcp.json: mcpServers.twice is there twice; rename one",
        "mcp.json: mcpServers.unset.args.0 needs the environment variable"
        " THERE_IS_NO_SUCH_VARIABLE, which is not set",
        "mcp.json: mcpServers.key has the unknown key 'argz'; did you mean 'args'?",
        "the server none is left out: there is no command 'there-is-no-such-command'",
        "the server you is left out: this name is another participant's; rename the server",
    ]


def test_server_that_ends_at_once_is_not_among_those_that_wait(
    tmp_path: Path, state: dict[str, str]
) -> None:
    write(tmp_path, '"ends": {"command": "sh", "args": ["-c", "exit 1"]},')
    with up(tmp_path, state, *SERVERS) as process:
        process.until("wait for you: first, second\nFailed, and tried again: ends\n")


def test_the_file_of_vs_code_is_read(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path)
    works = json.loads((tmp_path / "mcp.json").read_text())["mcpServers"]["first"]
    entries = {
        "first": {**works, "type": "stdio", "env": {"A": "${env:GIVEN}"}},
        "asked": {**works, "env": {"KEY": "${input:api-key}"}},
    }
    (tmp_path / "mcp.json").write_text(
        f'{{"inputs": [], /* its own */ "servers": {json.dumps(entries)[:-1]}, }},}}'
    )
    with up(tmp_path, {**state, "GIVEN": "a"}, *SERVERS) as process:
        process.until("wait for you: first\n")
        process.until("is 'first' in the space 'mcp'", stream="err")
    assert re.findall(r"(?m)^meup: warning: (.*)$", process.err) == [
        "mcp.json: has comments or commas that JSON does not know; they are read over",
        "mcp.json: servers.asked.env.KEY has '${input:api-key}', which VS Code asks for; write"
        " ${NAME} there, and set that environment variable",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "mcp.json cannot be read (no such file or directory)"),
        ("{", "mcp.json is not JSON: "),
        ("{}", "mcp.json: has no mcpServers, nor servers as VS Code calls them"),
        ('{"mcpServers": {"a": {"command": 7}}}', "mcp.json: no server of mcpServers can be used"),
        (
            '{"mcpServers": {"a": {"command": "there-is-no-such-command"}}}',
            "mcp.json: none of its servers can be started",
        ),
    ],
)
def test_a_configuration_of_which_nothing_works_is_refused(
    text: str | None, said: str, tmp_path: Path, state: dict[str, str]
) -> None:
    if text is not None:
        (tmp_path / "mcp.json").write_text(text)
    done = meup("up", "--servers", "mcp.json", cwd=tmp_path, variables=state)
    assert done.returncode == exit_codes.USAGE
    assert done.stderr.splitlines()[-1].startswith(f"meup: {said}")


def test_a_file_names_servers_of_a_configuration(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path)
    (tmp_path / "space.yaml").write_text(
        "space: {id: harbour}\nparticipants:\n"
        "  second: {mcp_server: {file: mcp.json}, capabilities: [{kind: chat}]}\n"
        "  third: {mcp_server: {file: mcp.json}}\n"
    )
    with up(tmp_path, state) as process:
        process.until("is 'second' in the space 'harbour'", stream="err")
    assert "participants.third: mcp.json has no server of this name" in process.err


@pytest.mark.thorough
def test_server_whose_start_takes_long_is_named(tmp_path: Path, state: dict[str, str]) -> None:
    configure(
        tmp_path, silent={"command": sys.executable, "args": ["-c", "import time; time.sleep(600)"]}
    )
    with up(tmp_path, state, *SERVERS) as process:
        process.until("waiting for silent: a server that is downloaded first", stream="err")


@pytest.mark.thorough
def test_ctrl_c_ends_a_server_that_never_answers(tmp_path: Path, state: dict[str, str]) -> None:
    code = (
        "import os, signal, sys, time;"
        "[signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)];"
        "print('silent as', os.getpid(), file=sys.stderr, flush=True); time.sleep(600)"
    )
    silent = {"command": sys.executable, "args": ["-IS", "-c", code]}
    configure(tmp_path, silent=silent)
    with up(tmp_path, state, *SERVERS) as process:
        process.until("\n", after="silent as ", stream="err")
        number = int(process.err.partition("silent as ")[2].split()[0])
    assert not is_there(number)


def test_a_client_with_printed_lines_is_decided_on(tmp_path: Path, state: dict[str, str]) -> None:
    configure(tmp_path, calc=SMALL)
    with up(tmp_path, state, *SERVERS) as process:
        process.until("is 'calc' in the space 'mcp'", stream="err")
        client, you = printed(process, state)
        assert Path(client["command"]).name == "meup"
        command, *arguments = launched("-m", "meup_agent.cli", *client["args"])
        # Started in a terminal that is `you`, as an editor may be.
        variables = environment({**you, **client["env"]})
        server = StdioServerParameters(command=command, args=arguments, env=variables)

        async def work() -> None:
            async with Client(stdio_client(server)) as mcp:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(decide, you, "fulfill", "--edit", "a=40", "--yes")
                    result, note = await call(mcp, a=1, b=2)
                    assert result == "42"
                    assert 'the participant "you" changed this call' in note
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(decide, you, "inbox reject", "--reason", "unsafe")
                    assert "rejected as unsafe" in (await call(mcp, a=1, b=2))[0]

        anyio.run(work)


def test_clients_of_one_gateway_have_an_address_and_names_of_their_own(
    tmp_path: Path, state: dict[str, str]
) -> None:
    configure(tmp_path, calc=SMALL)
    named = ("--client", "desktop", "--client", "agent")
    with up(tmp_path, state, *SERVERS, *named) as process:
        process.until("is 'calc' in the space 'mcp'", stream="err")
        you = printed(process, state)[1]
        for each in ("desktop", "agent"):
            assert f"Give the MCP client that is to be {each} this" in process.out
        address = re.search(r'"url": "(http://127\.0\.0\.1:\d+/mcp)"', process.out)
        assert address
        # What is not a terminal may be a log.
        assert '"Authorization": "Bearer …"' in process.out
        tokens = {
            each.stem: each.read_text().strip()
            for each in (tmp_path / "state" / "up").rglob("*.token")
        }
        assert not any(token in process.out + process.err for token in tokens.values())

        def connected(name: str) -> AbstractAsyncContextManager[Client]:
            return connect(address[1], {"Authorization": f"Bearer {tokens[name]}"})

        async def work() -> None:
            async with connected("desktop") as first, connected("agent") as second:
                for mcp in (first, second):
                    assert [tool.name for tool in (await mcp.list_tools()).tools] == ["calc_add"]
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(decide, you, "fulfill", "--yes")
                    assert await call(first, a=1, b=2) == ["3"]
                listed = await anyio.to_thread.run_sync(partial(meup, "who", variables=you))
                assert {"desktop", "agent"} <= set(listed.stdout.split())
            async with httpx2.AsyncClient(timeout=PATIENCE, verify=NO_TLS) as http:
                wrong = {"Authorization": f"Bearer {'x' * 43}"}
                answer = await http.post(address[1], headers=wrong, json=hello())
                assert answer.status_code == 401

        anyio.run(work)


def started_client(client: dict[str, Any], **variables: str) -> Any:
    """The command of a client's configuration, as a client starts it."""
    command, *arguments = launched("-m", "meup_agent.cli", *client["args"])
    env = environment({**client["env"], **variables})
    return stdio_client(StdioServerParameters(command=command, args=arguments, env=env))


def test_a_client_that_starts_first_gets_the_tools_as_they_come(
    tmp_path: Path, state: dict[str, str]
) -> None:
    configure(tmp_path, calc=SMALL)
    with up(tmp_path, state, *SERVERS) as process:
        client, _ = printed(process, state)
    changed = [anyio.Event()]

    async def note(message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed[-1].set()

    async def work() -> None:
        server = started_client(client)
        async with Client(server, mode="legacy", message_handler=note) as mcp:
            assert mcp.instructions
            assert "A rejection is final" in mcp.instructions
            with up(tmp_path, state, *SERVERS) as process:
                await anyio.to_thread.run_sync(
                    partial(process.until, "is 'calc' in the space 'mcp'", stream="err")
                )
                with anyio.fail_after(PATIENCE):
                    while not (await mcp.list_tools()).tools:
                        await changed[-1].wait()
                        changed.append(anyio.Event())

    anyio.run(work)


def test_a_client_starts_the_gateway_where_it_is_told_to(
    tmp_path: Path, state: dict[str, str]
) -> None:
    configure(tmp_path, calc=SMALL)
    with up(tmp_path, state, *SERVERS) as process:
        client, _ = printed(process, state)
        asked = re.search(r'  ("MEUP_AUTOSTART": ".*")\n', process.out)
        assert asked
        setting = json.loads(f"{{{asked[1]}}}")
    assert f"--servers {tmp_path}/mcp.json" in setting["MEUP_AUTOSTART"]

    async def work() -> None:
        async with Client(started_client(client, **state, **setting), mode="legacy") as mcp:
            with anyio.fail_after(PATIENCE):
                while [tool.name for tool in (await mcp.list_tools()).tools] != ["calc_add"]:
                    await anyio.lowlevel.checkpoint()

    try:
        anyio.run(work)
    finally:
        (lock,) = (tmp_path / "state" / "up").glob("*.lock")
        number = json.loads(lock.read_text())["process"]
        os.kill(number, signal.SIGTERM)
        while lock.exists():
            assert is_there(number)
    assert stat.S_IMODE((lock.parent / "autostart.log").stat().st_mode) == 0o600


@asynccontextmanager
async def connect(url: str, headers: dict[str, str]) -> AsyncGenerator[Client]:
    """A client of the SDK over streamable HTTP."""
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE, verify=NO_TLS) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


@pytest.mark.rule("5.reviewers.methods")
def test_no_tool_of_a_server_is_called_by_an_inbox(tmp_path: Path, state: dict[str, str]) -> None:
    """The server has the names of a reviewer, and says everywhere that it is one."""
    got = tmp_path / "got"
    posing = {"command": sys.executable, "args": ["-IS", pretender.__file__, str(got)]}
    configure(tmp_path, calc=posing)
    with up(tmp_path, state, *SERVERS) as process:
        process.until("is 'calc' in the space 'mcp'", stream="err")
        client, you = printed(process, state)
        token = Path(client["args"][2]).read_text().strip()

        async def work() -> None:
            agent = Agent("x").join(client["env"]["MEUP_URL"], space="mcp", token=token)
            async with agent as space, space.propose("calc", "add", {"a": 1}) as proposal:
                for words in (
                    ("inbox", "list"),
                    ("inbox", "show", proposal.id),
                    ("inbox", "list", "--json"),
                    ("fulfill", proposal.id, "--edit", "a=2", "--yes"),
                ):
                    command = partial(meup, *words, variables=you)
                    done = await anyio.to_thread.run_sync(command)
                    assert done.returncode == exit_codes.OK, done.stderr

        anyio.run(work)
    messages = [json.loads(line) for line in got.read_text().splitlines()]
    calls = [each["params"] for each in messages if each["method"] == "tools/call"]
    assert [(each["name"], each["arguments"]) for each in calls] == [("add", {"a": 2})]
    assert not any(each["method"].startswith("dev.meup/") for each in messages)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "code"),
    [(INTERRUPT, exit_codes.INTERRUPTED), (TERMINATE, exit_codes.TERMINATED)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_signal_before_the_gateway_listens_leaves_no_server(
    number: int, code: int, tmp_path: Path, state: dict[str, str]
) -> None:
    """Servers are started first of all; one that heeds no signal says by a pipe that it is."""
    program = (
        "import os, signal, time;"
        "[signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)];"
        "os.write(os.open('begun', os.O_WRONLY), b'%d\\n' % os.getpid()); time.sleep(600)"
    )
    silent = {"command": sys.executable, "args": ["-IS", "-c", program], "cwd": str(tmp_path)}
    configure(tmp_path, silent=silent)
    os.mkfifo(tmp_path / "begun")
    # Both ends, so that opening it waits for nobody.
    pipe = os.open(tmp_path / "begun", os.O_RDWR)
    try:
        with up(tmp_path, state, *SERVERS) as process:
            assert select.select([pipe], [], [], PATIENCE)[0], str(process)
            server = int(os.read(pipe, 64))
            # In order, if the gateway listened already.
            assert process.end(number) in (code, exit_codes.OK)
        assert not is_there(server)
        # An import that the signal cuts short leaves its file to the collector, which warns of it.
        said = re.sub(r"(?s)Exception ignored in[^\n]*\n.*?unclosed file [^\n]*", "", process.err)
        assert "Traceback" not in said
    finally:
        os.close(pipe)


def test_a_signal_while_it_loads_ends_its_blocks() -> None:
    with pytest.raises(SystemExit) as ended, end_by_signals():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == exit_codes.TERMINATED
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_failing_server_says_why_in_its_own_words(tmp_path: Path, state: dict[str, str]) -> None:
    program = "import sys; print('no such module', file=sys.stderr); sys.exit(1)"
    broken = {"command": sys.executable, "args": ["-IS", "-c", program]}
    configure(tmp_path, broken=broken)
    with up(tmp_path, state, *SERVERS) as process:
        process.until(
            "broken ended before it answered; it is started again in", stream="err", count=3
        )
    first, *later = [line for line in process.err.splitlines() if "no such module" in line]
    assert first.endswith("broken: no such module")
    # Each try after that is one line.
    said = "s (it said: no such module; the server ended with exit status 1)"
    assert [line.endswith(said) for line in later[:3]] == [True] * 3
    assert process.err.count("asked as an older one") == 1


POLICY = """
rules:
  - allow: {tool: add, arguments: {a: 1}, others: [b], name: ones}
  - deny: {tool: add, arguments: {a: 2}, explain: not twos}
end: true
"""


def test_a_policy_decides_and_leaves_the_rest_to_us(tmp_path: Path, state: dict[str, str]) -> None:
    configure(tmp_path, calc=SMALL, reviewer=SMALL)
    (tmp_path / "policy.yaml").write_text(POLICY)
    with up(tmp_path, state, *SERVERS, "--policy", "policy.yaml") as process:
        process.until("policy.yaml decides calls of these MCP servers")
        process.until("is 'calc' in the space 'mcp'", stream="err")
        process.until("as 'reviewer'")
        client, you = printed(process, state)
        command, *rest = launched("-m", "meup_agent.cli", *client["args"])
        server = StdioServerParameters(command=command, args=rest, env=environment(client["env"]))

        async def work() -> None:
            async with Client(stdio_client(server)) as mcp:
                assert [tool.name for tool in (await mcp.list_tools()).tools] == ["calc_add"]
                assert await call(mcp, a=1, b=2) == ["3"]
                [denied] = await call(mcp, a=2, b=2)
                assert 'rejected as policy by reviewer: "not twos"' in denied
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(decide, you, "inbox reject")
                    [rejected] = await call(mcp, a=3, b=2)
                    assert 'by the participant "you"' in rejected

        anyio.run(work)
    assert "the server reviewer is left out" in process.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--servers", "mcp.json", "--policy", "policy.yaml"), "allwo"),
        (("--servers", "mcp.json", "--policy", "none.yaml"), "none.yaml"),
        (("--servers", "mcp.json", "--policy", "votes.yaml"), "can be here; name each by --person"),
        (("--policy", "policy.yaml"), "--policy is for --servers"),
        (("--client", "desktop"), "--client is for --servers"),
        (("--servers", "mcp.json", "--client", "first"), "--client first: this name is another"),
        (("--servers", "mcp.json", "--client", "gateway"), "--client: participants.gateway: "),
        (("space.yaml", "--servers", "mcp.json"), "give either a space's file or --servers\n"),
    ],
    ids=[
        *("mistyped", "missing", "voters who are not there", "without servers"),
        *("client without servers", "client named as a server", "no name", "and a file"),
    ],
)
def test_nothing_is_started_by_what_does_not_fit(
    tmp_path: Path, state: dict[str, str], arguments: tuple[str, ...], said: str
) -> None:
    write(tmp_path)
    (tmp_path / "policy.yaml").write_text("rules:\n  - allwo: {tool: add}\nend: true\n")
    votes = "rules:\n  - quorum: {tool: add, of: 2, among: [lead, you]}\nend: true\n"
    (tmp_path / "votes.yaml").write_text(votes)
    done = meup("up", *arguments, "--port", "0", cwd=tmp_path, variables=state)
    assert_fails(done, exit_codes.USAGE, said)
    assert "listening" not in done.stderr


def test_the_folders_of_tokens_are_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEUP_STATE_DIR", str(tmp_path / "state"))
    servers = tmp_path / "mcp.json"
    servers.write_text('{"mcpServers": {}}')

    def read() -> Path | None:
        return read_servers_plan(servers, None, ListenOptions(), clients=("desktop",)).people

    folder = read()
    assert folder is not None
    for each in (folder.parent, folder):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700
        each.chmod(0o750)
        with pytest.raises(ConfigurationError, match=f"chmod 700 {each}$"):
            read()
        each.chmod(0o700)


def test_tokens_stay_until_new_ones_are_asked_for(tmp_path: Path, state: dict[str, str]) -> None:
    write(tmp_path)
    tokens: list[list[str]] = []
    for more in ((), (), ("--new-tokens",)):
        with up(tmp_path, state, *SERVERS, *more) as process:
            process.until("meup inbox list")
            files = sorted((tmp_path / "state" / "up").rglob("*.token"))
            tokens.append([each.read_text() for each in files])
    before, same, after = tokens
    assert len(before) == len({*before, *after}) - len(after) == 2
    assert same == before
