"""The join of a participant, by the headers of its handshake or by its first frame (PROTOCOL 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qs

import msgspec

from meup_agent.errors import InvalidEnvelope
from meup_agent.gateway.auth import (
    BAD_REQUEST,
    UNAUTHORIZED,
    Identity,
    NotAdmitted,
    TokenUse,
    check_space,
    digest_of_token,
)
from meup_agent.protocol.dialects import DIALECTS, spoken
from meup_agent.protocol.space.link import Place
from meup_agent.protocol.wire.envelope import check_frame
from meup_agent.transport.base import (
    ACK_HEADER,
    BESIDE_HEADER,
    DIALECT_HEADER,
    LAST_SEEN_HEADER,
    OBSERVE_HEADER,
    RESUME_HEADER,
)

if TYPE_CHECKING:
    from meup_agent.gateway.runtime import GatewayRuntime

MAX_SEQ_DIGITS: Final = 18
"""Digits of a number that an envelope can have: what a database takes for one."""

HEADER_SECONDS: Final = 1.0
"""Seconds for a join frame after a header that says who joins: that of a TypeScript client says
its dialect, and comes at once. Without one the header joins by itself."""

MAX_JOIN_BYTES: Final = 16 * 1024
"""Bytes of a join frame: what the headers of a handshake may have, for the same content."""


PLACE_HEADERS: Final = {Place.BESIDE: BESIDE_HEADER, Place.OBSERVING: OBSERVE_HEADER}
"""The header by which a connection asks for a place, and by which it is granted."""

PLACE_ANSWERS: Final[Mapping[Place, Mapping[str, str]]] = {
    Place.ANSWERING: {},
    **{place: {header: "1"} for place, header in PLACE_HEADERS.items()},
}
"""The headers by which a place is granted."""


class Resume(NamedTuple):
    """The numbers that a member asks for (PROTOCOL 6)."""

    resumes: bool = False  # it wants each envelope's
    last_seen: int | None = None  # the last one that it got
    acked: bool = False  # of its own envelopes, they alone are enough


class Handshake(NamedTuple):
    """A connection's request, as far as its handshake says it.

    ``identity`` is that of its header's token. ``dialect`` is the one that it asked for by header;
    once it is known who joins where, the one that it gets.
    """

    identity: Identity | None
    space: str | None
    dialect: str | None
    resume: Resume
    place: Place
    of_page: bool  # of a page in a browser, which says whose it is
    digest: bytes  # of its header's token

    @property
    def complete(self) -> bool:
        """True if the connection joins without a join frame."""
        return self.identity is not None and self.space is not None

    @property
    def answer(self) -> Mapping[str, str]:
        """The headers of our answer: the dialect, where the token was taken from the header.

        A client that does not read it sends a join frame, as gateways without this header need one.
        A client that asked to observe, or to be beside, sends none unless the answer grants it.
        """
        known = {DIALECT_HEADER: self.dialect} if self.complete and self.dialect else {}
        return {**known, **PLACE_ANSWERS[self.place]}


def admit(
    runtime: GatewayRuntime, target: bytes, headers: Mapping[str, str], address: str
) -> Handshake:
    """Admit a connection by its path, which may be any, and headers, or log its refusal."""
    try:
        runtime.check_connections()
        if not headers.get("Sec-WebSocket-Version", "").isascii():
            # Picows would say it back, and cannot.
            raise NotAdmitted(BAD_REQUEST, "the version of WebSocket must be 13")
        return read_handshake(target, headers, runtime, address)
    except NotAdmitted as refused:
        runtime.counters.not_admitted[refused.status] += 1
        said = "a handshake from %s was refused with %d: %s"
        runtime.refusals.info(said, address or "this machine", refused.status, refused)
        raise


def read_handshake(
    target: bytes, headers: Mapping[str, str], runtime: GatewayRuntime, address: str = ""
) -> Handshake:
    """Read a handshake's address and headers, and check that its participant may enter."""
    space = _space(target)
    dialect = read_dialect(headers.get(DIALECT_HEADER))
    authorization = headers.get("Authorization")
    resume = read_resume(headers.get)
    place = read_place(headers.get)
    of_page = headers.get("Origin") is not None
    identity, digest = None, b""
    if space is not None:
        # Before its token: who was invited is known where the space is.
        runtime.check_open(space)
    if authorization is not None:
        token = bearer(authorization)
        identity, digest = runtime.identify(token, address, space), digest_of_token(token)
    if identity is not None and space is not None:
        check_space(identity, space, runtime.spaces)
        runtime.check_members(identity, place)
        runtime.join_throttle.join(identity, place)
        dialect = dialect or runtime.dialect(identity)
    else:
        runtime.join_throttle.connect(address, of_page=of_page)
    return Handshake(identity, space, dialect, resume, place, of_page, digest)


