"""Incidents of display: what the approver could not see."""

from __future__ import annotations

from meup_agent import Agent, Proposal
from meup_agent.cli.render import escape
from tests.bypass.incident import incident
from tests.bypass.place import Place, attempt

HIDDEN = "ls\u200b\u202e\u2066 ;rm -r data"
"""A command in which something cannot be seen."""


def _print_as_it_is(place: Place) -> None:
    place.patch.setattr(escape, "visible", lambda text, limit=None: text)


@incident(
    "Invisible characters hide a part of the command",
    link="https://github.com/openclaw/openclaw/pull/43687",
    date="2026-03-12",
    said="zero-width characters like U+200B could hide parts of the displayed command",
    there="The prompt showed a command that looked harmless; the approved text held more.",
    here=(
        "Strangers' text is shown with every control, invisible and bidirectional character"
        " escaped, wherever a person reads it."
    ),
    off=_print_as_it_is,
    also=("https://github.com/kovyrin/agent-secret/issues/66",),
)
async def invisible_characters(place: Place) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def look(proposal: Proposal) -> None:
        shown = escape.visible(proposal.arguments["command"])
        if "\\u" not in shown:  # nothing to see for a person, who approves
            await proposal.fulfill()
        else:
            await proposal.reject("unsafe")

    async with place.joined(reviewer, "agent") as (_, agent):
        await attempt(agent.call("tools", "shell", {"command": HIDDEN}))
