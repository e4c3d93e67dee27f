"""Calls that are decided together: all that are marked, each as it will run, and one decision."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import anyio
from starlette.responses import Response

from meup_agent.approval import InboxItem
from meup_agent.approval.inbox.item import Verb
from meup_agent.approval.inbox.together import MAX_TOGETHER, why_alone
from meup_agent.errors import MeupError
from meup_agent.gateway.auth import BAD_REQUEST
from meup_agent.gateway.console.context import CONSOLE_HOME, PageContext, redirect
from meup_agent.gateway.console.event_queue import OutcomeNotice
from meup_agent.gateway.console.inbox_session import item_key
from meup_agent.gateway.console.pages.inbox import (
    MORE_THAN_SHOWN,
    OFFERED_REASONS,
    OUTCOME_SECONDS,
    Outcome,
    ShownArgument,
    own_item,
    shown_arguments,
    shown_digest,
    start_approval,
    whole_call,
    why_not_as_shown,
)
from meup_agent.gateway.console.sign_in import RequestDenied
from meup_agent.gateway.console.templating import is_shown_whole

EDITED: Final = "edited"
"""The value of a mark where the browser keeps an edit of the call."""

MARK: Final = "m-"
"""Prefix of a field that marks a call, before its key."""

DIGEST: Final = "d-"
"""Prefix of a field that decides a call, before its key; its value is the digest of what was
shown."""


class MarkedCard(NamedTuple):
    """A call among those that are decided together.

    Attributes:
        why: The reason for which it is approved alone; empty: it is approved with the others.
    """

    key: str
    item: InboxItem
    call: dict[str, Any]
    arguments: list[ShownArgument]
    digest: str
    why: str


async def decide_together(context: PageContext) -> Response:
    """Show all that are marked, or decide those that were shown."""
    match context.form.get("verb"):
        case "approve":
            return await _approve(context)
        case "reject":
            return await _reject(context)
        case _:
            return _page(context, _chosen(context, MARK))


def _chosen(context: PageContext, prefix: str) -> dict[str, str]:
    """The fields of calls by their keys, at most as many as a queue shows."""
    fields = context.form.items()
    found = {name.removeprefix(prefix): said for name, said in fields if name.startswith(prefix)}
    if len(found) > MAX_TOGETHER:
        raise RequestDenied(BAD_REQUEST, f"At most {MAX_TOGETHER} calls are decided together.")
    return found


def _waiting(context: PageContext) -> dict[str, InboxItem]:
    return {item_key(each): each for each in context.presence.inbox.items}


def _why(item: InboxItem) -> str:
    """The reason for which a call is approved by its own page alone; or empty."""
    if item.seconds_left is not None and item.seconds_left < 0:
        return "its time is over"
    return why_alone(item) or ("" if is_shown_whole(whole_call(item)) else MORE_THAN_SHOWN)


def _page(context: PageContext, marks: dict[str, str], problem: str = "") -> Response:
    if not marks and not problem:
        return redirect(context, CONSOLE_HOME)
    waiting = _waiting(context)
    cards = [
        MarkedCard(
            key,
            item,
            whole_call(item),
            shown_arguments(item, item.arguments),
            shown_digest(item),
            _why(item) or ("you have begun to edit it" if marks[key] == EDITED else ""),
        )
        for key, item in waiting.items()
        if key in marks
    ]
    return context.page(
        "inbox_together.html",
        BAD_REQUEST if problem else 200,
        cards=cards,
        alone=sum(bool(each.why) for each in cards),
        rejected=sum(Verb.REJECT in each.item.may for each in cards),
        missing=len(marks) - len(cards),
        problem=problem,
        reasons=OFFERED_REASONS,
        topics="inbox",
    )


async def _approve(context: PageContext) -> Response:
    """Approve each as its own page does, in their order, and wait a moment for what comes."""
    told: dict[str, OutcomeNotice] = {}
    begun: dict[str, InboxItem] = {}
    is_answered, changed = False, anyio.Event()

    for key, item in _shown(context, told).items():
        if why := _why(item):
            told[key] = _not_done(item, key, f"it is approved alone, since {why}")
        else:
            begun[key] = item

    def tell(outcome: Outcome) -> None:
        if is_answered:
            context.presence.notify(outcome.notice)
            return
        told[outcome.notice.proposal] = outcome.notice
        if begun.keys() <= told.keys():
            changed.set()

    if begun:
        # Once nothing has to be waited for, they are sent in their order.
        async with context.presence.deciding() as session:
            await session.inbox.settle()
            for item in begun.values():
                start_approval(context, item, tell, check=why_alone)
            with anyio.move_on_after(OUTCOME_SECONDS):
                await changed.wait()
    is_answered = True
    runs = [
        OutcomeNotice(f"Approved: {_name(item)} runs now.", proposal=key)
        for key, item in begun.items()
        if key not in told
    ]
    return _go_on(context, "Approved", [*told.values(), *runs])


async def _reject(context: PageContext) -> Response:
    reason = context.form.get("reason", "")
    if reason not in dict(OFFERED_REASONS):
        return _page(context, _chosen(context, DIGEST), "Choose a reason to reject.")
    words = context.typed("words") or None
    told: dict[str, OutcomeNotice] = {}
    for key, item in _shown(context, told).items():
        try:
            async with own_item(context, item) as (inbox, own):
                await inbox.reject(own, reason, words)
            told[key] = OutcomeNotice(f"Rejected: {_name(item)}.", proposal=key)
        except (MeupError, RequestDenied) as error:
            told[key] = _not_done(item, key, str(error))
    return _go_on(context, "Rejected", [*told.values()])


def _shown(context: PageContext, told: dict[str, OutcomeNotice]) -> dict[str, InboxItem]:
    """The calls of a form that are as they were shown; of the others it is told why not."""
    waiting = _waiting(context)
    found: dict[str, InboxItem] = {}
    for key, shown in _chosen(context, DIGEST).items():
        item = waiting.get(key)
        if item is None:
            told[key] = OutcomeNotice("Not done: one waits no longer.", True, key)
        elif why := why_not_as_shown(item, shown):
            told[key] = OutcomeNotice(f"{_name(item)}: {why}", True, key)
        else:
            found[key] = item
    return found


def _not_done(item: InboxItem, key: str, why: str) -> OutcomeNotice:
    return OutcomeNotice(f"Not done: {_name(item)}: {why}", True, key)


def _name(item: InboxItem) -> str:
    return f"{item.tool or item.method} of {item.proposer}"


def _go_on(context: PageContext, verb: str, parts: list[OutcomeNotice]) -> Response:
    """Go on to the next decision, and say what came of each."""
    failed = sum(each.failed for each in parts)
    said = f"{verb}: {len(parts) - failed} of {len(parts)}."
    if failed:
        said += f" {failed} failed, or were not done."
    return context.go_on(CONSOLE_HOME, said, failed=failed > 0, parts=tuple(parts))
