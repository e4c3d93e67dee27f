"""A space in which people decide by several inboxes at once, in an order that a seed gives."""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup, TaskStatus
from anyio.lowlevel import checkpoint

from meup_agent import Agent, Context, Envelope, Fulfillment, ProposalHandle, Space
from meup_agent.approval import Inbox, InboxItem
from meup_agent.errors import MeupError
from meup_agent.testing import MemorySpace
from tests.effort import scaled
from tests.gateways import GatewayRuntime
from tests.interaction.people import LIMITS
from tests.spaces import Audit, AuditRecord, Entry, Journal, MemoryJournal
from tests.wire import draft, encode, kinds, last_moment, payloads

PROPOSES: Final = [{"kind": "mcp/proposal"}, {"kind": "chat"}]
DECIDES: Final[list[dict[str, Any]]] = [{"kind": "mcp/request"}, {"kind": "mcp/reject"}]
PEOPLE: Final = ("ann", "bob")
DESKS: Final = ("ann's page", "ann's other tab", "ann's terminal", "bob's page")

Key = tuple[str, str]


class KeptSpace(MemorySpace):
    """A gateway in memory whose journal outlives it."""

    kept: Journal | None = None

    def _start(self) -> None:
        super()._start()
        if self.kept is None:
            self.kept = MemoryJournal(self._now)
        self._runtime = GatewayRuntime(
            self._config,
            journal=self.kept,
            new_id=lambda: f"gateway-{next(self._ids)}",
            now=self._now,
        )

    @property
    def runtime(self) -> GatewayRuntime:
        return self._runtime

    @property
    def entries(self) -> tuple[Entry, ...]:
        assert self.kept is not None
        return self.kept.recover("demo", since=0, limit=1_000_000).entries

    @property
    def microseconds(self) -> int:
        return self._now()

    def forge(self, sender: str, id: str, call: dict[str, Any]) -> None:
        """Propose another call under an id."""
        body = payloads.build_proposal("tools/call", call, target="tools", expires=None)
        forged = encode(draft(kinds.MCP_PROPOSAL, body, id=id, sender=sender), "meup/v0.1")
        owner = self._runtime.spaces["demo"].owner
        owner.receive_as(sender, forged, "meup/v0.1", lambda _: None)
        self.settle()


async def run_seeds(run: Callable[[int], Awaitable[None]]) -> None:
    """Run each order; a failure says its seed."""
    begin = int(os.environ.get("MEUP_SEED") or 0)
    for seed in range(begin, begin + int(os.environ.get("MEUP_EXAMPLES") or scaled(8))):
        try:
            await run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


