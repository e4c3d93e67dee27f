"""A server's program: started before the SDK is there, ended with its group."""

import os
import sys
from pathlib import Path

import anyio
import pytest
from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS

from meup_agent.errors import CannotConnect
from meup_agent.mcp import Bridge, StdioServer
from meup_agent.mcp.sdk_transports import connect
from meup_agent.mcp.server_process import (
    INHERITED,
    MAX_MESSAGE_BYTES,
    ServerProcess,
    ServerStarter,
    server_environment,
)
from meup_agent.mcp.watched_streams import Traffic
from meup_agent.processes.output_tail import StderrTail
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


async def test_the_first_connection_takes_the_program_started_before(tmp_path: Path) -> None:
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


async def test_input_closes_first_and_the_group_dies_last(monkeypatch: pytest.MonkeyPatch) -> None:
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


KILLED = f"""
import anyio
from meup_agent.mcp import StdioServer
from meup_agent.mcp.server_process import ServerProcess

async def main():
    process = ServerProcess(StdioServer({sys.executable!r}, ("-c", {STUBBORN!r})))
    print("the server", (await process.read()).decode(), flush=True)
    await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of the end of any process")
async def test_server_that_heeds_nothing_ends_where_its_client_is_killed() -> None:
    process = await anyio.open_process([sys.executable, "-c", KILLED], stderr=None)
    assert process.stdout is not None
    with anyio.fail_after(PATIENCE):
        heard = b""
        while b"\n" not in heard:
            heard += await process.stdout.receive()
        server = os.pidfd_open(int(heard.split()[3]))
        try:
            process.kill()
            await process.wait()
            await anyio.wait_readable(server)
        finally:
            os.close(server)
    await process.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
async def test_what_a_server_has_left_running_ends_with_it() -> None:
    left = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    code = (
        "import subprocess, sys;"
        f"left = subprocess.Popen([sys.executable, '-IS', '-c', {left!r}],"
        " start_new_session=True, stdin=-3, stdout=-3, stderr=-3);"
        "print('ready', left.pid, flush=True); sys.stdin.read()"
    )
    process = ServerProcess(StdioServer(sys.executable, ("-c", code)))
    try:
        with anyio.fail_after(PATIENCE):
            other = await opened(process)
            try:
                await process.end()
                await anyio.wait_readable(other)
            finally:
                os.close(other)
    finally:
        process.close()


async def test_message_without_an_end_stops_a_server_that_heeds_nothing() -> None:
    code = (
        "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "os.write(2, b'%d\\n' % os.getpid())\n"
        "while True: os.write(1, b'x' * 65536)"
    )
    ended = anyio.Event()
    traffic, tail = Traffic(ended.set, remove_nothing), StderrTail("server")
    with anyio.fail_after(PATIENCE):
        async with connect(StdioServer(sys.executable, ("-c", code)), traffic, tail) as (read, _):
            async for _message in read:
                raise AssertionError("it has sent nothing")
            assert traffic.excess == f"sent a message of more than {MAX_MESSAGE_BYTES} bytes"
            server = os.pidfd_open(int(tail.lines[0]))
        try:
            await anyio.wait_readable(server)
        finally:
            os.close(server)
    assert tail.lines[1:] == ["the server was ended by signal 9"]


async def remove_nothing(_result: object) -> None:
    """Leave a list as it is."""


async def test_what_cannot_be_run_is_told_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "server"
    file.write_bytes(b"\x7fELF")
    file.chmod(0o755)
    process = ServerProcess(StdioServer(str(file), ()))
    try:
        with anyio.fail_after(PATIENCE):
            assert await process.read() == b""
            await process.end()
    finally:
        process.close()
    assert process.last_words == f"cannot start {str(file)!r}: Exec format error\n"
