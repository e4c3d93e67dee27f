"""A server's program: started before the SDK is there, ended with its group."""

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteReceiveStream
from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS

from meup_agent.errors import CannotConnect
from meup_agent.mcp import Bridge, StdioServer
from meup_agent.mcp.bridge import transports
from meup_agent.mcp.bridge.transports import (
    ServerMonitor,
    ServerProcess,
    ServerStarter,
    connect,
    server_environment,
)
from meup_agent.processes.guarded import StderrTail
from tests.mcp.bridge.stage import AT_ONCE, BRIDGE, stdio
from tests.patience import PATIENCE

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


async def told(stream: ByteReceiveStream | ServerProcess) -> int:
    """The last word of a program's first line: a process's id."""
    heard = b""
    while b"\n" not in heard:
        read = stream.read if isinstance(stream, ServerProcess) else stream.receive
        chunk = await read()
        assert chunk, heard
        heard += chunk
    return int(heard.split()[-1])


@asynccontextmanager
async def ending(pid: int) -> AsyncGenerator[None]:
    """A block at whose end another process has ended: the server itself, behind its guard."""
    descriptor = os.pidfd_open(pid)
    try:
        yield
        await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)


@asynccontextmanager
async def started(command: str, *arguments: str) -> AsyncGenerator[ServerProcess]:
    """A server's program, for a block that ends in time."""
    with closing(ServerProcess(StdioServer(command, arguments))) as process:
        with anyio.fail_after(PATIENCE):
            yield process


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
        async with ending(await told(process)):
            starter.discard()


async def test_input_closes_first_and_the_group_dies_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.processes.guarded.EXIT_SECONDS", 0.2)
    async with started(sys.executable, "-c", STUBBORN) as process:
        async with ending(await told(process)):
            await process.end()
        assert await process.read() == b"closed\n"


async def test_what_cannot_be_started_is_told_by_the_connection() -> None:
    starter = ServerStarter(StdioServer("there-is-no-such-command", ()))
    starter.begin()
    with pytest.raises(CannotConnect, match="there is no command 'there-is-no-such-command'"):
        starter.take()


def test_the_inherited_variables_are_those_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "() { :; }; echo")
    monkeypatch.setenv("SECRET", "x")
    found = server_environment(StdioServer("x", (), {"OWN": "1"}))
    assert found["OWN"] == "1"
    assert found.keys() <= {*DEFAULT_INHERITED_ENV_VARS, "OWN"} - {"TERM"}


KILLED = f"""
import anyio
from meup_agent.mcp import StdioServer
from meup_agent.mcp.bridge.transports import ServerProcess

async def main():
    process = ServerProcess(StdioServer({sys.executable!r}, ("-c", {STUBBORN!r})))
    print("the server", (await process.read()).decode(), flush=True)
    await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of the end of any process")
async def test_server_that_heeds_nothing_ends_where_its_client_is_killed() -> None:
    process = await anyio.open_process([sys.executable, "-c", KILLED], stderr=None)
    assert process.stdout is not None
    with anyio.fail_after(PATIENCE):
        async with ending(await told(process.stdout)):
            process.kill()
            await process.wait()
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
    async with started(sys.executable, "-c", code) as process, ending(await told(process)):
        await process.end()


@pytest.mark.thorough
async def test_message_without_an_end_stops_a_server_that_heeds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transports, "MAX_MESSAGE_BYTES", 1 << 20)
    code = (
        "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "os.write(2, b'%d\\n' % os.getpid())\n"
        "while True: os.write(1, b'x' * 65536)"
    )
    traffic, tail = ServerMonitor(anyio.Event().set, remove_nothing), StderrTail("server")
    server, stack = StdioServer(sys.executable, ("-c", code)), AsyncExitStack()
    with anyio.fail_after(PATIENCE):
        async with stack, connect(server, traffic, tail) as (read, _):
            async for _message in read:
                raise AssertionError("it has sent nothing")
            assert traffic.excess == f"sent a message of more than {1 << 20} bytes"
            await stack.enter_async_context(ending(int(tail.lines[0])))
    assert tail.lines[1:] == ["the server was ended by signal 9"]


async def remove_nothing(_result: object) -> None:
    """Leave a list as it is."""


async def test_what_cannot_be_run_is_told_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "server"
    file.write_bytes(b"\x7fELF")
    file.chmod(0o755)
    async with started(str(file)) as process:
        assert await process.read() == b""
        await process.end()
    assert process.last_words == f"cannot start {str(file)!r}: Exec format error\n"
