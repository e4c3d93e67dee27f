"""The hooks of a coding agent: what a policy's allow holds an agent up, and what `meup-hook` adds.

`meup up` runs as a user runs it, with its journal in a file and the reviewer that `meup init` sets
up. The host of the hooks is played over connections that it keeps, as Claude Code does, at a steady
rate: a call that comes late does not hold back the next one.
"""

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from meup_agent.gateway.auth import new_token
from tests.bench import processes
from tests.bench.figures import Figure, Program
from tests.bench.meup_up import PATIENCE, cpu_seconds, ended, environment, pasted, started
from tests.bench.timing import WARM_UP, percentile

CALLS = 1_000
PER_SECOND = 100
AGENTS = 200
STARTS = 15

POLICY = 'rules: [{allow: {tool: Bash, shell: "ls*"}}]\nend: true\n'

MAY_PROPOSE = """\
      {name}:
        tokens: ["{token}"]
        capabilities:
          - {{"kind": "mcp/proposal"}}
          - {{"kind": "mcp/withdraw"}}
          - {{"kind": "mcp/request", "payload": {{"method": "ping"}}}}
"""
"""A participant of the space, as a line of its configuration."""


def question(call_id: str) -> dict[str, Any]:
    """What Claude Code says before it runs a command."""
    return {
        "hook_event_name": "PreToolUse",
        "session_id": "0f8e5b1c-3a6d-4b51-9a55-6a1f4f0c2d11",
        "transcript_path": "/home/a/.claude/projects/x/session.jsonl",
        "cwd": "/home/a/project",
        "permission_mode": "default",
        "tool_name": "Bash",
        "tool_input": {"command": "ls -l /srv/reports", "description": "List a folder"},
        "tool_use_id": f"toolu_{call_id}",
    }


def reviewer_of(process: int) -> int:
    """The process of the reviewer that `meup up` has started; the last of a chain."""
    lists = Path(f"/proc/{process}/task").glob("*/children")
    below = [int(child) for found in lists for child in found.read_text("ascii").split()]
    return reviewer_of(below[-1]) if below else process


