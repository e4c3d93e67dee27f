"""Finds keys in the payload patterns of capabilities that no payload of that kind has.

A misspelt key makes a capability that matches nothing, or, behind ``!``, more than was meant. Only
kinds whose payload is known are looked at, and of ``params`` only the methods of MCP, whose keys
are those of the official models. A key that is itself a pattern is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, NamedTuple, get_args

from meup_agent.protocol.capability import compile_kind
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import is_object
from meup_agent.protocol.wire.payloads import GRANT, GRANT_ACK, INVITE, KICK, REVOKE, one_or_more

_CALL: Final = frozenset({"jsonrpc", "id", "method", "params"})

PAYLOAD_KEYS: Final[Mapping[str, frozenset[str]]] = {
    kinds.MCP_REQUEST: _CALL,
    # Participants of the reference wrap the call, and some name the proposal within.
    kinds.MCP_PROPOSAL: _CALL | {"proposal"},
    kinds.MCP_RESPONSE: frozenset({"jsonrpc", "id", "result", "error"}),
    kinds.MCP_WITHDRAW: frozenset({"reason", "proposalId"}),
    kinds.MCP_REJECT: frozenset({"reason", "proposalId"}),
    kinds.MCP_RENEW: frozenset({"expires_at"}),
    kinds.MCP_REPORT: frozenset({"outcome", "exit_code", "output", "cut"}),
    kinds.CHAT: frozenset({"message", "text", "format"}),
    GRANT: frozenset({"recipient", "capabilities", "reason"}),
    GRANT_ACK: frozenset({"status", "reason"}),
    REVOKE: frozenset({"recipient", "capabilities", "grant_id", "reason"}),
    INVITE: frozenset({"participant_id", "initial_capabilities", "email", "reason"}),
    KICK: frozenset({"participant_id", "reason"}),
}
"""The keys of a payload, by kind."""

_PATTERN_CHARS: Final = frozenset("*?[]{}")

_PATTERN_STARTS: Final = ("/", "!", "$")


class UnknownKey(NamedTuple):
    """A key that no payload of the kind has."""

    path: str  # from the capability on: `payload.params.nam`
    what: str  # the kind or method without such a key
    near: str  # the key that was perhaps meant; empty where none is near

    def __str__(self) -> str:
        """One sentence."""
        advice = f"; did you mean {self.near}?" if self.near else ""
        return f"{self.path}: {self.what} has no such key{advice}"


def find_unknown_keys(capability: Mapping[str, Any]) -> Iterator[UnknownKey]:
    """The keys in the payload pattern of a compiled capability that no payload has."""
    about = _kinds_of(capability["kind"])
    if not about or not about <= PAYLOAD_KEYS.keys():
        return
    what = " or ".join(sorted(about))
    known = frozenset[str]().union(*(PAYLOAD_KEYS[kind] for kind in about))
    for pattern in _objects(capability.get("payload")):
        yield from _unknown(pattern, known, "payload", what)
        if about <= {kinds.MCP_REQUEST, kinds.MCP_PROPOSAL}:
            for params in _objects(pattern.get("params")):
                yield from _unknown_params(params, pattern.get("method"))


def _kinds_of(patterns: str | list[str]) -> frozenset[str]:
    each = [patterns] if isinstance(patterns, str) else patterns
    tests = [compile_kind(pattern) for pattern in each]
    return frozenset(kind for kind in kinds.KINDS if any(matches(kind) for matches in tests))


def _unknown_params(params: Mapping[str, Any], method: object) -> Iterator[UnknownKey]:
    methods = _params_by_method()
    known = methods.get(method) if isinstance(method, str) else None
    if known is not None:
        yield from _unknown(params, known, "payload.params", str(method))
    elif not isinstance(method, str) or _is_pattern(method):
        # A method outside MCP may be meant, so only what looks like a slip is told.
        every = frozenset[str]().union(*methods.values())
        for unknown in _unknown(params, every, "payload.params", "MCP"):
            if unknown.near:
                yield unknown


def _unknown(
    pattern: Mapping[str, Any], known: Iterable[str], path: str, what: str
) -> Iterator[UnknownKey]:
    names = sorted(known)
    for key in pattern:
        if key not in names and not _is_pattern(key):
            near = get_close_matches(key, names, 1)
            yield UnknownKey(f"{path}.{key}", what, near[0] if near else "")


def _is_pattern(text: str) -> bool:
    return text.startswith(_PATTERN_STARTS) or bool(_PATTERN_CHARS & set(text))


def _objects(pattern: object) -> list[Mapping[str, Any]]:
    return [each for each in one_or_more(pattern) if is_object(each)]


@cache
def _params_by_method() -> Mapping[str, frozenset[str]]:
    """The keys of ``params`` by MCP method."""
    import mcp_types  # of a check alone: it takes as long to load as a gateway

    directions = (
        mcp_types.ClientRequest,
        mcp_types.ServerRequest,
        mcp_types.ClientNotification,
        mcp_types.ServerNotification,
    )
    found: dict[str, frozenset[str]] = {}
    for message in (each for union in directions for each in get_args(union)):
        fields = message.model_fields
        method = fields["method"].default or get_args(fields["method"].annotation)[0]
        found[method] = frozenset({"_meta", *_keys_of(fields["params"].annotation)})
    return found


def _keys_of(annotation: Any) -> Iterator[str]:
    """The keys of a model, or of all that a union has."""
    if hasattr(annotation, "model_fields"):
        yield from (field.alias or name for name, field in annotation.model_fields.items())
    for each in get_args(annotation):
        yield from _keys_of(each)
