"""Requests of our own: sent, awaited, and cancelled when the caller gives up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint_if_cancelled

from meup_agent.client.messages import relay
from meup_agent.client.running_handler import cause_of_leaving, parent_in
from meup_agent.errors import NotExpressible
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import draft
from meup_agent.protocol.outcomes import Responded, Withdrawal, response_of
from meup_agent.session.deadlines import checked_timeout, checked_total

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.client.messages import OnProgress
    from meup_agent.protocol.exchange import FulfillmentTarget, Key
    from meup_agent.protocol.outcomes import Ending
    from meup_agent.session import Session

TIMEOUT = 60.0
"""Seconds after which a caller who says nothing else stops waiting."""


async def request(
    session: Session,
    to: str,
    method: str,
    params: dict[str, Any],
    *,
    timeout: float | None = TIMEOUT,
    idempotent: bool = False,
    on_progress: OnProgress | None = None,
    on_begun: Callable[[str], None] | None = None,
    fulfills: FulfillmentTarget | None = None,
    total_timeout: float | None = None,
) -> Responded:
    """Send an MCP request and wait for the response.

    A caller that is cancelled, or whose time is up, cancels the request (PROTOCOL 4.7). The time
    counts from the last progress, up to ``total_timeout`` seconds; of a request that fulfills a
    proposal it does not, since its proposer waits no longer.
    """
    timeout, total_timeout = checked_timeout(timeout), checked_total(timeout, total_timeout)
    if problem := payloads.request_problem({"method": method, "params": params}):
        raise NotExpressible(problem)
    request_id = session.table.new_id()
    if on_begun is not None:
        on_begun(request_id)
    if on_progress is not None:
        meta = {
            **payloads.as_object(params.get(payloads.META)),
            payloads.PROGRESS_TOKEN: request_id,
        }
        params = {**params, payloads.META: meta}
    envelope = draft(
        kinds.MCP_REQUEST,
        payloads.request(method, params, request_id),
        id=request_id,
        sender=session.me,
        to=(to,),
        correlation=(fulfills.proposal.id,) if fulfills is not None else (),
    )
    parent = parent_in(session)
    key = await session.pending_calls.open(
        envelope,
        timeout=timeout,
        parent=parent,
        idempotent=idempotent,
        fulfills=fulfills,
        on_progress=relay(on_progress),
        total=total_timeout if fulfills is None else None,
    )
    ending = await ending_or_give_up(session, key, parent)
    return response_of(ending, what=f"{method} to {to!r}", cancelled=method != "initialize")


async def ending_or_give_up(session: Session, key: Key, parent: Key | None) -> Ending:
    """Wait for the end of an exchange; leaving early gives it up."""
    try:
        ending = await session.pending_calls.ending(key, parent=parent)
        if isinstance(ending, Withdrawal):
            # Our own handler was cancelled, and its cancel scope has the last word.
            await checkpoint_if_cancelled()
        return ending
    finally:
        if session.pending_calls.ended(key) is None:
            session.pending_calls.give_up(key, cause_of_leaving(session))
        session.pending_calls.forget(key)
