"""A server's program: started before the SDK is there, ended with its group."""

import os
import sys
from pathlib import Path

import anyio
import pytest
from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS

from meup_agent.errors import CannotConnect
from meup_agent.mcp import Bridge, StdioServer
from meup_agent.mcp.server_process import (
    INHERITED,
    ServerProcess,
    ServerStarter,
    server_environment,
)
from tests.mcp.bridge.stage import AT_ONCE, BRIDGE, stdio
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio

STUBBORN = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdout.write(f"ready {os.getpid()}\\n")
sys.stdout.flush()
sys.stdin.read()
sys.stdout.write("closed\\n")
sys.stdout.flush()
while True:
    signal.pause()
"""


async def opened(process: ServerProcess) -> int:
    """A descriptor of the server itself, behind its guard, that can be read when it has ended."""
    heard = b""
    while b"\n" not in heard:
        chunk = await process.read()
        assert chunk, heard
        heard += chunk
    return os.pidfd_open(int(heard.split()[1]))


async def test_the_first_connection_takes_the_program_that_was_started_before(
    tmp_path: Path,
) -> None:
    given = stdio("scripted", "2025-06-18")
    assert isinstance(given, StdioServer)
    starts = tmp_path / "starts"
    counted = StdioServer(
        "sh",
        ("-c", f'echo start >> "{starts}"; exec "$@"', "sh", given.command, *given.args),
        given.env,
        given.cwd,
    )
    starter = ServerStarter(counted)
    starter.begin()
    with anyio.fail_after(PATIENCE):
        async with Bridge(BRIDGE, counted, settings=AT_ONCE, starter=starter).running():
            assert starts.read_text() == "start\n"
        # Each further connection has a new one.
        async with Bridge(BRIDGE, counted, settings=AT_ONCE, starter=starter).running():
            assert starts.read_text() == "start\nstart\n"
    starter.discard()


async def test_a_program_without_a_connection_is_ended() -> None:
    starter = ServerStarter(StdioServer(sys.executable, ("-c", STUBBORN)))
    starter.begin()
    process = starter._first  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    with anyio.fail_after(PATIENCE):
        server = await opened(process)
        try:
            starter.discard()
            await anyio.wait_readable(server)
        finally:
            os.close(server)


async def test_its_input_is_closed_first_and_its_group_killed_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meup_agent.mcp.server_process.EXIT_SECONDS", 0.2)
    process = ServerProcess(StdioServer(sys.executable, ("-c", STUBBORN)))
    try:
        with anyio.fail_after(PATIENCE):
            server = await opened(process)
            try:
                await process.end()
                await anyio.wait_readable(server)
            finally:
                os.close(server)
            assert await process.read() == b"closed\n"
    finally:
        process.close()


async def test_what_cannot_be_started_is_told_by_the_connection() -> None:
    starter = ServerStarter(StdioServer("there-is-no-such-command", ()))
    starter.begin()
    with pytest.raises(CannotConnect, match="there is no command 'there-is-no-such-command'"):
        starter.take()


def test_the_inherited_variables_are_those_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(INHERITED) == DEFAULT_INHERITED_ENV_VARS
    monkeypatch.setenv("TERM", "() { :; }; echo")
    monkeypatch.setenv("SECRET", "x")
    found = server_environment(StdioServer("x", (), {"OWN": "1"}))
    assert found["OWN"] == "1"
    assert found.keys() <= {*INHERITED, "OWN"} - {"TERM"}
