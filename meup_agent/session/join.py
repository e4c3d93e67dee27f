"""How a connection is joined, and how we see that its gateway keeps us (PROTOCOL 2)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import draft
from meup_agent.protocol.guarantees import is_eviction

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.protocol.envelope import Envelope

PROBE_SECONDS: Final = 3.0
"""How long a gateway may take to send our probe back. It is next to no work, so this is many times
what the slowest network needs."""

PROBE_ATTEMPTS: Final = 3
"""Probes on one connection, each but the first after another join frame, before we dial anew."""


class JoinPlan(NamedTuple):
    """What there is to say on a connection to get into the space.

    Attributes:
        frame: The join frame; it holds the token.
        at_once: It is to be sent before anything has come; otherwise only if we are not kept.
        again: We were in the space before, so an older connection of ours may evict this one.
    """

    frame: bytes
    at_once: bool
    again: bool

    def __repr__(self) -> str:
        """Without the token, so that it cannot get into a log."""
        return f"Joining(at_once={self.at_once}, again={self.again})"


class Welcomed(NamedTuple):
    """What the first welcome of a connection said.

    Attributes:
        me: Our name.
        dialect: What the gateway speaks.
        may_evict: The gateway is one of those that may evict us unseen.
        capable: We may send something.
        numbered: It gives what it accepts a number, and we read on from there after a loss.
        complete: Nothing that it accepted while we were away is lost.
    """

    me: str
    dialect: str
    may_evict: bool
    capable: bool
    numbered: bool = False
    complete: bool = False


def join_frame(
    participant: str, space: str | None, token: str | None, dialect: str | None
) -> bytes:
    """The first frame for a gateway that does not read the handshake's headers (PROTOCOL 2).

    Args:
        participant: Who we are, or want to be.
        space: The space's name, where we know it.
        token: Our token.
        dialect: The dialect that we speak, where the gateway may know it.
    """
    said = {"participantId": participant, "space": space, "token": token, "protocol": dialect}
    known = {name: value for name, value in said.items() if value is not None}
    return json.dumps({"type": "join", **known}).encode()


class EchoProbe:
    """Asks a gateway whether it hears us, and whether we hear it.

    A probe is an ``mcp/response``, to ourselves, to itself. Every gateway sends that back: those of
    ``meup/v0.2`` because it is addressed to us, those of ``mew/v0.4`` because they send everything
    to everybody, and let everybody respond. For all who see it, it answers a request that they
    never made, which is the one thing that everybody leaves alone: a request would have to be
    answered, a chat is read, and ``system/*`` is not ours to send. Where we may not respond, the
    gateway's error names it, and shows as well that we are there.

    Args:
        new_id: Draws an id that nobody used before.
        welcomed: Who we are, and whether we may do anything.
    """

    def __init__(self, new_id: Callable[[], str], welcomed: Welcomed) -> None:
        self._new_id = new_id
        self._welcomed = welcomed
        self._sent: set[str] = set()
        self._answered = anyio.Event()
        self._evicted = False

    def next(self) -> Envelope:
        """Another probe to send; an echo of an older one still counts."""
        probe_id, me = self._new_id(), self._welcomed.me
        self._sent.add(probe_id)
        self._answered = anyio.Event()
        return draft(
            kinds.MCP_RESPONSE,
            payloads.result(probe_id, {}),
            id=probe_id,
            sender=me,
            to=(me,),
            correlation=(probe_id,),
        )

    def takes(self, envelope: Envelope) -> bool:
        """Whether what came is about a probe, and nobody else's business."""
        if envelope.kind == kinds.SYSTEM_ERROR:
            is_answer = envelope.sender in kinds.GATEWAY_NAMES and any(
                name in self._sent for name in envelope.correlation
            )
            evicted = self._welcomed.capable and is_eviction(envelope.payload_object)
        else:
            is_answer = envelope.sender == self._welcomed.me and envelope.id in self._sent
            evicted = False
        if is_answer:
            # Only then: whatever else comes before the answer is looked at says nothing of it.
            self._evicted = evicted
            self._answered.set()
        return is_answer

    async def came_back(self) -> bool:
        """Wait for an answer; ``False`` if none came, or one that says that we are not in."""
        with anyio.move_on_after(PROBE_SECONDS):
            await self._answered.wait()
            return not self._evicted
        return False
