"""Waits: for the response to a request of ours, for words that are announced, for an arrival."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from meup_agent.client.messages import relay
from meup_agent.client.running_handler import (
    awaited,
    cause_of_leaving,
    parent_in,
    release_slot,
)
from meup_agent.errors import NotExpressible
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import draft
from meup_agent.protocol.wire.outcomes import (
    Rejection,
    Responded,
    Withdrawal,
    response_of,
    with_explain,
)
from meup_agent.session.pending_calls import checked_timeout, checked_total

if TYPE_CHECKING:
    from meup_agent.client.messages import OnProgress
    from meup_agent.protocol.exchange import FulfillmentTarget
    from meup_agent.session import Session


T = TypeVar("T")

# --- requests of our own ---

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
    report = None
    if on_progress is not None:
        report = relay(on_progress)
        meta = {
            **payloads.as_object(params.get(payloads.META)),
            payloads.PROGRESS_TOKEN: request_id,
        }
        params = {**params, payloads.META: meta}
    span, params = session.begin_span(method, params)
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
        on_progress=report,
        total=total_timeout if fulfills is None else None,
        span=span,
    )
    try:
        ending = await session.pending_calls.ending(key, parent=parent)
        if isinstance(ending, Withdrawal):
            # Our own handler was cancelled, and its cancel scope has the last word.
            await checkpoint_if_cancelled()
    finally:
        session.pending_calls.leave(key, functools.partial(cause_of_leaving, session))
    return response_of(ending, what=f"{method} to {to!r}", cancelled=method != "initialize")


# --- waits ---
# Waits for something to become true of the space: a participant's arrival, an explanation.


ANNOUNCED_SECONDS: Final = 1.0
"""Seconds in which the words that a rejection announces are waited for before it is raised."""


async def wait_for(session: Session, find: Callable[[], T], timeout: float | None) -> T:
    """Wait until something is found, and return it; what is not found in time is falsy."""
    with (
        anyio.move_on_after(checked_timeout(timeout)),
        # Looked at again at each envelope, which has taken effect by then.
        session.watchers.watch(lambda _: bool(find())) as heard,
    ):
        # It may be gone again before this task runs.
        while not (found := find()):
            with release_slot(session):
                await anext(heard)
        await checkpoint()
        return found
    # Once more: it may have come as the time was up.
    return find()


def with_explanation(session: Session, rejection: Rejection) -> Rejection:
    """The rejection of a proposal of ours, whose explanation can be waited for."""

    def so_far(rejected: Rejection) -> str:
        return session.table.explanations.get(rejected.by, rejected.id, session.now())

    @awaited
    async def explanation(rejected: Rejection, timeout: float | None) -> str:
        return await wait_for(session, lambda: so_far(rejected), timeout)

    return with_explain(rejection, explanation, so_far(rejection))


async def await_announced(session: Session, outcome: T) -> T | Rejection:
    """The outcome; a rejection that says that its words follow at once with these, if they do."""
    if not isinstance(outcome, Rejection) or not session.table.explanations.is_announced(
        outcome.by, outcome.id, session.now()
    ):
        return outcome
    await outcome.explanation(ANNOUNCED_SECONDS)
    return with_explanation(session, outcome)
