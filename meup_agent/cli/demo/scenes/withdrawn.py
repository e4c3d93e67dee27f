"""A proposal is withdrawn while it is carried out: everything that works on it stops."""

from __future__ import annotations

from typing import Final

from meup_agent import Progress, Reason
from meup_agent.cli.demo.arrivals import EventLog
from meup_agent.cli.demo.checks import Expectation
from meup_agent.cli.demo.files import BATCHES, PARTIAL
from meup_agent.cli.demo.stage import Stage
from meup_agent.cli.demo.telling import kinds_of, look_at, outcome_in_words

STORY: Final = "In the middle of a slow re-index the proposer changes its mind. Everybody stops."

MIDDLE: Final = BATCHES // 2 - 1


async def play(stage: Stage) -> list[Expectation]:
    """Withdraw a re-index when it is half done, and see what is left of it."""
    progress: EventLog[Progress] = EventLog()
    async with stage.proposer.propose(
        "files", "reindex", to="reviewer", on_progress=progress.add
    ) as proposal:
        await progress.first(lambda told: told.done >= MIDDLE)
        half_written = await look_at(stage, PARTIAL)
        await proposal.withdraw(Reason.NO_LONGER_NEEDED)
        outcome = await proposal.outcome()

    for agent in ("reviewer", "files"):
        await stage.stopped(agent)
    told = await stage.withdrawals.first(lambda each: each.proposal_id == proposal.id)
    left = await look_at(stage, PARTIAL)
    return [
        Expectation("outcome", "withdrawn: no_longer_needed", outcome_in_words(outcome)),
        Expectation("half-written file", "there", "there" if half_written else "not there"),
        Expectation(
            "the reviewer's handler",
            "review_reading: no_longer_needed ← proposer",
            _stops_of(stage, "reviewer"),
        ),
        Expectation(
            "the tool's handler",
            "reindex: no_longer_needed ← reviewer ← proposer",
            _stops_of(stage, "files"),
        ),
        Expectation("told afterwards", "by proposer", f"by {told.by}" if told else "nobody"),
        Expectation(
            "half-written file, after", "gone", "gone" if left is None else f"{left} bytes"
        ),
        Expectation(
            "the space saw", "proposal, request, withdraw, cancel", kinds_of(stage, proposal.id)
        ),
    ]


def _stops_of(stage: Stage, agent: str) -> str:
    """The handlers of an agent that were stopped, and the way that their end came."""
    return "; ".join(str(stop) for stop in stage.stops.all if stop.agent == agent) or "not stopped"
