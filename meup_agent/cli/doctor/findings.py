"""The results of ``meup doctor``: its checks, facts about a gateway, and advice on refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from meup_agent.errors import InvalidPattern, TransportError
from meup_agent.escape import compact, visible
from meup_agent.protocol import kinds
from meup_agent.protocol.capability import compile_kind
from meup_agent.protocol.guarantees import Guarantees
from meup_agent.protocol.payloads import TOOL_CALL, as_object, unwrapped
from meup_agent.transport.handshake import with_tls
from meup_agent.transport.listener_owner import ForeignListener

NAMES: Final = (
    "address",
    "settings",
    "name",
    "port",
    "tls",
    "handshake",
    "token",
    "space",
    "welcome",
    "dialect",
    "gateway",
    "me",
    "may",
    "here",
    "round trip",
    "clock",
)
"""The checks, in their order."""

NEEDED: Final = frozenset(NAMES[2:9])  # the checks without which there is no connection
NOT_TRIED: Final = "not tried"
FIRST_CLOSE_CODE: Final = 1000  # below it are HTTP's statuses
_TOKEN: Final = "check MEUP_TOKEN, --token-file or --token; a space's configuration has its tokens"
_SPACE: Final = "check --space or MEUP_SPACE, and the path in the address"

_REFUSALS: Final[dict[int, tuple[str, str, str]]] = {
    401: ("token", "the gateway refuses the token", _TOKEN),
    403: ("token", "the gateway refuses the token", _TOKEN),
    404: ("space", "there is no such space, or no gateway at this path", _SPACE),
    4401: ("token", "the gateway refuses the token", _TOKEN),
    4403: ("welcome", "the participant is kept out of the space", "ask the operator of the space"),
    4404: ("space", "there is no such space", _SPACE),
    4409: ("welcome", "another program joined with the same token", "give each one of its own"),
    429: ("handshake", "the gateway has too much to do", "try again later"),
    503: ("handshake", "the gateway has too much to do, or is not up yet", "try again later"),
    1013: ("welcome", "the gateway has too much to do", "try again later"),
}
"""By HTTP status or close code (PROTOCOL 3): the check that fails, what happened, what to do."""

_FORBIDDEN: Final = 403

_NO_REASON: Final = (
    "handshake",
    "no gateway is at this path, or something in front of it refuses the token",
    "check the path in the address, which for a mounted gateway begins with the path of its mount;"
    " then the token",
)
"""For 403 without a reason: an ASGI server answers so where nothing is at a path."""

MAX_LIMIT: Final = 80  # characters of one pattern that are shown

_VERBS: Final = {
    "call tools": kinds.MCP_REQUEST,
    "propose": kinds.MCP_PROPOSAL,
    "reject": kinds.MCP_REJECT,
    "chat": kinds.CHAT,
    "grant capabilities": "capability/grant",
}


class Permission(NamedTuple):
    """The permission to send one kind of envelope."""

    verb: str
    allowed: bool
    limits: tuple[str, ...] = ()  # in words; empty: all of it

    def __str__(self) -> str:
        """``call tools (only read_*, list_*)``."""
        return f"{self.verb} (only {', '.join(self.limits)})" if self.limits else self.verb


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    name: str
    ok: bool | None  # None: not tried, or there was nothing to look at
    said: str  # safe to print
    advice: str = ""  # what to do; where all is good, to think of


@dataclass(slots=True)
class Report:
    """All results of one run."""

    url: str = ""  # empty: there was none to dial
    space: str = ""  # as asked for
    checks: list[Check] = field(default_factory=list[Check])
    lost: bool = False  # the connection ended before everything was looked at
    me: str = ""
    asked: str = ""  # the dialect, as is the next
    adopted: str = ""
    guarantees: Guarantees | None = None  # None: the gateway was not reached
    said_guarantees: bool = False  # by the gateway itself
    capabilities: tuple[Any, ...] = ()
    permissions: list[Permission] = field(default_factory=list[Permission])
    participants: tuple[str, ...] = ()  # all that are present, ours included
    round_trip: float | None = None  # seconds
    clock_difference: float | None = None  # seconds that the gateway's is ahead of ours

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not any(check.ok is False for check in self.checks)

    @property
    def connected(self) -> bool:
        """True if no check failed that a connection needs, and it lasted."""
        return not self.lost and not any(
            check.ok is False and check.name in NEEDED for check in self.checks
        )


def refusal(code: int, reason: str) -> tuple[str, str, str]:
    """The check that fails by a status or a close code, what happened, and what to do."""
    if code == _FORBIDDEN and not reason:
        return _NO_REASON
    found = _REFUSALS.get(code)
    if found is not None:
        return found
    advice = "check the address: host, port and path"
    if code < FIRST_CLOSE_CODE:
        return "handshake", "what answers is no gateway", advice
    return "welcome", "the connection was closed before the welcome", advice


def no_handshake(error: TransportError, timeout: float) -> tuple[str, str]:
    """The reason why a port that took a connection made no WebSocket of it, and what to do."""
    match error.__cause__:
        case TimeoutError():
            return (
                f"no answer within {timeout:g} s: the port takes connections and says nothing",
                "check the port; if it is the gateway's, the gateway hangs: restart it",
            )
        case ForeignListener() as foreign:
            return str(foreign), foreign.advice
        case cause:
            root = cause if cause is None or cause.__cause__ is None else cause.__cause__
            why = visible(str(root or error), 120)
            return (f"what listens there answers no WebSocket handshake: {why}", with_tls("ws"))


# --- what capabilities allow ---


def permissions_of(capabilities: Sequence[Any]) -> list[Permission]:
    """The permissions that capabilities give, as far as they can be understood."""
    return [_ability(verb, kind, capabilities) for verb, kind in _VERBS.items()]


def format_permissions(permissions: Sequence[Permission]) -> str:
    """All of it in a sentence; who may call tools may fulfill proposals (PROTOCOL 4.4)."""
    allowed = [str(each) for each in permissions if each.allowed]
    said = ", ".join(allowed) or "nothing but look on"
    lacking = [each.verb for each in permissions if not each.allowed]
    return f"{said}; not: {', '.join(lacking)}" if allowed and lacking else said


def _ability(verb: str, kind: str, capabilities: Sequence[Any]) -> Permission:
    limits: list[str] = []
    for capability in capabilities:
        item = as_object(capability)
        if not _fits(item.get("kind"), kind):
            continue
        if "payload" not in item:
            return Permission(verb, True)
        limits.append(_limit(as_object(item["payload"])))
    return Permission(verb, bool(limits), tuple(dict.fromkeys(limits)))


def _fits(pattern: object, kind: str) -> bool:
    patterns = cast("list[object]", pattern) if isinstance(pattern, list) else [pattern]
    try:
        return any(compile_kind(each)(kind) for each in patterns if isinstance(each, str))
    except InvalidPattern:
        return False


def _limit(pattern: dict[str, Any]) -> str:
    """The limit that a payload's pattern sets: tool's name or method, else the pattern."""
    pattern = unwrapped(pattern)
    names: object = None
    match pattern:
        case {"params": {"name": named, **more}, **rest} if (
            not more and rest.get("method", TOOL_CALL) == TOOL_CALL and rest.keys() <= {"method"}
        ):
            names = named
        case {"method": method, **rest} if not rest:
            names = method
        case _:
            pass
    values = cast("list[object]", names) if isinstance(names, list) else [names]
    said = [visible(each, MAX_LIMIT) for each in values if isinstance(each, str)]
    return ", ".join(said) if said and len(said) == len(values) else compact(pattern, MAX_LIMIT)
