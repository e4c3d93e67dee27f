"""Web Push: a person lets this browser be told, or not any more."""

from __future__ import annotations

from starlette.responses import Response

from meup_agent.errors import UsageError
from meup_agent.gateway.auth import BAD_REQUEST, NOT_FOUND
from meup_agent.gateway.console.context import PageContext
from meup_agent.gateway.console.sign_in import RequestDenied
from meup_agent.gateway.reach.push import PushSubscriptions


async def subscribe(context: PageContext) -> Response:
    """Tell the browser, for as long as it is not signed out."""
    push = _subscriptions(context)
    endpoint, session = context.typed("endpoint"), context.signed_in
    keys = context.typed("p256dh"), context.typed("auth")
    try:
        push.add(context.identity, endpoint, *keys, session.token)
    except UsageError as error:
        raise RequestDenied(BAD_REQUEST, f"Nothing is sent to this browser: {error}.") from None
    session.push = endpoint
    return Response(None, 204)


async def unsubscribe(context: PageContext) -> Response:
    """Tell the browser no more."""
    _subscriptions(context).remove(context.identity, context.typed("endpoint"))
    context.signed_in.push = ""
    return Response(None, 204)


def _subscriptions(context: PageContext) -> PushSubscriptions:
    push = context.state.runtime.push
    if push is None:
        raise RequestDenied(
            NOT_FOUND, "Web Push is off here: start the gateway with --notify push."
        )
    return push
