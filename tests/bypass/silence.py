"""Incidents of silence: nobody decided, too late, or there was nobody to decide."""

from __future__ import annotations

import anyio

from meup_agent import Agent, Proposal
from meup_agent.protocol.exchange.fulfillment_check import FulfillmentCheck
from tests.bypass.incident import incident
from tests.bypass.place import (
    Place,
    about,
    attempt,
    call_itself,
    let_call,
    proposed,
    requested,
)
from tests.interaction.people import raw, until
from tests.spaces import Rules
from tests.tables import Admission
from tests.wire import kinds

HOUR = 3600.0


@incident(
    "A decision that takes longer than a minute is taken for a yes",
    link="https://github.com/anthropics/claude-agent-sdk-python/issues/304",
    date="2025-11-02",
    said="Tool executes anyway (fail-open), completely bypassing approval",
    there=(
        "The callback that asks a person runs in the agent's own process and has about 60 seconds;"
        " then it is aborted, and the tool runs."
    ),
    here=(
        "A proposal that its time runs out for is `expired`, and no timer sends a request. The"
        " agent's process has nothing to fail open with: the gateway refuses its request."
    ),
    off=let_call("agent"),
    hours=True,
)
async def timeout_fails_open(place: Place) -> None:
    async with place.joined(Agent("reviewer"), "agent") as (_, agent):
        with anyio.move_on_after(HOUR):
            await attempt(agent.call("tools", "delete", {"path": "prod.db"}, timeout=60))
        await call_itself(agent, "delete", path="prod.db")


@incident(
    "Silence is taken for consent",
    link="https://github.com/NousResearch/hermes-agent/issues/24912",
    date="2026-05-13",
    said="The prompt timed out but the agent removed the .git folder on its own.",
    there="The agent asked, nobody answered, and it did what it had asked for.",
    here=(
        "A participant that may only propose cannot carry out: asking and doing are different"
        " capabilities, and the gateway checks them whatever the agent makes of an expiry."
    ),
    off=let_call("agent"),
    hours=True,
)
async def silence_is_consent(place: Place) -> None:
    async with place.joined(Agent("reviewer"), "agent") as (_, agent):
        async with agent.propose("tools", "delete", {"path": ".git"}, ttl=300) as proposal:
            await attempt(proposal.result())
        await call_itself(agent, "delete", path=".git")


@incident(
    "After silence the model reaches the same end by another tool",
    link="https://github.com/NousResearch/hermes-agent/pull/30879",
    date="2026-05-23",
    said="reads to some models as “try a different command achieving the same outcome.”",
    there="The refused command was not run again; another one with the same effect was.",
    here=(
        "Another tool is another proposal, and pending like the first. What a model is told after"
        " an expiry says that nobody decided, and not to try another way."
    ),
    off=let_call("agent"),
    hours=True,
)
async def another_way_after_silence(place: Place) -> None:
    async with place.joined(Agent("reviewer"), "agent") as (_, agent):
        with anyio.move_on_after(2 * HOUR):
            await attempt(agent.call("tools", "delete", {"path": ".git"}, timeout=60))
            await attempt(agent.call("tools", "shell", {"command": "rm -r .git"}, timeout=60))
        await call_itself(agent, "shell", command="rm -r .git")


def _forget_absence(place: Place) -> None:
    """Switch off: a fulfillment leaves, whoever has gone meanwhile."""
    place.patch.setattr(FulfillmentCheck, "_has_left", lambda *_: False)


