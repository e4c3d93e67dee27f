"""Frames of members of every dialect, and of a client without a connection, to a space's host.

A line begins with who sends the rest of it: ``m`` ``d`` ``s`` ``w`` members, one for each dialect,
and ``a`` somebody who is absent. Their capitals join (after a number: resuming from it), ``-m``
leaves, ``+5`` listens from a number on. ``*m`` looks on with a member's token (after a number:
resuming from it), and ``!m`` is what such an observer sends, in vain. ``&m 50 #@@#x`` says a frame
so many times, and ``~m`` lets a member take nothing for a while, or again.
"""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from meup_agent.gateway.config import Config, SpaceConfig, participant
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.dialects import decode, read_addressees
from meup_agent.protocol.space.journal import MemoryJournal
from meup_agent.protocol.space.link import FrameFormat, Place
from meup_agent.protocol.space.owner import SpaceServer
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.kinds import (
    GATEWAY,
    MCP_PROPOSAL,
    MCP_REQUEST,
    MCP_WITHDRAW,
    STREAM_OPEN,
)
from meup_agent.protocol.wire.payloads import read_proposal
from tests.fuzz.frames import EXAMPLES, STREAM_FRAMES, expanded, joined, stream_examples
from tests.fuzz.logs import checked_log

NAME = "space"

WHO = {
    b"m": ("mcpx", "mcpx/v0.1"),
    b"d": ("dots", "meup/v0.1"),
    b"s": ("slash", "meup/v0.2"),
    b"w": ("mew", "mew/v0.4"),
    b"a": ("absent", "meup/v0.1"),
}
NAMES = {name for name, _ in WHO.values()}

NUMBERED = {"dots", "mew"}
STREAMING = {"dots", "mew"}
"""Members whose dialects have streams."""

OBSERVERS_ALONE = {"system/welcome", "system/error", "stream/lost"}
"""Kinds that the gateway says to an observer itself: its own welcome, refusals, and losses."""

CAPABILITIES: dict[str, list[dict[str, Any]]] = {
    "mcpx": [{"kind": "*"}],
    "dots": [
        {"kind": "mcp/*"},
        {"kind": "chat"},
        {"kind": "capability/*"},
        {"kind": "space/*"},
        {"kind": "stream/*"},
    ],
    "slash": [{"kind": "chat"}, {"kind": "mcp/proposal"}],
    "mew": [{"kind": "mcp/request", "payload": {"method": "tools/*"}}, {"kind": "!system/*"}],
    "absent": [{"kind": "mcp/*"}, {"kind": "chat"}],
}

CONFIG = Config(
    (
        SpaceConfig(
            "demo",
            {name: participant(name, listed, (name,)) for name, listed in CAPABILITIES.items()},
        ),
    )
)

DOTS = EXAMPLES["meup/v0.1"]

SEEDS = (
    [b"M\nD\nS\nW\n" + joined(who + b" ", EXAMPLES[dialect]) for who, (_, dialect) in WHO.items()]
    + [
        b"M\nD\n*d\n*m\n*d1000000\n" + joined(b"!d ", DOTS) + b"\n" + joined(b"d ", DOTS),
        b"D\nM\n" + joined(b"d ", DOTS[:4]) + b"\n-d\nM\nD 1000003\n+1000001",
        b"D\n"
        + joined(b"d ", [each for each in DOTS if b'proposal"' in each])
        + b"\nW\nM\nW\n"
        + joined(b"d ", DOTS[-3:]),
    ]
    + [
        b"M\nD\nW\n"
        + joined(who + b" ", stream_examples(me, dialect)[:12])
        + b"\n"
        + joined(
            b"", [other + b" " + each for each in STREAM_FRAMES for other in (who, b"a", b"m")]
        )
        for who, (me, dialect) in WHO.items()
        if me in STREAMING
    ]
    + [
        b"D\nW\n*d\n~d\nw "
        + stream_examples("mew", "mew/v0.4")[0]
        + b"\n&w 300 #@@#x\n!d #@@#x\n~d\nw #@@#y\n-d\nw #@@#z\nW\nw #@@#late"
    ]
)

