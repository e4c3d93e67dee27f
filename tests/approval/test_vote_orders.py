"""Votes in any order, at a reviewer that is started again with votes half counted."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import anyio
import pytest
from anyio.abc import TaskGroup, TaskStatus
from anyio.lowlevel import checkpoint

from meup_agent import Agent, Envelope, ProposalHandle, Space
from meup_agent.approval import Reviewer
from meup_agent.errors import MeupError, RequestError
from tests.approval.orders import KeptSpace, run_seeds
from tests.interaction.people import LIMITS
from tests.virtual_time import anyio_backend as anyio_backend
from tests.wire import kinds, payloads

VOTERS: Final = ("ann", "bob", "cat")
POLICY: Final = "rules: [{quorum: {tool: deploy, of: 2, among: [ann, bob, cat, p]}}]\nend: true\n"
EVIL: Final = 666
"""The version that a proposer says later under the id of another call."""

VOTES: Final[list[dict[str, Any]]] = [{"kind": "mcp/request"}]
PARTICIPANTS: Final[dict[str, list[dict[str, Any]]]] = {
    "p": [{"kind": "mcp/proposal"}, *VOTES],
    "boss": [{"kind": "*"}],
    "reviewer": [{"kind": "*"}],
    "tools": [{"kind": "mcp/response"}],
    **dict.fromkeys(VOTERS, VOTES),
}


class VoteOrders:
    """A proposer, voters with two connections each, and a reviewer that comes and goes."""

    def __init__(
        self, random: Random, space: KeptSpace, tasks: TaskGroup, stack: AsyncExitStack, path: Path
    ) -> None:
        self.random, self.space, self.tasks, self.stack = random, space, tasks, stack
        self.path = path
        self.spaces: dict[str, Space] = {}
        self.handles: list[ProposalHandle] = []
        self.again: set[str] = set()  # ids that stand for two calls
        self.running = anyio.CancelScope()
        self.ran: list[int] = []
        # What a voter was told that its vote counts, until it was spent or taken back.
        self.counted: dict[str, dict[str, str]] = {}
        self.unsure: set[str] = set()

    async def begin(self) -> None:
        tools = Agent("tools")

        @tools.tool
        async def deploy(version: int) -> int:
            self.ran.append(version)
            return version

        for agent in (tools, Agent("p"), Agent("boss"), *map(Agent, VOTERS)):
            joining = agent.join(
                self.space.connector(agent.name), token=self.space.token(agent.name)
            )
            self.spaces[agent.name] = await self.stack.enter_async_context(joining)
        await self.start()

    async def start(self) -> None:
        await self.tasks.start(self._review)

    async def _review(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.CancelScope() as self.running:
            reviewer = Reviewer(self.path)
            async with reviewer.join(
                self.space.connector("reviewer"), token=self.space.token("reviewer"), grace=0.0
            ):
                task_status.started()
                await anyio.sleep_forever()

    async def step(self) -> None:
        await self.random.choice(
            (
                *(self.propose,) * 3,
                *(self.vote,) * 14,
                *(self.passes,) * 5,
                *(self.restart,) * 2,
                self.say_again,
                self.withdraw,
                *(self.remove,) * 2,
                self.drop,
            )
        )()

    async def propose(self) -> None:
        if len(self.handles) < 12:
            version = {"version": len(self.handles)}
            made = self.spaces["p"].propose("tools", "deploy", version, ttl=None)
            self.handles.append(await self.stack.enter_async_context(made))

    async def say_again(self) -> None:
        """Another call under an id that has votes."""
        if self.handles:
            handle = self.random.choice(self.handles)
            self.again.add(handle.id)
            call = {"name": "deploy", "arguments": {"version": EVIL}}
            self.space.forge("p", handle.id, call)

    async def vote(self) -> None:
        if not self.handles:
            return
        voter = self.random.choice((*VOTERS, "p"))
        handle = self.random.choice(self.handles)
        number = self.handles.index(handle)
        said = self.random.choice(("approve", "approve", "approve", "reject"))
        about = {"proposal": handle.id, "proposer": "p", "vote": said}
        if self.random.random() < 0.5:
            version = self.random.choice((number, number, EVIL))
            call = {"name": "deploy", "arguments": {"version": version}}
            about["digest"] = payloads.digest("tools/call", call, "tools") or ""
        cast = partial(self._vote, voter, handle.id, about)
        if self.random.random() < 0.3:
            self.unsure.add(handle.id)
            self.tasks.start_soon(cast)
        else:
            await cast()

    async def _vote(self, voter: str, proposal: str, about: dict[str, str]) -> None:
        space = self.spaces[voter]
        try:
            async with AsyncExitStack() as stack:
                if self.random.random() < 0.5:  # from the other connection
                    joining = Agent(voter).join(
                        self.space.connector(voter),
                        token=self.space.token(voter),
                        participant=voter,
                        beside=True,
                        grace=0.0,
                    )
                    space = await stack.enter_async_context(joining)
                told = await space.request("reviewer", "dev.meup/vote", about, timeout=20)
        except RequestError:
            return
        except MeupError:
            self.unsure.add(proposal)
            return
        if told["outcome"] == "open":
            self.counted.setdefault(proposal, {})[voter] = about["vote"]
            if proposal not in self.unsure and proposal not in self.again:
                counted = self.counted[proposal]
                assert told["votes"] == counted, "a vote is lost, or too many"
        else:
            self.counted.pop(proposal, None)

    async def passes(self) -> None:
        await anyio.sleep(self.random.choice((0.01, 0.1, 4.0)))

    async def restart(self) -> None:
        """Let the reviewer's process die, at any moment, and start it again."""
        for _ in range(self.random.choice((0, 3, 30))):
            await checkpoint()
        self.running.cancel()
        await anyio.sleep(0.01)
        await self.start()
        await anyio.sleep(1.0)

    async def withdraw(self) -> None:
        if self.handles and self.random.random() < 0.3:
            await self.random.choice(self.handles).withdraw()

    async def remove(self) -> None:
        """A voter may vote no more for a while, and its votes are taken back."""
        voter, boss = self.random.choice(VOTERS), self.spaces["boss"]
        try:
            await boss.members.revoke(voter, VOTES)
            for each in self.counted.values():
                each.pop(voter, None)
            await anyio.sleep(1.0)
            await boss.members.grant(voter, VOTES)
        except MeupError:
            pass

    async def drop(self) -> None:
        self.space.drop(self.random.choice(("reviewer", *VOTERS)))
        await anyio.sleep(self.random.choice((0.0, 3.0)))

    def check(self) -> None:
        """Each request has a quorum before it, of votes about its call that were not spent."""
        envelopes = [entry.envelope for entry in self.space.entries]
        since: dict[tuple[str, Any], int] = {}
        for number, envelope in enumerate(envelopes):
            if envelope.kind != kinds.MCP_REQUEST or envelope.sender != "reviewer":
                continue
            call = payloads.read_call(envelope.payload)
            if call.name != "deploy":
                continue
            (proposal,) = envelope.correlation
            # Each of two calls under one id has votes of its own.
            key = (proposal, call.meta[payloads.DIGEST])
            window = envelopes[since.get(key, 0) : number]
            since[key] = number
            voters = self._approving(window, proposal, envelope)
            assert len(voters) >= 2, f"carried out with the votes of {voters}"
        carried_out = [each for each in self.ran if each != EVIL]
        assert len(carried_out) == len(set(carried_out)), "it ran twice"

    def _approving(self, window: Sequence[Envelope], proposal: str, request: Envelope) -> set[str]:
        """The voters that approved, when they were the most: what crosses the request is late."""
        call = payloads.read_call(request.payload)
        digest = call.meta[payloads.DIGEST]
        found, most = set[str](), set[str]()
        for each in window:
            if each.kind == "capability/revoke":
                found.discard(each.payload_object["recipient"])
            elif each.kind == kinds.MCP_REQUEST and each.to == ("reviewer",):
                vote = payloads.read_call(each.payload)
                about = vote.params
                is_vote = vote.method == "dev.meup/vote"
                if not is_vote or about["proposal"] != proposal or each.sender == "p":
                    continue
                about_this = about.get("digest", digest) == digest
                if about_this and about["vote"] == "approve":
                    found.add(each.sender)
            most = max(most, set(found), key=len)
        return most


@pytest.mark.rule("5.votes.count", "5.votes.once", "5.votes.call", "5.votes.removed")
async def test_whatever_the_order_votes_count_once_and_for_their_call(tmp_path: Path) -> None:
    ran = 0

    async def run(seed: int) -> None:
        nonlocal ran
        path = tmp_path / f"{seed}.yaml"
        path.write_text(POLICY)
        space = KeptSpace(participants=PARTICIPANTS, limits=LIMITS)
        async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
            orders = VoteOrders(Random(seed), space, tasks, stack, path)
            await orders.begin()
            for _ in range(80):
                await orders.step()
            await anyio.sleep(30)
            orders.check()
            ran += len(orders.ran)
            tasks.cancel_scope.cancel()

    await run_seeds(run)
    assert ran
