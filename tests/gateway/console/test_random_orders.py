"""People decide by their pages while the gateway is killed: each page shows what is open, no more.

Sockets and a journal file decide about time here, so a failure tells its seed and its story, and
may take several runs to come again. ``make orders`` tries many.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import anyio
import anyio.to_thread
import httpx
import pytest
from anyio.abc import TaskGroup, TaskStatus
from anyio.lowlevel import checkpoint

from meup_agent import Agent, Backoff, ProposalHandle, Settings, Space
from meup_agent.errors import MeupError
from meup_agent.gateway import GatewayLimits, JournalConfig
from meup_agent.gateway.console.templating import key_of
from tests.gateway.console.conftest import PARTICIPANTS, Browser, Site, fields_in, open_site
from tests.gateways import one_space_config
from tests.patience import PATIENCE

BEGIN: Final = int(os.environ.get("MEUP_SEED") or 0)
SEEDS: Final = int(os.environ.get("MEUP_EXAMPLES") or 2)
STEPS: Final = 40

PROPOSERS: Final = ("first", "second")
TABS: Final = ("you", "you, again", "other", "boss")
QUICK: Final = Settings(backoff=Backoff(first=0.01, longest=0.05))


def person_of(tab: str) -> str:
    return tab.partition(",")[0]


class Orders:
    """Proposers, pages, and a gateway that dies, in an order that a seed gives."""

    def __init__(self, seed: int, site: Site, tasks: TaskGroup) -> None:
        self.random = Random(seed)
        self.site = site
        self.tasks = tasks
        self.spaces: dict[str, Space] = {}
        self.tabs: dict[str, Browser] = {}
        self.handles: list[ProposalHandle] = []
        self.ran: Counter[str] = Counter()
        self.proposed = 0
        self.edited = 0
        self.story: list[str] = []

    def note(self, *words: object) -> None:
        self.story.append(" ".join(map(str, words)))

    async def step(self) -> None:
        chance = self.random.random()
        if chance < 0.35:
            await self._propose()
        elif chance < 0.45 and self.handles:
            self.tasks.start_soon(self._withdraw, self.random.choice(self.handles))
        elif chance < 0.85:
            verb = self.random.choice(("approve", "approve", "edit", "reject"))
            tab = self.random.choice(TABS)
            if self.random.random() < 0.5:
                self.tasks.start_soon(self._decide, tab, verb)
            else:
                await self._decide(tab, verb)
        elif chance < 0.9:
            self.note("killed")
            await anyio.to_thread.run_sync(self.site.gateway.kill)
            await anyio.to_thread.run_sync(self.site.gateway.restart)
        elif chance < 0.95:
            self.site.gateway.drop(self.random.choice((*PROPOSERS, "tools")))
        else:
            await checkpoint()

    async def _propose(self) -> None:
        self.proposed += 1
        who, to = self.random.choice(PROPOSERS), self.random.choice(("", "", *TABS[::3], "other"))
        arguments = {"path": f"p{self.proposed}"}
        proposal = self.spaces[who].propose("tools", "write_file", arguments, ttl=600, to=to or ())

        async def hold(*, task_status: TaskStatus[ProposalHandle | None]) -> None:
            try:
                async with proposal as handle:
                    task_status.started(handle)
                    await anyio.sleep_forever()
            except MeupError as error:
                self.note(who, "did not propose", error)
                with suppress(RuntimeError):  # it had begun
                    task_status.started(None)

        handle = await self.tasks.start(hold)
        if handle is not None:
            self.handles.append(handle)
            self.note(who, "proposed", arguments["path"], "to", to or "all", key_of(who, handle.id))

    async def _withdraw(self, handle: ProposalHandle) -> None:
        with suppress(MeupError):
            await handle.withdraw()
            self.note("withdrawn", handle.id)

    async def _decide(self, tab: str, verb: str) -> None:
        """Decide one of what a page shows; by the time that it is sent it may be another's."""
        browser = self.tabs[tab]
        # A gateway that is killed answers nothing.
        with suppress(httpx.HTTPError, AssertionError):
            keys = await self.shown(tab)
            if not keys:
                return
            key = self.random.choice(sorted(keys))
            page, action = (await browser.get(f"/inbox/{key}")).text, f"/inbox/{key}/{verb}"
            if verb == "edit":
                self.edited += 1
                typed = f'{{"path": "edited {self.edited}"}}'
                form = fields_in(page, action, "arguments") | {"arguments": typed}
                page = (await browser.post(action, form)).text
                answer = await browser.post(action, fields_in(page, action, "seen"))
            else:
                more = {"reason": "unsafe", "words": "no"} if verb == "reject" else {}
                answer = await browser.post(action, fields_in(page, action) | more)
            self.note(tab, verb, key, answer.status_code)

    async def shown(self, tab: str) -> set[str]:
        """The keys of what a page lists."""
        page = await self.tabs[tab].get("/inbox")
        assert page.status_code == 200
        return set(re.findall(r'id="q-([0-9a-f]+)"', page.text))

    def open_for(self, person: str, proposals: list[dict[str, Any]]) -> set[str]:
        """The keys of what waits for a person, as the gateway knows it."""
        return {
            key_of(each["proposer"], each["id"])
            for each in proposals
            if each["state"] == "pending"
            and (not each["to"] or person in each["to"])
            and person not in {rejection["by"] for rejection in each["rejections"]}
        }

    async def proposals(self) -> list[dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self.site.token('boss')}"}
        answer = await self.tabs["boss"].client.get(
            "/spaces/demo/proposals?limit=100", headers=headers
        )
        found: list[dict[str, Any]] = answer.json()["proposals"]
        return found

    async def settle(self) -> None:
        """Wait until each page shows what is open, and nothing else."""
        different = [""]
        with anyio.move_on_after(PATIENCE):
            while different:
                different = await self._differences()
        assert not different

    async def _differences(self) -> list[str]:
        """The pages that show something else than what is open, each with what that is."""
        found: list[str] = []
        for tab in TABS:
            ours = self.open_for(person_of(tab), await self.proposals())
            shown = await self.shown(tab)
            if shown != ours:
                found.append(f"{tab}: too much {shown - ours}, too little {ours - shown}")
        return found

    async def check(self) -> None:
        """Calls that ran were approved, and ran once."""
        assert not [each for each, times in self.ran.items() if times > 1]
        said: set[str] = set()
        for each in await self.proposals():
            if each["state"] == "fulfilled":
                changes = [change["fulfilled"] for change in each["changes"]]
                said.update(changes or [each["params"]["arguments"]["path"]])
        assert said <= self.ran.keys()