MAX_FLOOD = 300

MAX_STEPS = 60

_loads = json.loads


class Listener:
    """A member that hears the space, and keeps what it heard until it is looked at."""

    def __init__(self, form: FrameFormat, later: list[Callable[[], None]]) -> None:
        self.form = form
        self.frames: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.numbers: list[int] = []
        self.paused = False
        self._later = later

    def deliver(self, packed: bytes) -> None:
        if self.closed is None:  # as a connection's member does
            self.frames.append(packed)

    def close(self, code: int, reason: str) -> None:
        reason.encode()
        self.closed = (code, reason)

    def ready(self, then: Callable[[], None]) -> None:
        self._later.append(then)


class Member(Listener):
    """A participant's connection."""

    def __init__(
        self,
        participant: str,
        dialect: str,
        later: list[Callable[[], None]],
        seen: bytes,
        *,
        place: Place = Place.ANSWERING,
    ) -> None:
        is_numbered = participant in NUMBERED
        pack_frame = bytes if participant in STREAMING else None
        super().__init__(FrameFormat(dialect, is_numbered, pack_frame=pack_frame), later)
        self.participant = participant
        self.last_seen = number_in(seen) if is_numbered else None
        self.place = place


def number_in(seen: bytes) -> int | None:
    return int(seen) if seen.isdigit() and len(seen) < 19 else None


