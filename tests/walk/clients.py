"""The four MCP clients of the walk: how each is installed, and how it makes calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio

from tests import npm

HERE: Final = Path(__file__).parent

INSTALLED: Final = Path(sys.prefix) / "walk"
"""The folder of what is installed: beside what pip installs, so that both go away together."""

_FASTMCP: Final = INSTALLED / "fastmcp"
_INSPECTOR: Final = INSTALLED / "node_modules" / "@modelcontextprotocol" / "inspector"


class Client(NamedTuple):
    """An MCP client.

    Attributes:
        name: The participant that it is.
        title: Its name for readers.
        program: Command and arguments, before the configuration and the calls; empty: the
            Inspector, which makes one call a process.
    """

    name: str
    title: str
    program: tuple[str, ...]


def clients(python: Path) -> tuple[Client, ...]:
    """The clients; the SDK for Python is the one that came with the package."""
    return (
        Client("python", "SDK for Python", (str(python), str(HERE / "sdk_client.py"))),
        Client(
            "typescript",
            "SDK for TypeScript",
            (npm.NODE, str(HERE / "sdk_client.mjs"), str(INSTALLED)),
        ),
        Client(
            "fastmcp",
            "FastMCP",
            (str(_FASTMCP / "bin" / "python"), str(HERE / "fastmcp_client.py")),
        ),
        Client("inspector", "MCP Inspector", ()),
    )


def install() -> None:
    """Install exactly what the lock files name."""
    npm.install(HERE, INSTALLED)
    command = [sys.executable, "-m", "uv", "sync", "--quiet", "--frozen", "--compile-bytecode"]
    subprocess.run(
        [*command, "--python", sys.executable, "--project", HERE / "environment"],
        env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(_FASTMCP)},
        check=True,
    )


async def use(
    client: Client,
    configuration: Path,
    calls: Sequence[tuple[str, dict[str, Any]]],
    environment: dict[str, str],
) -> tuple[list[str], list[str]]:
    """Let a client list the tools and make calls, one after another.

    Returns:
        The names of the tools, and the texts of the results.

    Raises:
        AssertionError: It ended before that, or a result is an error.
    """
    if not client.program:
        return await _use_inspector(configuration, calls, environment)
    said = await _run([*client.program, str(configuration), json.dumps(calls)], environment)
    tools, *results = (json.loads(line) for line in said.splitlines())
    assert all(not failed for failed, _ in results), f"{client.title}: {results}"
    return tools, [text for _, text in results]


async def _use_inspector(
    configuration: Path, calls: Sequence[tuple[str, dict[str, Any]]], environment: dict[str, str]
) -> tuple[list[str], list[str]]:
    """The Inspector's command line; node's own folder must be on the path for its launcher."""
    command = [npm.NODE, str(_INSPECTOR / "clients" / "launcher" / "build" / "index.js"), "--cli"]
    command += ["--config", str(configuration), "--server", "meup"]
    command += ["--connect-timeout", "180000", "--method"]
    listed = json.loads(await _run([*command, "tools/list"], environment))
    texts: list[str] = []
    for tool, arguments in calls:
        given = [f"{name}={value}" for name, value in arguments.items()]
        options = ["--tool-name", tool, *(("--tool-arg", *given) if given else ())]
        result = json.loads(await _run([*command, "tools/call", *options], environment))
        while waiting := _waiting(result):
            options = ["--tool-name", "meup_result", "--tool-arg", f"id={waiting}"]
            result = json.loads(await _run([*command, "tools/call", *options], environment))
        assert not result.get("isError"), f"MCP Inspector: {result}"
        texts.append(result["content"][0]["text"])
    return [each["name"] for each in listed["tools"]], texts


def _waiting(result: Any) -> str:
    """The id of a call that still waits, as its model is told; empty: it does not."""
    meta = result.get("_meta", {})
    waits = meta.get("dev.meup/outcome") == "pending"
    return str(meta["dev.meup/proposal"]) if waits else ""


async def _run(command: list[str], environment: dict[str, str]) -> str:
    path = f"{Path(npm.NODE).parent}{os.pathsep}{environment['PATH']}"
    variables = {**environment, "PATH": path, "MCP_INSPECTOR_SECRET_STORE": "memory"}
    done = await anyio.run_process(command, env=variables, check=False)
    said, errors = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{said}{errors}"
    return said


if __name__ == "__main__":
    install()