@incident(
    "Approved after the run had died, and carried out all the same",
    link="https://github.com/HarperFast/harper/pull/839",
    date="2026-06-01",
    said="Tool calls the operator tried to prevent will execute on the next approve.",
    there="A run was ended; approving what it had left behind started it again.",
    here=(
        "A fulfillment looks at its proposer's presence when it leaves: for a proposer that has"
        " been gone for 30 seconds nothing is sent, unless the approver says so explicitly."
        " Where a new process of the proposer has begun, the gateway has withdrawn what the old one"
        " left behind, and nothing lets it run."
    ),
    off=_forget_absence,
    hours=True,
)
async def approved_after_the_run_died(place: Place) -> None:
    held: list[Proposal] = []
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def keep(proposal: Proposal) -> None:
        held.append(proposal)

    async with place.joined(reviewer):
        async with raw(place.meeting, "agent") as agent:
            await agent.say(kinds.MCP_PROPOSAL, proposed("delete", path="prod.db"), id="p1")
            await until(lambda: bool(held))
        await anyio.sleep(HOUR)
        await attempt(held[0].fulfill())


def _forget_endings(place: Place) -> None:
    """Switch off: approver, gateway and executor carry out whatever became of a proposal."""
    place.patch.setattr(FulfillmentCheck, "check", lambda *_: None)
    place.patch.setattr(Rules, "check_named", lambda *_: None)
    place.patch.setattr(Admission, "_refusal", lambda *_: None)


@incident(
    "A person approves when the run has given up, and the approval belongs to nothing",
    link="https://github.com/preloop/preloop/pull/510",
    date="2026-09-08",
    said="A correct human risk acceptance attached to no evidence pack at all.",
    there=(
        "The agent waited two and a half minutes for a window of five and ended; a person approved"
        " 27 seconds later, and the decision was attached to nothing."
    ),
    here=(
        "How long a proposal waits is written in it, and who stops waiting withdraws it: approving"
        " it then is refused, with what became of it. Where the process died instead, it is refused"
        " from 30 seconds on, in which its connection might have come back."
    ),
    off=_forget_endings,
    hours=True,
)
async def approved_when_nobody_waits(place: Place) -> None:
    held: list[Proposal] = []
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def keep(proposal: Proposal) -> None:
        held.append(proposal)

    async with place.joined(reviewer, "agent") as (_, agent):
        with anyio.move_on_after(150):
            await attempt(agent.call("tools", "delete", {"path": "prod.db"}, timeout=300))
        await anyio.sleep(27)
        # It reaches whoever waits for its result: nobody.
        await attempt(held[0].fulfill())


def _carry_out_withdrawn(place: Place) -> None:
    """Switch off: gateway and executor carry out what was withdrawn."""
    place.patch.setattr(Rules, "check_named", lambda *_: None)
    place.patch.setattr(Admission, "_refusal", lambda *_: None)


@incident(
    "A yes that comes after the stop runs the tool, and leaves a permission",
    link="https://github.com/MervinPraison/PraisonAI/issues/4949",
    date="2026-09-08",
    said=(
        "a human approval that lands after the turn was stopped still fires the tool and leaks a"
        " durable grant"
    ),
    there=(
        "A field should have told whether the turn still lived, and was neither filled nor read: a"
        " person's yes counted after the stop, and was kept for later calls."
    ),
    here=(
        "Who stops withdraws what waits. The gateway refuses a request that names a withdrawn"
        " proposal, whatever the approver's program has seen of it, and the executor does, too;"
        " a yes leaves no capability."
    ),
    off=_carry_out_withdrawn,
    also=("https://github.com/MervinPraison/PraisonAI/issues/4598",),
)
async def approved_after_the_stop(place: Place) -> None:
    async with place.joined("agent") as (agent,), raw(place.meeting, "reviewer") as reviewer:
        async with agent.propose("tools", "delete", {"path": "prod.db"}) as proposal:
            await reviewer.hear(lambda e: e.id == proposal.id)
            await proposal.withdraw()
            await reviewer.hear(lambda e: e.kind == kinds.MCP_WITHDRAW)
        late = requested("r1", "delete", path="prod.db")
        await reviewer.say(
            kinds.MCP_REQUEST, late, id="r1", to=("tools",), correlation=(proposal.id,)
        )
        await reviewer.hear(about("r1"))
        await call_itself(agent, "delete", path="prod.db")
