"""``mcpx/v0.1``: one kind for all of MCP, correlation by JSON-RPC ids and ``proposalId``.

Where neither says what an envelope refers to, it stands in ``correlationId`` beside them
(PROTOCOL 1).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec

from meup_agent.errors import NotExpressible
from meup_agent.protocol.dialects.base import (
    DECISIONS,
    WITH_MESSAGE,
    Dialect,
    Header,
    as_broadcast,
    members_of,
    one_and_all,
    read_plain,
    translated,
    with_proposal_id,
    write_frame,
)
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope

# --- mcpx v01 ---

NAME: Final = "mcpx/v0.1"

MCP: Final = "mcp"

_TO_WIRE: Final = {
    kinds.MCP_REQUEST: MCP,
    kinds.MCP_RESPONSE: MCP,
    kinds.MCP_PROPOSAL: "proposal",
    kinds.MCP_WITHDRAW: "proposal/withdraw",
    kinds.MCP_REJECT: "proposal/reject",
}
_FROM_WIRE: Final = {wire: kind for kind, wire in _TO_WIRE.items() if wire != MCP}


_MCPX_ONLY: Final = frozenset({MCP, *_FROM_WIRE})


class _Rpc(NamedTuple):
    """Members of an MCP message that refer to others, checked."""

    has_method: bool  # true for a request, false for a response
    id: str | None  # the JSON-RPC id as a name, where it is one
    proposal_id: str | None


_NULL: Final = msgspec.Raw(b"null")

_decode_name = msgspec.json.Decoder(str | int | None).decode


def _read(header: Header, frame: bytes) -> Envelope:
    envelope = read_plain(header, frame)
    rpc = _rpc(envelope.raw_payload)
    kind = _FROM_WIRE.get(envelope.kind, envelope.kind)
    if kind == MCP:
        kind = kinds.MCP_REQUEST if rpc.has_method else kinds.MCP_RESPONSE
    told = _referenced_id(kind, rpc)
    correlation = envelope.correlation or ((told,) if told else ())
    return msgspec.structs.replace(envelope, kind=kind, correlation=correlation)


def _write(envelope: Envelope) -> bytes:
    if envelope.kind == kinds.MCP_PROPOSAL:
        envelope = as_broadcast(envelope) or envelope
    correlation, all_ids = one_and_all(envelope.correlation)
    if envelope.kind in _MCPX_ONLY:
        raise NotExpressible(f"{NAME} has another meaning for the kind {envelope.kind!r}")
    if envelope.kind in DECISIONS and correlation is not None:
        payload = with_proposal_id(envelope, NAME, correlation)
    else:
        payload = translated(envelope, NAME, WITH_MESSAGE)
    rpc = _rpc(payload)
    if envelope.kind == kinds.MCP_REQUEST and not rpc.has_method:
        raise NotExpressible(f"{NAME} tells a request by its method, and there is none")
    if envelope.kind == kinds.MCP_RESPONSE and rpc.has_method:
        raise NotExpressible(f"{NAME} tells a response by its having no method")
    said = _referenced_id(envelope.kind, rpc)
    kind = _TO_WIRE.get(envelope.kind, envelope.kind)
    camel = None if correlation == said else correlation
    return write_frame(envelope, NAME, kind, payload, camel, all_ids)


def _rpc(payload: bytes) -> _Rpc:
    members = members_of(payload) or {}
    method, rpc_id = members.get("method", _NULL), members.get("id", _NULL)
    has_method = bytes(method) != b"null"
    return _Rpc(has_method, _name(rpc_id), _name(members.get("proposalId", _NULL)))


def _name(raw: msgspec.Raw) -> str | None:
    """An id, where it is one; what else stands there changes nothing of the message's meaning."""
    try:
        found = _decode_name(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None if found is None else str(found)


def _referenced_id(kind: str, rpc: _Rpc) -> str | None:
    """Return the id to which the payload itself refers."""
    if kind == kinds.MCP_RESPONSE:
        return rpc.id
    if kind in DECISIONS:
        return rpc.proposal_id
    return None


DIALECT: Final = Dialect(NAME, _read, _write)


# --- rpc ids ---
# Envelope ids for JSON-RPC ids, by which `mcpx/v0.1` names the request of a response.
#
# There a response names its request by the JSON-RPC id that the requester gave it, and two
# requesters may give the same. Everything else here goes by envelope ids, so a receiver of such a
# response has to remember which requester gave which id (PROTOCOL 1).

BY_RPC_ID: Final = DIALECT.name
"""The dialect whose responses may name their request by its JSON-RPC id alone."""

MAX_RPC_IDS: Final = 1_000
"""Requests that are remembered of each sender: more than a participant has open at once."""

MAX_SENDERS: Final = 1_000
"""Senders whose requests are remembered; the one that was first heard of goes first."""


class _RememberedRequest(msgspec.Struct, frozen=True, gc=False):
    id: str
    to: tuple[str, ...]


class RpcIds:
    """A bounded memory of (sender, JSON-RPC id) and the envelope that had it."""

    def __init__(self) -> None:
        self._by_sender: OrderedDict[str, OrderedDict[str, _RememberedRequest]] = OrderedDict()

    def heard(self, envelope: Envelope, payload: object, *, dialect: str = "") -> Envelope:
        """Remember a request; tell what a response answers; in the order of the wire.

        A response in ``mcpx/v0.1`` that names its request by a JSON-RPC id alone is returned with
        the request's envelope id as its correlation, its frame as it came.
        """
        said = envelope.protocol or dialect
        if envelope.kind == kinds.MCP_REQUEST:
            call = payloads.read_call(payload)
            if call.rpc_name is not None and not call.is_notification:
                self._remember(envelope, call.rpc_name)
        elif envelope.kind == kinds.MCP_RESPONSE:
            name = payloads.read_call(payload).rpc_name
            if name is None:
                return envelope
            request = self._request(envelope, name) if said == BY_RPC_ID else None
            if request is not None:
                envelope = msgspec.structs.replace(envelope, correlation=(request,))
            self._answered(envelope, name)
        return envelope

    def _remember(self, request: Envelope, name: str) -> None:
        share = self._by_sender.get(request.sender)
        if share is None:
            share = self._by_sender[request.sender] = OrderedDict()
            if len(self._by_sender) > MAX_SENDERS:
                self._by_sender.popitem(last=False)
        share[name] = _RememberedRequest(request.id, request.to)
        share.move_to_end(name)
        if len(share) > MAX_RPC_IDS:
            share.popitem(last=False)

    def _answered(self, response: Envelope, name: str) -> None:
        """Forget what has its answer before what still waits for one."""
        for requester in response.to:
            request = self._asked(requester, response, name)
            if request is not None and request.id in response.correlation:
                self._by_sender[requester].move_to_end(name, last=False)

    def _request(self, response: Envelope, name: str) -> str | None:
        """The envelope id of the only request that a response can answer."""
        # An id beside the JSON-RPC id is an envelope's already.
        if response.correlation != (name,):
            return None
        asked = (self._asked(each, response, name) for each in response.to or self._by_sender)
        found = {request.id for request in asked if request is not None}
        return found.pop() if len(found) == 1 else None

    def _asked(self, requester: str, response: Envelope, name: str) -> _RememberedRequest | None:
        """The request of a requester that asked the sender of a response."""
        share = self._by_sender.get(requester)
        request = None if share is None else share.get(name)
        asked = request is not None and (not request.to or response.sender in request.to)
        return request if asked else None

    def __len__(self) -> int:
        """Count the remembered requests of all senders."""
        return sum(len(share) for share in self._by_sender.values())
