"""Translation of payloads between dialects: chat, the proposal's wrapper, ``proposalId``.

Everything else stays byte for byte (PROTOCOL 1, *forward unchanged*).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

from meup_agent.errors import NotExpressible
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope, encode_leniently

DECISIONS: Final = frozenset({kinds.MCP_WITHDRAW, kinds.MCP_REJECT})
"""Kinds that name their proposal in the payload where a dialect has no correlation field."""

Members = dict[str, Any]

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_participant = msgspec.json.Decoder(dict[str, Any]).decode
_PLAIN: Final = encode_leniently("plain")


def with_message(envelope: Envelope, dialect: str) -> bytes:
    """The payload for a dialect whose chat has ``message``."""
    return _translated(envelope, dialect, _TO_MESSAGE)


def with_text(envelope: Envelope, dialect: str) -> bytes:
    """The payload for a dialect whose chat has ``text`` and ``format``."""
    return _translated(envelope, dialect, _TO_TEXT)


def with_proposal_id(envelope: Envelope, dialect: str, proposal_id: str) -> bytes:
    """The payload of a decision for a dialect that names the proposal in it."""
    members = members_of(envelope.raw_payload)
    if members is None:
        raise NotExpressible(
            f"{dialect} names the proposal in the payload, and that of {envelope.kind!r} "
            f"{envelope.id} is no object"
        )
    return encode_leniently({"proposalId": proposal_id} | _without_proposal_id(members))


def _translated(
    envelope: Envelope, dialect: str, changes: Mapping[str, Callable[[Members], Members]]
) -> bytes:
    change = None if envelope.protocol == dialect else changes.get(envelope.kind)
    members = None if change is None else members_of(envelope.raw_payload)
    if change is None or members is None:
        return envelope.raw_payload
    changed = change(members)
    return envelope.raw_payload if changed is members else encode_leniently(changed)


def to_executor(proposal: Envelope) -> Envelope:
    """A proposal for the published dialects, where ``to`` names the executor (PROTOCOL 4.4)."""
    target = payloads.read_proposal(proposal.payload).target
    if target is None or proposal.to == (target,):
        return proposal
    return msgspec.structs.replace(proposal, to=(target,))


def announce_response(capabilities: list[Any]) -> list[Any]:
    """Capabilities as existing gateways announce them: every participant may answer.

    Their agents ask only those for tools of whom this kind is announced, whatever wildcards allow.
    """
    if any(map(_is_response, capabilities)):
        return capabilities
    return [*capabilities, {"id": "mcp-response", "kind": kinds.MCP_RESPONSE}]


def _is_response(capability: object) -> bool:
    if not isinstance(capability, dict):
        return False
    fields = cast("Members", capability)
    return fields.get("kind") == kinds.MCP_RESPONSE and "payload" not in fields


def _with_response(members: Members) -> Members:
    """A presence whose participant may answer."""
    try:
        participant = _decode_participant(members["participant"])
    except (KeyError, msgspec.DecodeError):
        return members
    said: object = participant.get("capabilities")
    if not isinstance(said, list):
        return members  # one that leaves
    listed = cast("list[object]", said)
    announced = announce_response(listed)
    if announced is listed:
        return members
    return {**members, "participant": {**participant, "capabilities": announced}}


def members_of(raw: bytes | msgspec.Raw) -> Members | None:
    """The members of an object as raw JSON; ``None`` if it is no object."""
    try:
        return _decode_members(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _text_to_message(members: Members) -> Members:
    if "text" not in members or "message" in members:
        return members
    plain = bytes(members.get("format", _PLAIN)) == _PLAIN
    left_out = {"text", "format"} if plain else {"text"}
    rest = {name: raw for name, raw in members.items() if name not in left_out}
    return {"message": members["text"]} | rest


def _message_to_text(members: Members) -> Members:
    if "message" not in members or "text" in members:
        return members
    rest = {name: raw for name, raw in members.items() if name != "message"}
    return {"text": members["message"], "format": msgspec.Raw(_PLAIN)} | rest


def unwrap_members(members: Members) -> Members:
    """As :func:`~meup_agent.protocol.payloads.unwrapped`, of raw members."""
    if not payloads.is_wrapper(members):
        return members
    inner = members_of(members[payloads.WRAPPER])
    return members if inner is None or payloads.is_wrapper(inner) else inner


def _without_proposal_id(members: Members) -> Members:
    if "proposalId" not in members:
        return members
    return {name: raw for name, raw in members.items() if name != "proposalId"}


_TO_MESSAGE: Final[Mapping[str, Callable[[Members], Members]]] = {
    kinds.MCP_PROPOSAL: unwrap_members,
    kinds.MCP_WITHDRAW: _without_proposal_id,
    kinds.MCP_REJECT: _without_proposal_id,
    kinds.CHAT: _text_to_message,
}

_TO_TEXT: Final[Mapping[str, Callable[[Members], Members]]] = {
    **_TO_MESSAGE,
    kinds.CHAT: _message_to_text,
    kinds.SYSTEM_PRESENCE: _with_response,
}
