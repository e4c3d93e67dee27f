"""The roster: the participants of a space, as the gateway lists them, and absences of others."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from meup_agent.protocol.capability import Capabilities, compile_announced
from meup_agent.protocol.dialects import DIALECTS, spoken
from meup_agent.protocol.wire.envelope import FrozenStruct
from meup_agent.protocol.wire.membership import (
    ASIDE,
    DIALECT,
    OBSERVING,
    Guarantees,
    is_eviction,
    may_evict,
    read_guarantees,
)
from meup_agent.protocol.wire.payloads import JsonObject, as_list, as_object, objects_in
from meup_agent.protocol.wire.ttl_map import TTLMap

MAX_PARTICIPANTS = 10_000
"""Participants that are kept; a gateway that names more is not believed."""

UPDATE: Final = "update"
"""A presence event of our gateway: the capabilities of a present participant changed."""

MAX_SHARED: Final = 4096
"""Records of participants that all agents of a process share: a space's welcome tells each agent
of all others, which would make the memory of a hundred agents grow with their square."""

MAX_SHARED_CHARS: Final = 2048
"""JSON characters of the capabilities in such a record; larger ones belong to one agent alone, and
go when it goes."""


MAX_SHARED_COMPILED: Final = 256
"""Compiled capabilities that they share."""


class Participant(FrozenStruct):
    """A participant of the space.

    Attributes:
        id: Its name.
        capabilities: Its capabilities, as the gateway announced them; not to be changed.
        dialect: The dialect that it speaks; empty where the gateway does not tell.
        aside: It has connections beside alone, and answers no request (PROTOCOL 3).
    """

    id: str
    capabilities: tuple[Any, ...] = ()
    dialect: str = ""
    aside: bool = False


class Presence(NamedTuple):
    """The participants that a welcome adds and removes."""

    joined: list[str]
    left: list[str]


class Roster:
    """The participants of a space at this moment."""

    def __init__(self) -> None:
        self.me = ""
        self.welcomed_at: float | None = None
        self.my_capabilities: tuple[Any, ...] = ()
        self.guarantees = Guarantees()
        self.dialect = ""
        """Dialect of our connection."""
        self.may_evict = False
        self.observing = False
        """We are not present: the gateway took us for an observer (PROTOCOL 3)."""
        self._present: dict[str, Participant] = {}
        self._announced: dict[str, Participant] | None = None
        self._left: TTLMap[str, float] = TTLMap(count=MAX_PARTICIPANTS, seconds=math.inf)
        self._compiled: dict[str, Capabilities] = {}

    def apply_welcome(
        self,
        payload: JsonObject,
        now: float,
        *,
        update: bool,
        dialect: str,
        later: bool = False,
    ) -> Presence | None:
        """Apply a ``system/welcome``; an update is not the first on its connection.

        Where joins and leaves of the time while we were away are replayed first, its list takes
        effect ``later``, with :meth:`settle`.

        Returns:
            The change; ``None`` if it does not name us, or is an update that names us otherwise
            than before: where welcomes can be forged, such a one is.
        """
        you = read_participant(payload.get("you"))
        if you is None or (update and you.id != self.me):
            return None
        self.me, self.my_capabilities = you.id, you.capabilities
        listed = [read_participant(item) for item in objects_in(payload.get("participants"))]
        self._announced = {item.id: item for item in listed[:MAX_PARTICIPANTS] if item is not None}
        self.observing = payload.get(OBSERVING) is True
        if not self.observing:
            self._announced[you.id] = you
        if not update:
            self.welcomed_at = now
            known = self.dialect = spoken(dialect) or dialect
            seen = DIALECTS[known].seen if known in DIALECTS else None
            self.guarantees = read_guarantees(payload, seen)
            self.may_evict = may_evict(payload, seen)
        return Presence([], []) if later else self.settle(now)

    def settle(self, now: float) -> Presence:
        """Make the list of the last welcome the present one; the change."""
        before, announced = self._present, self._announced
        if announced is None:
            return Presence([], [])
        self._present, self._announced = announced, None
        self._compiled.clear()  # the same names may come with other capabilities
        left = [name for name in before if name not in announced]
        for name in left:
            self._left.put(name, now, now)
        return Presence([name for name in announced if name not in before], left)

    def apply_presence(self, payload: JsonObject, now: float) -> tuple[str, Participant] | None:
        """Apply a presence event; ``(event, participant)`` if it was one that we know."""
        participant = read_participant(payload.get("participant"))
        event = payload.get("event")
        if participant is None or event not in ("join", "leave", UPDATE):
            return None
        is_me = participant.id == self.me and not self.observing
        if event == UPDATE and (is_me or participant.id not in self):
            return None  # our own capabilities come with a welcome
        self._compiled.pop(participant.id, None)
        before = self._present.get(participant.id)
        # For requests it has left: nobody answers in its name any more.
        if participant.aside and before is not None and not before.aside:
            self._left.put(participant.id, now, now)
        if event == "leave":
            # We hear it ourselves, so we are here, whatever became of an older connection of ours.
            if is_me:
                return None
            if self._present.pop(participant.id, None) is not None:
                self._left.put(participant.id, now, now)
        elif len(self._present) < MAX_PARTICIPANTS:
            self._present[participant.id] = participant
        return event, participant

    def shows_eviction(self, refusal: JsonObject) -> bool:
        """True if a refusal shows that the gateway has thrown us out (PROTOCOL 2)."""
        return self.may_evict and bool(self.my_capabilities) and is_eviction(refusal)

    def __contains__(self, participant_id: object) -> bool:
        return participant_id in self._present

    def participants(self) -> tuple[Participant, ...]:
        """The participants that are present, as the gateway listed them."""
        return tuple(self._present.values())

    def capabilities_of(self, participant_id: str) -> tuple[Any, ...]:
        """The announced capabilities of a participant; none of an absent one."""
        participant = self._present.get(participant_id)
        return () if participant is None else participant.capabilities

    def dialect_of(self, participant_id: str) -> str:
        """The dialect of a participant; where none is told, as of one over HTTP, our own."""
        participant = self._present.get(participant_id)
        return self.dialect if participant is None else participant.dialect or self.dialect

    def absent_since(
        self, participant_id: str, now: float, *, to_answer: bool = False
    ) -> float | None:
        """The time since which a participant is away, our welcome at the earliest (4.6).

        One with connections beside alone is away ``to_answer`` a request.
        """
        found = self._present.get(participant_id)
        is_here = found is not None and not (to_answer and found.aside)
        if is_here or self.welcomed_at is None:
            return None
        left = self._left.get(participant_id, now)
        return self.welcomed_at if left is None else max(left, self.welcomed_at)

    def note_left(self, participant_id: str, at: float, now: float) -> float | None:
        """Note when an absent participant left, before we came, if that is not known; the time.

        ``None`` if it is present.
        """
        if participant_id not in self._present and self._left.get(participant_id, now) is None:
            self._left.put(participant_id, at, now)
        return self.left_at(participant_id, now)

    def left_at(self, participant_id: str, now: float) -> float | None:
        """The time at which a participant left; ``None``: it is present, or was never seen here."""
        return None if participant_id in self._present else self._left.get(participant_id, now)

    def is_allowed(
        self, participant_id: str, kind: str, payload: Any, to: Sequence[str] = ()
    ) -> bool:
        """True if a participant's announced capabilities allow an envelope."""
        compiled = self.compiled(participant_id)
        return compiled is not None and compiled.allow(kind, payload, to)

    def compiled(self, participant_id: str) -> Capabilities | None:
        """A participant's announced capabilities; most that may do the same share one object."""
        if participant_id == self.me:
            capabilities = self.my_capabilities  # an observer is not among those present
        elif participant_id in self._present:
            capabilities = self._present[participant_id].capabilities
        else:
            return None
        compiled = self._compiled.get(participant_id)
        if compiled is None:
            compiled = self._compiled[participant_id] = _compile(capabilities)
        return compiled


