"""The kinds of envelope, in one table (PROTOCOL 1).

In memory a kind has slashes (``mcp/request``); dialects translate the kinds of this table and
leave any other as it is.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

MCP_REQUEST: Final = "mcp/request"
MCP_RESPONSE: Final = "mcp/response"
MCP_PROPOSAL: Final = "mcp/proposal"
MCP_WITHDRAW: Final = "mcp/withdraw"
MCP_REJECT: Final = "mcp/reject"
MCP_RENEW: Final = "mcp/renew"
"""Ours: its proposer gives a proposal more time (PROTOCOL 4.17)."""
CHAT: Final = "chat"
CHAT_ACKNOWLEDGE: Final = "chat/acknowledge"
CHAT_CANCEL: Final = "chat/cancel"
REASONING_START: Final = "reasoning/start"
REASONING_THOUGHT: Final = "reasoning/thought"
REASONING_CONCLUSION: Final = "reasoning/conclusion"
REASONING_CANCEL: Final = "reasoning/cancel"
SYSTEM_WELCOME: Final = "system/welcome"
SYSTEM_PRESENCE: Final = "system/presence"
SYSTEM_ERROR: Final = "system/error"
SYSTEM_WITHDRAWN: Final = "system/withdrawn"
SYSTEM_EXPIRED: Final = "system/expired"
"""Ours: the announcement of a withdrawal, where a space announces them (PROTOCOL 3)."""

STREAM_REQUEST: Final = "stream/request"
STREAM_OPEN: Final = "stream/open"
STREAM_CLOSE: Final = "stream/close"
STREAM_GRANT_WRITE: Final = "stream/grant-write"
STREAM_WRITE_GRANTED: Final = "stream/write-granted"
STREAM_REVOKE_WRITE: Final = "stream/revoke-write"
STREAM_WRITE_REVOKED: Final = "stream/write-revoked"
STREAM_TRANSFER_OWNERSHIP: Final = "stream/transfer-ownership"
STREAM_OWNERSHIP_TRANSFERRED: Final = "stream/ownership-transferred"
STREAM_LOST: Final = "stream/lost"
"""Ours: tells a slow reader alone how many frames of a stream it did not get (PROTOCOL 8)."""

LIST_PROPOSALS: Final = "space/list-proposals"
PROPOSALS: Final = "space/proposals"
"""Ours: asks which proposals are open, or were decided lately, and a page of them (PROTOCOL 3)."""

CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"

ACCEPT_TOOLS: Final = "dev.meup/accept_tools"
"""Method that accepts a server's tools, by the digest of what was seen (PROTOCOL 5)."""

GATEWAY: Final = "system:gateway"
"""The gateway's name in ``from``."""

GATEWAY_NAMES: Final = frozenset({GATEWAY, "gateway", "system"})
"""The names that gateways are seen to use for themselves (PROTOCOL 1)."""

Sender = Literal["member", "gateway"]


class Kind(msgspec.Struct, frozen=True):
    """The facts about a kind."""

    name: str
    # It must say what it refers to; one that does not is dropped by its readers, and passes a
    # gateway, which refuses only what the protocol lets it.
    correlated: bool = False
    sender: Sender = "member"  # the participants that may send it


def _table(*kinds: Kind) -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds}


KINDS: Final = _table(
    Kind(MCP_REQUEST),
    Kind(MCP_RESPONSE, correlated=True),
    Kind(MCP_PROPOSAL),
    Kind(MCP_WITHDRAW, correlated=True),
    Kind(MCP_REJECT, correlated=True),
    Kind(MCP_RENEW, correlated=True),
    Kind(CHAT),
    Kind(CHAT_ACKNOWLEDGE, correlated=True),
    Kind(CHAT_CANCEL, correlated=True),
    Kind(REASONING_START),
    Kind(REASONING_THOUGHT),
    Kind(REASONING_CONCLUSION),
    Kind(REASONING_CANCEL),
    Kind("participant/pause"),
    Kind("participant/resume"),
    Kind("participant/request-status"),
    Kind("participant/status"),
    Kind("participant/forget"),
    Kind("participant/compact"),
    Kind("participant/compact-done"),
    Kind("participant/clear"),
    Kind("participant/restart"),
    Kind("participant/shutdown"),
    Kind("capability/grant"),
    Kind("capability/revoke"),
    Kind("capability/grant-ack", correlated=True),
    Kind("space/invite"),
    Kind("space/invite-ack", correlated=True, sender="gateway"),
    Kind("space/kick"),
    Kind(LIST_PROPOSALS),
    Kind(PROPOSALS, correlated=True, sender="gateway"),
    Kind(STREAM_REQUEST),
    Kind(STREAM_OPEN, correlated=True, sender="gateway"),
    Kind(STREAM_CLOSE),
    Kind(STREAM_GRANT_WRITE),
    Kind(STREAM_WRITE_GRANTED, sender="gateway"),
    Kind(STREAM_REVOKE_WRITE),
    Kind(STREAM_WRITE_REVOKED, sender="gateway"),
    Kind(STREAM_TRANSFER_OWNERSHIP),
    Kind(STREAM_OWNERSHIP_TRANSFERRED, sender="gateway"),
    Kind(STREAM_LOST, sender="gateway"),
    Kind(SYSTEM_WELCOME, sender="gateway"),
    Kind(SYSTEM_PRESENCE, sender="gateway"),
    Kind(SYSTEM_ERROR, sender="gateway"),
    Kind(SYSTEM_WITHDRAWN, sender="gateway"),
    Kind(SYSTEM_EXPIRED, sender="gateway"),
)
"""Every kind that this package knows, by its name in memory."""

IN_MEMORY: Final = {name.replace("/", "."): name for name in KINDS}
"""The in-memory form of each kind that is written with dots."""


def canonical(kind: str) -> str:
    """The in-memory form of a known kind that may have dots: ``mcp.reject`` → ``mcp/reject``."""
    return IN_MEMORY.get(kind, kind)


def dotted(kind: str) -> str:
    """The form with dots of a kind in the table; others stay as they are."""
    return kind.replace("/", ".") if kind in KINDS else kind
