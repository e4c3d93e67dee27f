"""What a handshake says before the first frame (PROTOCOL 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs

from meup_agent.gateway.admission import (
    BAD_REQUEST,
    NotAdmitted,
    bearer,
    check_space,
    identify,
    join,
    read_dialect,
    read_join,
    read_observe,
    read_resume,
)
from meup_agent.gateway.auth import Identity
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.transport.base import (
    DIALECT_HEADER,
    LAST_SEEN_HEADER,
    OBSERVE_HEADER,
    RESUME_HEADER,
)


class Handshake(NamedTuple):
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
    target: bytes, headers: Mapping[str, str], runtime: GatewayRuntime, address: str = ""
) -> Handshake:
    """Read a handshake's address and headers, and refuse whoever must not come in.

    Args:
        target: The path with its query; any path is taken.
        headers: By name, whatever the case.
        runtime: The spaces, and who may enter them.
        address: Where the handshake came from.

    Raises:
        NotAdmitted: The token, the space or the dialect is not known here, or it is one too many.
    """
    space = _space(target)
    dialect = read_dialect(headers.get(DIALECT_HEADER))
    authorization = headers.get("Authorization")
    resume = read_resume(headers.get(RESUME_HEADER), headers.get(LAST_SEEN_HEADER))
    observes = read_observe(headers.get(OBSERVE_HEADER))
    identity = None
    if authorization is not None:
        identity = identify(runtime.tokens_at(address), bearer(authorization))
    if identity is not None and space is not None:
        check_space(identity, space, runtime.spaces)
        runtime.check_members(identity, observes=observes)
        runtime.join_throttle.join(identity, observes=observes)
        dialect = dialect or runtime.dialect(identity)
    else:
        runtime.join_throttle.connect(address)
    return Handshake(identity, space, dialect, *resume, observes)


def read_join_frame(
    message: bytes, handshake: Handshake, runtime: GatewayRuntime, address: str
) -> tuple[Identity, str]:
    """Who joins by the first message of a connection, and in which dialect.

    Args:
        message: The message.
        handshake: What the handshake said.
        runtime: The spaces, and who may enter them.
        address: Where the connection came from.

    Raises:
        NotAdmitted: It is no join frame, or whoever sent it does not get in.
    """
    frame = read_join(message)
    if frame is None:
        raise NotAdmitted(BAD_REQUEST, "the first message must be a join frame")
    identity = join(
        frame,
        tokens=runtime.tokens_at(address),
        spaces=runtime.spaces,
        held=handshake.identity,
        space=handshake.space,
    )
    dialect = handshake.dialect or read_dialect(frame.protocol) or runtime.dialect(identity)
    runtime.check_members(identity, observes=handshake.observes)
    runtime.join_throttle.join(identity, observes=handshake.observes)
    runtime.join_throttle.joined(address)
    return identity, dialect


def _space(target: bytes) -> str | None:
    """The space that an address asks for; its path may be anything, even none that is valid."""
    try:
        query = parse_qs(target.partition(b"?")[2].decode("ascii", "replace"), max_num_fields=64)
    except ValueError:
        raise NotAdmitted(BAD_REQUEST, "the address has too many fields") from None
    return query.get("space", [None])[0]
