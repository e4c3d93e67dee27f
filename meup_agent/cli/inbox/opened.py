"""The inbox of a command, that looks and decides once: opened, searched, and printed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from meup_agent.approval import Inbox, InboxItem
from meup_agent.cli.decision import find_pending
from meup_agent.cli.failures import Failure
from meup_agent.cli.inbox.card import ONLY_HEARD, ShownValue, card_rows
from meup_agent.wording import shown_name, time_left

if TYPE_CHECKING:
    from meup_agent.cli.session import CommandSession

SETTLE_SECONDS: Final = 3.0
"""Wait of a command for the rules of reviewers and the tools of executors."""


@asynccontextmanager
async def opened(session: CommandSession) -> AsyncGenerator[Inbox]:
    """The inbox, once it knows what it can know."""
    async with Inbox(session.space) as box:
        if not box.knows_before:
            session.stderr.note(ONLY_HEARD)
        await box.settle(SETTLE_SECONDS)
        yield box


async def find_item(
    box: Inbox, session: CommandSession, given: str, proposer: str | None
) -> InboxItem:
    """The item that an id, or its beginning, means."""
    # Among all proposals that are known: the beginning may be the whole id of a decided one.
    record = await find_pending(session.space, given, proposer=proposer, in_progress=True)
    item = box.find(record.proposer, record.id)
    if item is None:
        raise Failure(
            f"proposal {record.id} does not wait for you; meup inbox list shows those that do"
        )
    return item


def plain_card(item: InboxItem) -> str:
    """A proposal as its card shows it, without a screen, and all of its call."""
    offered = ", ".join(sorted(item.may)) or "nothing"
    left = time_left(item.seconds_left)
    lines = [f"proposal {shown_name(item.id)}, {left}; you may: {offered}"]
    lines.extend(each.plain for each in card_rows(item, ShownValue(room=None)))
    return "\n".join(lines) + "\n"
