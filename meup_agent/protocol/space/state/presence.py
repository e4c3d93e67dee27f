"""Presence: the state in which a participant joins, its absences, and its welcome.

See PROTOCOL 2 and 6 for welcomes and presences.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from meup_agent.protocol.dialects import PUBLISHED
from meup_agent.protocol.dialects.base import announce_response
from meup_agent.protocol.space.journal import Fact, Journal, facts_under
from meup_agent.protocol.space.state.grants import GrantStore
from meup_agent.protocol.space.state.streams import StreamStore
from meup_agent.protocol.space.state.verdicts import Consequence, gateway_draft
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.control_payloads import PAUSED_KEY
from meup_agent.protocol.wire.envelope import Envelope, encode_json
from meup_agent.protocol.wire.membership import ARRIVED, ASIDE, BESIDE, DIALECT, NEW, OURS, said_by
from meup_agent.protocol.wire.payloads import JsonObject
from meup_agent.protocol.wire.streams import STREAMS_KEY

_READERS: Final = ("", min(PUBLISHED))
"""A dialect for each form in which participants are described."""


class JoinState(msgspec.Struct, frozen=True):
    """The state in which a subscriber begins (PROTOCOL 6)."""

    # The number after which it continues; ``None``: it begins with what is new.
    begin: int | None = None
    gap: bool = False  # some of what it missed is not known any more
    can_resume: bool = True  # it gets numbers, with which it can resume

    @classmethod
    def read(
        cls, journal: Journal, space: str, last_seen: int | None, *, can_resume: bool
    ) -> JoinState:
        """The state in which a subscriber begins that has seen a number; ``None``: none."""
        begin = None if last_seen is None else journal.resume_from(space, last_seen)
        return cls(begin, gap=begin != last_seen, can_resume=can_resume)

    @property
    def resumed(self) -> bool:
        """True if it was here before, and continues."""
        return self.begin is not None

    @property
    def welcome_fields(self) -> dict[str, Any]:
        """The fields of a welcome about what its reader missed, without ``until``."""
        return {"resumed": self.resumed, "gap": self.gap} if self.can_resume else {}

    def presence_fields(self, *, beside: bool = False) -> dict[str, Any]:
        """The field of a presence about what the newcomer missed: most repeat nothing to it."""
        begun = BESIDE if beside else NEW
        arrived = "gap" if self.gap else "resumed" if self.resumed else begun
        return {ARRIVED: arrived} if self.can_resume else {}

    @property
    def is_new(self) -> bool:
        """True for a process that could resume, and has nothing to resume: it has just begun."""
        return self.can_resume and not self.resumed


class JoinDrafts(NamedTuple):
    """The envelopes that a join makes the gateway send; drafts."""

    # For the newcomer alone. That of a newcomer that can resume lacks ``until``, which is known
    # when it is sent: see :func:`meup_agent.protocol.wire.membership.add_until`.
    welcome: Envelope
    presence: Envelope | None  # None: its participant is there already
    facts: tuple[Fact, ...] = ()  # facts that the join makes hold
    then: tuple[Consequence, ...] = ()  # consequences, before the presence


GONE_SECONDS: Final = 30.0
"""After which a process that is away will not be back for what it proposed (PROTOCOL 4.6)."""

_GONE_MICROSECONDS: Final = round(GONE_SECONDS * 1_000_000)


PRESENCE_FACT: Final = "presence/"


def presence_fact(participant: str, at: int, *, is_here: bool) -> Fact:
    """The fact that a participant is here, or has left, since a time in microseconds."""
    return Fact(PRESENCE_FACT + participant, {"is_here": is_here, "at": at})


class AbsenceTracker:
    """Tracks absences: what a process proposed before it was gone counts as abandoned."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}
        # Of these, those that were here before.
        self._seen_off: set[str] = set()
        # Those that are here by a fact alone: their join is too old to be read at a restart.
        self.here: set[str] = set()
        self._gone: dict[str, int] = {}

    def left(self, participant: str, at: int) -> None:
        self._left[participant] = at
        self._seen_off.add(participant)
        self.here.discard(participant)

    def restore(self, facts: Mapping[str, JsonObject]) -> None:
        """Restore the last presence of each participant, as the facts have it."""
        for participant, value in facts_under(facts, PRESENCE_FACT):
            at = value.get("at")
            if value.get("is_here") is True:
                self.here.add(participant)
            elif isinstance(at, int):
                self.left(participant, at)

    def is_away(self, participant: str) -> bool:
        """True for an absent participant that was here before, as far as the facts tell."""
        return participant in self._left

    def never_seen(self, participant: str, at: int) -> None:
        """Record that a participant with something open was no member, and is away at a time."""
        self._left.setdefault(participant, at)

    def left_after(self, participant: str, accepted: int) -> int | None:
        left = self._left.get(participant) if participant in self._seen_off else None
        return left if left is not None and accepted <= left else None

    def joined(self, participant: str, at: int) -> None:
        """Record a join."""
        left = self._left.pop(participant, None)
        self._seen_off.discard(participant)
        if left is not None and at - left >= _GONE_MICROSECONDS:
            self._gone[participant] = left

    def abandoned_until(self, participant: str, at: int) -> int | None:
        """The time until which processes of a participant ran that are gone for good, if any."""
        for moment in (self._left.get(participant), self._gone.get(participant)):
            if moment is not None and at - moment >= _GONE_MICROSECONDS:
                return moment
        return None


