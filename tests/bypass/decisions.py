"""Incidents of decisions: another call than the decided one, more than one, or against it."""

import json
from collections.abc import Callable, Iterable
from itertools import count

import anyio
import anyio.lowlevel

from meup_agent import Agent, Proposal, Reason
from meup_agent.approval import Inbox, InboxItem
from meup_agent.errors import MeupError
from tests.bypass.incident import incident
from tests.bypass.place import (
    Place,
    about,
    attempt,
    call_itself,
    fulfill_by_hand,
    let_call,
    proposed,
    requested,
)
from tests.cli.commands import InboxApp, request
from tests.interaction.people import raw, until
from tests.spaces import Rules
from tests.tables import Admission
from tests.wire import kinds, payloads

READS_ONLY = [
    {"kind": "mcp/request", "payload": {"method": "tools/call", "params": {"name": "read"}}},
    {"kind": "mcp/request", "payload": {"method": "tools/list"}},
]


def _may_only_read(place: Place) -> None:
    place.capabilities["second"] = READS_ONLY


@incident(given=_may_only_read, off=let_call("second"))
async def edited_to_another_tool(place: Place) -> None:
    async with place.joined(), raw(place.meeting, "agent") as agent:
        async with raw(place.meeting, "second") as second:
            await agent.say(kinds.MCP_PROPOSAL, proposed("read", path="notes.md"), id="p1")
            await second.hear(lambda e: e.id == "p1")
            edited = requested("r1", "delete", path="notes.md")
            edited["params"][payloads.META] = {payloads.EDITED: True, payloads.PROPOSER: "agent"}
            await second.say(kinds.MCP_REQUEST, edited, id="r1", to=("tools",), correlation=("p1",))
            await second.hear(about("r1"))


def _ask_no_reviewer(place: Place) -> None:
    """Switch off: what a person edits is held against no rule."""

    async def check(*_: object, **__: object) -> None:
        await anyio.lowlevel.checkpoint()

    place.patch.setattr("meup_agent.approval.inbox.inbox.check_edit", check)


@incident(off=_ask_no_reviewer)
async def edited_past_a_rule(place: Place) -> None:
    rules = '[deny: {tool: delete, arguments: {path: "prod*"}}, ask: {tool: delete}]'
    async with (
        place.joined("second", "agent") as (person, agent),
        place.reviewer(rules),
        Inbox(person) as inbox,
        agent.propose("tools", "delete", {"path": "notes.md"}) as proposal,
    ):
        await until(lambda: bool(inbox.items))
        edited = await attempt(inbox.approve(inbox.items[0], {"path": "prod.db"}))
        if isinstance(edited, MeupError):
            await proposal.withdraw()


@incident(off=let_call("agent"))
async def rejected_runs_anyway(place: Place) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def refuse(proposal: Proposal) -> None:
        await proposal.reject(Reason.UNSAFE)

    async with place.joined(reviewer, "agent") as (_, agent):
        async with agent.propose("tools", "delete", {"path": "prod.db"}) as proposal:
            await attempt(proposal.result())
        await call_itself(agent, "delete", path="prod.db")


REWRITTEN = proposed("pay", amount=5000)


def _read_it_anew(place: Place) -> None:
    """Switch off: an approval sends what is proposed under its id at that moment."""

    async def fulfill(self: Proposal) -> None:
        call = {"name": "pay", "arguments": REWRITTEN["params"]["arguments"]}
        await request(self._session, "tools", "tools/call", call, timeout=None)

    place.patch.setattr(Proposal, "fulfill", fulfill)


@incident(off=_read_it_anew)
async def shown_other_arguments(place: Place) -> None:
    reviewer, held = place.holding()
    async with place.joined(reviewer), raw(place.meeting, "agent") as agent:
        await agent.say(kinds.MCP_PROPOSAL, proposed("pay", amount=50), id="p1")
        await until(lambda: len(held) == 1)
        await agent.say(kinds.MCP_PROPOSAL, REWRITTEN, id="p1")
        await until(lambda: len(held) == 2)
        await attempt(place.approve(held[0]))  # the one that the person has read


def _count_no_fulfillments(place: Place) -> None:
    """Switch off: the gateway's check of what is decided, and the executor's."""
    place.patch.setattr(Rules, "check_named", lambda *_: None)
    place.patch.setattr(Admission, "denial", lambda *_: None)


@incident(off=_count_no_fulfillments)
async def used_twice(place: Place) -> None:
    async with place.joined(), raw(place.meeting, "agent") as agent:
        async with raw(place.meeting, "reviewer") as reviewer:
            await agent.say(kinds.MCP_PROPOSAL, proposed("pay", amount=50), id="p1")
            await reviewer.hear(lambda e: e.id == "p1")
            place.approved.append("pay 50")
            for again in ("r1", "r2"):
                await fulfill_by_hand(reviewer, "pay", again, amount=50)


def _allow_copies(place: Place) -> None:
    """Switch off: the gateway lets a participant use an id that another uses."""
    place.patch.setattr(Rules, "_check_id", lambda *_: None)


@incident(off=_allow_copies)
async def approved_as_one(place: Place) -> None:
    async with (
        place.joined(),
        raw(place.meeting, "agent") as agent,
        raw(place.meeting, "subagent") as subagent,
        raw(place.meeting, "reviewer") as reviewer,
    ):
        await agent.say(kinds.MCP_PROPOSAL, proposed("read", path="notes.md"), id="p1")
        waiting = await reviewer.hear(lambda e: e.id == "p1")
        place.approved.append("read notes.md")  # this is what the person was shown
        await subagent.say(kinds.MCP_PROPOSAL, proposed("delete", path="prod.db"), id="p1")
        await subagent.say(kinds.CHAT, {"message": "more to come"}, id="c1")
        while (heard := await reviewer.hear(lambda e: e.id in ("p1", "c1"))).id == "p1":
            waiting = heard  # as a client does that knows what waits by its id alone
        call = payloads.read_proposal(waiting.payload)
        await fulfill_by_hand(reviewer, call.name, **call.arguments)


