"""Logs each cancel with its reason (PROTOCOL 4.7)."""

from __future__ import annotations

import logging
from typing import Any, Final

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope

log = logging.getLogger("meup_agent.gateway")

MAX_CANCEL_CHARS: Final = 200
"""Characters of a cancel's reason, and of what it names, in the gateway's log."""


def log_cancel(space: str, envelope: Envelope, payload: dict[str, Any] | None = None) -> None:
    """Log an accepted request if it is a cancel, and the log is read so closely.

    Args:
        space: The space's name.
        envelope: What was accepted, from a member or the gateway.
        payload: Its payload's JSON values, where they are at hand.
    """
    if envelope.kind != kinds.MCP_REQUEST or not log.isEnabledFor(logging.DEBUG):
        return
    call = payloads.read_call(envelope.payload_object if payload is None else payload)
    if call.method == kinds.CANCELLED:
        params = call.params
        said = "in %s %s cancels request %s of %s: %s"
        whose = payloads.on_behalf_of(envelope.sender, params)
        words = (space, envelope.sender, params.get("requestId"), whose, params.get("reason"))
        log.debug(said, *map(_shown, words))


def _shown(value: object) -> str:
    """A stranger's words, escaped and cut, if they are any."""
    text = str(value) if isinstance(value, int | str) else ""
    return ascii(text[:MAX_CANCEL_CHARS])
