"""Those who hear what is said in a space: what was accepted becomes frames here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from meup_agent.protocol.resume import numbered, replayed
from meup_agent.protocol.space.catch_up import CatchUp
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.listeners import Listeners
from meup_agent.protocol.space.translations import Translations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.space.counters import Counters
    from meup_agent.protocol.space.journal import Journal
    from meup_agent.protocol.space.listeners import Form, Listener, Member
    from meup_agent.protocol.space.replays import Replay


class Audience:
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
        self._listeners = Listeners()
        self._watchers: dict[int, Listener] = {}
        self._translations = Translations(counters)
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
        replays: Iterable[Replay] = (),
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

    def watch(self, listener: Listener, last_seen: int | None) -> None:
        """Let somebody listen who is not in the space, to what comes, or from a number on."""
        self._watchers[id(listener)] = listener
        begin = self.begin(last_seen)
        self._journal.after(partial(self._begin_watch, listener, last_seen, begin))

    def unwatch(self, listener: Listener) -> None:
        """Let somebody listen no more."""
        self._watchers.pop(id(listener), None)
        self._listeners.remove(listener)

    def remove(self, member: Member) -> None:
        """Let a member hear nothing more."""
        self._listeners.remove(member)

    def clear(self) -> tuple[Listener, ...]:
        """Let nobody hear anything more; those who were not in the space."""
        watchers = tuple(self._watchers.values())
        self._watchers = {}
        self._listeners.clear()
        return watchers

    def _begin_watch(self, listener: Listener, last_seen: int | None, begin: int | None) -> None:
        if id(listener) not in self._watchers:
            return
        if begin is None:
            self._listeners.add(listener)
        else:
            self._catch_up(listener, begin, gap=begin != last_seen)

    def _catch_up(self, listener: Listener, seen: int, *, gap: bool) -> None:
        self._listeners.catch_up(
            CatchUp(
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

    def frame(self, entry: Entry, form: Form) -> bytes | None:
        """An entry as it travels to those who take this form; ``None`` if it cannot be said so."""
        frame = self._translations.frame(entry.envelope, form.dialect)
        if frame is None:
            return None
        return form.pack(numbered(frame, entry.seq) if form.numbered else frame)

    def _replay(self, member: Member, replay: Replay, seq: int) -> None:
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
