"""Changes inputs so that they stay close to what is read: lines, most of them with JSON."""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast

Mutate = Callable[[bytes, int], bytes]

NAMES = [
    "protocol", "id", "ts", "from", "to", "kind", "correlationId", "correlation_id", "context",
    "payload", "seq", "type", "participantId", "space", "token", "jsonrpc", "method", "params",
    "result", "error", "code", "message", "data", "reason", "proposal", "proposalId", "requestId",
    "progressToken", "progress", "total", "_meta", "dev.meup/target", "dev.meup/digest",
    "dev.meup/cause", "dev.meup/edited", "dev.meup/expires_at", "name", "arguments", "content",
    "text", "format", "event", "participant", "participants", "you", "capabilities", "recipient",
    "stream_id", "direction", "target", "new_owner", "metadata", "owner", "authorized_writers",
    "active_streams", "grant_id", "participant_id", "initial_capabilities", "email", "isError",
    "tools", "**", "$..a",
]  # fmt: skip

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**53, 2**63, 2**64, 10**400, 1e308, -0.0, 0.1, "", "*", "**",
    "!*", "/./", "/(a|b)+$/", "chat", "mcp.request", "mcp/request", "mcp", "mcp.proposal",
    "mcp/proposal", "proposal", "proposal/withdraw", "mcp.withdraw", "mcp.response", "mcp.reject",
    "capability/grant", "capability/revoke", "capability.grant", "space/invite", "space/kick",
    "stream/request", "stream/open", "stream/close", "stream.close", "stream/transfer-ownership",
    "participant/pause", "@@", "space.kick", "system/welcome", "system.error",
    "system/heartbeat", "system/presence",
    "notifications/cancelled", "notifications/progress", "tools/call", "initialize", "mcpx", "dots",
    "slash", "mew", "absent", "system:gateway", "gateway", "1", "2", "p1", "r1", "../../etc",
    "\u202e\u001b[2J", "\n", "\x00", "\ud800", "x" * 300, [], {}, [[]], [{}], {"kind": "*"},
    "mcpx/v0.1", "meup/v0.1", "meup/v0.2", "mew/v0.4", "mew/v0.3", "2026-01-01T00:00:00Z",
    "9999-12-31T23:59:59-14:00", {"kind": "mcp/request", "payload": {"method": "tools/*"}},
]  # fmt: skip


class Mutator:
    """Makes a new input of an old one.

    Args:
        seeds: Lines are borrowed from these.
        mutate_bytes: Changes single bytes; ours if there is no better one.
    """

    def __init__(self, seeds: Sequence[bytes], mutate_bytes: Mutate | None = None) -> None:
        self._lines = sorted({line for seed in seeds for line in seed.split(b"\n")})
        self._mutate_bytes = mutate_bytes

    def __call__(self, data: bytes, max_size: int, seed: int) -> bytes:
        """A changed input of at most ``max_size`` bytes; the same for the same seed."""
        random = Random(seed)
        for _ in range(random.choice((1, 1, 2, 4))):
            choice = random.randrange(10)
            if choice < 3:
                data = self._bytes(data, max_size, random)
            elif choice < 6:
                data = self._moved(data, random)
            else:
                data = _json_changed(data, random)
        return data[:max_size]

    def _bytes(self, data: bytes, max_size: int, random: Random) -> bytes:
        if self._mutate_bytes is not None:
            return self._mutate_bytes(data, max_size)
        at = random.randrange(len(data) + 1)
        cut = at + random.choice((0, 1, 1, 4))
        return data[:at] + random.randbytes(random.choice((0, 1, 1, 4))) + data[cut:]

    def _moved(self, data: bytes, random: Random) -> bytes:
        """Whole lines added, repeated, removed, swapped, or said by another."""
        lines = data.split(b"\n")
        at, other = random.randrange(len(lines)), random.randrange(len(lines))
        match random.randrange(5):
            case 0:
                lines.insert(at, random.choice(self._lines))
            case 1:
                lines.insert(other, lines[at])
            case 2:
                del lines[at]
            case 3:
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                lines[at] = random.choice(self._lines)[:1] + lines[at][1:]
        return b"\n".join(lines)


def _json_changed(data: bytes, random: Random) -> bytes:
    """One line's JSON with something in it changed; it stays JSON."""
    lines = data.split(b"\n")
    with_json = [at for at, line in enumerate(lines) if b"{" in line]
    if not with_json:
        return data
    at = random.choice(with_json)
    head, brace, rest = lines[at].partition(b"{")
    try:
        value = json.loads(brace + rest)
    except (ValueError, RecursionError):
        return data
    _change(value, random)
    text = json.dumps(value, ensure_ascii=random.random() < 0.5, separators=(",", ":"))
    lines[at] = head + text.encode(errors="surrogatepass")
    return b"\n".join(lines)


def _change(value: Any, random: Random) -> None:
    holders = list(_holders(value))
    holder = random.choice(holders)
    keys: list[Any] = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    choice = random.randrange(6)
    if not keys or choice == 0:
        fresh = random.choice((random.choice(VALUES), random.choice(holders)))
        if isinstance(holder, dict):
            cast("dict[str, Any]", holder)[random.choice(NAMES)] = _copy(fresh)
        else:
            cast("list[Any]", holder).append(_copy(fresh))
        return
    key = random.choice(keys)
    match choice:
        case 1:
            del holder[key]
        case 2 if isinstance(holder, dict):
            holder[random.choice(NAMES)] = holder.pop(key)
        case 3:
            holder[key] = _copy(random.choice(holders))
        case 4:
            holder[key] = random.choice(([holder[key]], {random.choice(NAMES): holder[key]}))
        case _:
            holder[key] = _copy(random.choice(VALUES))


def _holders(value: Any) -> Any:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))
