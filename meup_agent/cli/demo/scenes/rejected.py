"""A proposal is rejected as unsafe; the explanation follows by chat."""

from __future__ import annotations

from typing import Final

from meup_agent import Rejection
from meup_agent.cli.demo.checks import Expectation
from meup_agent.cli.demo.names import OUTSIDE
from meup_agent.cli.demo.stage import Stage
from meup_agent.cli.demo.telling import look_at, outcome_in_words, sorted_kinds_of
from meup_agent.protocol import kinds

STORY: Final = "The proposer would write outside of the folder. The reviewer says no, and why."

EXPLANATION: Final = f"{OUTSIDE} leads out of the folder"


async def play(stage: Stage) -> list[Expectation]:
    """Propose to write outside of the folder, and hear why not."""
    async with stage.proposer.propose(
        "files", "write_file", {"path": OUTSIDE, "text": "hello\n"}, to="reviewer"
    ) as proposal:
        outcome = await proposal.outcome()

    heard = explained = None
    if isinstance(outcome, Rejection):
        heard = await stage.rejections.first(lambda each: each.proposal_id == proposal.id)
        explained = await stage.explanations.first(lambda chat: chat.about == outcome.id)
        await stage.saw(proposal.id, kinds.MCP_WITHDRAW)
    outside = await look_at(stage, OUTSIDE)
    return [
        Expectation("outcome", "rejected by reviewer: unsafe", outcome_in_words(outcome)),
        Expectation("the proposer's handler", "unsafe", heard.reason if heard else "not called"),
        Expectation("explanation", EXPLANATION, explained.text if explained else "none"),
        # The proposer takes it back too, so that nobody else fulfills what it believes dead.
        Expectation(
            "the space saw", "chat, proposal, reject, withdraw", sorted_kinds_of(stage, proposal.id)
        ),
        Expectation("outside the folder", "nothing", "nothing" if outside is None else "a file"),
    ]
