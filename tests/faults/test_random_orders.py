"""Agents propose, decide and cancel while the gateway is killed: all agree with the journal after.

Sockets and a journal file decide about time here, so a failure tells its seed and its story, and
may take several runs to come again. ``make orders`` tries many.
"""

import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import anyio
import anyio.to_thread
import httpx
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from meup_agent import (
    Agent,
    Backoff,
    Fulfillment,
    Outcome,
    ProposalHandle,
    ProposalState,
    Settings,
    Space,
)
from meup_agent.errors import MeupError
from meup_agent.gateway import Gateway, GatewayLimits, JournalConfig, ThreadedGateway
from meup_agent.protocol.space import owner
from meup_agent.types import ProposalRecord
from tests.gateways import one_space_config
from tests.no_tls import NO_TLS
from tests.patience import PATIENCE

BEGIN: Final = int(os.environ.get("MEUP_SEED") or 0)
SEEDS: Final = int(os.environ.get("MEUP_EXAMPLES") or 4)
STEPS: Final = 60

PROPOSERS: Final = ("first", "second")
DECIDERS: Final = ("ann", "bob")
AGENTS: Final = ("tools", *PROPOSERS, *DECIDERS)
QUICK: Final = Settings(backoff=Backoff(first=0.01, longest=0.05))

UNSENT: Final = "unsent"
"""State of a proposal that was given up before a connection took it."""


def meaning(state: str) -> str:
    """The meaning of a state to all but the proposer, who alone weighs rejections and losses."""
    if state in (ProposalState.PENDING, ProposalState.IN_PROGRESS, ProposalState.FULFILLED):
        return str(state)
    return "over"


