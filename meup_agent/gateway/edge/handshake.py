"""What a handshake says before the first frame (PROTOCOL 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs

from meup_agent.gateway.admission import (
    BAD_REQUEST,
    NotAdmitted,
    bearer,
    dialect_named,
    enter,
    identify,
    join,
    read_join,
    read_observe,
    read_resume,
)
from meup_agent.gateway.auth import Identity
from meup_agent.gateway.hub import Hub
from meup_agent.transport.base import (
    DIALECT_HEADER,
    LAST_SEEN_HEADER,
    OBSERVE_HEADER,
    RESUME_HEADER,
)


class Greeting(NamedTuple):
    """What is known of a connection after its handshake.

    Attributes:
        identity: Whose token its header had; ``None`` without a header.
        space: The space that it asked for, where the address had one.
        dialect: The dialect that it asked for by header; once it is known who joins where, the one
            that it gets.
        resumes: Whether it wants each envelope's number, to come back to (PROTOCOL 6).
        last_seen: The number of the last envelope that it got before.
        observes: Whether it only looks on (PROTOCOL 3).
    """

    identity: Identity | None
    space: str | None
    dialect: str | None
    resumes: bool = False
    last_seen: int | None = None
    observes: bool = False

    @property
    def complete(self) -> bool:
        """Whether the connection joins without a join frame."""
        return self.identity is not None and self.space is not None

    @property
    def answer(self) -> Mapping[str, str]:
        """The headers of our answer: the dialect, where the token was taken from the header.

        Whoever does not read it sends a join frame, as gateways without this header need one. An
        observer that does not read that it is one sends none.
        """
        known = {DIALECT_HEADER: self.dialect} if self.complete and self.dialect else {}
        return {**known, OBSERVE_HEADER: "1"} if self.observes else known


def read_handshake(
    target: bytes, headers: Mapping[str, str], hub: Hub, address: str = ""
) -> Greeting:
    """Read a handshake's address and headers, and refuse whoever must not come in.

    Args:
        target: The path with its query; any path is taken.
        headers: By name, whatever the case.
        hub: The spaces, and who may enter them.
        address: Where the handshake came from.

    Raises:
        NotAdmitted: The token, the space or the dialect is not known here, or it is one too many.
    """
    space = _space(target)
    dialect = dialect_named(headers.get(DIALECT_HEADER))
    authorization = headers.get("Authorization")
    resume = read_resume(headers.get(RESUME_HEADER), headers.get(LAST_SEEN_HEADER))
    observes = read_observe(headers.get(OBSERVE_HEADER))
    identity = None
    if authorization is not None:
        identity = identify(hub.tokens_at(address), bearer(authorization))
    if identity is not None and space is not None:
        enter(identity, space, hub.spaces)
        hub.find_room(identity, observes=observes)
        hub.join_pace.join(identity, observes=observes)
        dialect = dialect or hub.dialect(identity)
    else:
        hub.join_pace.connect(address)
    return Greeting(identity, space, dialect, *resume, observes)


def read_join_frame(
    message: bytes, greeting: Greeting, hub: Hub, address: str
) -> tuple[Identity, str]:
    """Who joins by the first message of a connection, and in which dialect.

    Args:
        message: The message.
        greeting: What the handshake said.
        hub: The spaces, and who may enter them.
        address: Where the connection came from.

    Raises:
        NotAdmitted: It is no join frame, or whoever sent it does not get in.
    """
    frame = read_join(message)
    if frame is None:
        raise NotAdmitted(BAD_REQUEST, "the first message must be a join frame")
    identity = join(
        frame,
        tokens=hub.tokens_at(address),
        spaces=hub.spaces,
        held=greeting.identity,
        space=greeting.space,
    )
    dialect = greeting.dialect or dialect_named(frame.protocol) or hub.dialect(identity)
    hub.find_room(identity, observes=greeting.observes)
    hub.join_pace.join(identity, observes=greeting.observes)
    hub.join_pace.joined(address)
    return identity, dialect


def _space(target: bytes) -> str | None:
    """The space that an address asks for; its path may be anything, even none that is valid."""
    try:
        query = parse_qs(target.partition(b"?")[2].decode("ascii", "replace"), max_num_fields=64)
    except ValueError:
        raise NotAdmitted(BAD_REQUEST, "the address has too many fields") from None
    return query.get("space", [None])[0]
