"""Incidents of decisions: another call than the decided one, more than one, or against it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import count

import anyio
import anyio.lowlevel

from meup_agent import Agent, Proposal, Reason
from meup_agent.approval import Inbox, InboxItem, Reviewer
from meup_agent.approval.edit_check import EditCheck
from meup_agent.errors import MeupError
from tests.bypass.incident import incident
from tests.bypass.place import Place, about, attempt, call_itself, let_call, proposed, requested
from tests.cli.commands import InboxApp, request
from tests.interaction.people import raw, until
from tests.spaces import Rules
from tests.tables import Admission
from tests.wire import kinds, payloads

RULES = "policy.yaml"

READS_ONLY = [
    {"kind": "mcp/request", "payload": {"method": "tools/call", "params": {"name": "read"}}},
    {"kind": "mcp/request", "payload": {"method": "tools/list"}},
]


def _may_only_read(place: Place) -> None:
    place.capabilities["second"] = READS_ONLY


@incident(
    "An edit that changes the tool skips that tool's rule",
    link="https://github.com/langchain-ai/langchain/issues/40166",
    date="2026-09-03",
    said="cross-tool edit bypasses the target tool's `interrupt_on` policy",
    there=(
        "A person may edit a call before approving it; the edited call's tool had a rule of its"
        " own, which was not asked."
    ),
    here=(
        "An edited call is judged as the call that it now is: the gateway checks the approver's"
        " capabilities against the request."
    ),
    given=_may_only_read,
    off=let_call("second"),
)
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

    place.patch.setattr(EditCheck, "check", check)


@incident(
    "Rules judge the call as it was proposed, and not as it was edited",
    link="https://github.com/langchain-ai/langchain/pull/40231",
    date="2026-09-06",
    said=(
        "The edited target tool's policy is never consulted, allowing a configured approval gate to"
        " be bypassed."
    ),
    there="The rules had their say before the person's edit, and none after it.",
    here=(
        "Before an edited call leaves, every reviewer that is here judges it as it now is; where"
        " one denies it, does not answer or has just gone, nothing is sent. To another tool nothing"
        " is edited: that is a call of the person's own, which its capabilities allow or not."
    ),
    off=_ask_no_reviewer,
)
async def edited_past_a_rule(place: Place) -> None:
    path = place.folder / RULES
    path.write_text(
        'rules: [deny: {tool: delete, arguments: {path: "prod*"}}, ask: {tool: delete}]\n'
        "end: true\n",
        "utf-8",
    )
    connector, token = place.meeting.connector("reviewer"), place.meeting.token("reviewer")
    async with (
        place.joined("second", "agent") as (person, agent),
        Reviewer(path).join(connector, token=token),
        Inbox(person) as inbox,
        agent.propose("tools", "delete", {"path": "notes.md"}) as proposal,
    ):
        await until(lambda: bool(inbox.items))
        edited = await attempt(inbox.approve(inbox.items[0], {"path": "prod.db"}))
        if isinstance(edited, MeupError):
            await proposal.withdraw()


@incident(
    "A rejected call runs anyway",
    link="https://github.com/langchain-ai/langchain/issues/40491",
    date="2026-09-16",
    said="re-executes tool calls that HumanInTheLoopMiddleware just rejected",
    there=(
        "A rejected call stayed in the agent's state, and another piece of middleware sent the"
        " agent back to run its calls."
    ),
    here="A rejection needs nobody's obedience: the agent never had the right to make the request.",
    off=let_call("agent"),
    also=("https://github.com/langchain-ai/langchain/issues/37093",),
)
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


@incident(
    "The approver sees other arguments than those that run",
    link="https://github.com/pydantic/pydantic-ai/issues/6968",
    date="2026-07-30",
    said="the human approves one thing and the system executes another",
    there=(
        "Arguments were rewritten between the question and the call; the approval was for the"
        " original ones."
    ),
    here=(
        "The approver itself makes the request, with the arguments that it was shown, under a"
        " digest of them. A second proposal under the same id changes nothing about the first."
    ),
    off=_read_it_anew,
)
async def shown_other_arguments(place: Place) -> None:
    held: list[Proposal] = []
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def show(proposal: Proposal) -> None:
        held.append(proposal)

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


@incident(
    "The same approval is used twice",
    link="https://github.com/tinyhumansai/opencompany/issues/438",
    date="2026-08-05",
    said="so a delivery can be sent twice",
    there="Resuming after an approval ran everything before it again, with its effects.",
    here=(
        "A request carries out one proposal, once: the gateway refuses one that names a decided"
        " proposal, and the executor one that is fulfilled or being fulfilled."
    ),
    off=_count_no_fulfillments,
)
async def used_twice(place: Place) -> None:
    async with place.joined(), raw(place.meeting, "agent") as agent:
        async with raw(place.meeting, "reviewer") as reviewer:
            await agent.say(kinds.MCP_PROPOSAL, proposed("pay", amount=50), id="p1")
            await reviewer.hear(lambda e: e.id == "p1")
            place.approved.append("pay 50")
            for again in ("r1", "r2"):
                paid = requested(again, "pay", amount=50)
                await reviewer.say(
                    kinds.MCP_REQUEST, paid, id=again, to=("tools",), correlation=("p1",)
                )
                await reviewer.hear(about(again))


def _allow_copies(place: Place) -> None:
    """Switch off: the gateway lets a participant use an id that another uses."""
    place.patch.setattr(Rules, "_check_id", lambda *_: None)


@incident(
    "Parallel calls are approved as one",
    link="https://github.com/mastra-ai/mastra/pull/19435",
    date="2026-07-14",
    said="a targeted approval could act on a sibling's suspended run",
    there="Of several calls that waited at once, an approval reached another one than was meant.",
    here=(
        "A proposal is known by its proposer and its id, and no other participant gets a proposal"
        " under an id that is in use; a request names one proposal alone."
    ),
    off=_allow_copies,
)
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
        approved = requested("r1", call.name, **call.arguments)
        await reviewer.say(kinds.MCP_REQUEST, approved, id="r1", to=("tools",), correlation=("p1",))
        await reviewer.hear(about("r1"))


def _save(pattern: Callable[[str], str]) -> Callable[[Place], None]:
    """Switch off: an approval writes a rule, which the reviewer reads at once."""

    def off(place: Place) -> None:
        place.patch.setattr("meup_agent.approval.watched_policy.STILL_SECONDS", 0.0)
        approve = Inbox.approve

        async def saving(self: Inbox, item: InboxItem) -> object:
            outcome = await approve(self, item)
            like_it = pattern(str(item.arguments["command"]))
            rule = {"allow": {"tool": "shell", "arguments": {"command": like_it}}}
            await anyio.Path(place.folder / RULES).write_text(
                f"{json.dumps({'rules': [rule], 'end': True})}\n"
            )
            return outcome

        place.patch.setattr(Inbox, "approve", saving)

    return off


async def _ask_twice(place: Place, first: str, second: str) -> None:
    """Let a person approve a command once, beside a reviewer, and the agent ask for another."""
    path = place.folder / RULES
    path.write_text("rules: [ask: {tool: shell}]\nend: true\n", "utf-8")
    connector, token = place.meeting.connector("reviewer"), place.meeting.token("reviewer")
    async with (
        place.joined("second", "agent") as (person, agent),
        Reviewer(path).join(connector, token=token),
        Inbox(person) as inbox,
    ):
        async with agent.propose("tools", "shell", {"command": first}) as proposal:
            await until(lambda: bool(inbox.items))
            place.approved.append(f"shell {first}")
            await inbox.approve(inbox.items[0])
            await proposal.result()
        with anyio.move_on_after(place.patience):
            await attempt(agent.call("tools", "shell", {"command": second}))


@incident(
    "One click approves for all time",
    link="https://github.com/anthropics/claude-code/issues/48550",
    date="2026-04-15",
    said="Users reflexively pressing Enter silently grant permanent permissions",
    there="The preselected answer was to allow every later call, too.",
    here=(
        "An approval is a request for one proposal, and nothing is remembered from it: the next"
        " call is the next proposal. What shall always be allowed is written down as a rule, or"
        " granted as a capability, by a participant that may."
    ),
    off=_save(lambda command: command),
)
async def allowed_for_all_time(place: Place) -> None:
    await _ask_twice(place, "make test", "make test")


@incident(
    "The approval of one call is saved as a rule for others that were never shown",
    link="https://github.com/anthropics/claude-code/issues/86634",
    date="2026-08-14",
    said="Nothing in the approval flow shows breadth **before** the click.",
    there=(
        "What was saved by the click was a pattern, wider than the call that was looked at, and it"
        " went on allowing calls for all time."
    ),
    here=(
        "Approving writes no rule. `meup policy suggest` only prints rules, each with the decisions"
        " that it covers and how sure so few can make it, to be read and taken by hand; none that"
        " would allow what a person has rejected."
    ),
    off=_save(lambda command: f"{command.split()[0]} *"),
    also=("https://github.com/MervinPraison/PraisonAI/issues/3613",),
)
async def approval_saved_as_a_pattern(place: Place) -> None:
    await _ask_twice(place, "rm build", "rm data")


def _grant_what_is_approved(place: Place) -> None:
    """Switch off: an approval is kept, as a capability for every later call like it."""
    approve = Inbox.approve

    async def kept(self: Inbox, item: InboxItem) -> object:
        params = {"name": item.tool, "arguments": dict(item.arguments)}
        like_it = {"kind": "mcp/request", "payload": {"method": "tools/call", "params": params}}
        outcome = await approve(self, item)
        await self._space.grant(item.proposer, [like_it])
        return outcome

    place.patch.setattr(Inbox, "approve", kept)


@incident(
    "Nobody can tell how long a yes holds",
    link="https://github.com/anthropics/claude-code/issues/95106",
    date="2026-09-17",
    said=(
        "The interface should clearly distinguish one-time approval from persistent permission"
        " before confirmation."
    ),
    there=(
        "One key approves an action that was denied before; whether for that once or from then on,"
        " the reporter could not tell from the docs. It is a question: that a rule is kept was not"
        " confirmed."
    ),
    here=(
        "A yes has one size: it is the request for one proposal, and leaves its proposer no"
        " capability. An equal call is refused if the agent makes it itself, and waits for a"
        " decision of its own if the agent proposes it. To allow later ones is another act: a"
        " policy's rule, or a grant by a participant that may."
    ),
    off=_grant_what_is_approved,
)
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


@incident(
    "Approving several approves some that were never looked at",
    link="https://github.com/kirodotdev/KiroCrew/pull/6404",
    date="2026-08-27",
    said="gets the risky one approved sight-unseen",
    there="One button approved all calls that waited, beside the text of the newest alone.",
    here=(
        "Several are approved by their list: the proposals that were looked at and marked, one by"
        " one. A dangerous one cannot be marked, and one that has come since is in no list."
    ),
    off=_approve_what_waits,
    also=("https://github.com/SkyportalAi/skyportalai/pull/72",),
)
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


@incident(
    "An approver whose right was taken away approves what it still has on its screen",
    link="https://github.com/openclaw/openclaw/pull/103515",
    date="2026-07-10",
    said="prevent exec approval revocation races",
    there="A question shown under the old rules could be answered after they were tightened.",
    here="A capability is checked when the request is sent, not when the proposal was shown.",
    off=_keep_capabilities,
)
async def revoked_approver(place: Place) -> None:
    held: list[Proposal] = []
    second = Agent("second")

    @second.on_proposal
    async def keep(proposal: Proposal) -> None:
        held.append(proposal)

    async with (
        place.joined("reviewer", second) as (manager, _),
        raw(place.meeting, "agent") as agent,
    ):
        await agent.say(kinds.MCP_PROPOSAL, proposed("delete", path="prod.db"), id="p1")
        await until(lambda: bool(held))
        await manager.revoke("second", [{"kind": "mcp/request"}, {"kind": "*"}])
        await manager.chat("revoked")
        await attempt(held[0].fulfill())
