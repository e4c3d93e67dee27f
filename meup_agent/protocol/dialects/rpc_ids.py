"""Envelope ids for JSON-RPC ids, by which ``mcpx/v0.1`` names the request of a response.

There a response names its request by the JSON-RPC id that the requester gave it, and two
requesters may give the same. Everything else here goes by envelope ids, so a receiver of such a
response has to remember which requester gave which id (PROTOCOL 1).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.dialects import mcpx_v01
from meup_agent.protocol.envelope import Envelope

BY_RPC_ID: Final = mcpx_v01.DIALECT.name
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