def _save(pattern: Callable[[str], str]) -> Callable[[Place], None]:
    """Switch off: an approval writes a rule, which the reviewer reads at once."""

    def off(place: Place) -> None:
        place.patch.setattr("meup_agent.approval.policy.file.STILL_SECONDS", 0.0)
        approve = Inbox.approve

        async def saving(self: Inbox, item: InboxItem) -> object:
            outcome = await approve(self, item)
            like_it = pattern(str(item.arguments["command"]))
            rule = {"allow": {"tool": "shell", "arguments": {"command": like_it}}}
            await anyio.Path(place.folder / "policy.yaml").write_text(
                f"{json.dumps({'rules': [rule], 'end': True})}\n"
            )
            return outcome

        place.patch.setattr(Inbox, "approve", saving)

    return off


async def _ask_twice(place: Place, first: str, second: str) -> None:
    """Let a person approve a command once, beside a reviewer, and the agent ask for another."""
    async with (
        place.joined("second", "agent") as (person, agent),
        place.reviewer("[ask: {tool: shell}]"),
        Inbox(person) as inbox,
    ):
        async with agent.propose("tools", "shell", {"command": first}) as proposal:
            await until(lambda: bool(inbox.items))
            place.approved.append(f"shell {first}")
            await inbox.approve(inbox.items[0])
            await proposal.result()
        with anyio.move_on_after(place.patience):
            await attempt(agent.call("tools", "shell", {"command": second}))


@incident(off=_save(lambda command: command))
async def allowed_for_all_time(place: Place) -> None:
    await _ask_twice(place, "make test", "make test")


@incident(off=_save(lambda command: f"{command.split()[0]} *"))
async def approval_saved_as_a_pattern(place: Place) -> None:
    await _ask_twice(place, "rm build", "rm data")


def _grant_what_is_approved(place: Place) -> None:
    """Switch off: an approval is kept, as a capability for every later call like it."""
    approve = Inbox.approve

    async def kept(self: Inbox, item: InboxItem) -> object:
        params = {"name": item.tool, "arguments": dict(item.arguments)}
        like_it = {"kind": "mcp/request", "payload": {"method": "tools/call", "params": params}}
        outcome = await approve(self, item)
        await self._space.members.grant(item.proposer, [like_it])
        return outcome

    place.patch.setattr(Inbox, "approve", kept)


@incident(off=_grant_what_is_approved)
async def yes_of_unknown_length(place: Place) -> None:
    call = ("tools", "shell", {"command": "make test"})
    async with place.joined("reviewer", "agent") as (reviewer, agent), Inbox(reviewer) as inbox:
        async with agent.propose(*call) as first:
            await until(lambda: bool(inbox.items))
            place.approved.append("shell make test")
            await inbox.approve(inbox.items[0])
            await first.result()
        again = await call_itself(agent, "shell", command="make test")
        if isinstance(again, MeupError):
            async with agent.propose(*call) as second:
                await until(lambda: any(each.id == second.id for each in inbox.items))
                await inbox.reject(inbox.items[0], Reason.UNSAFE)
                await attempt(second.result())


def _keep_capabilities(place: Place) -> None:
    place.patch.setattr(Rules, "_may", lambda *_: True)


def _approve_what_waits(place: Place) -> None:
    """Switch off: approving several approves everything that waits."""
    approve_all = Inbox.approve_all

    async def everything(self: Inbox, items: Iterable[InboxItem]) -> object:
        del items
        return await approve_all(self, self.items)

    place.patch.setattr(Inbox, "approve_all", everything)


@incident(off=_approve_what_waits)
async def approved_with_the_rest(place: Place) -> None:
    ticks = count(step=60)  # a person who takes a minute to look at anything
    async with place.joined("reviewer", "agent") as (reviewer, agent):
        async with Inbox(reviewer) as inbox, anyio.create_task_group() as tasks:
            app = InboxApp(inbox, clock=lambda: next(ticks))
            async with app.run_test() as pilot:
                tasks.start_soon(attempt, agent.call("tools", "read", {"path": "notes.md"}))
                await until(lambda: app.current is not None)
                await inbox.settle()
                await pilot.press("m", "a")
                place.approved.append("read notes.md")
                tasks.start_soon(attempt, agent.call("tools", "delete", {"path": "prod.db"}))
                await until(lambda: len(inbox.items) == 2)
                await pilot.press("y")
                await until(lambda: "read notes.md" in place.ran)
                await until(lambda: app.decisions.underway == 0)
                for item in inbox.items:
                    await inbox.reject(item, Reason.UNSAFE)


@incident(off=_keep_capabilities)
async def revoked_approver(place: Place) -> None:
    second, held = place.holding("second")
    async with (
        place.joined("reviewer", second) as (manager, _),
        raw(place.meeting, "agent") as agent,
    ):
        await agent.say(kinds.MCP_PROPOSAL, proposed("delete", path="prod.db"), id="p1")
        await until(lambda: bool(held))
        await manager.members.revoke("second", [{"kind": "mcp/request"}, {"kind": "*"}])
        await manager.chat("revoked")
        await attempt(held[0].fulfill())