class World:
    """One space for one input."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []
        self.members: dict[str, Member] = {}
        self.observers: list[Member] = []
        self.watchers: list[Listener] = []
        self.now = 1_000_000
        self.issued: set[str] = set()
        self.written: dict[bytes, tuple[str, ...]] = {}
        self.journal = MemoryJournal(lambda: self.now, max_entries=20)
        self.host = self.new_host()
        self.everything = self.watch(b"")

    def new_host(self) -> SpaceServer:
        runtime = GatewayRuntime(
            CONFIG, journal=self.journal, new_id=self.new_id, now=lambda: self.now
        )
        self.counters = runtime.counters
        return runtime.spaces["demo"]

    def new_id(self) -> str:
        """An id that no input can guess."""
        drawn = hashlib.sha256(b"%d of the gateway" % len(self.issued)).hexdigest()[:16]
        self.issued.add(drawn)
        return drawn

    def expanded(self, frame: bytes) -> bytes:
        """A frame with its placeholders filled in."""
        return expanded(frame, self.host.owner.streams)

    def join(self, name: str, dialect: str, seen: bytes) -> None:
        if self.host.owner.is_kicked(name):
            return  # the ports do not let it in
        older = self.members.get(name)
        member = self.members[name] = Member(name, dialect, self.later, seen)
        self.host.join(member)
        if older is not None:
            assert older.closed is not None
            self.look(older, NAMES)

    def leave(self, name: str) -> None:
        member = self.members.pop(name, None)
        if member is not None:
            self.host.leave(member)
            self.look(member, NAMES)

    def observe(self, name: str, dialect: str, seen: bytes) -> None:
        """A connection that looks on; its participant's own, if there is one, is not disturbed."""
        if self.host.owner.is_kicked(name):
            return
        observer = Member(name, dialect, self.later, seen, place=Place.OBSERVING)
        self.observers.append(observer)
        present = self.host.owner.described()
        closed = [each.closed for each in self.members.values()]
        self.host.join(observer)
        assert self.host.owner.described() == present
        assert closed == [each.closed for each in self.members.values()]

    def observer_says(self, name: str, frame: bytes) -> None:
        """It is refused, and nothing is kept of it."""
        accepted, latest = self.counters.accepted, self.journal.latest("demo")
        frames = self.counters.stream_frames
        for observer in self.observers:
            if observer.participant == name and observer.closed is None:
                self.host.receive(observer, frame)
        assert (accepted, latest) == (self.counters.accepted, self.journal.latest("demo"))
        assert frames == self.counters.stream_frames

    def watch(self, seen: bytes) -> Listener:
        listener = Listener(FrameFormat("meup/v0.1", numbered=True), self.later)
        self.watchers.append(listener)
        self.host.fanout.subscribe(listener, number_in(seen))
        return listener

    def say(self, name: str, dialect: str, frame: bytes) -> None:
        """A frame, and what follows from it for everybody."""
        member = self.members.get(name)
        self.note_frame(name, frame)
        if member is None and frame[:1] == b"#":
            self.host.owner.relay_as(name, frame)
        elif member is None:
            self.host.owner.receive_as(name, frame, dialect, lambda _: None)
        else:
            self.host.receive(member, frame)

    def note_frame(self, name: str, frame: bytes) -> None:
        """Note who may hear a frame of a stream, if its sender may write it."""
        for stream in self.host.owner.streams:
            if frame.startswith(b"#%b#" % stream.id.encode()) and name in stream.writers:
                self.written[frame] = stream.targets or tuple(NAMES)

    def settle(self, senders: set[str]) -> None:
        """Everything that is due happens, and everybody reads."""
        for _ in range(10_000):
            if not self.later:
                break
            self.later.pop(0)()
        else:
            raise AssertionError("it never comes to rest")
        heard: dict[tuple[str, str], list[Envelope]] = {}
        for member in tuple(self.members.values()):
            for envelope in self.look(member, senders):
                heard.setdefault((envelope.sender, envelope.id), []).append(envelope)
        if len(senders) == 1:
            for envelopes in heard.values():
                same_for_all(envelopes)
        for watcher in self.watchers:
            self.look(watcher, NAMES)
        for observer in self.observers:
            for envelope in self.look(observer, NAMES):
                assert not is_private(envelope) or envelope.kind in OBSERVERS_ALONE, envelope.kind
        for listener in (*self.members.values(), *self.watchers, *self.observers):
            self.complete(listener)
        for name, member in tuple(self.members.items()):
            if member.closed is not None:
                self.leave(name)
        for observer in tuple(self.observers):
            if observer.closed is not None or self.host.owner.is_kicked(observer.participant):
                assert observer.closed is not None, "it heard on after its removal"
                self.observers.remove(observer)
                self.host.leave(observer)
        assert self.host.delivery.observers == len(self.observers)
        counters = self.counters
        refused = sum(counters.refused.values())
        decided = counters.accepted + counters.dropped + counters.repeated + refused
        decided += counters.stream_frames
        assert counters.frames_in == decided, counters

    def look(self, listener: Listener, senders: set[str]) -> list[Envelope]:
        """Check what a member heard."""
        frames, listener.frames = listener.frames, []
        for frame in frames:
            if frame[:1] == b"#":
                assert isinstance(listener, Member), "a reader without a name"
                assert listener.participant in STREAMING
                assert (
                    listener.place is Place.OBSERVING or listener.participant in self.written[frame]
                )
        return [self.checked(listener, frame, senders) for frame in frames if frame[:1] != b"#"]

    def checked(self, listener: Listener, frame: bytes, senders: set[str]) -> Envelope:
        envelope = decode(frame, listener.form.dialect)
        fields: dict[str, Any] = _loads(frame)
        # Readers with another JSON library must not see somebody else.
        assert fields["from"] == envelope.sender, frame
        assert fields["protocol"] == listener.form.dialect, frame
        if envelope.sender == GATEWAY:
            assert envelope.id in self.issued, "forged"
        else:
            assert envelope.sender in senders, "from somebody else"
            assert not envelope.kind.startswith(("system/", "system.")), "only the gateway's"
            kind = fields["kind"]
            assert not kind.startswith(("system/", "system.")), "only the gateway's"
        if listener.form.numbered:
            self.numbered(listener, envelope, fields["seq"])
        return envelope

    def numbered(self, listener: Listener, envelope: Envelope, seq: int) -> None:
        """Check that numbers grow in what is for everybody; the rest may repeat one."""
        numbers = listener.numbers
        whose = getattr(listener, "participant", "")
        private = is_private(envelope) and envelope.to == (whose,)
        again = (
            envelope.sender == whose and self.counters.repeated and seq <= max(numbers, default=seq)
        )
        if not private and not again:
            assert not numbers or seq > numbers[-1], (seq, numbers[-3:])
            numbers.append(seq)

    def complete(self, listener: Listener) -> None:
        """A member heard everything from the first to the last that it heard."""
        numbers = listener.numbers
        if numbers and not self.counters.not_expressible:
            everything = self.everything.numbers
            first = bisect_left(everything, numbers[0])
            assert everything[first : first + len(numbers)] == numbers, (numbers, everything)


