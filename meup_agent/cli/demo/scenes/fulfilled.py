"""A proposal is fulfilled: what was approved is what runs."""

from __future__ import annotations

from typing import Final

from meup_agent import Fulfillment
from meup_agent.cli.demo.checks import Expectation
from meup_agent.cli.demo.names import NOTE
from meup_agent.cli.demo.stage import Stage
from meup_agent.cli.demo.telling import kinds_of, look_at, outcome_in_words, text_on_disk
from meup_agent.protocol import kinds

STORY: Final = "The proposer may not write files. It proposes a note; the reviewer carries it out."


async def play(stage: Stage) -> list[Expectation]:
    """Ask what there is, propose a note about it, and see that this note was written."""
    listed = await stage.proposer.call("files", "list_files", to="reviewer")
    note = f"# What is here\n\nFiles: {len(listed)}\n"

    async with stage.proposer.propose(
        "files", "write_file", {"path": NOTE, "text": note}, to="reviewer"
    ) as proposal:
        outcome = await proposal.outcome()

    await stage.saw(proposal.id, kinds.MCP_RESPONSE)
    await look_at(stage, NOTE)
    on_disk = text_on_disk(stage.workspace, NOTE)
    return [
        Expectation("outcome", "fulfilled by reviewer, run by files", outcome_in_words(outcome)),
        Expectation(
            "arguments",
            "as proposed",
            "as proposed" if isinstance(outcome, Fulfillment) and not outcome.edited else "changed",
        ),
        Expectation("on disk", repr(note), repr(on_disk)),
        Expectation("the space saw", "proposal, request, response", kinds_of(stage, proposal.id)),
    ]