class Orders:
    """Two proposers, two people at four inboxes, one who manages, and an executor."""

    def __init__(
        self, random: Random, space: KeptSpace, tasks: TaskGroup, stack: AsyncExitStack
    ) -> None:
        self.stack = stack
        self.random = random
        self.space = space
        self.tasks = tasks
        self.spaces: dict[str, Space] = {}
        self.desks: dict[str, tuple[Inbox, anyio.Event]] = {}
        self.handles: list[tuple[str, ProposalHandle]] = []
        self.seen: list[tuple[str, InboxItem]] = []
        self.approved: dict[tuple[str, Key], list[dict[str, Any]]] = {}
        self.ran: list[tuple[str, Key, dict[str, Any]]] = []
        self.running = set[Key]()
        self.done: list[tuple[Key, dict[str, Any]]] = []
        self.refused = 0

    def executor(self) -> Agent:
        agent = Agent("tools")

        @agent.tool
        async def write(path: str, context: Context) -> str:
            request = context.envelope
            call = payloads.read_call(request.payload)
            key = (str(call.meta[payloads.PROPOSER]), request.correlation[0])
            self.ran.append((request.sender, key, call.arguments))
            assert key not in self.running, "it runs twice at once"
            self.running.add(key)
            try:
                await anyio.sleep(self.random.choice((0.0, 0.0, 0.5, 40.0)))
                self.done.append((key, call.arguments))
            finally:
                self.running.discard(key)
            return path

        return agent

    async def sit(self, desk: str, *, task_status: TaskStatus[None]) -> None:
        """Be at a desk until it is left."""
        person = desk.partition("'s ")[0]
        started = False
        try:
            async with (
                Agent("inbox").join(
                    self.space.connector(person),
                    token=self.space.token(person),
                    participant=person,
                    beside=True,
                    grace=0.0,
                ) as space,
                Inbox(space) as inbox,
            ):
                left = anyio.Event()
                self.desks[desk] = inbox, left
                started = True
                task_status.started()
                await left.wait()
        except* MeupError:
            pass  # it was removed, or another connection took over
        finally:
            self.desks.pop(desk, None)
            if not started:
                task_status.started()

    async def step(self) -> None:
        await self.random.choice(
            (
                *(self.propose,) * 8,
                *(self.approve,) * 10,
                *(self.edit,) * 3,
                *(self.reject,) * 2,
                *(self.approve_what_was_seen,) * 4,
                *(self.withdraw,) * 2,
                *(self.renew,) * 2,
                *(self.passes,) * 12,
                *(self.turns,) * 8,
                self.change_rights,
                self.drop,
                self.leave,
                *(self.come,) * 6,
                self.restart,
                self.copy_id,
            )
        )()

    async def propose(self) -> None:
        who = self.random.choice(("p", "q"))
        to = self.random.choice(((), (), ("ann",), ("ann", "bob")))
        ttl = self.random.choice((None, 20.0, 100.0, 600.0))
        path = f"{len(self.handles)}.md"
        proposal = self.spaces[who].propose("tools", "write", {"path": path}, ttl=ttl, to=to)
        handle = await self.stack.enter_async_context(proposal)
        self.handles.append((who, handle))

    async def copy_id(self) -> None:
        """Say the id of a proposal again for another call, as its proposer or a stranger."""
        if not self.handles:
            return
        who = self.random.choice(("p", "q", "mallory"))
        _, handle = self.random.choice(self.handles)
        self.space.forge(who, handle.id, {"name": "write", "arguments": {"path": "evil"}})

    def item(self) -> tuple[str, Inbox, InboxItem] | None:
        found = [(d, i, each) for d, (i, _) in self.desks.items() for each in i.items]
        if not found:
            return None
        desk, inbox, item = self.random.choice(found)
        self.seen.append((desk, item))
        return desk, inbox, item

    async def approve(self, *, edited: bool = False) -> None:
        if (found := self.item()) is not None:
            self.decide_on(*found, edited=edited)

    def decide_on(self, desk: str, inbox: Inbox, item: InboxItem, *, edited: bool) -> None:
        arguments = {"path": f"edited {self.random.random()}"} if edited else None
        person, key = desk.partition("'s ")[0], (item.proposer, item.id)
        said = self.approved.setdefault((person, key), [])
        said.append(item.arguments if arguments is None else arguments)
        self.begin(lambda: inbox.approve(item, arguments))

    async def edit(self) -> None:
        await self.approve(edited=True)

    async def approve_what_was_seen(self) -> None:
        """Press a key at an old card, of which the inbox may know better."""
        known = [each for each in self.seen if each[0] in self.desks]
        if known:
            desk, item = self.random.choice(known)
            self.decide_on(desk, self.desks[desk][0], item, edited=False)

    async def reject(self) -> None:
        if (found := self.item()) is not None:
            _, inbox, item = found
            self.begin(lambda: inbox.reject(item, "unsafe"))

    async def withdraw(self) -> None:
        if self.handles:
            _, handle = self.random.choice(self.handles)
            self.begin(handle.withdraw)

    async def renew(self) -> None:
        if self.handles:
            _, handle = self.random.choice(self.handles)
            self.begin(lambda: handle.renew(self.random.choice((10.0, 300.0))))

    async def passes(self) -> None:
        await anyio.sleep(self.random.choice((0.01, 0.01, 0.2, 2.0, 2.0, 15.0, 70.0)))

    async def turns(self) -> None:
        for _ in range(self.random.choice((1, 2, 5, 12, 100))):
            await checkpoint()

    async def change_rights(self) -> None:
        boss, who = self.spaces["boss"], self.random.choice(PEOPLE)
        right = self.random.choice(DECIDES)
        what: Callable[[], Awaitable[object]] = self.random.choice(
            (
                lambda: boss.members.kick(who),
                lambda: boss.members.invite(who),
                lambda: boss.members.invite(who),
                lambda: boss.members.revoke(who, [right]),
                lambda: boss.members.grant(who, [right]),
                lambda: boss.members.grant(who, [right]),
            )
        )
        self.begin(what)

    async def drop(self) -> None:
        who = self.random.choice((*PEOPLE, "tools", "p"))
        self.space.drop(who)

    async def restart(self) -> None:
        self.space.restart()

    async def leave(self) -> None:
        if self.desks:
            self.random.choice(list(self.desks.values()))[1].set()

    async def come(self) -> None:
        away = [each for each in DESKS if each not in self.desks]
        owner = self.space.runtime.spaces["demo"].owner
        if away and not owner.is_kicked(away[0].partition("'s ")[0]):
            with anyio.move_on_after(30):
                await self.tasks.start(partial(self.sit, away[0]))

    def begin(self, what: Callable[[], Awaitable[object]]) -> None:
        async def run() -> None:
            try:
                await what()
            except MeupError:
                self.refused += 1

        self.tasks.start_soon(run)

    def check(self) -> None:
        entries = self.space.entries
        audit, allowed = Audit(), {who: {"mcp/request", "mcp/reject"} for who in PEOPLE}
        out = set[str]()
        for entry in entries:
            envelope = entry.envelope
            self._note_rights(envelope, allowed, out)
            call = (
                payloads.read_call(envelope.payload) if envelope.kind == kinds.MCP_REQUEST else None
            )
            if call is not None and not call.is_notification and call.name == "write":
                who, (named,) = envelope.sender, envelope.correlation
                proposer = str(call.meta[payloads.PROPOSER])
                assert who in PEOPLE
                assert who not in out, f"{who} was removed, and approved"
                assert "mcp/request" in allowed[who], f"{who} may not approve any more"
                audit.pass_time(entry.at)
                # Its proposer may have said its id again, for another call.
                same = audit.named(named, proposer=proposer)
                pending = [each.record for each in same if each.state.is_pending]
                assert pending, f"a request for what is {[str(each.state) for each in same]}"
                assert call.arguments in self.approved[who, (proposer, named)], "not as approved"
                ends = [(each.expires_at, each.in_progress) for each in pending]
                assert any(
                    until is None or entry.at <= last_moment(until) or request
                    for until, request in ends
                )
            audit.add(entry)
        for who, key, arguments in self.ran:
            assert arguments in self.approved[who, key], "it ran otherwise than approved"
            same = audit.named(key[1], proposer=key[0])
            # Its proposer may have said its id again, for another call.
            # One that was cancelled may be approved again; one that was carried out, never.
            calls = [each[1] for each in self.done if each[0] == key]
            assert len(calls) <= len(same), "it ran twice"
            assert calls.count(arguments) <= 1, "it ran twice"
            by = {each.by for found in same for each in found.fulfillments}
            assert who in by, "no entry tells of it"

    @staticmethod
    def _note_rights(envelope: Envelope, allowed: dict[str, set[str]], out: set[str]) -> None:
        payload = envelope.payload_object
        match envelope.kind:
            case "space/kick":
                out.add(payload["participant_id"])
            case "space/invite":
                out.discard(payload["participant_id"])
            case "capability/grant" | "capability/revoke":
                held = allowed[payload["recipient"]]
                for each in payload["capabilities"]:
                    if envelope.kind == "capability/grant":
                        held.add(each["kind"])
                    else:
                        held.discard(each["kind"])
            case _:
                pass

    async def settle(self) -> None:
        """Let all come to an end, and compare what the desks show."""
        await anyio.sleep(200)
        audit = Audit()
        for entry in self.space.entries:
            audit.add(entry)
        audit.pass_time(self.space.microseconds)
        pending = {(e.proposer, e.id): e for e in audit.proposals if e.state.is_pending}
        for desk, (inbox, _) in self.desks.items():
            person = desk.partition("'s ")[0]
            shown = {(each.proposer, each.id) for each in inbox.items}
            decided = shown - pending.keys()
            assert not decided, f"{desk} shows what is decided: {decided}"
            host = self.space.runtime.spaces["demo"]
            call = payloads.request("tools/call", {"name": "write"}, "")
            may = host.owner.grants[person].allow(kinds.MCP_REQUEST, call, ())
            # A page is told by its gateway of what was open before it; one of these is not.
            for key, each in pending.items() if desk.endswith("terminal") else ():
                if key not in shown and may:
                    assert self._is_not_for(person, each), f"{desk} lacks what is open: {key}"

        await self.check_outcomes()

    async def check_outcomes(self) -> None:
        """Each proposer knows what was carried out, and whether it was what it proposed."""
        for number, (who, handle) in enumerate(self.handles):
            if not handle.has_outcome or self.said_again(handle.id):
                continue
            try:
                outcome = await handle.outcome()
            except MeupError:
                continue
            if isinstance(outcome, Fulfillment) and outcome.error is None:
                done = [said for key, said in self.done if key == (who, handle.id)]
                assert done == [{"path": outcome.result(accept_edits=True)}], (
                    "it was told of another call"
                )
                assert outcome.as_proposed == (outcome.result(accept_edits=True) == f"{number}.md")

    def said_again(self, proposal: str) -> bool:
        """True if the id of a proposal stands for several calls."""
        said = (entry.envelope for entry in self.space.entries)
        return sum(each.kind == kinds.MCP_PROPOSAL and each.id == proposal for each in said) > 1

    def _is_not_for(self, person: str, each: AuditRecord) -> bool:
        to = each.record.envelope.to
        return (
            (bool(to) and person not in to)
            or each.record.in_progress_by is not None
            or each.record.copied
            or person in {step.by for step in each.rejections}
        )


@asynccontextmanager
async def begun(seed: int) -> AsyncGenerator[Orders]:
    """The space, and all who are in it, for the length of a block."""
    participants: dict[str, list[dict[str, Any]]] = {
        "p": PROPOSES,
        "q": PROPOSES,
        "mallory": PROPOSES,
        "ann": DECIDES,
        "bob": DECIDES,
        "boss": [{"kind": "*"}],
        "tools": [{"kind": "mcp/response"}],
    }
    space = KeptSpace(participants=participants, limits=LIMITS)
    async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
        orders = Orders(Random(seed), space, tasks, stack)
        for agent in (orders.executor(), Agent("p"), Agent("q"), Agent("boss")):
            joining = agent.join(space.connector(agent.name), token=space.token(agent.name))
            orders.spaces[agent.name] = await stack.enter_async_context(joining)
        for _ in DESKS:
            await orders.come()
        yield orders
        tasks.cancel_scope.cancel()