def is_private(envelope: Envelope) -> bool:
    """Did the gateway tell this to one participant alone?

    What it ends in its own name after a revocation has a recipient, too, but is for everybody, and
    so is a stream's opening.
    """
    ends = envelope.kind in {MCP_REQUEST, MCP_WITHDRAW, STREAM_OPEN}
    return envelope.sender == GATEWAY and bool(envelope.to) and not ends


def whom(envelope: Envelope) -> tuple[str, ...]:
    """The participants that an envelope names; where a proposal names its executor, that one."""
    if envelope.kind != MCP_PROPOSAL:
        return envelope.to
    named = read_addressees(envelope, read_proposal(envelope.payload))
    return named.deciders if named.executor is None else (named.executor,)


def same_for_all(envelopes: list[Envelope]) -> None:
    """An envelope is the same for everybody, in whatever dialect it came."""
    first, *others = envelopes
    for other in others:
        assert (whom(other), other.kind, other.context, other.ts) == (
            whom(first),
            first.kind,
            first.context,
            first.ts,
        )


def run(data: bytes) -> None:
    """Play the lines of an input."""
    with checked_log():
        play(data)


def play(data: bytes) -> None:
    """Everybody joins, sends and leaves as the lines say."""
    world = World()
    for line in data.split(b"\n")[:MAX_STEPS]:
        world.now += 1_000
        first, rest = line[:1], line[1:].strip(b" ") if line[:1] != b"d" else line[2:]
        senders = set(NAMES)
        if first == b"-" and rest[:1] in WHO:
            world.leave(WHO[rest[:1]][0])
        elif first == b"+":
            world.watch(rest)
        elif first == b"*" and rest[:1] in WHO:
            world.observe(*WHO[rest[:1]], rest[1:].strip())
        elif first == b"!" and rest[:1] in WHO:
            world.observer_says(WHO[rest[:1]][0], world.expanded(rest[2:]))
        elif first == b"~" and rest[:1] in WHO and WHO[rest[:1]][0] in world.members:
            member = world.members[WHO[rest[:1]][0]]
            member.paused = not member.paused
        elif first == b"&" and rest[:1] in WHO:
            times, _, said = rest[2:].partition(b" ")
            number = int(times) if times.isdigit() and len(times) < 5 else 1
            frame = world.expanded(said)[:MAX_FLOOD]
            for _ in range(min(number, MAX_FLOOD)):
                world.say(*WHO[rest[:1]], frame)
        elif first.lower() in WHO and first.isupper() and first != b"A":
            world.join(*WHO[first.lower()], rest)
        elif first in WHO:
            senders = {WHO[first][0]}
            if any(member.last_seen is not None for member in world.members.values()):
                senders = set(NAMES)  # somebody may still read what it missed
            world.say(*WHO[first], world.expanded(line[2:]))
        world.settle(senders)
    restarted(world)


def restarted(world: World) -> None:
    """Check that a gateway begins again with what the journal holds."""
    for listener in (*world.members.values(), *world.watchers, *world.observers):
        world.complete(listener)
    world.host.close(1012, "restart")
    world.later.clear()
    world.members.clear()
    world.watchers.clear()
    world.observers.clear()
    world.host = world.new_host()
    world.everything = world.watch(b"0")
    world.settle(set(NAMES))
    for name, dialect in WHO.values():
        if name != "absent":
            world.join(name, dialect, b"1000000")
    world.settle(set(NAMES))