def read_participant(value: object) -> Participant | None:
    """The participant in a welcome or a presence; ``None`` where there is none."""
    item = as_object(value)
    name = item.get("id")
    if not isinstance(name, str) or not name:
        return None
    capabilities: object = item.get("capabilities")
    listed = as_list(capabilities)
    said = item.get(DIALECT)
    dialect = (spoken(said) or "") if isinstance(said, str) else ""
    aside = item.get(ASIDE) is True
    written = json.dumps(listed)  # a key of the cache, which a list cannot be
    if len(written) > MAX_SHARED_CHARS:
        return Participant(name, tuple(listed), dialect, aside)
    return _shared(name, written, dialect, aside)


def _compile(capabilities: tuple[Any, ...]) -> Capabilities:
    written = json.dumps(capabilities)
    if len(written) > MAX_SHARED_CHARS:
        return compile_announced(capabilities)
    return _compile_shared(written)


@lru_cache(maxsize=MAX_SHARED_COMPILED)
def _compile_shared(capabilities: str) -> Capabilities:
    """One for all agents of a process, and all participants that may do the same."""
    return compile_announced(json.loads(capabilities))


@lru_cache(maxsize=MAX_SHARED)
def _shared(name: str, capabilities: str, dialect: str, aside: bool) -> Participant:
    """One record for all agents of a process that hear of the same participant."""
    return Participant(name, tuple(json.loads(capabilities)), dialect, aside)