class WelcomeWriter:
    """Writes welcomes, and keeps the descriptions of those who are present as JSON.

    Each newcomer is told of all the others: to encode all of them anew took half of the time
    in which 2,000 came.
    """

    def __init__(
        self,
        grants: GrantStore,
        present: Mapping[str, str],
        aside: Container[str],
        streams: StreamStore,
    ) -> None:
        self._grants = grants
        self._streams = streams
        # The dialect of each, in the order in which they came.
        self._present = present
        self._aside = aside
        # For readers of the published dialects and for others, and since which change of anyone's
        # capabilities.
        self._descriptions: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})
        self._described_at = 0

    def joined(self, participant: str) -> None:
        """Describe a participant anew that was here before, in another dialect perhaps."""
        for reader, descriptions in zip(_READERS, self._descriptions, strict=True):
            if participant in descriptions:  # in its place, the order is that of coming
                descriptions[participant] = self._encoded(participant, reader)

    def left(self, participant: str) -> None:
        for descriptions in self._descriptions:
            descriptions.pop(participant, None)

    def describe(self, participant: str, reader: str = "") -> JsonObject:
        """A participant as a reader of a dialect is told of it, with its dialect while present.

        It says, too, where it has connections beside alone, since none of them answers a request.
        Readers of the published dialects find that it answers, as their own gateways say of every
        participant.
        """
        listed = list(self._grants[participant].patterns)
        listed = announce_response(listed) if reader in PUBLISHED else listed
        said: JsonObject = {"id": participant, "capabilities": listed}
        if dialect := self._present.get(participant):
            said[DIALECT] = dialect
        if participant in self._aside:
            said[ASIDE] = True
        return said

    def write(
        self,
        participant: str,
        left_out: str,
        more: Mapping[str, Any],
        reader: str,
        paused: JsonObject | None,
    ) -> Envelope:
        """The draft of a welcome for a participant, which a pause may hold."""
        present = dict(self._described_present(reader))
        present.pop(left_out, None)
        you = self._encoded(participant, reader)
        if paused is not None:
            you = encode_json({**self.describe(participant, reader), PAUSED_KEY: paused})
        rest = encode_json({**more, **said_by(OURS), STREAMS_KEY: {"journaled": False}})
        raw = b'{"you":%b,"participants":[%b],"active_streams":%b,%b' % (
            you,
            b",".join(present.values()),
            self._streams.encoded,
            rest[1:],
        )
        return gateway_draft(kinds.SYSTEM_WELCOME, raw, to=participant)

    def _described_present(self, reader: str) -> dict[str, bytes]:
        """The participants in the space, in the order in which they came, each as JSON."""
        if self._described_at != self._grants.changes:
            self._described_at = self._grants.changes
            for each in self._descriptions:
                each.clear()
        descriptions = self._descriptions[reader in PUBLISHED]
        if len(descriptions) != len(self._present):
            for name in self._present:
                if name not in descriptions:
                    descriptions[name] = self._encoded(name, reader)
        return descriptions

    def _encoded(self, participant: str, reader: str) -> bytes:
        return encode_json(self.describe(participant, reader))
