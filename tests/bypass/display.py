"""Incidents of display: what the approver could not see."""

from __future__ import annotations

from typing import Any

import anyio

from meup_agent import Agent, Proposal
from meup_agent.approval import Inbox
from meup_agent.cli.inbox.card import Card
from meup_agent.cli.inbox.rows import CardRow
from meup_agent.cli.render import escape
from tests.bypass.incident import incident
from tests.bypass.place import Place, attempt
from tests.interaction.people import until

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


LONG = f"echo {'checked ' * 40}; rm -r data"
"""A command whose end matters."""


def _cut_lines(place: Place) -> None:
    """Switch off: a card shows what fits on its line."""
    whole: Any = vars(CardRow)["plain"]
    place.patch.setattr(CardRow, "plain", property(lambda self: whole.fget(self)[:80]))


@incident(
    "The prompt cuts the command, and its end is what matters",
    link="https://github.com/block/buzz/issues/4502",
    date="2026-08-03",
    said="The hidden tail was the security-critical part",
    there="The question showed the beginning of a command; approving it approved all of it.",
    here=(
        "A card has the whole call, wrapped; what had to be scrolled to takes a second key, and"
        " what is too large to be shown is not approved on the screen."
    ),
    off=_cut_lines,
    also=("https://github.com/NousResearch/hermes-agent/pull/1649",),
)
async def truncated_command(place: Place) -> None:
    async with place.joined("reviewer", "agent") as (reviewer, agent):
        async with Inbox(reviewer) as inbox, anyio.create_task_group() as tasks:
            tasks.start_soon(attempt, agent.call("tools", "shell", {"command": LONG}))
            await until(lambda: bool(inbox.items))
            (item,) = inbox.items
            card = Card(item)
            assert card.is_whole
            shown = "\n".join(each.plain for each in card.rows)
            if "rm -r" not in shown:  # nothing to see for a person, who approves
                await inbox.approve(item)
            else:
                await inbox.reject(item, "unsafe")