@asynccontextmanager
async def begun(seed: int, folder: Path) -> AsyncGenerator[Orders]:
    """The cast of one order, with a journal file that outlives the gateway."""
    names = ("you", "other", "boss", "tools")
    cast = {name: PARTICIPANTS[name] for name in names}
    cast |= dict.fromkeys(PROPOSERS, PARTICIPANTS["proposer"])
    config = replace(
        one_space_config("demo", cast, GatewayLimits(messages_burst=20_000)),
        journal=JournalConfig(path=folder / f"{seed}.sqlite"),
    )
    async with open_site(config) as site, AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        orders = Orders(seed, site, tasks)
        tools = Agent("tools")

        @tools.tool
        async def write_file(path: str) -> str:
            orders.ran[path] += 1
            await anyio.sleep(orders.random.choice((0, 0, 0.02)))
            return "ok"

        for name in (tools, *map(Agent, PROPOSERS)):
            joining = name.join(
                site.gateway.url, space="demo", token=site.token(name.name), settings=QUICK
            )
            orders.spaces[name.name] = await stack.enter_async_context(joining)
        for tab in TABS:
            orders.tabs[tab] = await site.browser(person_of(tab))
        yield orders
        tasks.cancel_scope.cancel()


@pytest.mark.rule("race.any_order")
async def test_each_page_shows_what_is_open_whatever_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = 0
    for seed in range(BEGIN, BEGIN + SEEDS):
        # People leave between two pages, too.
        monkeypatch.setattr(
            "meup_agent.gateway.console.presence.IDLE_SECONDS", 0.1 if seed % 2 else 60.0
        )
        async with begun(seed, tmp_path) as orders:
            try:
                for _ in range(STEPS):
                    await orders.step()
                await orders.settle()
                await orders.check()
            except BaseException as error:
                error.add_note(f"seed {seed}\n" + "\n".join(orders.story))
                raise
            ran += len(orders.ran)
    assert ran, "\n".join(orders.story)
