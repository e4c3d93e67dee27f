"""Capabilities in words, for a person who does not read patterns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from meup_agent.cli.render.escape import compact, visible
from meup_agent.errors import InvalidPattern
from meup_agent.protocol import kinds
from meup_agent.protocol.capability import compile_kind
from meup_agent.protocol.payloads import as_object, unwrapped

MAX_LIMIT: Final = 80
"""Characters of one pattern that are shown."""

MAX_CAPABILITY: Final = 200
"""Characters of one capability."""


class Permission(NamedTuple):
    """The permission to send one kind of envelope.

    Attributes:
        verb: The action.
        kind: The kind.
        allowed: It may be sent at all.
        limits: The part of it that is allowed, in words; empty: all.
    """

    verb: str
    kind: str
    allowed: bool
    limits: tuple[str, ...] = ()

    def __str__(self) -> str:
        """``call tools (only read_*, list_*)``."""
        return f"{self.verb} (only {', '.join(self.limits)})" if self.limits else self.verb


_VERBS: Final = {
    "call tools": kinds.MCP_REQUEST,
    "propose": kinds.MCP_PROPOSAL,
    "reject": kinds.MCP_REJECT,
    "chat": kinds.CHAT,
    "grant capabilities": "capability/grant",
}


def permissions_of(capabilities: Sequence[Any]) -> list[Permission]:
    """The permissions that capabilities give, as far as they can be understood.

    Args:
        capabilities: As a gateway announced them.
    """
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
            return Permission(verb, kind, True)
        limits.append(_limit(as_object(item["payload"])))
    return Permission(verb, kind, bool(limits), tuple(dict.fromkeys(limits)))


def _fits(pattern: object, kind: str) -> bool:
    patterns = cast("list[object]", pattern) if isinstance(pattern, list) else [pattern]
    try:
        return any(compile_kind(each)(kind) for each in patterns if isinstance(each, str))
    except InvalidPattern:
        return False


def _limit(pattern: dict[str, Any]) -> str:
    """The limit that a payload's pattern sets: tool's name or method, else the pattern."""
    pattern = unwrapped(pattern)
    params = as_object(pattern.get("params"))
    for value, rest in (
        (params.get("name"), {**pattern, "params": {**params, "name": None}}),
        (pattern.get("method"), {**pattern, "method": None}),
    ):
        names = _names(value)
        if names and rest in _NOTHING_ELSE:
            return names
    return compact(pattern, MAX_LIMIT)


_NOTHING_ELSE: Final[tuple[dict[str, Any], ...]] = (
    {"params": {"name": None}},
    {"method": "tools/call", "params": {"name": None}},
    {"method": None},
)


def _names(value: object) -> str:
    values = cast("list[object]", value) if isinstance(value, list) else [value]
    names = [visible(each, MAX_LIMIT) for each in values if isinstance(each, str)]
    return ", ".join(names) if len(names) == len(values) else ""


def format_capability(capability: Any) -> str:
    """A capability in a few words: ``mcp/request tools/call write_*``."""
    body = as_object(capability)
    kind, payload = body.get("kind"), as_object(body.get("payload"))
    if kind in ("*", "**") and not payload:
        return "anything"
    patterns = cast("list[object]", kind) if isinstance(kind, list) else [kind]
    words = [" | ".join(kinds.canonical(str(each)) for each in patterns)]
    params = payload.get("params")
    is_plain = payload.keys() <= {"method", "params"} and as_object(params).keys() <= {"name"}
    if payload and is_plain:
        words += [_pattern(payload.get("method", "*"))] if "method" in payload else []
        words += [_pattern(as_object(params)["name"])] if as_object(params) else []
        return visible(" ".join(words), MAX_CAPABILITY)
    if payload:
        words.append(compact(payload, MAX_CAPABILITY))
    return visible(" ".join(words), MAX_CAPABILITY)


def _pattern(pattern: object) -> str:
    return pattern if isinstance(pattern, str) else compact(pattern, MAX_CAPABILITY)
