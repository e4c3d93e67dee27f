"""A line in the log for each cancel of ours, with its reason (PROTOCOL 4.7)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from meup_agent.protocol import kinds, payloads

if TYPE_CHECKING:
    from meup_agent.protocol.envelope import Envelope

log = logging.getLogger("meup_agent.session")

MAX_LOGGED_CHARS: Final = 200
"""Characters of a reason in the log: it may repeat what a stranger gave as theirs."""


def log_cancel(said: Envelope) -> None:
    """Log it, if it is a cancel."""
    if said.kind != kinds.MCP_REQUEST:
        return
    call = payloads.read_call(said.payload)
    if call.method == kinds.CANCELLED:
        log.info(
            "cancelled our request %r to %r: %r",
            str(call.params.get("requestId"))[:64],
            ", ".join(said.to)[:MAX_LOGGED_CHARS],
            str(call.params.get("reason"))[:MAX_LOGGED_CHARS],
        )
