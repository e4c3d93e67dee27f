"""Who hears what is said in a space, and in which form."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from meup_agent.errors import NotExpressible
from meup_agent.protocol.dialects import encode
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.resume import numbered, replayed
from meup_agent.protocol.space.counters import Counters
from meup_agent.protocol.space.journal import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.space.counters import Counters
    from meup_agent.protocol.space.journal import Entry, Journal
    from meup_agent.protocol.space.presence import ReplayedEnvelope


class FrameFormat(NamedTuple):
    """How somebody takes what is said: whatever has the same form is made once for all of them.

    Attributes:
        dialect: The dialect.
        numbered: Each frame says its number as ``seq`` (PROTOCOL 6).
        pack: Makes of a frame what is handed to :meth:`Subscriber.deliver`.
    """

    dialect: str
    numbered: bool = False
    pack: Callable[[bytes], bytes] = bytes


class Subscriber(Protocol):
    """Somebody who hears what is said in a space."""

    @property
    def form(self) -> FrameFormat:
        """How it takes what is said."""
        ...

    def deliver(self, packed: bytes) -> None:
        """Take a frame, packed once for all. Never raises, and never calls the host."""
        ...

    def close(self, code: int, reason: str) -> None:
        """End: it hears nothing more. Never raises, and never calls the host."""
        ...

    def ready(self, then: Callable[[], None]) -> None:
        """Call when most of what was delivered is on its way; not at all if it has ended."""
        ...


class Member(Subscriber, Protocol):
    """A participant's connection at the gateway."""

    @property
    def participant(self) -> str:
        """Whose connection it is."""
        ...

    @property
    def last_seen(self) -> int | None:
        """The number of the last envelope that it got before; ``None``: it does not resume."""
        ...

    @property
    def observes(self) -> bool:
        """Whether it only looks on (PROTOCOL 3)."""
        ...


class Backpressure(Protocol):
    """Tells whether senders have to wait for somebody who reads slowly."""

    @property
    def filling(self) -> bool:
        """Whether a queue is filling that is worth waiting for."""
        ...

    @property
    def patience(self) -> float:
        """Seconds for which senders wait for one reader at most."""
        ...

    def wait(self, sender: str) -> float:
        """Seconds for which a loud sender waits before it asks again; 0: it need not."""
        ...


class _NoBackpressure:
    """Nobody waits for anybody: queues that are full are closed."""

    filling = False
    patience = 0.0

    def wait(self, sender: str) -> float:
        return 0.0


NO_BACKPRESSURE: Final[Backpressure] = _NoBackpressure()


class SubscriberTable:
    """Those who hear what is said, by form."""

    def __init__(self) -> None:
        # By identity: two connections of a participant can be here for a moment.
        self._by_form: dict[FrameFormat, dict[int, Subscriber]] = {}
        self._by_name: dict[str, Subscriber] = {}
        self._catching_up: dict[int, ResumeReader] = {}

    def add(self, listener: Subscriber) -> None:
        """Let somebody hear what is said from now on."""
        self._catching_up.pop(id(listener), None)
        self._by_form.setdefault(listener.form, {})[id(listener)] = listener
        name = _name(listener)
        if name is not None:
            self._by_name[name] = listener

    def catch_up(self, catch_up: ResumeReader) -> None:
        """Let somebody read what it missed first."""
        self._catching_up[id(catch_up.listener)] = catch_up
        catch_up.step()

    def remove(self, listener: Subscriber) -> None:
        """Let somebody hear nothing more; who is not here changes nothing."""
        waiting = self._catching_up.pop(id(listener), None)
        if waiting is not None:
            waiting.stop()
        group = self._by_form.get(listener.form)
        if group is not None and group.pop(id(listener), None) is not None:
            if not group:
                del self._by_form[listener.form]
            name = _name(listener)
            if name is not None and self._by_name.get(name) is listener:
                del self._by_name[name]

    def clear(self) -> None:
        """Take everybody out."""
        for waiting in self._catching_up.values():
            waiting.stop()
        self._by_form.clear()
        self._by_name.clear()
        self._catching_up.clear()

    def deliver(self, entry: Entry, frame: Callable[[Entry, FrameFormat], bytes | None]) -> int:
        """Hand an entry to everybody, made once for each form; how many got it.

        Those that it names come first: somebody waits for them, and not for the onlookers.
        """
        made = {form: frame(entry, form) for form in self._by_form}
        first = self._named(entry.envelope.to)
        for listener in first:
            packed = made[listener.form]
            if packed is not None:
                listener.deliver(packed)
        delivered = 0
        for form, group in self._by_form.items():
            packed = made[form]
            if packed is None:
                continue
            delivered += len(group)
            if first:
                for listener in group.values():
                    if listener not in first:
                        listener.deliver(packed)
            else:
                for listener in group.values():
                    listener.deliver(packed)
        return delivered

    def tell(self, listener: Subscriber, packed: bytes | None) -> None:
        """Hand something to one of them alone, after what it still has to read."""
        if packed is None:
            return
        waiting = self._catching_up.get(id(listener))
        if waiting is None:
            listener.deliver(packed)
        else:
            waiting.hold(packed)

    def _named(self, names: tuple[str, ...]) -> Collection[Subscriber]:
        """Those of these names who are here, each once."""
        here = self._by_name
        # Most envelopes name one, and looking into a tuple of one takes no hash.
        if len(names) == 1:
            name = names[0]
            return (here[name],) if name in here else ()
        return dict.fromkeys(here[name] for name in names if name in here)


