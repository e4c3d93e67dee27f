"""An agent as a script: a process of its own, with the signals of an operating system."""

import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import TaskGroup

from meup_agent.errors import OutcomeUnknown, RequestError
from meup_agent.gateway import ThreadedGateway
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.interaction.people import OverSockets, gateway_for_everybody, join
from tests.interaction.views import note_result, run_within
from tests.patience import PATIENCE
from tests.programs import Program, program

pytestmark = [pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")]

SCRIPT = Path(__file__).with_name("script.py")


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def gateway() -> Generator[ThreadedGateway]:
    with gateway_for_everybody().in_thread() as running:
        yield running


@contextmanager
def running(
    gateway: ThreadedGateway, backend: str, grace: float = PATIENCE, **environment: str
) -> Iterator[Program]:
    """The script; all that it is told of the gateway stands in its environment."""
    told = {
        "MEUP_URL": gateway.url,
        "MEUP_SPACE": "demo",
        "MEUP_TOKEN": gateway.token("tools"),
        **environment,
    }
    with program([SCRIPT, backend, str(grace)], told) as script:
        yield script


async def aside(call: Callable[..., Any], *arguments: Any) -> Any:
    """Let the other side's tasks run while a thread waits."""
    return await anyio.to_thread.run_sync(call, *arguments)


@asynccontextmanager
async def calling(
    gateway: ThreadedGateway, script: Program, ending: AbstractContextManager[Any], tool: str
) -> AsyncGenerator[TaskGroup]:
    """A call of the script's tool, which runs."""
    async with join(OverSockets(gateway), "second") as caller:
        await caller.present("tools", timeout=None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_within, ending, caller.call, "tools", tool)
            await aside(script.wait_for, f"{tool} runs")
            yield tasks


def terminate(script: Program) -> None:
    script._process.send_signal(signal.SIGTERM)


async def test_it_finishes_in_its_grace(gateway: ThreadedGateway, backend: str) -> None:
    results: list[str] = []
    with anyio.fail_after(2 * PATIENCE), running(gateway, backend) as script:
        async with join(OverSockets(gateway), "second") as caller:
            await caller.present("tools", timeout=None)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(note_result, results.append, caller.call, "tools", "finish")
                await aside(script.wait_for, "finish runs")
                script.interrupt()
            assert results == ["finished"]
            assert await aside(script.wait) == 0
    log = script.stderr
    url = log[-1].removeprefix("leaving ")
    assert url.startswith("ws://127.0.0.1:")
    assert log[0] == f"connected to {url} as 'tools'"
    assert log[1].startswith("stopping: running handlers may finish")
    assert script.stdout == ["finish runs"]


@pytest.mark.parametrize("press", [Program.interrupt, terminate], ids=["SIGINT", "SIGTERM"])
async def test_twice_ends_it_at_once(
    gateway: ThreadedGateway, backend: str, press: Callable[[Program], None]
) -> None:
    with anyio.fail_after(2 * PATIENCE), running(gateway, backend, 3600.0) as script:
        ending = pytest.raises(RequestError)
        async with calling(gateway, script, ending, "endless"):
            press(script)
            await aside(script.wait_for, "stopping: running handlers")
            press(script)
        assert ending.excinfo is not None
        assert ending.excinfo.value.data == {"reason": "cancelled"}
        assert await aside(script.wait) == 0
    assert script.stdout[-1] == "endless stopped: no_longer_needed: the agent shuts down"
    assert "stopping at once" in script.stderr


@pytest.mark.parametrize("press", [Program.interrupt, terminate], ids=["SIGINT", "SIGTERM"])
async def test_it_ends_when_it_is_idle(
    gateway: ThreadedGateway, backend: str, press: Callable[[Program], None]
) -> None:
    with anyio.fail_after(2 * PATIENCE), running(gateway, backend) as script:
        await aside(script.wait_for, "connected to")
        press(script)
        assert await aside(script.wait) == 0
    assert "Traceback" not in str(script)


async def test_it_ends_while_it_waits_for_one(gateway: ThreadedGateway, backend: str) -> None:
    # Port 9, discard: nobody listens there.
    with anyio.fail_after(2 * PATIENCE):
        with running(gateway, backend, MEUP_URL="ws://127.0.0.1:9") as script:
            await aside(script.wait_for, "trying again")
            script.interrupt()
            assert await aside(script.wait) == 0
    assert "Traceback" not in str(script)
    assert script.stdout == []


async def test_an_endless_thread_keeps_nobody(gateway: ThreadedGateway, backend: str) -> None:
    with anyio.fail_after(2 * PATIENCE), running(gateway, backend, 0.0) as script:
        ending = pytest.raises(RequestError, match="cancelled")
        async with calling(gateway, script, ending, "deaf"):
            script.interrupt()
        assert await aside(script.wait) == 0


@pytest.mark.parametrize("signals", [1, 3])
async def test_a_handler_that_never_ends_keeps_nobody(
    gateway: ThreadedGateway, backend: str, signals: int
) -> None:
    grace = 0.0 if signals == 1 else 3600.0
    with anyio.fail_after(2 * PATIENCE), running(gateway, backend, grace) as script:
        ending = pytest.raises((RequestError, OutcomeUnknown))
        async with calling(gateway, script, ending, "stubborn") as tasks:
            for said in ("stopping: running handlers", "stopping at once", "leaving")[:signals]:
                script.interrupt()
                await aside(script.wait_for, said)
            assert await aside(script.wait) == 0
            tasks.cancel_scope.cancel()
    left, named = script.stderr[-1].split(": ")
    assert left == "leaving although these do not end"
    assert named.startswith("'stubborn' for 'second'")


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"MEUP_TOKEN": "wrong"}, "refused the token"),
        ({"MEUP_SPACE": "nowhere"}, "no such space"),
        ({"MEUP_TOKEN": ""}, "the token is missing; pass token=… or set MEUP_TOKEN"),
        ({"MEUP_URL": ""}, "the url is missing; pass url=… or set MEUP_URL"),
        ({"MEUP_URL": "http//x"}, "http//x"),
    ],
    ids=["wrong token", "wrong space", "no token", "no url", "bad url"],
)
async def test_what_cannot_start_says_why_in_one_sentence(
    gateway: ThreadedGateway, backend: str, environment: dict[str, str], sentence: str
) -> None:
    with (
        anyio.fail_after(2 * PATIENCE),
        running(gateway, backend, PATIENCE, **environment) as script,
    ):
        assert await aside(script.wait) == 1
    assert "Traceback" not in str(script)
    assert script.stderr[-1].startswith("meup: ")
    assert sentence in script.stderr[-1]