def read_dialect(name: str | None) -> str | None:
    """The dialect that a member asks for, by header or join frame; ``None`` if it asks for none."""
    if name is None:
        return None
    dialect = spoken(name.strip())
    if dialect is None:
        raise NotAdmitted(BAD_REQUEST, f"this gateway speaks {', '.join(DIALECTS)}; speak one")
    return dialect


def read_place(header: Callable[[str], str | None]) -> Place:
    """The place that a connection asks for by its headers (PROTOCOL 3).

    Anything but ``1`` in one of them is refused: taken for a member, it would take over its
    participant's connection.
    """
    asked = {
        place: said for place, name in PLACE_HEADERS.items() if (said := header(name)) is not None
    }
    for place, said in asked.items():
        if said.strip() != "1":
            raise NotAdmitted(BAD_REQUEST, f"{PLACE_HEADERS[place]} must be 1, or be left out")
    if len(asked) > 1:
        both = " and ".join(PLACE_HEADERS.values())
        raise NotAdmitted(BAD_REQUEST, f"{both} exclude each other; send one of them")
    return next(iter(asked), Place.ANSWERING)


def is_seq(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_SEQ_DIGITS


def read_resume(header: Callable[[str], str | None]) -> Resume:
    """The numbers that a member asks for by its headers."""
    if (header(RESUME_HEADER) or "").strip() != "1":
        return Resume()
    acked = (header(ACK_HEADER) or "").strip() == "1"
    said = header(LAST_SEEN_HEADER)
    if said is None:
        return Resume(True, None, acked)
    said = said.strip()
    if not is_seq(said):
        raise NotAdmitted(BAD_REQUEST, f"{LAST_SEEN_HEADER} must be the last 'seq' that you got")
    return Resume(True, int(said), acked)


def bearer(authorization: str) -> str:
    """The token in an ``Authorization`` header."""
    scheme, _, token = authorization.strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotAdmitted(UNAUTHORIZED, "the Authorization header must be: Bearer <token>")
    return token.strip()


def _space(target: bytes) -> str | None:
    """The space that an address asks for; its path may be anything, even none that is valid."""
    try:
        query = parse_qs(target.partition(b"?")[2].decode("ascii", "replace"), max_num_fields=64)
    except ValueError:
        raise NotAdmitted(BAD_REQUEST, "the address has too many fields") from None
    return query.get("space", [None])[0]


# --- the join frame ---


class JoinFields(msgspec.Struct, frozen=True):
    """The fields of a join, at the top of its frame or in the payload of its envelope."""

    participant: str | None = msgspec.field(name="participantId", default=None)
    participant_too: str | None = msgspec.field(name="participant", default=None)
    space: str | None = None
    token: str | None = None


class JoinFrame(JoinFields, frozen=True):
    """The first frame of a connection whose handshake did not say everything (PROTOCOL 3).

    It is ``{"type": "join"}``, or an envelope of the kind ``system/join``.
    """

    sender: str | None = msgspec.field(name="from", default=None)
    protocol: str | None = None
    payload: JoinFields = JoinFields()


class Join(NamedTuple):
    """The claims of a join frame; ``names`` are all that it gives its participant."""

    names: frozenset[str]
    space: str | None
    token: str | None
    protocol: str | None

    def is_by(self, participant: str | None) -> bool:
        """True if it names that participant alone, or none."""
        return self.names <= {participant}


_NOTHING_MORE: Final = Join(frozenset(), None, None, None)


class _OnlyType(msgspec.Struct):
    type: object = None
    kind: object = None


_decode_type = msgspec.json.Decoder(_OnlyType).decode
_decode_join = msgspec.json.Decoder(JoinFrame).decode


def may_join_by_header(handshake: Handshake, runtime: GatewayRuntime) -> bool:
    return handshake.identity is not None and _only_space(runtime) is not None


def is_join_frame(message: bytes) -> bool:
    """True if a message is meant as a join frame."""
    try:
        return _parse_join(message) is not None
    except NotAdmitted:
        return True


def space_of_join(message: bytes) -> str | None:
    """The space that a join frame names; ``None``: it names none, or is something else."""
    try:
        frame = _parse_join(message)
    except NotAdmitted:
        return None
    return None if frame is None else frame.space


def admit_join(
    message: bytes | None, handshake: Handshake, runtime: GatewayRuntime, address: str
) -> tuple[TokenUse, str]:
    """The participant that joins by the first message of a connection, and its dialect.

    Without a message it joins as its handshake says, which named no space.
    """
    frame = _NOTHING_MORE if message is None else _parse_join(message)
    if frame is None:
        raise NotAdmitted(BAD_REQUEST, "the first message must be a join frame")
    identity, digest = handshake.identity, handshake.digest
    held = identity
    space = frame.space if frame.space is not None else handshake.space
    if frame.space is not None:
        runtime.check_open(frame.space)
    if frame.token is not None or identity is None:
        token = frame.token or ""
        identity, digest = runtime.identify(token, address, space), digest_of_token(token)
    if held not in (None, identity) or not frame.is_by(identity.participant):
        raise NotAdmitted(UNAUTHORIZED, "the token is another participant's")
    space = _only_space(runtime) if space is None else space
    if space is None:
        raise NotAdmitted(BAD_REQUEST, "the join frame names no space")
    check_space(identity, space, runtime.spaces)
    dialect = handshake.dialect or read_dialect(frame.protocol) or runtime.dialect(identity)
    runtime.check_members(identity, handshake.place)
    runtime.join_throttle.join(identity, handshake.place)
    runtime.join_throttle.joined(address, of_page=handshake.of_page)
    return TokenUse(digest, identity), dialect


def repeats_join(message: bytes, participant: str | None, space: str) -> bool:
    """True if a joined connection's first message is a join frame of the same identity.

    One of another identity is refused: its client believes to be somewhere else.
    """
    try:
        frame = _parse_join(message)
    except NotAdmitted:
        return False
    if frame is None:
        return False
    if not frame.is_by(participant):
        raise NotAdmitted(UNAUTHORIZED, "the token of the handshake is another participant's")
    if frame.space not in (None, space):
        raise NotAdmitted(UNAUTHORIZED, "the token of the handshake is for another space")
    return True


def _only_space(runtime: GatewayRuntime) -> str | None:
    spaces = runtime.config.spaces
    return spaces[0].id if len(spaces) == 1 else None


def _parse_join(message: bytes) -> Join | None:
    """The claims of the join frame that a message is; ``None`` if it is something else.

    One that is meant as a join frame and has a field of the wrong type is refused, and so is one
    that says two things.
    """
    try:
        # A stranger's text: its size and depth are bounded before it is decoded.
        check_frame(message, max_bytes=MAX_JOIN_BYTES)
        only = _decode_type(message)
        if only.type != "join" and only.kind not in ("system/join", "system.join"):
            return None
    except (InvalidEnvelope, msgspec.DecodeError, UnicodeDecodeError):
        return None
    try:
        frame = _decode_join(message)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAdmitted(BAD_REQUEST, f"the join frame is not valid: {error}") from None
    inner = frame.payload
    outer = (frame.sender, frame.participant, frame.participant_too)
    names = (*outer, inner.participant, inner.participant_too)
    return Join(
        frozenset(name for name in names if name is not None),
        _one("space", frame.space, inner.space),
        _one("token", frame.token, inner.token),
        frame.protocol,
    )


def _one(name: str, *given: str | None) -> str | None:
    """The one value that a field has in all places where it stands."""
    values = {value for value in given if value is not None}
    if len(values) > 1:
        raise NotAdmitted(BAD_REQUEST, f"the join frame has two values of {name!r}")
    return values.pop() if values else None
