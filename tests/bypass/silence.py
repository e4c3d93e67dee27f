"""Incidents of silence: nobody decided, too late, or there was nobody to decide."""

import anyio

from meup_agent import Agent
from meup_agent.protocol.exchange.outbound import FulfillmentCheck
from tests.bypass.incident import incident
from tests.bypass.place import Place, attempt, call_itself, fulfill_by_hand, let_call, proposed
from tests.interaction.people import raw, until
from tests.spaces import Rules
from tests.tables import Admission
from tests.wire import kinds

HOUR = 3600.0


@incident(off=let_call("agent"), hours=True)
async def timeout_fails_open(place: Place) -> None:
    async with place.joined(Agent("reviewer"), "agent") as (_, agent):
        with anyio.move_on_after(HOUR):
            await attempt(agent.call("tools", "delete", {"path": "prod.db"}, timeout=60))
        await call_itself(agent, "delete", path="prod.db")


@incident(off=let_call("agent"), hours=True)
async def silence_is_consent(place: Place) -> None:
    async with place.joined(Agent("reviewer"), "agent") as (_, agent):
        async with agent.propose("tools", "delete", {"path": ".git"}, ttl=300) as proposal:
            await attempt(proposal.result())
        await call_itself(agent, "delete", path=".git")


@incident(off=let_call("agent"), hours=True)
async def another_way_after_silence(place: Place) -> None:
    async with place.joined(Agent("reviewer"), "agent") as (_, agent):
        with anyio.move_on_after(2 * HOUR):
            await attempt(agent.call("tools", "delete", {"path": ".git"}, timeout=60))
            await attempt(agent.call("tools", "shell", {"command": "rm -r .git"}, timeout=60))
        await call_itself(agent, "shell", command="rm -r .git")


def _forget_absence(place: Place) -> None:
    """Switch off: a fulfillment leaves, whoever has gone meanwhile."""
    place.patch.setattr(FulfillmentCheck, "_has_left", lambda *_: False)


@incident(off=_forget_absence, hours=True)
async def approved_after_the_run_died(place: Place) -> None:
    reviewer, held = place.holding()
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


@incident(off=_forget_endings, hours=True)
async def approved_when_nobody_waits(place: Place) -> None:
    reviewer, held = place.holding()
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


@incident(off=_carry_out_withdrawn)
async def approved_after_the_stop(place: Place) -> None:
    async with place.joined("agent") as (agent,), raw(place.meeting, "reviewer") as reviewer:
        async with agent.propose("tools", "delete", {"path": "prod.db"}) as proposal:
            await reviewer.hear(lambda e: e.id == proposal.id)
            await proposal.withdraw()
            await reviewer.hear(lambda e: e.kind == kinds.MCP_WITHDRAW)
        await fulfill_by_hand(reviewer, "delete", of=proposal.id, path="prod.db")
        await call_itself(agent, "delete", path="prod.db")