class Host:
    """Calls hooks over connections that are kept.

    Args:
        url: The gateway, as `http://127.0.0.1:PORT`.
        token: The participant's token.
    """

    def __init__(self, url: str, token: str) -> None:
        self._host, port = url.removeprefix("http://").split(":")
        self._port = int(port)
        self._head = (
            "POST /hooks/claude-code?timeout=600 HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        )
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, number: int) -> None:
        """Ask whether a command may run, which a rule allows."""
        # As long as those of Claude Code, and as they without a long run of digits.
        body = json.dumps(question(f"{number}{uuid4().hex[:20]}")).encode()
        while self._free and self._free[-1][0].at_eof():  # the gateway ends idle ones
            self._free.pop()[1].close()
        if not self._free:
            self._free.append(await asyncio.open_connection(self._host, self._port))
        reader, writer = self._free.pop()
        writer.write(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        answer: Any = json.loads(await reader.readexactly(length))
        assert answer["hookSpecificOutput"]["permissionDecision"] == "allow", answer
        self._free.append((reader, writer))

    def close(self) -> None:
        """Close its connections."""
        for _, writer in self._free:
            writer.close()


async def at_a_rate(host: Host, count: int) -> tuple[list[float], list[float]]:
    """Seconds from asking to the answer, and seconds that the timer here was late, of each call.

    None waits for the one before it, so a slow one holds back no other.
    """
    begun = time.perf_counter()
    late: list[float] = []

    async def one(number: int, due: float) -> float:
        asked = time.perf_counter()
        late.append(asked - due)
        await host.ask(number)
        return time.perf_counter() - asked

    async with asyncio.TaskGroup() as tasks:
        calls: list[asyncio.Task[float]] = []
        for number in range(count):
            due = begun + number / PER_SECOND
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            calls.append(tasks.create_task(one(number, due)))
    return [each.result() for each in calls], late


async def one_by_one(host: Host, count: int) -> list[float]:
    took: list[float] = []
    for number in range(count):
        begun = time.perf_counter()
        await host.ask(number)
        took.append(time.perf_counter() - begun)
    return took


async def all_at_once(hosts: list[Host]) -> float:
    """Seconds until all agents have the answer to a call that they make at once."""
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number, host in enumerate(hosts):
            tasks.create_task(host.ask(number))
    return time.perf_counter() - begun


def started_hook(socket: str, token_file: Path, number: int) -> tuple[float, float]:
    """Seconds of a `meup-hook` from its start to its end; of its processor's time."""
    program = Path(sys.executable).with_name("meup-hook")
    said = json.dumps(question(f"cold-{number}")).encode()
    command = [str(program), "claude-code", "--url", socket, "--token-file", str(token_file)]
    used, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, input=said, capture_output=True, timeout=PATIENCE, check=True)
    took, now = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert b'"allow"' in done.stdout, done
    return took, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def measure(scale: float = 1.0) -> Iterator[Figure]:
    calls, agents = max(20, round(CALLS * scale)), max(2, round(AGENTS * scale))
    starts = max(3, round(STARTS * scale))
    tokens = {f"coder-{number}": new_token() for number in range(agents)}
    meup = [*processes.PYTHON, "-m", "meup_agent.cli"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "policy.yaml").write_text(POLICY)
        init = [*meup, "init", "--name", "home", "--policy", "policy.yaml"]
        variables = environment(folder)
        subprocess.run(init, cwd=folder, env=variables, check=True, stdout=subprocess.DEVNULL)
        with (folder / "space.yaml").open("a") as space:
            space.writelines(
                MAY_PROPOSE.format(name=name, token=token) for name, token in tokens.items()
            )
        up = started([*meup, "up", "--port", "0"], folder)
        try:
            socket: str = pasted(up)["env"]["MEUP_URL"]
            assert up.stdout is not None
            mcp = next(line.split('"')[3] for line in up.stdout if '"url"' in line)
            url = mcp.removesuffix("/mcp")
            token = (folder / "agent.token").read_text(encoding="ascii").strip()
            with asyncio.Runner() as runner:
                host = Host(url, token)
                runner.run(one_by_one(host, WARM_UP))
                reviewer = reviewer_of(up.pid)
                took = runner.run(one_by_one(host, calls // 4))
                alone = statistics.median(took)
                yield Figure("a rule's yes by HTTP, one after the other", alone * 1e3, "ms")
                before = cpu_seconds(up.pid), cpu_seconds(reviewer)
                took, late = runner.run(at_a_rate(host, calls))
                after = cpu_seconds(up.pid), cpu_seconds(reviewer)
                at = f"a rule's yes by HTTP, {PER_SECOND} a second"
                yield Figure(at, statistics.median(took) * 1e3, "ms", 5)
                yield Figure(f"{at}: p99", percentile(took, 0.99) * 1e3, "ms", 50)
                yield Figure(
                    "beside that, the host's timer was late", statistics.median(late) * 1e3, "ms"
                )
                for words, begun, ended_at in zip(
                    ("the gateway", "the reviewer"), before, after, strict=True
                ):
                    cpu = (ended_at - begun) / calls
                    yield Figure(f"of that, processor time of {words}", cpu * 1e3, "ms")
                runs = [
                    started_hook(socket, folder / "agent.token", number)
                    for number in range(1 + starts)
                ][1:]
                wall = statistics.median(wall for wall, _ in runs) - alone
                yield Figure("`meup-hook`, beyond the wait", wall * 1e3, "ms", 120)
                cpu = statistics.median(cpu for _, cpu in runs)
                yield Figure("`meup-hook`: processor time", cpu * 1e3, "ms", 60)
                hosts = [Host(url, token) for token in tokens.values()]
                first = runner.run(all_at_once(hosts))
                yield Figure(f"{agents} agents ask at once, and join for it", first, "s")
                again = statistics.median(runner.run(all_at_once(hosts)) for _ in range(5))
                yield Figure(f"{agents} agents ask at once", again, "s")
                for each in (host, *hosts):
                    each.close()
        finally:
            ended(up)


PROGRAM = Program("hooks", "The hooks of a coding agent: a rule's yes", measure)
