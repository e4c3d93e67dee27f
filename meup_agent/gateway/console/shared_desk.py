"""Shared desks: one inbox for all people of a space whose inboxes show the same.

An inbox depends on whose it is in a few points alone: what its participant may, what it has
proposed or rejected itself, what is addressed to it, and where its vote counts. People with the
same capabilities whom no open proposal names so see the same, and follow one inbox, by the session
of one of them. Its envelopes are read once, its rows rendered once, and each browser gets the same
bytes. Who is named, or decides, has a desk of its own for as long (:mod:`.presence`).
"""

from __future__ import annotations

import json
import secrets
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from meup_agent.approval import Inbox
from meup_agent.approval.inbox_listing import pause_for_screen
from meup_agent.client.space import Space
from meup_agent.errors import MeupError
from meup_agent.gateway.console.feed import InboxFeed, proposed_in
from meup_agent.gateway.logs import log, quote
from meup_agent.protocol.exchange import ProposalKey
from meup_agent.transport.loops import Condition

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from anyio.abc import TaskGroup

    from meup_agent.gateway.auth import Identity
    from meup_agent.gateway.console.desk import DeskOpener
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import ProposalEntry
    from meup_agent.protocol.space.server import SpaceServer

ANYBODY: Final = f"anybody-{secrets.token_hex(16)}"
"""The participant whose inbox a shared one is: nothing is proposed by it, or addressed to it."""

STREAM_SECONDS: Final = 2.0
"""Seconds that a desk of many proposals waits for its first event stream before it reads the rest
of them: a browser without a script opens none."""


class DeskSharer(Protocol):
    """A person who shares a desk, as far as the desk knows one."""

    ended: bool

    @property
    def changed(self) -> Condition:
        """Notified when it needs another desk."""
        ...

    @property
    def identity(self) -> Identity:
        """The participant."""
        ...

    def want_own(self) -> None:
        """Be told that a proposal names the person, who needs a desk of their own."""
        ...

    def fail(self, error: MeupError) -> None:
        """End, since the session that it gives the desk was ended or cannot be had."""
        ...


class SharedSpace(Space):
    """A space as all see it who may do the same, by the session of one of them."""

    @property
    def me(self) -> str:
        """None of those who share it."""
        return ANYBODY

    def may(self, kind: str, payload: Any, *, to: Sequence[str] = ()) -> bool:
        """True if the capabilities that all of them have allow an envelope."""
        return self._session.table.roster.is_allowed(self._session.me, kind, payload, to)


class NamedPeople:
    """The participants that have a part of their own in open proposals, by these."""

    def __init__(self) -> None:
        self._names: dict[ProposalKey, frozenset[str]] = {}
        self._proposals: dict[str, dict[ProposalKey, None]] = {}

    def note(self, key: ProposalKey, names: frozenset[str]) -> frozenset[str]:
        """Know the names in an open proposal, none of one that is decided; those that are new."""
        before = self._names.pop(key, frozenset())
        if names:
            self._names[key] = names
        for name in before - names:
            held = self._proposals[name]
            del held[key]
            if not held:
                del self._proposals[name]
        for name in names - before:
            self._proposals.setdefault(name, {})[key] = None
        return names - before

    def in_proposal(self, key: ProposalKey) -> frozenset[str]:
        """The participants that have a part of their own in a proposal."""
        return self._names.get(key, frozenset())

    def of(self, name: str) -> tuple[ProposalKey, ...]:
        """The open proposals in which a participant has a part."""
        return tuple(self._proposals.get(name, ()))


class SharedInbox(Inbox):
    """The inbox of all who share a desk; nothing is decided in it.

    Args:
        space: The space, by the session of one of them.
        told: Handed each proposal that was looked at.
        heard: Called after each envelope.
    """

    def __init__(
        self,
        space: Space,
        told: Callable[[SharedInbox, ProposalEntry], None],
        heard: Callable[[Envelope], None],
        **given: Any,
    ) -> None:
        super().__init__(SharedSpace(space._session), **given)  # pyright: ignore[reportPrivateUsage]
        self._told = told
        self._heard = heard

    def put(self, envelope: Envelope) -> None:
        """Look at what an envelope may have changed, and for whom that is another thing."""
        super().put(envelope)
        self._heard(envelope)

    def _update_item(self, entry: ProposalEntry, *, is_new: bool = True) -> None:
        super()._update_item(entry, is_new=is_new)
        self._told(self, entry)

    def is_pending(self, key: ProposalKey) -> bool:
        """True for a proposal that is open."""
        entry = self._feed.get(key)
        return entry is not None and entry.state.is_pending

    def names_in(self, entry: ProposalEntry) -> frozenset[str]:
        """The participants that have a part of their own in a proposal, while it is open."""
        if not entry.state.is_pending:
            return frozenset()
        envelope = entry.envelope
        # Of one that waits the call is read already, which may take a second.
        held = self._queue.get(entry.key)
        rule = self._rules.rule_for(entry, entry.call if held is None else held.item.call)
        voters = rule.among if rule is not None and rule.is_quorum else ()
        return frozenset((envelope.sender, *envelope.to, *entry.rejections, *voters))


