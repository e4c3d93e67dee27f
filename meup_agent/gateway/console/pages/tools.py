"""The tools of a server that changed: how they differ from the accepted ones, and a button."""

from __future__ import annotations

from starlette.responses import Response

from meup_agent.client.tool_changes import ToolDifference, accept_tools, read_difference
from meup_agent.errors import MeupError
from meup_agent.gateway.auth import BAD_REQUEST
from meup_agent.gateway.console.context import CONSOLE_HOME, PageContext
from meup_agent.gateway.console.sign_in import RequestDenied
from meup_agent.gateway.edge.http.context import CONFLICT


async def show_tools(context: PageContext) -> Response:
    """The difference of a participant's tools from those that were accepted."""
    who = _named(context, context.request.query_params.get("who", ""))
    try:
        difference = await _read(context, who)
    except MeupError as error:
        raise RequestDenied(BAD_REQUEST, f"{who} does not tell of its tools: {error}") from None
    return _page(context, who, difference)


async def accept_shown_tools(context: PageContext) -> Response:
    """Accept the tools as they were shown."""
    who = _named(context, context.form.get("who", ""))
    try:
        async with context.presence.deciding() as session:
            await accept_tools(session.space, who, context.form.get("digest", ""))
    except MeupError as error:
        try:
            difference = await _read(context, who)
        except MeupError:
            raise RequestDenied(BAD_REQUEST, f"Nothing was accepted: {error}") from None
        said = f"Nothing was accepted: {error}"
        return _page(context, who, difference, problem=said, status=CONFLICT)
    return context.go_on(CONSOLE_HOME, f"The tools of {who} are accepted as they are now.")


async def _read(context: PageContext, who: str) -> ToolDifference:
    async with context.presence.deciding() as session:
        return await read_difference(session.space, who)


def _page(
    context: PageContext,
    who: str,
    difference: ToolDifference,
    *,
    problem: str = "",
    status: int = 200,
) -> Response:
    return context.page("tools.html", status, who=who, difference=difference, problem=problem)


def _named(context: PageContext, who: str) -> str:
    if who not in context.space_server.owner.grants:
        raise RequestDenied(BAD_REQUEST, "Choose a participant of this space.")
    return who
