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
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from meup_agent.approval import Inbox
from meup_agent.approval.inbox_listing import pause_for_screen
from meup_agent.client.space import Space
from meup_agent.errors import MeupError
from meup_agent.gateway.console.feed import InboxFeed, proposed_in
from meup_agent.gateway.logs import log, quote
from meup_agent.protocol.exchange import ProposalKey

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meup_agent.gateway.auth import Identity
    from meup_agent.gateway.console.desk import DeskOpener, PersonPresence
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import ProposalEntry
    from meup_agent.protocol.space.server import SpaceServer

ANYBODY: Final = f"anybody-{secrets.token_hex(16)}"
"""The participant whose inbox a shared one is: nothing is proposed by it, or addressed to it."""

STREAM_SECONDS: Final = 2.0
"""Seconds that a desk of many proposals waits for its first event stream before it reads the rest
of them: a browser without a script opens none."""


class SharedSpace(Space):
    """A space as all see it who may do the same, by the session of one of them."""

    @property
    def me(self) -> str:
        """None of those who share it."""
        return ANYBODY

    def may(self, kind: str, payload: Any, *, to: Sequence[str] = ()) -> bool:
        """True if the capabilities that all of them have allow an envelope."""
        return self._session.table.roster.is_allowed(self._session.me, kind, payload, to)


class SharedInbox(Inbox):
    """The inbox of all who share a desk; nothing is decided in it.

    Args:
        space: The space, by the session of one of them.
        told: Handed each proposal that was looked at, and the participants that it names.
        heard: Called after each envelope.
    """

    def __init__(
        self,
        space: Space,
        told: Callable[[ProposalKey, frozenset[str]], None],
        heard: Callable[[], None],
        **given: Any,
    ) -> None:
        super().__init__(SharedSpace(space._session), **given)  # pyright: ignore[reportPrivateUsage]
        self._told = told
        self._heard = heard

    def put(self, envelope: Envelope) -> None:
        """Look at what an envelope may have changed, and for whom that is another thing."""
        super().put(envelope)
        self._heard()

    def _update_item(self, entry: ProposalEntry, *, is_new: bool = True) -> None:
        super()._update_item(entry, is_new=is_new)
        self._told(entry.key, self.names_in(entry))

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
    """The desk of people of a space who may do the same, by the session of one of them.

    Args:
        opener: Opens it.
        leader: The person by whose session it follows the space; without them it is over.
        key: What all who share it may, as text.
        base: The path of the console.
    """

    def __init__(self, opener: DeskOpener, leader: PersonPresence, key: str, base: str) -> None:
        self.inbox: SharedInbox
        self.feed: InboxFeed
        self.leader = leader
        self.people: dict[str, PersonPresence] = {}
        self.ready = anyio.Event()
        self.ended = False
        self._opener = opener
        self._host = opener.runtime.spaces[leader.identity.space]
        self._key = key
        self._base = base
        # The participants that open proposals name.
        self._named: dict[ProposalKey, frozenset[str]] = {}
        self._following = anyio.CancelScope()
        self._changes = -1

    def fits(self, presence: PersonPresence) -> bool:
        """True while a person may do what all here may."""
        return not self.ended and sharing_key(self._host, presence.identity) == self._key

    def names(self, presence: PersonPresence) -> bool:
        """True if a person has a part of its own in an open proposal, as far as is heard here."""
        name = presence.identity.participant
        return not self.ended and any(
            name in names and self.inbox.is_pending(key) for key, names in self._named.items()
        )

    async def run(self) -> None:
        """Follow the space until the desk is over."""
        try:
            with self._following:
                await self._follow()
        except MeupError as error:
            self.leader.fail(error)
        except Exception as error:
            # One person's trouble must not end the pages of the others.
            log.exception("console: the desk of %s failed", quote(self._host.name))
            self.leader.fail(MeupError(type(error).__name__))
        finally:
            self.end()

    def end(self) -> None:
        """Be over: all who share it go on at another desk."""
        self.ended = True
        self._following.cancel()
        self.ready.set()
        for each in tuple(self.people.values()):
            each.changed.notify_all()

    async def _follow(self) -> None:
        make = partial(
            SharedInbox, told=self._note, heard=self._hear, until_drawn=self._until_drawn
        )
        async with self._opener.open(self.leader.identity, make) as desk:
            inbox = desk.inbox
            assert isinstance(inbox, SharedInbox)
            for record in desk.space.proposals:
                if record.state.is_pending:
                    parts = (record.proposer, *record.to, *(each.by for each in record.rejections))
                    key = ProposalKey(record.proposer, record.id)
                    self._note(key, self._named.get(key, frozenset()).union(parts))
            self.inbox = inbox
            since = partial(proposed_in, self._host)
            self.feed = InboxFeed(inbox, self._base, since, self.leader.last_feed)
            self.ready.set()
            await self.feed.follow()

    async def _until_drawn(self) -> None:
        """Wait until a browser has had time to draw the first page."""
        # Its stream is opened by the page's script. Reading the rest takes seconds of a core, which
        # a browser on the same machine would lack for its first paint.
        with anyio.move_on_after(STREAM_SECONDS):
            while not self.leader.streams:
                await self.leader.changed.wait()
        await pause_for_screen()

    def _note(self, key: ProposalKey, names: frozenset[str]) -> None:
        """Know the names in a proposal, none once it is decided; who is new has its own desk."""
        before = self._named.pop(key, frozenset())
        if names:
            self._named[key] = names
        for name in names - before:
            if name in self.people:
                self.people[name].want_own()

    def _hear(self) -> None:
        changes = self._host.owner.grants.changes
        if changes != self._changes:
            self._changes = changes
            for presence in tuple(self.people.values()):
                if not self.fits(presence):
                    presence.changed.notify_all()


def sharing_key(host: SpaceServer, identity: Identity) -> str:
    """The capabilities of a participant, as text; people with the same share a desk."""
    if identity.participant not in host.owner.grants:
        return f"none of the space: {json.dumps(identity.participant)}"
    return json.dumps(host.owner.grants[identity.participant].patterns, sort_keys=True)