class SharedDesk:
    """The desk of people of a space who may do the same."""

    def __init__(self, opener: DeskOpener, space: str, key: str, base: str) -> None:
        self._inbox: SharedInbox
        self.feed: InboxFeed
        self.ready = anyio.Event()
        self.ended = False
        self._opener = opener
        self._space = space
        self._key = key
        self._base = base
        self._people: dict[str, DeskSharer] = {}
        self._named = NamedPeople()
        self._leader: DeskSharer | None = None
        self._following = anyio.CancelScope()
        self._streams_changed = Condition()
        self._changes = -1

    @property
    def _host(self) -> SpaceServer:
        return self._opener.runtime.spaces[self._space]

    # --- who shares it ---

    @contextmanager
    def sharing(self, presence: DeskSharer) -> Generator[None]:
        """Let a person share the desk for the length of a block."""
        name = presence.identity.participant
        self._people[name] = presence
        try:
            yield
        finally:
            if self._people.get(name) is presence:
                del self._people[name]
            if presence is self._leader:
                self._following.cancel()

    def fits(self, presence: DeskSharer) -> bool:
        """True while a person may do what all here may."""
        return not self.ended and key_of(self._host, presence.identity) == self._key

    def names(self, presence: DeskSharer) -> bool:
        """True if a person has a part of its own in an open proposal."""
        return any(map(self._inbox.is_pending, self._named.of(presence.identity.participant)))

    @property
    def inbox(self) -> Inbox:
        """The inbox that is shared."""
        return self._inbox

    # --- following the space ---

    async def run(self) -> None:
        """Follow the space by the session of one person after the other, until none is left."""
        try:
            while self._people:
                leader = self._leader = self._choose_leader()
                with anyio.CancelScope() as self._following:
                    try:
                        await self._follow(leader)
                    except MeupError as error:
                        leader.fail(error)
                    except Exception as error:
                        # One person's trouble must not end the pages of the others.
                        log.exception("console: the desk of %s failed", quote(self._space))
                        leader.fail(MeupError(type(error).__name__))
                if self._people.get(leader.identity.participant) is leader and leader.ended:
                    # It is about to go by itself; the others go on.
                    del self._people[leader.identity.participant]
        finally:
            self.ended = True
            self.ready.set()
            for each in tuple(self._people.values()):
                each.changed.notify_all()

    def _choose_leader(self) -> DeskSharer:
        """The first person without an agent here, else the first: no agent is asked for rules."""
        people = self._people
        free = (each for name, each in people.items() if self._host.delivery.member(name) is None)
        return next(free, next(iter(people.values())))

    async def _follow(self, leader: DeskSharer) -> None:
        # What is known already counts until all is read anew.
        named = NamedPeople()
        make = partial(SharedInbox, told=partial(self._note, named), heard=self._hear)
        async with self._opener.open(leader.identity, make, self._until_drawn) as desk:
            inbox = desk.inbox
            assert isinstance(inbox, SharedInbox)
            for record in desk.space.proposals:
                if record.state.is_pending:
                    parts = (record.proposer, *record.to, *(each.by for each in record.rejections))
                    key = ProposalKey(record.proposer, record.id)
                    self._give_own_desks(named.note(key, named.in_proposal(key).union(parts)))
            self._inbox, self._named = inbox, named
            if not self.ready.is_set():
                changed = self._streams_changed.notify_all
                since = partial(proposed_in, self._host)
                self.feed = InboxFeed(inbox, self._base, since, streams_changed=changed)
                self.ready.set()
            await self.feed.follow(inbox)

    async def _until_drawn(self) -> None:
        """Wait until a browser has had time to draw the first page."""
        # Its stream is opened by the page's script. Reading the rest takes seconds of a core, which
        # a browser on the same machine would lack for its first paint.
        with anyio.move_on_after(STREAM_SECONDS):
            while not (self.ready.is_set() and self.feed.queues):
                await self._streams_changed.wait()
        await pause_for_screen()

    def _note(self, named: NamedPeople, inbox: SharedInbox, entry: ProposalEntry) -> None:
        self._give_own_desks(named.note(entry.key, inbox.names_in(entry)))

    def _give_own_desks(self, names: Iterable[str]) -> None:
        """Give those a desk of their own who are named."""
        for name in names:
            presence = self._people.get(name)
            if presence is not None:
                presence.want_own()

    def _hear(self, envelope: Envelope) -> None:
        del envelope
        changes = self._host.owner.grants.changes
        if changes != self._changes:
            self._changes = changes
            for presence in tuple(self._people.values()):
                if not self.fits(presence):
                    presence.changed.notify_all()


class SharedDesks:
    """The shared desks of a gateway, which are there while people share them."""

    def __init__(self, opener: DeskOpener, tasks: TaskGroup, base: str) -> None:
        self._opener = opener
        self._tasks = tasks
        self._base = base
        self._desks: dict[tuple[str, str], SharedDesk] = {}

    @contextmanager
    def sharing(self, presence: DeskSharer) -> Generator[SharedDesk]:
        """Let a person share the desk of those who may do the same, for the length of a block."""
        space = presence.identity.space
        key = key_of(self._opener.runtime.spaces[space], presence.identity)
        desk = self._desks.get((space, key))
        is_new = desk is None or desk.ended
        if desk is None or desk.ended:
            desk = SharedDesk(self._opener, space, key, self._base)
            self._desks[space, key] = desk
        with desk.sharing(presence):
            if is_new:
                self._tasks.start_soon(self._run, desk, (space, key))
            yield desk

    async def _run(self, desk: SharedDesk, place: tuple[str, str]) -> None:
        try:
            await desk.run()
        finally:
            if self._desks.get(place) is desk:
                del self._desks[place]


def key_of(host: SpaceServer, identity: Identity) -> str:
    """The capabilities of a participant, as text; people with the same share a desk."""
    if identity.participant not in host.owner.grants:
        return f"none of the space: {json.dumps(identity.participant)}"
    return json.dumps(host.owner.grants[identity.participant].patterns, sort_keys=True)
