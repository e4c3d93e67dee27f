"""A space of an existing gateway, faults included (PROTOCOL 2).

No sockets here: a `Peer` is anything that can be written to. Every frame is dealt with at once and
wholly, so what one frame caused is out before the next one is looked at.
"""

import json
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from tests.conformance.matcher import Json, ProcessingError, may
from tests.conformance.streams import Streams, is_stream_frame
from tests.conformance.versions import Version

GATEWAY = "system:gateway"
ANSWERING: Json = {"id": "mcp-response", "kind": "mcp/response"}
UNSET = object()


class Peer(Protocol):
    """One socket. Who it is follows from its latest join frame, not from those before it."""

    participant: str | None
    space: str | None

    def write(self, data: str | bytes) -> None:
        """Sends one message, or nothing if the socket is known to have ended."""
        ...


def milliseconds() -> int:
    return time.time_ns() // 1_000_000


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def given(value: Any, *keys: str) -> Any:
    """The value below the keys, or None: what `value?.a?.b` says."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


@dataclass
class Spaces:
    """All spaces of one gateway. Tokens and capabilities are keyed by participant over all of them.

    Attributes:
        version: which of the two gateways.
        tokens: token to the participant that it was made for; no other participant is refused it.
        capabilities: what the holder of a participant's token may do.
        defaults: what the holder of any other token may do.
        home: the space of a join frame that names none.
        address: where it says an invited participant finds it.
        joins: how many join frames were accepted since the start.
    """

    version: Version
    tokens: dict[str, str]
    capabilities: dict[str, list[Json]]
    defaults: list[Json]
    home: str
    address: str = ""
    joins: int = 0
    members: dict[str, dict[str, Peer]] = field(default_factory=dict)
    held: dict[str, list[Json]] = field(default_factory=dict)
    granted: dict[str, dict[str, list[Json]]] = field(default_factory=dict)
    shown_token: dict[str, Any] = field(default_factory=dict)
    invited: dict[str, list[Json]] = field(default_factory=dict)
    streams: dict[str, Streams] = field(default_factory=lambda: defaultdict(Streams))

    def forget(self) -> None:
        """Forget all but the configuration, as a restart does."""
        for memory in (self.members, self.held, self.granted, self.shown_token, self.invited):
            memory.clear()
        self.streams.clear()

    def peer(self, participant: str) -> Peer | None:
        """The socket that the gateway takes for the participant's, alive or not."""
        found = [room[participant] for room in self.members.values() if participant in room]
        return found[-1] if found else None

    def everybody(self) -> list[Peer]:
        return [peer for room in self.members.values() for peer in room.values()]

    def hear(self, peer: Peer, data: str | bytes) -> Any:
        """Deals with one frame; what it held is returned, or the frame itself if it was no JSON."""
        text = data if isinstance(data, str) else data.decode(errors="replace")
        if self.version.is_newer and is_stream_frame(text):
            self._relay_data(peer, text)
            return data
        try:
            message = json.loads(text)
        except ValueError as exc:
            self._complain(peer, self._json_error(text, exc), "PROCESSING_ERROR")
            return data
        try:
            self._handle(peer, message)
        except ProcessingError as exc:
            self._complain(peer, str(exc), "PROCESSING_ERROR")
        return message

    def left(self, peer: Peer) -> None:
        """The peer's socket has ended: its participant goes, even if it has another one by now."""
        if peer.participant is None or peer.space not in self.members:
            return
        room = self.members[peer.space]
        room.pop(peer.participant, None)
        for memory in (self.held, self.granted, self.shown_token):
            memory.pop(peer.participant, None)
        self._presence(room.values(), "leave", {"id": peer.participant})

    def grant(self, recipient: str, capabilities: list[Json], grant_id: str) -> None:
        """Adds to what a participant may do and tells it so."""
        if self.version.is_newer:
            # By token: the name stands for whoever joined with the token that was made for it.
            made_for = [token for token, owner in self.tokens.items() if owner == recipient]
            holders = [name for name, token in self.shown_token.items() if token in made_for]
            recipient = holders[0] if holders else ""
        peer = self.peer(recipient)
        if peer is None:
            return
        self.granted.setdefault(recipient, {})[grant_id] = capabilities
        if not self.version.is_newer:
            payload = {"status": "accepted", "grant_id": grant_id, "capabilities": capabilities}
            self._tell(peer, "capability/grant-ack", payload, name="ack", correlation=grant_id)
            return
        room = self.members[str(peer.space)]
        described = [{"id": each, "capabilities": self._all_of(each)} for each in room]
        welcome = self._welcome(recipient, described)
        self._tell(peer, "system/welcome", welcome, name="welcome-update")

    def revoke(self, recipient: str, grant_id: str | None, capabilities: list[Json] | None) -> None:
        """Takes back a grant, or the very capabilities that are named: no pattern is matched."""
        grants = self.granted.get(recipient, {})
        if grant_id is not None:
            grants.pop(grant_id, None)
        elif capabilities is not None:
            for known, entries in list(grants.items()):
                grants[known] = [entry for entry in entries if entry not in capabilities]

    def _handle(self, peer: Peer, message: Any) -> None:
        if not isinstance(message, dict | list):
            self._complain(peer, "Message must be an object", "VALIDATION_ERROR")
            return
        frame: Json = message if isinstance(message, dict) else {}
        if problem := self._invalid(frame):
            self._complain(peer, problem, "VALIDATION_ERROR")
        elif frame.get("kind") == "system/join" or frame.get("type") == "join":
            self._join(peer, frame)
        elif self.version.is_newer and frame.get("kind") == "system/register":
            advice = "system/register is reserved for the gateway. Use capability/grant instead."
            self._refuse(peer, frame, {"error": "invalid_request", "message": advice})
        elif not self._may(peer, frame):
            payload: Json = {"error": "capability_violation"}
            if "kind" in frame:
                payload["attempted_kind"] = frame["kind"]
            payload["your_capabilities"] = self.held.get(peer.participant or "", [])
            self._refuse(peer, frame, payload)
        else:
            self._accept(peer, frame)

    def _invalid(self, frame: Json) -> str | None:
        protocol, kind = frame.get("protocol"), frame.get("kind")
        if protocol and protocol not in self.version.accepts:
            return f"Invalid protocol version: {protocol}"
        if kind == "chat" and not given(frame, "payload", "text"):
            return "Chat message requires payload.text"
        if kind == "mcp/request" and not given(frame, "payload", "method"):
            return "MCP request requires payload.method"
        return None

    def _join(self, peer: Peer, frame: Json) -> None:
        """Lets anybody in under any name; the token decides only what they may do.

        Who was there under this name is not told and not closed, and a socket that joined before
        stays behind as the one that its former name is reached at.
        """

        def said(key: str) -> Any:
            return frame.get(key) or given(frame, "payload", key)

        participant = said("participantId") or f"participant-{milliseconds()}"
        peer.participant, peer.space = participant, said("space") or self.home
        room = self.members.setdefault(peer.space, {})
        room[participant] = peer
        token = said("token")
        self.shown_token[participant] = token
        capabilities = self._resolve(token)
        self.held[participant] = capabilities
        described = [{"id": each, "capabilities": self.held.get(each, [])} for each in room]
        payload = self._welcome(participant, described)
        if self.version.is_newer:
            payload["active_streams"] = list(self.streams[peer.space].active.values())
        self.joins += 1
        self._tell(peer, "system/welcome", payload, name="welcome")
        others = [other for name, other in room.items() if name != participant]
        self._presence(others, "join", payload["you"])

    def _welcome(self, participant: str, described: list[Json]) -> Json:
        """The payload of a welcome, of what is said of everybody there."""
        (you,) = (each for each in described if each["id"] == participant)
        return {"you": you, "participants": [each for each in described if each is not you]}

    def _accept(self, peer: Peer, frame: Json) -> None:
        kind, payload = frame.get("kind"), frame.get("payload")
        if kind == "space/invite" and self.version.is_newer:
            self._invite(peer, frame)
            return
        recipient = given(payload, "recipient")
        if kind == "capability/grant" and recipient and given(payload, "capabilities"):
            grant_id = frame.get("id") or f"grant-{milliseconds()}"
            self.grant(recipient, given(payload, "capabilities"), grant_id)
        elif kind == "capability/revoke" and recipient:
            self.revoke(recipient, given(payload, "grant_id"), given(payload, "capabilities"))
        made: Json = {
            "protocol": self.version.protocol,
            "id": f"msg-{milliseconds()}-{secrets.token_hex(5)[:9]}",
            "ts": now(),
            "from": peer.participant,
        }
        # Whatever the sender wrote wins, its `from` too.
        envelope = made | frame
        correlation = envelope.get("correlation_id")
        if correlation and not isinstance(correlation, list):
            envelope["correlation_id"] = [correlation]
        room = self.members.get(peer.space or "", {})
        if self.version.is_newer and kind == "stream/request":
            self._open_stream(peer, envelope, room.values())
        elif self.version.is_newer and kind == "stream/close":
            self.streams[peer.space or ""].close(given(payload, "stream_id"))
        to = envelope.get("to")
        if self.version.to_routes and isinstance(to, list):
            readers = [room[name] for name in to if isinstance(name, str) and name in room]
        else:
            readers = list(room.values())
        for reader in readers:
            reader.write(json.dumps(envelope))

    def _open_stream(self, peer: Peer, request: Json, readers: Iterable[Peer]) -> None:
        """Everybody hears of the stream before they hear who asked for it."""
        streams = self.streams[peer.space or ""]
        opened = streams.open(peer.participant, given(request, "payload") or {}, now())
        correlation = {"correlation_id": [request.get("id")]}
        envelope = self._made("stream-open", "stream/open", sender="gateway", to=peer.participant)
        for reader in list(readers):
            reader.write(json.dumps(envelope | correlation | {"payload": opened}))

    def _relay_data(self, peer: Peer, text: str) -> None:
        """Passes a stream's frame on to everybody as a binary one, however it came."""
        refusal = self.streams[peer.space or ""].refusal(text, peer.participant)
        if refusal is None:
            for reader in list(self.members.get(peer.space or "", {}).values()):
                reader.write(text.encode())
        else:
            envelope = self._made("error", "system/error", sender="gateway", to=peer.participant)
            peer.write(json.dumps(envelope | {"payload": refusal}))

    def _invite(self, peer: Peer, frame: Json) -> None:
        name = given(frame, "payload", "participant_id")
        token = secrets.token_urlsafe(32)
        capabilities = self._extended(given(frame, "payload", "initial_capabilities") or [])
        self.invited[token] = capabilities
        ack = {"status": "created", "participant_id": name, "token": token}
        ack |= {"connection_url": self.address}
        about = frame.get("id", UNSET)
        self._tell(peer, "space/invite-ack", ack, name="invite-ack", correlation=about)
        more: Json = {"invited_by": peer.participant}
        if reason := given(frame, "payload", "reason"):
            more["reason"] = reason
        room = self.members.get(peer.space or "", {})
        others = [other for other in room.values() if other is not peer]
        self._presence(others, "invited", {"id": name, "capabilities": capabilities}, more)

    def _resolve(self, token: Any) -> list[Json]:
        name = str(token)
        if name in self.invited:
            # Good for the first connection only; afterwards the token is like any other.
            return self.invited.pop(name)
        owner = self.tokens.get(name, "")
        return self._extended(self.capabilities.get(owner, self.defaults))

    def _extended(self, capabilities: list[Json]) -> list[Json]:
        if self.version.is_newer and ANSWERING not in capabilities:
            return [*capabilities, ANSWERING]
        return list(capabilities)

    def _all_of(self, participant: str) -> list[Json]:
        granted = self.granted.get(participant, {}).values()
        return [*self.held.get(participant, []), *(entry for one in granted for entry in one)]

    def _may(self, peer: Peer, frame: Json) -> bool:
        if self.version.is_newer and frame.get("kind") == "system/heartbeat":
            return True
        return may(self._all_of(peer.participant or ""), frame, negations=self.version.is_newer)

    def _refuse(self, peer: Peer, frame: Json, payload: Json) -> None:
        correlation = frame.get("id") or UNSET
        self._tell(peer, "system/error", payload, name="error", correlation=correlation)

    def _tell(
        self, peer: Peer, kind: str, payload: Json, *, name: str, correlation: Any = UNSET
    ) -> None:
        """Sends what the gateway itself says to one participant."""
        envelope = self._made(name, kind, to=peer.participant)
        if correlation is not UNSET:
            envelope["correlation_id"] = [correlation]
        peer.write(json.dumps(envelope | {"payload": payload}))

    def _presence(
        self, readers: Iterable[Peer], event: str, participant: Json, more: Json | None = None
    ) -> None:
        name = "presence-invite" if event == "invited" else "presence"
        payload = {"event": event, "participant": participant} | (more or {})
        envelope = self._made(name, "system/presence") | {"payload": payload}
        for reader in list(readers):
            reader.write(json.dumps(envelope))

    def _made(self, name: str, kind: str, *, sender: str = GATEWAY, to: Any = UNSET) -> Json:
        """The header of an envelope that the gateway makes."""
        header: Json = {"protocol": self.version.protocol, "id": f"{name}-{milliseconds()}"}
        header |= {"ts": now(), "from": sender}
        if to is not UNSET:
            header["to"] = [to]
        return header | {"kind": kind}

    def _complain(self, peer: Peer, error: str, code: str) -> None:
        """An error that names neither itself nor its time nor its sender nor its cause."""
        payload = {"error": error, "code": code}
        envelope = {"protocol": self.version.protocol, "kind": "system/error", "payload": payload}
        peer.write(json.dumps(envelope))

    def _json_error(self, text: str, problem: ValueError) -> str:
        if not text:
            return "Unexpected end of JSON input"
        at = problem.pos if isinstance(problem, json.JSONDecodeError) else 0
        place = f" (line 1 column {at + 1})" if self.version.is_newer else ""
        return f"Expected property name or '}}' in JSON at position {at}{place}"