class Orders:
    """Proposers, two that decide, a tool, and a gateway that dies, in an order of a seed's."""

    def __init__(self, seed: int, gateway: ThreadedGateway, tasks: TaskGroup) -> None:
        self.random = Random(seed)
        self.gateway = gateway
        self.tasks = tasks
        self.spaces: dict[str, Space] = {}
        self.staying: dict[str, tuple[anyio.CancelScope, anyio.Event]] = {}
        self.handles: dict[str, tuple[Space, ProposalHandle]] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.began: Counter[str] = Counter()
        self.paths = 0
        self.story: list[str] = []

    def note(self, *words: object) -> None:
        self.story.append(" ".join(map(str, words)))

    def begin(self, act: Callable[..., Awaitable[None]], *given: Any) -> None:
        """Do something beside the steps that follow."""

        async def work() -> None:
            try:
                await act(*given)
            except MeupError as error:
                self.note(act.__name__, *given, "failed:", type(error).__name__, error)

        self.tasks.start_soon(work)

    async def step(self) -> None:
        """One thing that happens."""
        acts: dict[Callable[[], Awaitable[None]], int] = {
            self._propose: 30,
            partial(self._decide, "fulfill"): 30,
            partial(self._decide, "reject"): 8,
            self._withdraw: 8,
            self._renew: 4,
            self._call: 8,
            self._drop: 8,
            self._kill: 5,
            self._leave: 4,
            checkpoint: 15,
        }
        (act,) = self.random.choices(list(acts), list(acts.values()))
        await act()

    def _new_path(self) -> str:
        self.paths += 1
        return f"p{self.paths}"

    def someone(self, names: tuple[str, ...]) -> str:
        return self.random.choice(names)

    async def _propose(self) -> None:
        path, who = self._new_path(), self.someone(PROPOSERS)
        ttl = self.random.choice((0.05, 600, 600, 600))
        to = self.random.choice(((), (), ("ann",), ("ann", "bob")))
        wait = self.random.choice(("addressed", "first", "all", "deadline"))
        self.begin(self.propose, who, path, ttl, to, wait, self.random.random() < 0.1)

    async def propose(
        self, who: str, path: str, ttl: float, to: tuple[str, ...], wait: str, hasty: bool
    ) -> None:
        space = self.spaces[who]
        async with space.propose(
            "tools", "write", {"path": path}, ttl=ttl, to=to, wait=wait
        ) as handle:
            self.handles[handle.id] = space, handle
            self.note(who, "proposed", path, handle.id, "to", to, ttl, wait)
            if hasty:
                return
            self.outcomes[handle.id] = outcome = await handle.outcome()
            self.note(who, "learned of", path, type(outcome).__name__)

    async def _decide(self, verb: str) -> None:
        decider = self.someone(DECIDERS)
        records = self.spaces[decider].proposals
        if waiting := [each for each in records if each.state is ProposalState.PENDING]:
            self.begin(self.decide, decider, verb, self.random.choice(waiting))

    async def decide(self, decider: str, verb: str, record: ProposalRecord) -> None:
        proposal = self.spaces[decider].proposals.get(record)
        self.note(decider, "begins to", verb, record.id)
        if verb == "reject":
            await proposal.reject("unsafe")
        elif self.random.random() < 0.2:
            with anyio.move_on_after(self.random.choice((0.0, 0.005, 0.02))):
                await proposal.fulfill()
        else:
            await proposal.fulfill()
        self.note(decider, verb, record.id, "ended")

    async def _withdraw(self) -> None:
        if self.handles:
            self.begin(self.withdraw, self.random.choice(list(self.handles)))

    async def withdraw(self, name: str) -> None:
        space, handle = self.handles[name]
        await handle.withdraw()
        self.note(space.me, "withdrew", name)

    async def _renew(self) -> None:
        if self.handles:
            self.begin(self.renew, self.random.choice(list(self.handles)))

    async def renew(self, name: str) -> None:
        space, handle = self.handles[name]
        await handle.renew(900)
        self.note(space.me, "renewed", name)

    async def _call(self) -> None:
        path, who = self._new_path(), self.someone(DECIDERS)
        self.begin(self.call, who, path, self.random.choice((0.0, 0.01, 600)))

    async def call(self, who: str, path: str, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self.spaces[who].call("tools", "write", {"path": path})

    async def _drop(self) -> None:
        self.note("dropped", who := self.someone(AGENTS))
        await anyio.to_thread.run_sync(self.gateway.drop, who)

    async def _kill(self) -> None:
        self.note("killed")
        await anyio.to_thread.run_sync(self.gateway.kill)
        await anyio.to_thread.run_sync(self.gateway.restart)

    async def _leave(self) -> None:
        """An agent stops, and is started again."""
        who = self.someone(("second", "bob"))
        self.note(who, "leaves")
        stay, gone = self.staying[who]
        stay.cancel()
        # Or the one would take over from the other.
        await gone.wait()
        await self.tasks.start(self.stay, who, Agent(who))

    async def stay(self, who: str, agent: Agent, *, task_status: Any) -> None:
        """Be in the space until told to leave."""
        token = self.gateway.token(who)
        stay, gone = self.staying[who] = anyio.CancelScope(), anyio.Event()
        with stay:
            async with agent.join(
                self.gateway.url, space="demo", token=token, settings=QUICK, grace=0
            ) as self.spaces[who]:
                task_status.started()
                await anyio.sleep_forever()
        gone.set()

    # --- afterwards ---

    async def settle(self) -> None:
        """End what is open, and wait until all agree."""
        for name in list(self.handles):
            if self.random.random() < 0.8:
                self.begin(self.withdraw, name)
        different = [""]
        try:
            with anyio.fail_after(PATIENCE):
                while different:
                    different = await self._differences()
        except TimeoutError:
            raise AssertionError("\n".join(different)) from None

    async def _differences(self) -> list[str]:
        """Proposals that an agent takes for something else than the journal does."""
        kept = {each["id"]: each for each in await self.proposals()}
        found: list[str] = []

        def compare(who: str, name: str, state: str) -> None:
            theirs = kept[name]["state"] if name in kept else UNSENT
            if meaning(state) != meaning(theirs):
                found.append(f"{who} takes {name} for {state}: {kept.get(name)}")

        for who, space in self.spaces.items():
            for record in space.proposals:
                compare(who, record.id, record.state)
        for name, (space, handle) in self.handles.items():
            if space is self.spaces[space.me]:
                compare("its proposer", name, handle.state)
        return found

    async def proposals(self) -> list[dict[str, Any]]:
        """All proposals, as the gateway's journal has them."""
        headers = {"Authorization": f"Bearer {self.gateway.token('ann')}"}
        async with httpx.AsyncClient(
            base_url=self.gateway.http_url, trust_env=False, verify=NO_TLS, timeout=PATIENCE
        ) as client:
            answer = await client.get("/spaces/demo/proposals?limit=100", headers=headers)
        found: list[dict[str, Any]] = answer.json()["proposals"]
        return found

    async def check(self) -> int:
        """Check that what was told as carried out is so, and began; how many the journal has."""
        # Before the journal is read: what an agent is told has been kept.
        told = dict(self.outcomes)
        kept = {each["id"]: each for each in await self.proposals()}
        for name, outcome in told.items():
            if isinstance(outcome, Fulfillment):
                assert kept[name]["state"] == "fulfilled", name
        for each in kept.values():
            if each["state"] == "fulfilled":
                assert self.began[each["params"]["arguments"]["path"]], each
        return len(kept)


@asynccontextmanager
async def begun(seed: int, folder: Path) -> AsyncGenerator[Orders]:
    """The cast of one order, with a journal file that outlives the gateway."""
    may: dict[str, tuple[str, ...]] = {"tools": ("mcp/response",)}
    may |= dict.fromkeys(PROPOSERS, ("mcp/proposal",))
    may |= dict.fromkeys(DECIDERS, ("mcp/request", "mcp/reject"))
    capabilities = {who: [{"kind": kind} for kind in kinds] for who, kinds in may.items()}
    config = replace(
        one_space_config("demo", capabilities, GatewayLimits(messages_burst=20_000)),
        journal=JournalConfig(path=folder / f"{seed}.sqlite"),
    )
    tools = Agent("tools")
    with Gateway(config=config).in_thread() as gateway:
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(anyio.create_task_group())
            orders = Orders(seed, gateway, tasks)

            @tools.tool
            async def write(path: str) -> str:
                orders.began[path] += 1
                await anyio.sleep(orders.random.choice((0, 0, 0.005, 0.02)))
                return path

            for agent in (tools, *map(Agent, (*PROPOSERS, *DECIDERS))):
                await tasks.start(orders.stay, agent.name, agent)
            yield orders
            tasks.cancel_scope.cancel()


@pytest.mark.timeout(300 * SEEDS)
@pytest.mark.rule("race.any_order")
async def test_whatever_the_order_all_agree_with_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A gateway that is about to be killed asks others to wait.
    monkeypatch.setattr("meup_agent.gateway.auth.RETRY_AFTER", 0)
    # Of one order none: all may be taken back before a gateway that dies at once is there again.
    kept = 0
    for seed in range(BEGIN, BEGIN + SEEDS):
        # In every other order each message is acknowledged as a large one is.
        monkeypatch.setattr(owner, "MIN_ACKED_BYTES", seed % 2 * 4096)
        async with begun(seed, tmp_path) as orders:
            try:
                with anyio.fail_after(3 * PATIENCE):
                    for _ in range(STEPS):
                        await orders.step()
                    await orders.settle()
                    kept += await orders.check()
            except BaseException as error:
                error.add_note(f"seed {seed}\n" + "\n".join(orders.story))
                raise
    assert kept
