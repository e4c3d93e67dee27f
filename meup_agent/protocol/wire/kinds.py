"""The kinds of envelope, in one table (PROTOCOL 1).

In memory a kind has slashes (``mcp/request``); dialects translate the kinds of this table and
leave any other as it is.
"""

from __future__ import annotations

from typing import Final

MCP_REQUEST: Final = "mcp/request"
MCP_RESPONSE: Final = "mcp/response"
MCP_PROPOSAL: Final = "mcp/proposal"
MCP_WITHDRAW: Final = "mcp/withdraw"
MCP_REJECT: Final = "mcp/reject"
MCP_RENEW: Final = "mcp/renew"
"""Ours: its proposer gives a proposal more time (PROTOCOL 4.17)."""
MCP_REPORT: Final = "mcp/report"
"""Ours: its executor tells what came of a call that it was permitted (PROTOCOL 4.20)."""

BEGINNINGS: Final = frozenset({MCP_REQUEST, MCP_PROPOSAL})
"""The kinds with which an exchange begins."""
DECISIONS: Final = frozenset({MCP_WITHDRAW, MCP_REJECT})
"""The kinds that end a proposal, or may."""
EXCHANGES: Final = BEGINNINGS | DECISIONS | {MCP_RESPONSE, MCP_RENEW, MCP_REPORT}
"""The kinds that do no harm twice: the state of the exchange tells a copy from a new one."""

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
"""Ours: the announcement of a withdrawal, where a space announces them (PROTOCOL 3)."""
SYSTEM_EXPIRED: Final = "system/expired"
"""Ours: the announcement of an expiry, in the same spaces (PROTOCOL 3)."""

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

YES_GIVE: Final = "yes/give"
YES_REVOKE: Final = "yes/revoke"
YES_LIST: Final = "yes/list"
YES_LISTED: Final = "yes/listed"
"""Ours: scoped yeses are given, revoked, asked for, and listed by the gateway (PROTOCOL 5)."""

CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"

ACCEPT_TOOLS: Final = "dev.meup/accept_tools"
"""Method that accepts a server's tools, by the digest of what was seen (PROTOCOL 5)."""

GATEWAY: Final = "system:gateway"
"""The gateway's name in ``from``."""

GATEWAY_NAMES: Final = frozenset({GATEWAY, "gateway", "system"})
"""The names that gateways are seen to use for themselves (PROTOCOL 1)."""

MEMBER_KINDS: Final = (
    MCP_REQUEST,
    MCP_RESPONSE,
    MCP_PROPOSAL,
    MCP_WITHDRAW,
    MCP_REJECT,
    MCP_RENEW,
    MCP_REPORT,
    CHAT,
    CHAT_ACKNOWLEDGE,
    CHAT_CANCEL,
    REASONING_START,
    REASONING_THOUGHT,
    REASONING_CONCLUSION,
    REASONING_CANCEL,
    "participant/pause",
    "participant/resume",
    "participant/request-status",
    "participant/status",
    "participant/forget",
    "participant/compact",
    "participant/compact-done",
    "participant/clear",
    "participant/restart",
    "participant/shutdown",
    "capability/grant",
    "capability/revoke",
    "capability/grant-ack",
    "space/invite",
    "space/kick",
    LIST_PROPOSALS,
    YES_GIVE,
    YES_REVOKE,
    YES_LIST,
    STREAM_REQUEST,
    STREAM_CLOSE,
    STREAM_GRANT_WRITE,
    STREAM_REVOKE_WRITE,
    STREAM_TRANSFER_OWNERSHIP,
)
"""The kinds that participants send."""

GATEWAY_KINDS: Final = (
    "space/invite-ack",
    PROPOSALS,
    YES_LISTED,
    STREAM_OPEN,
    STREAM_WRITE_GRANTED,
    STREAM_WRITE_REVOKED,
    STREAM_OWNERSHIP_TRANSFERRED,
    STREAM_LOST,
    SYSTEM_WELCOME,
    SYSTEM_PRESENCE,
    SYSTEM_ERROR,
    SYSTEM_WITHDRAWN,
    SYSTEM_EXPIRED,
)
"""The kinds that come from the gateway alone."""

KINDS: Final = dict.fromkeys((*MEMBER_KINDS, *GATEWAY_KINDS))
"""Every kind that this package knows, by its name in memory."""

CORRELATED: Final = frozenset(
    {
        MCP_RESPONSE,
        MCP_WITHDRAW,
        MCP_REJECT,
        MCP_RENEW,
        MCP_REPORT,
        CHAT_ACKNOWLEDGE,
        CHAT_CANCEL,
        "capability/grant-ack",
        "space/invite-ack",
        PROPOSALS,
        YES_GIVE,
        YES_LISTED,
        STREAM_OPEN,
    }
)
"""The kinds that must say what they refer to. One that does not is dropped by its readers, and
passes a gateway, which refuses only what the protocol lets it."""

IN_MEMORY: Final = {name.replace("/", "."): name for name in KINDS}
"""The in-memory form of each kind that is written with dots."""


def canonical(kind: str) -> str:
    """The in-memory form of a known kind that may have dots: ``mcp.reject`` → ``mcp/reject``."""
    return IN_MEMORY.get(kind, kind)


def dotted(kind: str) -> str:
    """The form with dots of a kind in the table; others stay as they are."""
    return kind.replace("/", ".") if kind in KINDS else kind
