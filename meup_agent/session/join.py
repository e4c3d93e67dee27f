"""Join frames, welcomes, and the probe that a gateway keeps us (PROTOCOL 2)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from meup_agent.errors import WrongParticipant
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.dialects import PUBLISHED
from meup_agent.protocol.envelope import draft
from meup_agent.protocol.guarantees import is_eviction

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import ExchangeTable

PROBE_SECONDS: Final = 3.0
"""Wait for the echo of a probe: next to no work for a gateway, so many times what the slowest
network needs."""

PROBE_ATTEMPTS: Final = 3
"""Probes on one connection, each but the first after another join frame, before we dial anew."""


class JoinPlan(NamedTuple):
    """The join frame of a connection, and whether it is sent before anything has come.

    Where we were in the space before, an older connection of ours may evict this one.
    """

    frame: bytes
    at_once: bool
    again: bool

    def __repr__(self) -> str:
        """Without the token, so that it cannot get into a log."""
        return f"Joining(at_once={self.at_once}, again={self.again})"


class Welcomed(NamedTuple):
    """The first welcome of a connection.

    The gateway may evict us unseen; we are capable of sending something; it gives what it accepts a
    number; nothing that it accepted while we were away is lost.
    """

    me: str
    dialect: str
    may_evict: bool
    capable: bool
    numbered: bool = False
    complete: bool = False
    names_executors: bool = False  # in `to` of proposals, and everybody sees them

    @classmethod
    def read(cls, table: ExchangeTable, dialect: str) -> Welcomed:
        """The welcome that a table has taken just now."""
        roster = table.roster
        return cls(
            roster.me,
            dialect,
            roster.may_evict,
            capable=bool(roster.my_capabilities),
            numbered=table.seq is not None,
            complete=table.is_complete,
            names_executors=dialect in PUBLISHED and not roster.guarantees.hidden_targets,
        )


def check_welcome(table: ExchangeTable, participant: str | None, where: str) -> None:
    """Check that a gateway's welcome is for us."""
    me = table.roster.me
    if participant not in (None, me):
        raise WrongParticipant(str(participant), me, where)


def join_frame(
    participant: str, space: str | None, token: str | None, dialect: str | None
) -> bytes:
    """The first frame for a gateway that does not read the handshake's headers (PROTOCOL 2)."""
    said = {"participantId": participant, "space": space, "token": token, "protocol": dialect}
    known = {name: value for name, value in said.items() if value is not None}
    return json.dumps({"type": "join", **known}).encode()


class EchoProbe:
    """Asks a gateway whether it hears us, and whether we hear it.

    A probe is an ``mcp/response``, to ourselves, to itself. Every gateway sends that back: those of
    ``meup/v0.2`` because it is addressed to us, those of ``mew/v0.4`` because they send everything
    to every member, and let each respond. For its readers it answers a request that they never
    made, which is the one thing that every participant leaves alone: a request would have to be
    answered, a chat is read, and ``system/*`` is not ours to send. Where we may not respond, the
    gateway's error names it, and shows as well that we are there.
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
        """Take an envelope, if it is about a probe and so concerns no one else."""
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
