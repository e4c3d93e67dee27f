"""Frames that a person's connections are spared, decided once for all people of a space.

An inbox follows proposals: of what participants say and ask each other besides, nothing changes it.
So such an envelope costs as much with many desks as with one: it is looked at once, and queued for
none.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from meup_agent.approval.reviewer_rules import is_vote
from meup_agent.errors import InvalidEnvelope
from meup_agent.gateway.frame_queue import GatewayMember
from meup_agent.protocol import kinds
from meup_agent.protocol.dialects import decode
from meup_agent.protocol.payloads import as_object, on_behalf_of, read_call, rpc_name
from meup_agent.protocol.space.subscriber import FrameFormat, Place

if TYPE_CHECKING:
    from meup_agent.gateway.auth import Identity
    from meup_agent.gateway.frame_queue import FrameWriter
    from meup_agent.gateway.runtime import GatewayRuntime
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.space.server import SpaceServer

MAX_PLAIN_CALLS: Final = 10_000
"""Calls that are remembered as no inbox's business, and so their responses; of one that is
forgotten, the response goes to all, and changes nothing."""

MAX_FORMS: Final = 4
"""Frames of one envelope that are known as such, in the dialects of the people."""

MAX_KINDS: Final = 256
"""Kinds of envelopes that are remembered as talk or not; participants make up their own."""

_TALK: Final = ("chat", "reasoning/", "stream/")
"""The kinds of what participants say and show each other."""

_CANCELLED: Final = kinds.CANCELLED.encode()

_NONE: Final = frozenset[str]()


Recipients = frozenset[str] | None
"""The people whose inboxes a frame is for; ``None``: everyone's."""


class FrameFilter:
    """Decides which frames of a space go to the inboxes of its people."""

    def __init__(self) -> None:
        self._people: Counter[str] = Counter()
        self._plain: OrderedDict[tuple[str, str], None] = OrderedDict()  # by sender and id
        # The one that was looked at last, and its frames: everybody is asked about the same one.
        self._envelope: Envelope | None = None
        self._recipients: Recipients = None
        self._frames: deque[bytes] = deque(maxlen=MAX_FORMS)

    @contextmanager
    def serving(self, participant: str) -> Generator[None]:
        """Let through what concerns a participant, for the length of a block."""
        self._people[participant] += 1
        try:
            yield
        finally:
            self._people[participant] -= 1
            if not self._people[participant]:
                del self._people[participant]

    def is_for_inboxes(self, envelope: Envelope) -> bool:
        """True if an envelope is for the inbox of anyone."""
        # Most of what is said, and each delivery pays for it: talk that explains no proposal.
        if not envelope.correlation and _is_talk(envelope.kind):
            return False
        names = self._recipients if envelope is self._envelope else self._begin_envelope(envelope)
        return names is None or (bool(names) and not self._people.keys().isdisjoint(names))

    def pack(self, frame: bytes) -> bytes:
        """The frame, which is known as that of the envelope that was looked at last."""
        self._frames.append(frame)
        return frame

    def is_for(self, participant: str, frame: bytes) -> bool:
        """True if a frame is for the inbox of a participant."""
        names = self._recipients if frame in self._frames else self._read_recipients(frame)
        return names is None or participant in names

    def _begin_envelope(self, envelope: Envelope) -> Recipients:
        self._frames.clear()
        self._recipients, self._envelope = self._find_recipients(envelope), envelope
        return self._recipients

    def _read_recipients(self, frame: bytes) -> Recipients:
        """The recipients of a frame that has waited since its envelope was looked at."""
        try:
            return self._find_recipients(decode(frame))
        except InvalidEnvelope:
            return None

    def _find_recipients(self, envelope: Envelope) -> Recipients:
        kind = envelope.kind
        if _is_talk(kind):
            # An explanation says what it is about.
            return None if kind == kinds.CHAT and envelope.correlation else _NONE
        named = frozenset((envelope.sender, *envelope.to))
        if kind == kinds.MCP_REQUEST:
            cancelled = _cancelled_by(envelope)
            if cancelled is not None:
                # The end of a call that no inbox heard of is as little to it as its beginning.
                is_plain = bool(envelope.to) and cancelled in self._plain
                return named | {cancelled[0]} if is_plain else None
            is_plain = bool(envelope.to) and _is_plain_call(envelope)
            self._note_call((envelope.sender, envelope.id), is_plain)
            return named if is_plain else None
        if kind == kinds.MCP_RESPONSE and envelope.to:
            calls = ((caller, each) for caller in envelope.to for each in envelope.correlation)
            return named if all(each in self._plain for each in calls) else None
        return None

    def _note_call(self, call: tuple[str, str], is_plain: bool) -> None:
        if not is_plain:
            self._plain.pop(call, None)
            return
        self._plain[call] = None
        if len(self._plain) > MAX_PLAIN_CALLS:
            self._plain.popitem(last=False)


@lru_cache(maxsize=MAX_KINDS)
def _is_talk(kind: str) -> bool:
    return kind.startswith(_TALK)


def _cancelled_by(envelope: Envelope) -> tuple[str, str] | None:
    """The caller and id of the call that a request cancels; ``None``: it cancels none."""
    if _CANCELLED not in envelope.raw_payload:
        return None
    call = read_call(envelope.payload)
    if call.method != kinds.CANCELLED:
        return None
    named = rpc_name(call.params.get("requestId"))
    return on_behalf_of(envelope.sender, call.params), named or ""


def _is_plain_call(envelope: Envelope) -> bool:
    """True for a request that fulfills no proposal, cancels nothing, and is no vote.

    The answer to a vote tells every voter to look again.
    """
    if envelope.correlation:
        return False
    payload = as_object(envelope.payload)
    if "id" not in payload:
        return payload.get("method") == kinds.PROGRESS
    return not is_vote(envelope)


class PersonMember(GatewayMember):
    """A connection of a person who is signed in, which gets what concerns it alone."""

    def __init__(
        self, runtime: GatewayRuntime, identity: Identity, writer: FrameWriter, dialect: str
    ) -> None:
        kept = self._filter = filter_of(runtime.spaces[identity.space])
        form = FrameFormat(dialect, numbered=True, pack=kept.pack, takes=kept.is_for_inboxes)
        super().__init__(runtime, identity, form, writer, place=Place.BESIDE)

    def deliver(self, packed: bytes) -> None:
        """Queue a frame, if it concerns the person."""
        if self._filter.is_for(self.participant, packed):
            super().deliver(packed)


_filter_by_space: WeakKeyDictionary[SpaceServer, FrameFilter] = WeakKeyDictionary()


def filter_of(host: SpaceServer) -> FrameFilter:
    """The filter of a space, which all its people share."""
    return _filter_by_space.setdefault(host, FrameFilter())
