"""Asks for tools over HTTP as a participant whose agent may be running."""

from __future__ import annotations

from typing import Any

import anyio

from meup_agent.cli import exit_codes
from meup_agent.cli.beside.requesting import request
from meup_agent.cli.beside.visit import HttpVisit
from meup_agent.cli.failures import Failure
from meup_agent.cli.render.escape import visible
from meup_agent.cli.render.progress import ProgressLine
from meup_agent.client.tools import MAX_LIST_CHARS, MAX_TOOL_PAGES
from meup_agent.errors import RequestError
from meup_agent.protocol.payloads import as_object, objects_in


async def names_to_ask(visit: HttpVisit, owner: str | None) -> list[str]:
    """The participants to ask, in order: everybody else who is present, or one of them.

    Raises:
        Failure: That one is not present.
    """
    here = [str(each.get("id")) for each in await visit.space.participants()]
    if owner is None:
        return sorted(name for name in here if name != visit.space.me)
    if owner not in here:
        known = ", ".join(visible(each, 64) for each in here) or "nobody"
        raise Failure(
            f"{owner!r} is not in the space {visit.space.name!r}; here: {known}", exit_codes.ABSENT
        )
    return [owner]


async def tools_of(
    visit: HttpVisit, name: str, seconds: float | None, waiting: ProgressLine
) -> list[dict[str, Any]]:
    """The tools of one participant.

    Args:
        visit: Where.
        name: Whose tools.
        seconds: How long to wait for all of them; ``None``: as long as it takes.
        waiting: Shows that something is waited for.

    Raises:
        RequestError: It was answered with an error, or with more than a list may have.
        MeupError: As :func:`~meup_agent.cli.beside.requesting.request` says.
        Failure: Likewise.
    """
    until = None if seconds is None else anyio.current_time() + seconds
    listed: list[dict[str, Any]] = []
    params: dict[str, Any] = {}
    for _ in range(MAX_TOOL_PAGES):
        left = None if until is None else max(until - anyio.current_time(), 0.0)
        answered = await request(visit, name, "tools/list", params, seconds=left, waiting=waiting)
        if answered.error is not None:
            code, said = answered.error.get("code", 0), answered.error.get("message", "no message")
            raise RequestError(code, str(said), answered.error.get("data"), by=name)
        page = as_object(answered.result)
        listed += objects_in(page.get("tools"))
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str) or not cursor:
            return listed
        if len(str(listed)) > MAX_LIST_CHARS:
            break
        params = {"cursor": cursor}
    raise RequestError(0, "its list of tools has no end", None, by=name)
