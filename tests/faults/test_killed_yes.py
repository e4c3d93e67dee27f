"""`kill -9` around uses of a yes in advance: a server never runs more calls than it lets through.

Gateway, bridge and reviewer are processes, of which a drawn one is killed at a drawn moment, and
started again. The MCP server itself writes down what it runs. ``make orders`` tries many.
"""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random

import anyio
import pytest

from meup_agent import Agent, Backoff, Settings, Space
from meup_agent.approval.yeses import give_yes, list_yeses
from meup_agent.client.tool_changes import digest_of_form
from meup_agent.errors import MeupError
from meup_agent.protocol.wire.scoped_yes import KeptYes, YesTerms
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.cli.processes import Running, meup, running
from tests.cli.servers import mcp_server
from tests.faults.gateways import free_port, gateway, space_yaml
from tests.patience import PATIENCE
from tests.wire import payloads

BEGIN = int(os.environ.get("MEUP_SEED") or 0)
SEEDS = max(1, int(os.environ.get("MEUP_EXAMPLES") or 0) // 10)
"""A tenth of the other orders: here processes are started."""

KILLS = 4
LATEST_KILL = 0.2
"""Seconds after some calls are proposed; most of a use lies in its first half."""

MOST = 8
AT_ONCE = 3
"""Calls that are proposed together."""

QUICK = Settings(backoff=Backoff(first=0.01, longest=0.05))
TOOLS = '[{"name": "write", "inputSchema": {"type": "object"}}]'
RUN = 'open("ran", "a").write(arguments["path"] + "\\\\n") and "written"'


class Office:
    """The processes around a yes, and the two that take part from here."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, Random(seed)
        self.port = free_port()
        self.file = space_yaml(folder, ("ann", "bot", "files", "reviewer"))
        self.processes: dict[str, tuple[AsyncExitStack, Running]] = {}
        self.story: list[str] = []

    @contextmanager
    def _command(self, name: str) -> Generator[Running]:
        if name == "gateway":
            with gateway(self.file, self.port) as process:
                yield process
            return
        server = (sys.executable, "-IS", "-c", mcp_server(TOOLS, RUN))
        arguments = ("bridge", "--", *server) if name == "files" else ("reviewer",)
        address = {"MEUP_URL": f"ws://127.0.0.1:{self.port}", "MEUP_SPACE": "demo"}
        variables = {**address, "MEUP_TOKEN": name}
        with running(*arguments, cwd=self.folder, variables=variables) as process:
            yield process

    async def start(self, name: str) -> None:
        stack = AsyncExitStack()
        process = await anyio.to_thread.run_sync(stack.enter_context, self._command(name))
        self.processes[name] = stack, process

    async def kill(self, name: str) -> None:
        stack, process = self.processes.pop(name)
        self.story.append(f"killed {name} after {len(self.ran)} calls")
        await anyio.to_thread.run_sync(process.end, signal.SIGKILL)
        await stack.aclose()

    async def stop(self) -> None:
        for name in list(self.processes):
            await self.kill(name)

    def join(self, name: str) -> AbstractAsyncContextManager[Space]:
        url = f"ws://127.0.0.1:{self.port}"
        return Agent(name).join(url, space="demo", token=name, settings=QUICK)

    @property
    def ran(self) -> list[str]:
        """The calls that the server has run."""
        written = self.folder / "ran"
        return written.read_text().split() if written.exists() else []


async def give(ann: Space, proposal: str, arguments: dict[str, str]) -> None:
    await ann.present("files", timeout=PATIENCE)
    (tool,) = await ann.offers.tools("files")
    digest = payloads.digest("tools/call", {"name": "write", "arguments": arguments}, "files")
    assert digest is not None
    terms = YesTerms("bot", 3600.0, MOST, digest_of_form(tool), digest, {"path": "d/*"})
    await give_yes(ann, proposal, terms)


async def kept(ann: Space) -> KeptYes:
    """The yes, as the gateway has it once it answers."""
    with anyio.fail_after(PATIENCE):
        while True:
            with suppress(MeupError):
                (found,) = await list_yeses(ann)
                return found
            await anyio.sleep(0.05)


@pytest.mark.parametrize("seed", range(BEGIN, BEGIN + SEEDS))
async def test_no_kill_lets_one_too_many_through(tmp_path: Path, seed: int) -> None:
    office = Office(tmp_path, seed)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(office.stop)
        for name in ("gateway", "files", "reviewer"):
            await office.start(name)
        ann = await stack.enter_async_context(office.join("ann"))
        bot = await stack.enter_async_context(office.join("bot"))
        numbers = count()

        async def propose() -> str:
            made = bot.propose("files", "write", {"path": f"d/{next(numbers)}"}, ttl=None)
            return (await stack.enter_async_context(made)).id

        await give(ann, await propose(), {"path": "d/0"})
        for _ in range(KILLS):
            for _ in range(AT_ONCE):
                await propose()
            await anyio.sleep(office.random.uniform(0, LATEST_KILL))
            name = office.random.choice(("gateway", "files", "reviewer"))
            await office.kill(name)
            await office.start(name)
        # A use whose call was lost does not come back, so more calls than uses are needed.
        with anyio.move_on_after(PATIENCE):
            while (await kept(ann)).yes.used < MOST:
                await propose()
                await anyio.sleep(0.2)
        found = await kept(ann)
        assert (found.yes.used, found.state) == (MOST, "used_up"), office.story
        await propose()
        assert (await kept(ann)).yes.used == MOST
        await office.stop()
    assert len(office.ran) <= MOST, office.story
    assert max(Counter(office.ran).values()) == 1, office.story
    done = meup("audit", "--journal", str(tmp_path / "journal.db"), "--json")
    requests = [
        each
        for line in done.stdout.splitlines()
        for each in json.loads(line)["fulfillments"]
        if (each["rule"] or {}).get("rule", "").startswith("yes ")
    ]
    assert len(requests) == MOST, office.story
