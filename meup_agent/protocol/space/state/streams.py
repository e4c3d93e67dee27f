"""The open streams of a space: owners, writers, addressees; and who is present.

Pure, as all decisions of a space (PROTOCOL 8). An envelope about a stream is checked and then takes
effect here; of a frame it is told whose stream it is on, and the relay hands it on. Streams are
not in the journal: after a restart there are none, and their ids are not given again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol.dialects import PUBLISHED, STREAMING, announce_response, spoken
from meup_agent.protocol.space.allowance import Allowance
from meup_agent.protocol.space.journal import Fact, Journal, facts_under
from meup_agent.protocol.space.state.grants import GrantStore
from meup_agent.protocol.space.state.indexes import (
    OVER_HTTP,
    Broadcast,
    Consequence,
    May,
    Refusal,
    draft_refusal,
    gateway_draft,
    over_limit,
    refuse,
)
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import Envelope, FrozenStruct, encode_json, rfc3339
from meup_agent.protocol.wire.membership import ARRIVED, ASIDE, BESIDE, DIALECT, NEW, OURS, said_by
from meup_agent.protocol.wire.payloads import PAUSED_KEY, JsonObject
from meup_agent.protocol.wire.streams import (
    INVALID_OPERATION,
    MARK,
    MAX_STREAM_ID_BYTES,
    OWNER_LEFT,
    PARTICIPANT_NOT_FOUND,
    REVOKED,
    STREAM_NOT_FOUND,
    STREAMS_KEY,
    TARGET_NOT_FOUND,
    UNAUTHORIZED,
    UNAUTHORIZED_WRITE,
    WRITER_LEFT,
    StreamClose,
    StreamInfo,
    StreamMessage,
    StreamOrigin,
    StreamRequest,
    WriterOrder,
    build_close,
    build_open,
    build_transferred,
    build_write_ack,
    read_frame,
    read_message,
)

GRACE_SECONDS: Final = 30.0
"""Time for which a stream stays open whose owner is away: as long as a process may take to come
back for what it proposed."""

MAX_REQUEST_BYTES: Final = 4_096
"""Bytes of the payload of a request: each newcomer is told all of it, of every open stream."""

MAX_WRITERS: Final = 64
"""Participants that may write a stream: every change of them is told to all, with all of them."""

STREAM_KINDS: Final = frozenset(
    {
        kinds.STREAM_REQUEST,
        kinds.STREAM_CLOSE,
        kinds.STREAM_GRANT_WRITE,
        kinds.STREAM_REVOKE_WRITE,
        kinds.STREAM_TRANSFER_OWNERSHIP,
    }
)
"""The kinds by which participants open, share and close streams."""

_MICROSECONDS: Final = 1_000_000


@dataclass(slots=True, eq=False)
class ActiveStream:
    """A stream that is open."""

    info: StreamInfo
    request: Envelope  # counts for its sender, whoever owns the stream later
    granted: dict[str, None] = field(default_factory=dict[str, None])
    left_at: int | None = None  # the time since which its owner is away, or that connection of it
    beside: int | None = None  # the owner's connection that it is for, as of an OpenItem
    encoded: bytes = b""

    @property
    def id(self) -> str:
        return self.info.id

    def change(self, owner: str) -> None:
        writers = tuple(dict.fromkeys((owner, *self.granted)))
        self.info = msgspec.structs.replace(self.info, owner=owner, writers=writers)
        self.encoded = encode_json(self.info.to_wire())


class StreamStore:
    """The open streams of a space."""

    def __init__(
        self,
        present: Mapping[str, str],
        allowance: Allowance,
        new_id: Callable[[], str],
        started: int,
    ) -> None:
        self._present = present
        self._allowance = allowance
        self._new_id = new_id
        self._started = started
        self._opened = 0
        # By the id as it stands in a frame, in the order of their opening.
        self._open: dict[bytes, ActiveStream] = {}
        self._encoded: bytes | None = b"[]"

    def __len__(self) -> int:
        return len(self._open)

    @property
    def active(self) -> tuple[StreamInfo, ...]:
        """The open streams, oldest first."""
        return tuple(stream.info for stream in self._open.values())

    @property
    def encoded(self) -> bytes:
        """The same as a welcome lists them, as JSON."""
        if self._encoded is None:
            self._encoded = b"[%b]" % b",".join(each.encoded for each in self._open.values())
        return self._encoded

    # --- frames ---------------------------------------------------------------------------

    def route(self, participant: str, frame: bytes, at: int) -> StreamInfo | Refusal:
        """The stream that a participant writes with a frame; else why the frame goes no further."""
        # The bytes alone decide: a frame costs no decoding of its stream's id.
        end = frame.find(MARK, 1, MAX_STREAM_ID_BYTES + 2)
        # Without a second mark there is no id: -1 would cut the last byte off.
        stream = self._open.get(frame[1:end]) if end > 0 else None
        if stream is not None and participant in stream.info.writers:
            if stream.left_at is not None and participant == stream.info.owner:
                stream.left_at = at  # over HTTP it writes without being present
            return stream.info
        try:
            read = read_frame(frame)
        except InvalidEnvelope as invalid:
            return draft_refusal(participant, invalid.problem, str(invalid))
        name = "" if read is None else read.stream
        why = f"stream {name!r} is not open" if stream is None else f"you may not write to {name!r}"
        return draft_refusal(participant, UNAUTHORIZED_WRITE, why, stream_id=name)

    # --- envelopes ------------------------------------------------------------------------

    def may_close(self, close: Envelope, payload: JsonObject) -> bool:
        """True for a close that needs no capability: of a side of the stream, or of none."""
        try:
            message = read_message(close, payload)
        except InvalidEnvelope:
            return False
        assert isinstance(message, StreamClose)
        stream = self._find(message)
        return stream is not None and _is_side(stream.info, close.sender)

    def check(self, envelope: Envelope, payload: JsonObject) -> Refusal | None:
        """Check that an envelope, whose sender may send it, can be carried out.

        Raises:
            InvalidEnvelope: Its payload cannot be read.
        """
        message = read_message(envelope, payload)
        if isinstance(message, StreamRequest):
            return self._check_request(envelope, message)
        stream = self._find(message)
        if stream is None:
            named = getattr(message, "stream", "")
            said = f"there is no open stream {named!r} here"
            return refuse(envelope, STREAM_NOT_FOUND, said, stream_id=named)
        code, why = self._problem(stream, message, envelope)
        return refuse(envelope, code, why, stream_id=stream.id) if code else None

    def accept(
        self, envelope: Envelope, payload: JsonObject, at: int, *, beside: int | None = None
    ) -> tuple[str, Broadcast | None]:
        """Carry out what :meth:`check` let through.

        Returns:
            The id of the stream that is closed by it, if one is; and what the gateway tells every
            member of it.
        """
        message = read_message(envelope, payload)
        if isinstance(message, StreamRequest):
            return "", self._request(envelope, message, at, beside=beside)
        stream = self._find(message)
        assert stream is not None, "checked before"
        owner = stream.info.owner
        match message:
            case StreamClose():
                self._remove(stream)
                return stream.id, None
            case WriterOrder(_, name, reason) if envelope.kind == kinds.STREAM_TRANSFER_OWNERSHIP:
                stream.left_at = stream.beside = None
                self._change(stream, name)
                kind = kinds.STREAM_OWNERSHIP_TRANSFERRED
                told = build_transferred(stream.info, owner, reason)
            case WriterOrder(_, name, reason):
                if envelope.kind == kinds.STREAM_REVOKE_WRITE:
                    kind = kinds.STREAM_WRITE_REVOKED
                    stream.granted.pop(name, None)
                else:
                    kind = kinds.STREAM_WRITE_GRANTED
                    if name != owner:
                        stream.granted[name] = None
                self._change(stream, owner)
                told = build_write_ack(stream.info, name, reason)
            case _:
                raise AssertionError(f"{envelope.kind} is not of a participant")
        return "", Broadcast(gateway_draft(kind, told, about=envelope.id))

    # --- what happens to its participants -------------------------------------------------

    def joined(
        self, participant: str, *, is_new: bool, beside: int | None = None
    ) -> list[Consequence]:
        """Go on with the streams of an owner that is back; close those of its process before.

        One that comes back beside goes on with those that were opened so. Which of several it was
        is not known.
        """
        owned = self._owned_by(participant) if self._open else []
        if is_new:
            before = (each for each in owned if beside is None and each.beside is None)
            return self._close(before, OWNER_LEFT)
        for stream in owned:
            if stream.beside == OVER_HTTP:
                stream.left_at = None
            elif stream.left_at is not None and (stream.beside is None) is (beside is None):
                stream.left_at, stream.beside = None, beside
        return []

    def stopped(self, participant: str, at: int, beside: int | None = None) -> None:
        """Give an owner some time whose one connection is gone, and whose others are not."""
        for stream in self._owned_by(participant):
            if stream.beside == beside:
                stream.left_at = at

    def left(self, participant: str, at: int) -> list[Consequence]:
        """Take its right to write from a participant that has left; an owner has some time."""
        then: list[Consequence] = []
        for stream in self._open.values():
            if stream.info.owner == participant:
                stream.left_at = at
            elif participant in stream.granted:
                del stream.granted[participant]
                self._change(stream, stream.info.owner)
                told = build_write_ack(stream.info, participant, WRITER_LEFT)
                then.append(Broadcast(gateway_draft(kinds.STREAM_WRITE_REVOKED, told)))
        return then

    def removed(self, participant: str) -> list[Consequence]:
        return self._close(self._owned_by(participant), REVOKED)

    def end_revoked(self, participant: str, may: May) -> list[Consequence]:
        """Close the streams that a participant requested, owns, and may request no longer."""
        return self._close(
            (
                stream
                for stream in self._owned_by(participant)
                if stream.request.sender == participant
                and not may(kinds.STREAM_REQUEST, stream.request.payload_object, stream.request.to)
            ),
            REVOKED,
        )

    def expire(self, at: int) -> list[Consequence]:
        """Close the streams whose owners did not come back in time."""
        since = at - round(GRACE_SECONDS * _MICROSECONDS)
        gone = (
            each
            for each in self._open.values()
            if each.left_at is not None and each.left_at <= since
        )
        return self._close(gone, OWNER_LEFT)

    @property
    def expires_at(self) -> int | None:
        """The time at which the next stream is closed whose owner is away; ``None``: none is."""
        left = [each.left_at for each in self._open.values() if each.left_at is not None]
        return min(left) + round(GRACE_SECONDS * _MICROSECONDS) if left else None

    # --- parts ----------------------------------------------------------------------------

    def _check_request(self, envelope: Envelope, request: StreamRequest) -> Refusal | None:
        if spoken(envelope.protocol) not in STREAMING:
            said = f"{envelope.protocol} has no streams; join in one of {', '.join(STREAMING)}"
            return refuse(envelope, INVALID_OPERATION, said)
        missing = [name for name in request.targets if name not in self._present]
        if missing:
            said = "not every target of the stream is in the space; correct 'target'"
            return refuse(envelope, TARGET_NOT_FOUND, said, targets=missing)
        if len(envelope.raw_payload) > MAX_REQUEST_BYTES:
            said = f"the request of a stream may have at most {MAX_REQUEST_BYTES} bytes of payload"
            return refuse(envelope, "too_large", said, max=MAX_REQUEST_BYTES)
        allowed, by = self._allowance, envelope.sender
        opened = sum(stream.request.sender == by for stream in self._open.values())
        for whose, name, most, count in (
            ("you have", "max_open_streams", allowed.max_open_streams, opened),
            ("the space has", "max_space_streams", allowed.max_space_streams, len(self._open)),
        ):
            if count >= most:
                said = f"{whose} {most} open streams, as many as are taken; close some"
                return over_limit(envelope, name, most, said)
        return None

    def _request(
        self, envelope: Envelope, request: StreamRequest, at: int, *, beside: int | None
    ) -> Broadcast:
        self._opened += 1
        # With the time of the start: what was written to one of before a restart reaches no other.
        stream_id = f"stream-{self._opened}-{self._started:x}"
        origin = StreamOrigin(request.by, envelope.id, self._new_id())
        info = StreamInfo(
            stream_id,
            request.by,
            targets=request.targets,
            created=rfc3339(at),
            fields=request.fields,
            about=request.about,
            origin=origin,
        )
        stream = ActiveStream(info, envelope.replace(), beside=beside)
        stream.left_at = None if request.by in self._present else at
        self._open[stream_id.encode()] = stream
        self._change(stream, request.by)
        draft = gateway_draft(
            kinds.STREAM_OPEN, build_open(stream.info), to=request.by, about=envelope.id
        )
        return Broadcast(msgspec.structs.replace(draft, id=origin.opened))

    def _problem(
        self, stream: ActiveStream, message: StreamMessage, envelope: Envelope
    ) -> tuple[str, str]:
        """The reason for which a participant may not do something with a stream; empty: it may."""
        info, sender = stream.info, envelope.sender
        if isinstance(message, StreamClose):
            if _is_side(info, sender):
                return "", ""
            return UNAUTHORIZED, f"only its owner, {info.owner!r}, and its only target close it"
        if sender != info.owner:
            return UNAUTHORIZED, f"only its owner, {info.owner!r}, says who may write to it"
        assert isinstance(message, WriterOrder)
        name = message.participant
        if envelope.kind == kinds.STREAM_REVOKE_WRITE:
            if name != info.owner:
                return "", ""
            return INVALID_OPERATION, "its owner may always write to it; transfer it, or close it"
        if name not in self._present:
            return PARTICIPANT_NOT_FOUND, f"{name!r} is not in the space"
        if name not in info.writers and len(info.writers) >= MAX_WRITERS:
            return INVALID_OPERATION, f"{MAX_WRITERS} participants may write to it, and no more"
        return "", ""

    def _find(self, message: StreamMessage) -> ActiveStream | None:
        """The stream that a message is about: by its id, else by what opened it."""
        named: str = getattr(message, "stream", "")
        if named or not isinstance(message, StreamClose):
            return self._open.get(named.encode())
        for stream in self._open.values():
            origin = stream.info.origin
            if origin is not None and origin.is_named(message.by, message.about):
                return stream
        return None

    def _owned_by(self, participant: str) -> list[ActiveStream]:
        return [each for each in self._open.values() if each.info.owner == participant]

    def _change(self, stream: ActiveStream, owner: str) -> None:
        stream.change(owner)
        self._encoded = None

    def _remove(self, stream: ActiveStream) -> None:
        del self._open[stream.id.encode()]
        self._encoded = None

    def _close(self, streams: Iterable[ActiveStream], reason: str) -> list[Consequence]:
        """Close some streams for the gateway, and tell every member why."""
        then: list[Consequence] = []
        for stream in list(streams):
            self._remove(stream)
            told = build_close(stream.id, reason)
            about = stream.info.origin.opened if stream.info.origin is not None else ""
            draft = gateway_draft(kinds.STREAM_CLOSE, told, about=about)
            then.append(Broadcast(draft, closes=stream.id))
        return then


def _is_side(stream: StreamInfo, participant: str) -> bool:
    """True for one of the two sides of a stream: its owner, or its only target."""
    return participant == stream.owner or stream.targets == (participant,)


_READERS: Final = ("", min(PUBLISHED))
"""A dialect for each form in which participants are described."""


class JoinState(FrozenStruct):
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
    def welcome_fields(self) -> JsonObject:
        """The fields of a welcome about what its reader missed, without ``until``."""
        return {"resumed": self.resumed, "gap": self.gap} if self.can_resume else {}

    def presence_fields(self, *, beside: bool = False) -> JsonObject:
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