def _name(listener: Subscriber) -> str | None:
    # An observer has its participant's name, and would stand in the way of the real member.
    return None if getattr(listener, "observes", False) else getattr(listener, "participant", None)


PAGE: Final = 500
"""Entries that are read at a time, so that others are heard in between."""

MAX_HELD: Final = 1_000
"""Frames that wait for somebody who is still reading what it missed."""

TOO_SLOW: Final = 1013


class ResumeReader:
    """One listener that reads what it missed.

    Args:
        listener: Who.
        seen: The number of the last entry that it has.
        space: The space's name.
        journal: Where what it missed stands.
        delivered: Tells the number of the last entry that everybody else got.
        gap: It was told that some of what it missed is not kept any more, and takes what there is
            from then on.
        frame: An entry in the listener's form.
        done: Takes the listener when it has read everything.
    """

    def __init__(
        self,
        listener: Subscriber,
        seen: int,
        *,
        space: str,
        journal: Journal,
        delivered: Callable[[], int],
        frame: Callable[[Entry, FrameFormat], bytes | None],
        done: Callable[[Subscriber], None],
        gap: bool = False,
    ) -> None:
        self.listener = listener
        self._seen = self._until = seen
        self._space = space
        self._journal = journal
        self._delivered = delivered
        self._frame = frame
        self._done = done
        self._gap = gap
        self._held: list[bytes] = []
        self._stopped = False

    def step(self) -> None:
        """Read the next page, or be done."""
        if self._stopped:
            return
        if self._gap:
            self._seen = max(self._seen, self._journal.floor(self._space))
        self._until = until = self._delivered()
        if self._seen >= until:
            self._stopped = True
            self._done(self.listener)
            for packed in self._held:
                self.listener.deliver(packed)
        elif not self._too_late():
            self._journal.read(
                self._space, after=self._seen, until=until, limit=PAGE, then=self._take
            )

    def hold(self, packed: bytes) -> None:
        """Keep a frame that is for this listener alone until it has read what it missed."""
        self._held.append(packed)
        if len(self._held) > MAX_HELD:
            self.listener.close(TOO_SLOW, "you read too slowly; connect again")

    def stop(self) -> None:
        """Read no more."""
        self._stopped = True

    def _take(self, entries: tuple[Entry, ...]) -> None:
        # Looked at again: some may have been dropped before they were read.
        if self._stopped or self._too_late():
            return
        self._gap = False
        for entry in entries:
            packed = self._frame(entry, self.listener.form)
            if packed is not None:
                self.listener.deliver(packed)
        # Nothing came: the rest of the numbers are other spaces'.
        self._seen = entries[-1].seq if entries else self._until
        self.listener.ready(self.step)

    def _too_late(self) -> bool:
        """Whether what comes next is not kept any more; then it ends, to be told of the gap."""
        if self._gap or self._seen >= self._journal.floor(self._space):
            return False
        self.listener.close(TOO_SLOW, "you read too slowly; connect again")
        return True


