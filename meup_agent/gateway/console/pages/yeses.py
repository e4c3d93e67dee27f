"""Yeses in advance: one is given at a decision, and all that are kept are listed and ended."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from meup_agent.approval import InboxItem
from meup_agent.approval.inbox.preview import MAX_SHOWN, choose_scope, preview_scope
from meup_agent.approval.yeses import YesScope, read_scope, revoke_yes
from meup_agent.errors import AlreadyDecided, AlreadyInProgress, MeupError, NotOffered, UsageError
from meup_agent.gateway.auth import BAD_REQUEST
from meup_agent.gateway.console.context import CONSOLE_HOME, PageContext, redirect
from meup_agent.gateway.console.pages.inbox import (
    carry_out,
    dangers_of,
    decided_item,
    find_item,
    own_item,
    shown_digest,
    whole_call,
    why_not,
)
from meup_agent.gateway.console.presence import item_key
from meup_agent.protocol.wire.scoped_yes import MAX_YES_BYTES, MAX_YES_USES

TIMES: Final = {"3600": "1 hour", "28800": "8 hours", "604800": "7 days"}
"""The times that are offered, in seconds."""

USES: Final = 20
"""Calls that are offered."""

WRITTEN: Final = "written"
"""The choice of a scope that the person wrote."""

YESES: Final = "/yeses"

GIVEN: Final = "Your yes to calls like it holds; the page Yeses ends it."
"""Said with what came of the approval: the yes holds also where that failed."""


async def show_yes(context: PageContext) -> Response:
    """The scopes that are offered at a decision, each with what it takes and what it does not."""
    item = find_item(context.presence.inbox, context.key)
    if item is None:
        return redirect(context, f"{CONSOLE_HOME}/{quote(context.key)}")
    return await _page(context, item)


async def give(context: PageContext) -> Response:
    """Give the yes that was shown, and approve the decision at which it is given."""
    item = decided_item(context)
    if isinstance(item, Response):
        return item
    text = context.form.get("pattern", "").replace("\r\n", "\n")
    chosen = context.form.get("scope", "")
    most = context.typed("most")
    try:
        if chosen == WRITTEN:
            scope = _read(text)
            if context.form.get("seen", "").replace("\r\n", "\n") != text:
                return await _page(context, item, written=(text, scope))
        else:
            scopes = context.presence.inbox.offered_scopes(item)
            if not chosen.isdecimal() or not 1 <= int(chosen) <= len(scopes):
                raise UsageError("Choose the calls that it is for.")
            scope = scopes[int(chosen) - 1]
        if context.form.get("seconds") not in TIMES:
            raise UsageError("Choose how long it holds.")
        if not most.isdecimal() or len(most) > 4 or not 1 <= int(most) <= MAX_YES_USES:
            raise UsageError(f"It lets 1 to {MAX_YES_USES} calls through.")
        if problem := why_not(context, item):
            raise UsageError(problem)
    except UsageError as error:
        return await _page(context, item, problem=str(error))
    try:
        async with own_item(context, item) as (inbox, own):
            seconds = float(context.form["seconds"])
            await inbox.give_yes(own, scope, seconds=seconds, most=int(most))
    except MeupError as error:
        return await _page(context, item, problem=f"Not done: {error}")
    return await carry_out(context, item, also=GIVEN)


async def show_yeses(context: PageContext) -> Response:
    """Every yes that is kept in the space."""
    kept = context.space_server.owner.yeses
    shown = [(each, _scope_of(each.yes.arguments, each.yes.others)) for each in reversed(kept)]
    return context.page("yeses.html", kept=shown)


async def revoke(context: PageContext) -> Response:
    """End a yes: what it covers is asked about again."""
    try:
        async with context.presence.deciding() as session:
            await revoke_yes(session.space, context.typed("yes") or "none")
    except MeupError as error:
        return context.go_on(YESES, f"Not done: {error}", failed=True)
    return context.go_on(YESES, "That yes has ended: you are asked again.")


def _scope_of(arguments: dict[str, Any] | None, others: Any) -> YesScope:
    return YesScope("", arguments, others)


def _read(text: str) -> YesScope:
    """The scope that a person wrote.

    Raises:
        UsageError: It is none.
    """
    if len(text) > 2 * MAX_YES_BYTES:
        raise UsageError(f"What you wrote is longer than {MAX_YES_BYTES} bytes.")
    try:
        read: object = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError("What you wrote is not JSON.") from None
    return read_scope(read)


async def _page(
    context: PageContext,
    item: InboxItem,
    *,
    written: tuple[str, YesScope] | None = None,
    problem: str = "",
) -> Response:
    try:
        async with own_item(context, item) as (inbox, own):
            inbox.check_yes(own)
            past = await inbox.read_past(own)
            scopes, is_used = inbox.offered_scopes(own), inbox.uses_yeses
    except (NotOffered, AlreadyDecided, AlreadyInProgress) as error:
        said = f"No yes in advance: {error}"
        return context.go_on(f"{CONSOLE_HOME}/{quote(context.key)}", said, failed=True)
    best = choose_scope(scopes, past, item.arguments)
    text, own_scope = written or (_written(scopes[best]), None)
    offers = [
        (str(number), each, preview_scope(each, item.call, past))
        for number, each in enumerate(scopes, 1)
    ]
    if own_scope is not None:
        offers.append((WRITTEN, own_scope, preview_scope(own_scope, item.call, past)))
        if not own_scope.takes(item.arguments):
            problem = problem or "What you wrote does not take this call."
    return context.page(
        "yes.html",
        BAD_REQUEST if problem else 200,
        item=item,
        key=item_key(item),
        offers=offers,
        chosen=WRITTEN if own_scope is not None else str(best + 1),
        text=text,
        seen="" if own_scope is None else text,
        is_used=is_used,
        times=TIMES,
        uses=USES,
        most=MAX_YES_USES,
        max_shown=MAX_SHOWN,
        digest=shown_digest(item),
        whole_call=whole_call(item),
        danger=dangers_of(item),
        problem=problem,
    )


def _written(scope: YesScope) -> str:
    said = {"arguments": scope.arguments, "others": scope.others}
    return json.dumps(said, indent=2, ensure_ascii=True)
