"""The event stream of a browser; by itself, since it is the one page whose answer goes on."""

from __future__ import annotations

from typing import cast

from starlette.responses import Response

from meup_agent.gateway.console.context import PageContext
from meup_agent.gateway.console.event_stream import StreamResponse


async def get_events(context: PageContext) -> Response:
    """The events of the topics that the browser's tabs show."""
    topics = context.request.query_params.get("topics", "inbox").split(",")
    # All that is asked of a response is that it can be called so.
    return cast("Response", StreamResponse(context, topics))