class Fanout:
    """Who hears what is said, from when on, and how it is written for them.

    Args:
        space: The space's name.
        journal: Where what somebody missed is read.
        counters: Where to count.
    """

    def __init__(self, space: str, journal: Journal, counters: Counters) -> None:
        self._space = space
        self._journal = journal
        self._counters = counters
        self._listeners = SubscriberTable()
        self._watchers: dict[int, Subscriber] = {}
        self._translations = EncodedCache(counters)
        self._delivered = journal.latest(space)

    @property
    def delivered(self) -> int:
        """The number of the last envelope that everybody got."""
        return self._delivered

    # --- coming and going -----------------------------------------------------------------

    def begin(self, seen: int | None) -> int | None:
        """From which number on somebody hears who has seen one; ``None``: from now on."""
        return None if seen is None else self._journal.begin(self._space, seen)

    def enter(
        self,
        member: Member,
        welcome: Envelope,
        begin: int | None,
        replays: Iterable[ReplayedEnvelope] = (),
    ) -> None:
        """Welcome a member, and let it hear what comes, or from a number on.

        Args:
            member: The newcomer.
            welcome: For it alone.
            begin: The number; ``None``: from now on.
            replays: Open proposals that it is told of before anything else.
        """
        # Whoever is lost after the welcome has read nothing yet of what it missed.
        seq = self._delivered if begin is None else begin
        self._tell(member, welcome, seq)
        for replay in replays:
            self._replay(member, replay, seq)
        if begin is None:
            self._listeners.add(member)
        else:
            self._catch_up(member, begin, gap=begin != member.last_seen)

    def watch(self, listener: Subscriber, last_seen: int | None) -> None:
        """Let somebody listen who is not in the space, to what comes, or from a number on."""
        self._watchers[id(listener)] = listener
        begin = self.begin(last_seen)
        self._journal.after(partial(self._begin_watch, listener, last_seen, begin))

    def unwatch(self, listener: Subscriber) -> None:
        """Let somebody listen no more."""
        self._watchers.pop(id(listener), None)
        self._listeners.remove(listener)

    def remove(self, member: Member) -> None:
        """Let a member hear nothing more."""
        self._listeners.remove(member)

    def clear(self) -> tuple[Subscriber, ...]:
        """Let nobody hear anything more; those who were not in the space."""
        watchers = tuple(self._watchers.values())
        self._watchers = {}
        self._listeners.clear()
        return watchers

    def _begin_watch(self, listener: Subscriber, last_seen: int | None, begin: int | None) -> None:
        if id(listener) not in self._watchers:
            return
        if begin is None:
            self._listeners.add(listener)
        else:
            self._catch_up(listener, begin, gap=begin != last_seen)

    def _catch_up(self, listener: Subscriber, seen: int, *, gap: bool) -> None:
        self._listeners.catch_up(
            ResumeReader(
                listener,
                seen,
                space=self._space,
                journal=self._journal,
                delivered=lambda: self._delivered,
                gap=gap,
                frame=self.frame,
                done=self._listeners.add,
            )
        )

    # --- what they hear -------------------------------------------------------------------

    def deliver(self, entry: Entry) -> None:
        """The one place where an envelope goes to everybody, in the order that all see."""
        self._delivered = entry.seq
        self._counters.delivered += self._listeners.deliver(entry, self.frame)

    def tell(self, member: Member, envelope: Envelope) -> None:
        """Tell one member alone, at this place in the order."""
        self._tell(member, envelope, self._delivered)

    def tell_again(self, member: Member, entry: Entry) -> None:
        """Tell one member an entry that everybody got before."""
        self._listeners.tell(member, self.frame(entry, member.form))

    def frame(self, entry: Entry, form: FrameFormat) -> bytes | None:
        """An entry as it travels to those who take this form; ``None`` if it cannot be said so."""
        frame = self._translations.frame(entry.envelope, form.dialect)
        if frame is None:
            return None
        return form.pack(numbered(frame, entry.seq) if form.numbered else frame)

    def _replay(self, member: Member, replay: ReplayedEnvelope, seq: int) -> None:
        """Tell one member an envelope of before, which has the number of its welcome."""
        frame = self._translations.frame(replay.envelope, member.form.dialect)
        if frame is not None:
            marked = replayed(frame, seq, in_progress=replay.in_progress)
            self._listeners.tell(member, member.form.pack(marked))
            self._counters.delivered += 1

    def _tell(self, member: Member, envelope: Envelope, seq: int) -> None:
        # It has no number of its own: who resumes from this one has seen what came before.
        entry = Entry(seq, self._space, 0, envelope)
        self._listeners.tell(member, self.frame(entry, member.form))
        self._counters.delivered += 1


log = logging.getLogger("meup_agent.gateway")


class EncodedCache:
    """Translates an envelope once for each dialect, however many forms there are of it.

    Args:
        counters: Where to count what a dialect has no words for.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._said: Envelope | None = None
        self._frames: dict[str, bytes | None] = {}

    def frame(self, envelope: Envelope, dialect: str) -> bytes | None:
        """An envelope in a dialect; ``None`` if it has no words for it, which is logged."""
        if envelope.frame and envelope.protocol == dialect:
            return envelope.frame
        if envelope is not self._said:
            self._said, self._frames = envelope, {}
        if dialect not in self._frames:
            self._frames[dialect] = self._translated(envelope, dialect)
        return self._frames[dialect]

    def _translated(self, envelope: Envelope, dialect: str) -> bytes | None:
        try:
            return encode(envelope, dialect)
        except NotExpressible as error:
            self._counters.not_expressible += 1
            log.warning("left out for those who speak %s: %s", dialect, error)
            return None
