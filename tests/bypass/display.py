"""Incidents of display: what the approver could not see."""

from collections.abc import Callable
from itertools import count
from typing import Any

import anyio

from meup_agent import escape
from meup_agent.approval import Inbox, InboxItem
from meup_agent.cli.render.card import ShownValue, card_rows
from meup_agent.gateway.console import templating
from meup_agent.protocol.wire.shown_text import Segment
from tests.bypass.incident import incident
from tests.bypass.place import Place, attempt
from tests.cli.commands import CardRow, InboxApp
from tests.interaction.people import until

HIDDEN = "ls\u200b\u202e\u2066 ;rm -r data"
"""A command in which something cannot be seen."""

INVISIBLE = "\u200b\u202e\u2066"


async def approve_if(
    looks_harmless: Callable[[InboxItem], bool], command: str, place: Place
) -> None:
    """A command of the agent, and a person who approves it where there is nothing to see."""
    async with place.joined("reviewer", "agent") as (reviewer, agent):
        async with Inbox(reviewer) as inbox, anyio.create_task_group() as tasks:
            tasks.start_soon(attempt, agent.call("tools", "shell", {"command": command}))
            await until(lambda: bool(inbox.items))
            (item,) = inbox.items
            if looks_harmless(item):
                await inbox.approve(item)
            else:
                await inbox.reject(item, "unsafe")


def _print_as_it_is(place: Place) -> None:
    """Switch off: a person reads what was sent, in lists, on the screen and on the page."""
    place.patch.setattr(escape, "visible", lambda text, limit=None: text)
    for each in ("cli.render.card", "gateway.console.templating"):
        place.patch.setattr(f"meup_agent.{each}.segments", lambda text, **_: [Segment(text)])


@incident(off=_print_as_it_is)
async def invisible_characters(place: Place) -> None:
    def looks_harmless(item: InboxItem) -> bool:
        line = escape.visible(item.arguments["command"])
        card = "\n".join(each.plain for each in card_rows(item, ShownValue()))
        page = templating.json_lines(item.arguments)
        assert all("rm -r data" in each for each in (line, card, page))
        return any(each in f"{line}{card}{page}" for each in INVISIBLE)

    await approve_if(looks_harmless, HIDDEN, place)


LONG = f"echo {'checked ' * 40}; rm -r data"
"""A command whose end matters."""


def _cut_lines(place: Place) -> None:
    """Switch off: a card shows what fits on its line."""
    whole: Any = vars(CardRow)["plain"]
    place.patch.setattr(CardRow, "plain", property(lambda self: whole.fget(self)[:80]))


@incident(off=_cut_lines)
async def truncated_command(place: Place) -> None:
    def looks_harmless(item: InboxItem) -> bool:
        value = ShownValue()
        shown = "\n".join(each.plain for each in card_rows(item, value))
        assert value.is_whole
        return "rm -r" not in shown

    await approve_if(looks_harmless, LONG, place)


def _take_keys_at_once(place: Place) -> None:
    """Switch off: a key decides what came on the screen in the moment before."""
    place.patch.setattr("meup_agent.cli.render.screen.GUARD_SECONDS", 0.0)


@incident(off=_take_keys_at_once)
async def key_for_another(place: Place) -> None:
    async with place.joined("reviewer", "agent") as (reviewer, agent):
        async with Inbox(reviewer) as inbox, anyio.create_task_group() as tasks:
            app = InboxApp(inbox, clock=lambda: 0.0)  # no time passes after it has come
            async with app.run_test() as pilot:
                tasks.start_soon(attempt, agent.call("tools", "delete", {"path": "prod.db"}))
                await until(lambda: app.current is not None)
                await inbox.settle()
                await pilot.press("a", "y")
                for item in inbox.items:
                    await inbox.reject(item, "unsafe")


def _approve_the_newest(place: Place) -> None:
    """Switch off: a yes is about what came last."""
    approve: Any = vars(InboxApp)["_approve"]

    def newest(self: InboxApp, item: InboxItem) -> None:
        del item
        approve(self, max(self.inbox.items, key=lambda each: each.arrived_at))

    place.patch.setattr(InboxApp, "_approve", newest)


@incident(off=_approve_the_newest)
async def yes_to_the_newest(place: Place) -> None:
    ticks = count(step=60)  # a person who takes a minute to look at anything
    async with place.joined("reviewer", "agent") as (reviewer, agent):
        async with Inbox(reviewer) as inbox, anyio.create_task_group() as tasks:
            app = InboxApp(inbox, clock=lambda: next(ticks))
            async with app.run_test() as pilot:
                tasks.start_soon(attempt, agent.call("tools", "read", {"path": "notes.md"}))
                await until(lambda: app.current is not None)
                place.approved.append("read notes.md")
                urgent = agent.call("tools", "delete", {"path": "prod.db"}, timeout=60)
                tasks.start_soon(attempt, urgent)
                await until(lambda: len(inbox.items) == 2)
                await inbox.settle()
                await reviewer.chat("yes")
                await pilot.press("a")
                await until(lambda: bool(place.ran) and app.decisions.underway == 0)
                for item in inbox.items:
                    await inbox.reject(item, "unsafe")
