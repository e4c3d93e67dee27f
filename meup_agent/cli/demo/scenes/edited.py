"""A proposal is fulfilled with edited arguments, and the proposer learns the difference."""

from __future__ import annotations

from typing import Final

from meup_agent import Fulfillment
from meup_agent.cli.demo.checks import Expectation
from meup_agent.cli.demo.names import SETTINGS_FILE
from meup_agent.cli.demo.stage import Stage
from meup_agent.cli.demo.telling import look_at, outcome_in_words, text_on_disk
from meup_agent.protocol import kinds

STORY: Final = (
    "The proposer would write a password down. The reviewer masks it, and the proposer is told."
)

PROPOSED: Final = "password = mussels\n"
MASKED: Final = "password = [masked]\n"


async def play(stage: Stage) -> list[Expectation]:
    """Propose a text with a secret in it, and see what was written instead."""
    async with stage.proposer.propose(
        "files", "write_file", {"path": SETTINGS_FILE, "text": PROPOSED}, to="reviewer"
    ) as proposal:
        outcome = await proposal.outcome()

    await stage.saw(proposal.id, kinds.MCP_RESPONSE)
    changes = outcome.changes if isinstance(outcome, Fulfillment) else ()
    for change in changes:
        await stage.note("proposer", "proposed", f"{change.path}: {change.proposed!r}")
        await stage.note("proposer", "learns", f"{change.path}: {change.fulfilled!r}")
    await look_at(stage, SETTINGS_FILE)
    on_disk = text_on_disk(stage.workspace, SETTINGS_FILE)
    read_back = await stage.proposer.call(
        "files", "read_file", {"path": SETTINGS_FILE}, to="reviewer"
    )
    return [
        Expectation("outcome", "fulfilled by reviewer, run by files", outcome_in_words(outcome)),
        Expectation(
            "difference told",
            f"arguments.text: {PROPOSED!r} → {MASKED!r}",
            "; ".join(f"{each.path}: {each.proposed!r} → {each.fulfilled!r}" for each in changes)
            or "none",
        ),
        Expectation("on disk", repr(MASKED), repr(on_disk)),
        Expectation("read through the space", repr(MASKED), repr(read_back)),
    ]
