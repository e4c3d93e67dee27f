"""The presences of signed-in participants: one of each, whatever browsers and tabs it has open.

By an inbox session a participant is at work: its session in the gateway's process, and the inbox
over it. A person who only looks shares the inbox session of all who see the same; one who decides,
or whom an open proposal names, has one of its own for as long.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
from anyio.abc import TaskGroup

from meup_agent.approval import (
    Inbox,
    InboxChange,
    InboxItem,
    InboxRenewed,
    ItemArrived,
    ItemChanged,
    ItemLeft,
)
from meup_agent.approval.inbox.item import (
    MAX_TOGETHER,
    QueueRow,
    group_of,
    pause_for_screen,
    queue_rows,
)
from meup_agent.client.space import Space
from meup_agent.errors import MeupError
from meup_agent.gateway.auth import UNAVAILABLE, Identity, NotAdmitted
from meup_agent.gateway.console.event_queue import (
    GATHER_SECONDS,
    EventQueue,
    EventQueues,
    OutcomeNotice,
    pack,
)
from meup_agent.gateway.console.local_session import LocalSession, check_entry, is_for_inbox
from meup_agent.gateway.console.sign_in import RequestDenied
from meup_agent.gateway.console.templating import key_of, make_environment
from meup_agent.gateway.logs import log, quote
from meup_agent.gateway.runtime import RESTARTING, GatewayRuntime
from meup_agent.gateway.server import CONSOLE_PATH
from meup_agent.protocol.exchange import ProposalEntry, ProposalKey
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.link import FrameFormat, Place, UnqueuedSubscriber
from meup_agent.protocol.space.owner import SpaceServer
from meup_agent.protocol.space.state.grants import KICKED_CODE, NO_TOKEN_CODE
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.transport.base import Condition

# --- an inbox session ---

JOIN_SECONDS: Final = 10.0
"""Seconds that a page waits for its participant to have joined."""

MAX_OPENING: Final = 2
"""Inbox sessions that are opened at the same time; others wait their turn."""

IDLE_SECONDS: Final = 60.0
"""Seconds after the last request and the last event stream until a participant leaves: pages follow
one another faster."""


class InboxSession(NamedTuple):
    """A participant at work: its session in the space, and its inbox."""

    space: Space
    inbox: Inbox


class InboxSessionOpener:
    """Opens inbox sessions in the spaces of a gateway."""

    def __init__(self, runtime: GatewayRuntime) -> None:
        self.runtime = runtime
        self._opening = anyio.Semaphore(MAX_OPENING)

    @asynccontextmanager
    async def open(
        self,
        identity: Identity,
        make_inbox: Callable[[Space], Inbox] = Inbox,
    ) -> AsyncGenerator[InboxSession]:
        """An inbox session of a participant, for the length of a block.

        Args:
            identity: The participant.
            make_inbox: Makes its inbox.

        Raises:
            MeupError: It could not join, or its session was ended.
        """
        async with AsyncExitStack() as stack:
            # One proposal may name hundreds of people: the others are served in between.
            async with self._opening:
                session = LocalSession(self.runtime, identity, hears=is_for_inbox)
                space = Space(await stack.enter_async_context(session))
                inbox = make_inbox(space)
                await stack.enter_async_context(inbox)
            yield InboxSession(space, inbox)


class PersonPresence:
    """A participant in its space: its inbox session, its streams, and when it was used last."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.last_feed: InboxFeed | None = None
        """The feed that its browsers were told by last."""
        self.tasks: TaskGroup
        self.ended = False
        self.failure: MeupError | None = None
        self.changed: Final = Condition()
        """Notified when it needs another inbox session or has it, and when a browser listens."""
        self.needs_own = False
        self.own: InboxSession | None = None
        self.is_attached = False
        """True while an inbox session shows what it may see."""
        self._decisions = 0
        self._queues: dict[EventQueue, None] = {}
        self._users = 0
        self._idling = anyio.CancelScope()
        self.touch()

    # --- its use ---

    def touch(self) -> None:
        """Begin to count anew how long it is idle."""
        self._idling.deadline = math.inf if self._users else anyio.current_time() + IDLE_SECONDS

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Keep it from leaving for the length of a block."""
        self._users += 1
        self.touch()
        try:
            yield
        finally:
            self._users -= 1
            self.touch()

    async def until_idle(self) -> None:
        """Wait until it has not been used for a while, or has failed."""
        with self._idling:
            await anyio.sleep_forever()

    async def until_ended(self) -> None:
        while not self.ended:
            await self.changed.wait()

    def fail(self, error: MeupError) -> None:
        """End, since its session was ended or cannot be had."""
        self.failure, self.ended = error, True
        self._idling.cancel()
        self.changed.notify_all()

    def leave(self) -> None:
        """Leave as if it were idle: its space has gone from here."""
        self._idling.cancel()

    def end(self) -> None:
        """Be over: a page that asks now begins a new one."""
        self.ended = True
        self.changed.notify_all()

    # --- its event streams ---

    @property
    def event_streams(self) -> int:
        """Number of its browsers' event streams."""
        return len(self._queues)

    @contextmanager
    def holding(self, queue: EventQueue) -> Generator[None]:
        """Publish to an event stream what its inbox session does, for the length of a block."""
        with self.in_use():
            self._queues[queue] = None
            self.changed.notify_all()
            if self.is_attached:
                self.feed.queues.add(queue)
            try:
                yield
            finally:
                del self._queues[queue]
                if self.is_attached:
                    self.feed.queues.remove(queue)

    def notify(self, notice: OutcomeNotice) -> None:
        """Tell all its browsers what became of a decision."""
        told = notice.packed()
        for queue in self._queues:
            queue.put(told)

    # --- its inbox session ---

    @property
    def feed(self) -> InboxFeed:
        """Tells its browsers of the inbox."""
        assert self.last_feed is not None, "pages wait until it is attached"
        return self.last_feed

    @property
    def inbox(self) -> Inbox:
        """The proposals that wait for it."""
        return self.feed.inbox

    async def until_attached(self) -> None:
        while not self.is_attached and not self.ended:
            await self.changed.wait()

    def attach(self, feed: InboxFeed) -> None:
        """Attach to an inbox session: browsers that show the queue of another one load it anew."""
        if self.is_attached and self.last_feed is feed:
            return
        self.detach()
        self.last_feed, self.is_attached = feed, True
        for queue in self._queues:
            feed.queues.add(queue)
            queue.put(feed.hello())
        self.changed.notify_all()

    def detach(self) -> None:
        """Detach from its inbox session: what that publishes is not for it any more."""
        if self.is_attached:
            self.is_attached = False
            for queue in self._queues:
                self.feed.queues.remove(queue)

    def want_own(self) -> None:
        """Need an inbox session of its own: what others see is not what it sees."""
        self.needs_own = True
        if self.own is None:  # until then its pages show nothing, rather than the others' view
            self.detach()
        self.changed.notify_all()

    @property
    def decides(self) -> bool:
        return self._decisions > 0

    @asynccontextmanager
    async def deciding(self) -> AsyncGenerator[InboxSession]:
        """Its own inbox session, which it keeps for the length of a block.

        Raises:
            RequestDenied: It cannot be had.
        """
        self._decisions += 1
        self.needs_own = True
        self.changed.notify_all()
        try:
            with anyio.move_on_after(JOIN_SECONDS):
                while self.own is None and not self.ended:
                    await self.changed.wait()
            if self.own is None:
                raise denied(self)
            yield self.own
        finally:
            self._decisions -= 1


def denied(presence: PersonPresence) -> RequestDenied:
    """The refusal of a page whose participant is not in its space."""
    if presence.failure is not None:
        return RequestDenied(UNAVAILABLE, f"The space could not be joined: {presence.failure}")
    return RequestDenied(UNAVAILABLE, "The space could not be joined in time; try again.")


# --- feed ---
# An inbox as the browsers that show it are told of it: what came, what went, and why.

QUEUE_ROWS: Final = MAX_TOGETHER
"""Proposals that the queue beside a decision shows; of more it says how many."""

MAX_SAID: Final = 5
"""Changes of one push that are read out; of more it is said how many there were."""


class InboxFeed:
    """Renders the rows of an inbox once for all browsers that show it, and says what changed.

    Each event tells the version that it leads to, and the one that it starts from: a page that has
    another one loads the queue anew.

    Args:
        inbox: The inbox.
        proposed_at: Tells when a proposal came, in seconds since 1970 (UTC), if that is known.
        before: The feed that the same browsers were told by before.
    """

    def __init__(
        self,
        inbox: Inbox,
        proposed_at: Callable[[InboxItem], float | None],
        before: InboxFeed | None = None,
    ) -> None:
        self.queues = EventQueues()
        """The streams of all who see this inbox."""
        self.inbox = inbox
        self.proposed_at = proposed_at
        """Tells since when a proposal waits."""
        self._row = make_environment().get_template("inbox_row.html")
        self._why = make_environment().get_template("inbox_left.html")
        self._epoch = secrets.token_hex(4)
        self._number = 0
        self._visible: dict[str, QueueRow] = self.rows()
        # Where the feed before shows the same, no page has to load it anew.
        same = before is not None and [*before._visible] == [*self._visible]
        self.version: str = before.version if before and same else f"{self._epoch}:0"
        """The state of the queue that the last event led to."""

    @property
    def waiting(self) -> int:
        """The number of proposals that wait; those that are still to be listed count."""
        return len(self.inbox) + self.inbox.unlisted

    def hello(self) -> bytes:
        """The first event of a stream: the version that it begins with."""
        return pack("hello", {"version": self.version, "waiting": self.waiting})

    async def follow(self) -> None:
        """Publish the changes of the inbox, until cancelled."""
        changes = self.inbox.changes()
        published = -math.inf
        async for change in changes:
            # One rendering for all that comes in this time; what comes alone waits for nothing.
            await anyio.sleep(max(published + GATHER_SECONDS - anyio.current_time(), 0.0))
            published = anyio.current_time()
            self._publish([change, *changes.taken()])

    def rows(self) -> dict[str, QueueRow]:
        """The rows of the queue, by their addresses, in their order."""
        rows = queue_rows(self.inbox.items[:QUEUE_ROWS])
        return {item_key(each.item): each for each in rows}

    def _publish(self, changes: list[InboxChange]) -> None:
        shown = self.rows()
        was, before = self.version, self._visible
        places = {key: at for at, key in enumerate(before)}
        self._visible = shown
        self._number += 1
        self.version = f"{self._epoch}:{self._number}"
        if not self.queues.wants("inbox"):
            return  # whoever comes next reads the page as it is then
        altered = {item_key(each.item) for each in changes if isinstance(each, ItemChanged)}
        gone = {item_key(each.item): each for each in changes if isinstance(each, ItemLeft)}
        # From the last to the first, so that the row before which one goes is there.
        puts: list[dict[str, str]] = []
        following, least = "", len(before)
        for key, row in reversed(shown.items()):
            # Before each row that stays there is none that stood behind it.
            stays = places.get(key, len(before)) < least
            if stays:
                least = places[key]
            if not stays or key in altered or before[key] != row:
                html = self._row.render(
                    row=row,
                    key=key,
                    group=row_group(row.item),
                    base=CONSOLE_PATH,
                    current="",
                    me=self.inbox.me,
                    proposed_at=self.proposed_at,
                )
                puts.append({"id": key, "before": following, "html": html})
            following = key
        event: dict[str, Any] = {
            "was": was,
            "version": self.version,
            "waiting": self.waiting,
            "put": puts,
            "drop": sorted(before.keys() - shown.keys()),
            "left": {key: self._why.render(left=left) for key, left in gone.items()},
            "changed": sorted(altered),
            "said": _read_out(changes),
            "renew": any(isinstance(each, InboxRenewed) for each in changes),
        }
        self.queues.publish("inbox", pack("inbox", event))


def proposed_in(host: SpaceServer, item: InboxItem) -> float | None:
    """The time at which a space accepted an open proposal, in seconds since 1970 (UTC)."""
    at = host.owner.proposed_at(item.proposer, item.id)
    return None if at is None else at / 1_000_000


def item_key(item: InboxItem) -> str:
    """The address of a proposal that waits."""
    return key_of(item.proposer, item.id)


def row_group(item: InboxItem) -> str:
    """The group of a row, by which a page marks all of it."""
    return key_of("group", json.dumps(group_of(item)))


def _read_out(changes: list[InboxChange]) -> list[str]:
    """Words for what came and went, for those who do not see it."""
    said: list[str] = []
    for each in changes:
        if isinstance(each, ItemArrived):
            said.append(f"New: {each.item.proposer} proposes {each.item.tool or each.item.method}")
        elif isinstance(each, ItemLeft):
            said.append(f"Gone: {each.item.tool or each.item.method}, {each.words}")
    if len(said) > MAX_SAID:
        return [f"{len(said)} proposals came or went"]
    return [each[:200] for each in said]


# --- shared inbox sessions ---
# One inbox for all people of a space whose inboxes show the same.
#
# An inbox depends on whose it is in a few points alone: what its participant may, what it has
# proposed or rejected itself, what is addressed to it, and where its vote counts. People with the
# same capabilities whom no open proposal names so see the same, and follow one inbox, by the
# session of one of them. Its envelopes are read once, its rows rendered once, and each browser
# gets the same bytes. Who is named, or decides, has an inbox session of its own (`presence`).

ANYBODY: Final = f"anybody-{secrets.token_hex(16)}"
"""The participant whose inbox a shared one is: nothing is proposed by it, or addressed to it."""

STREAM_SECONDS: Final = 2.0
"""Seconds that an inbox session of many proposals waits for its first event stream before it reads
the rest of them: a browser without a script opens none."""


class SharedSpace(Space):
    """A space as all see it who may do the same, by the session of one of them."""

    @property
    def me(self) -> str:
        """None of those who share it."""
        return ANYBODY

    def may(self, kind: str, payload: Any, *, to: Sequence[str] = ()) -> bool:
        return self._session.table.roster.is_allowed(self._session.me, kind, payload, to)


class SharedInbox(Inbox):
    """The inbox of all who share an inbox session; nothing is decided in it.

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


class SharedInboxSession:
    """The inbox session of people of a space who may do the same, by the session of one of them.

    Args:
        opener: Opens it.
        leader: The person by whose session it follows the space; without them it is over.
        key: What all who share it may, as text.
    """

    def __init__(self, opener: InboxSessionOpener, leader: PersonPresence, key: str) -> None:
        self.inbox: SharedInbox
        self.feed: InboxFeed
        self.leader = leader
        self.people: dict[str, PersonPresence] = {}
        self.ready = anyio.Event()
        self.ended = False
        self._opener = opener
        self._host = opener.runtime.spaces[leader.identity.space]
        self._key = key
        # The participants that open proposals name.
        self._named: dict[ProposalKey, frozenset[str]] = {}
        self._following = anyio.CancelScope()
        self._changes = -1

    def fits(self, presence: PersonPresence) -> bool:
        return not self.ended and sharing_key(self._host, presence.identity) == self._key

    def names(self, presence: PersonPresence) -> bool:
        """True if a person has a part of its own in an open proposal, as far as is heard here."""
        name = presence.identity.participant
        return not self.ended and any(
            name in names and self.inbox.is_pending(key) for key, names in self._named.items()
        )

    async def run(self) -> None:
        """Follow the space until the inbox session is over."""
        try:
            with self._following:
                await self._follow()
        except MeupError as error:
            self.leader.fail(error)
        except Exception as error:
            # One person's trouble must not end the pages of the others.
            log.exception("console: the session of %s failed", quote(self._host.name))
            self.leader.fail(MeupError(type(error).__name__))
        finally:
            self.end()

    def end(self) -> None:
        """Be over: all who share it go on at another inbox session."""
        self.ended = True
        self._following.cancel()
        self.ready.set()
        for each in tuple(self.people.values()):
            each.changed.notify_all()

    async def _follow(self) -> None:
        make = partial(
            SharedInbox, told=self._note, heard=self._hear, until_drawn=self._until_drawn
        )
        async with self._opener.open(self.leader.identity, make) as session:
            inbox = session.inbox
            assert isinstance(inbox, SharedInbox)
            for record in session.space.proposals:
                if record.state.is_pending:
                    parts = (record.proposer, *record.to, *(each.by for each in record.rejections))
                    key = ProposalKey(record.proposer, record.id)
                    self._note(key, self._named.get(key, frozenset()).union(parts))
            self.inbox = inbox
            since = partial(proposed_in, self._host)
            self.feed = InboxFeed(inbox, since, self.leader.last_feed)
            self.ready.set()
            await self.feed.follow()

    async def _until_drawn(self) -> None:
        """Wait until a browser has had time to draw the first page."""
        # Its stream is opened by the page's script. Reading the rest takes seconds of a core, which
        # a browser on the same machine would lack for its first paint.
        with anyio.move_on_after(STREAM_SECONDS):
            while not self.leader.event_streams:
                await self.leader.changed.wait()
        await pause_for_screen()

    def _note(self, key: ProposalKey, names: frozenset[str]) -> None:
        """Know the names in a proposal, none once it is decided; a new one has its own session."""
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
    """The capabilities of a participant, as text; people with the same share an inbox session."""
    if identity.participant not in host.owner.grants:
        return f"none of the space: {json.dumps(identity.participant)}"
    return json.dumps(host.owner.grants[identity.participant].patterns, sort_keys=True)


# --- presences of all who are signed in ---

OWN_SECONDS: Final = 60.0
"""Interval of checking whether a person still needs an inbox session of its own."""

JOURNAL_AWAY: Final = (
    "The space keeps nothing at the moment, since the gateway cannot reach its journal; what was"
    " said before is safe. Load the page again in a moment."
)

MAX_PRESENCES: Final = 500
"""Participants that are signed in and at work at once; each has a connection that hears nothing,
and some of them another one with an inbox."""


class SilentMember(UnqueuedSubscriber):
    """Connection beside that hears nothing: by it one who shares an inbox session is present."""

    place = Place.BESIDE

    def __init__(self, presence: PersonPresence, dialect: str) -> None:
        self.participant = presence.identity.participant
        # With numbers, since it misses nothing that others would have to say again.
        self.form = FrameFormat(dialect, numbered=True, pack_entry=_hear_nothing)
        self._presence = presence

    def deliver(self, packed: bytes) -> None:
        """Nothing: it takes no frame."""

    def close(self, code: int, reason: str) -> None:
        """End, by a decision of the gateway's."""
        if code in (KICKED_CODE, NO_TOKEN_CODE):
            self._presence.fail(MeupError(reason))
        elif code == RESTARTING:
            self._presence.leave()


def _hear_nothing(entry: Entry) -> None:
    del entry


class PersonPresences:
    """The presences of a gateway's console, which join on demand and leave when they are idle."""

    def __init__(self, runtime: GatewayRuntime, tasks: TaskGroup) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._opener = InboxSessionOpener(runtime)
        # By space, and by what all who share it may.
        self._shared_sessions: dict[tuple[str, str], SharedInboxSession] = {}
        self._presences: dict[Identity, PersonPresence] = {}
        self._is_closed = False

    def close(self) -> None:
        """Begin no more: a task that begins in a cancelled group is not cancelled with the rest."""
        self._is_closed = True

    def __len__(self) -> int:
        return len(self._presences)

    def tell_others(self, identity: Identity, notice: OutcomeNotice) -> None:
        """Tell the browsers of everybody else in a participant's space."""
        for each, presence in self._presences.items():
            if each.space == identity.space and each != identity:
                presence.notify(notice)

    async def open(self, identity: Identity) -> PersonPresence:
        """The presence of a participant, which joins if it is not there yet.

        Raises:
            RequestDenied: It could not join.
        """
        self._check_journal(identity)
        presence = self._begin(identity)
        with anyio.move_on_after(JOIN_SECONDS):
            while presence.ended and presence.failure is None:
                # It leaves since it was idle, just as a page asks for it.
                while self._presences.get(identity) is presence:
                    await presence.changed.wait()
                presence = self._begin(identity)
            # It is not idle while a page waits for it.
            with presence.in_use():
                await presence.until_attached()
            if not presence.ended:
                return presence
        raise denied(presence)

    def _check_journal(self, identity: Identity) -> None:
        """Refuse a join that would wait for a journal which keeps nothing now."""
        presence = self._presences.get(identity)
        host = self._runtime.spaces.get(identity.space)
        if host is None or (presence is not None and presence.is_attached):
            return
        if problem := host.journal.problem:
            log.info("console: %s waits for the journal: %s", quote(identity.participant), problem)
            raise RequestDenied(UNAVAILABLE, JOURNAL_AWAY)

    def _begin(self, identity: Identity) -> PersonPresence:
        """The presence of a participant, which begins if there is none."""
        presence = self._presences.get(identity)
        if presence is None:
            if self._is_closed:
                raise RequestDenied(UNAVAILABLE, "The gateway stops; try again when it is back.")
            if len(self._presences) >= MAX_PRESENCES:
                raise RequestDenied(
                    UNAVAILABLE, "Too many people are signed in at once; try again soon."
                )
            presence = self._presences[identity] = PersonPresence(identity)
            self._tasks.start_soon(self._be_present, presence)
        return presence

    async def _be_present(self, presence: PersonPresence) -> None:
        identity = presence.identity
        host: SpaceServer | None = None
        # Whoever shares an inbox session is present by this alone.
        member = SilentMember(presence, self._runtime.dialect(identity))
        try:
            check_entry(self._runtime, identity)
            host = self._runtime.spaces[identity.space]
            # Before its tasks, whose sessions are beside it: it is here as soon as they are.
            host.join(member)
            async with anyio.create_task_group() as tasks:
                presence.tasks = tasks
                tasks.start_soon(self._keep_attached, presence)
                await presence.until_idle()
                # Noted first: a page that asks now begins a new one.
                presence.end()
                tasks.cancel_scope.cancel()
        except NotAdmitted as refused:
            presence.failure = MeupError(str(refused))
        except Exception as error:
            # One participant's trouble must not end the pages of the others.
            said = "console: %s in %s failed"
            log.exception(said, quote(identity.participant), quote(identity.space))
            presence.failure = MeupError(type(error).__name__)
        finally:
            if host is not None:
                host.leave(member)
            if presence.failure is not None:
                said = "console: %s in %s left its space: %s"
                why = quote(str(presence.failure))
                log.info(said, quote(identity.participant), quote(identity.space), why)
            presence.detach()
            # Out of the table before its end is told: who hears of that begins a new one.
            del self._presences[identity]
            presence.end()

    async def _keep_attached(self, presence: PersonPresence) -> None:
        """Attach to the inbox session that fits, until cancelled."""
        try:
            while not presence.ended:
                with self._sharing(presence) as session:
                    await session.ready.wait()
                    while session.fits(presence) and not presence.ended:
                        if presence.needs_own or session.names(presence):
                            await self._attach_own(session, presence)
                        else:
                            presence.attach(session.feed)
                            await presence.changed.wait()
                    presence.detach()
        except MeupError as error:
            presence.fail(error)
        except NotAdmitted as refused:
            presence.fail(MeupError(str(refused)))

    @contextmanager
    def _sharing(self, presence: PersonPresence) -> Generator[SharedInboxSession]:
        """Let a person share the inbox session of those who may do the same, within a block.

        The first one leads: the others have another session once it has left.
        """
        space = presence.identity.space
        self._runtime.check_open(space)
        place = (space, sharing_key(self._runtime.spaces[space], presence.identity))
        session = self._shared_sessions.get(place)
        if session is None or session.ended:
            session = SharedInboxSession(self._opener, presence, place[1])
            self._shared_sessions[place] = session
            presence.tasks.start_soon(session.run)
        session.people[presence.identity.participant] = presence
        try:
            yield session
        finally:
            del session.people[presence.identity.participant]
            if session.leader is presence:
                session.end()
                if self._shared_sessions.get(place) is session:
                    del self._shared_sessions[place]

    async def _attach_own(self, shared: SharedInboxSession, presence: PersonPresence) -> None:
        """Attach to an inbox session of its own, until that shows the same as the shared one."""
        # Its rules are known at once: what was offered as a vote must not be carried out meanwhile.
        make = partial(Inbox, like=shared.inbox)
        async with (
            self._opener.open(presence.identity, make) as session,
            anyio.create_task_group() as tasks,
        ):
            feed = InboxFeed(session.inbox, shared.feed.proposed_at, shared.feed)
            tasks.start_soon(feed.follow)
            presence.own = session
            presence.attach(feed)
            try:
                # Once it is over nothing here waits any more, so this would never let others run.
                while not presence.ended and (presence.decides or shared.names(presence)):
                    with anyio.move_on_after(OWN_SECONDS):
                        await presence.until_ended()
            finally:
                presence.own, presence.needs_own = None, False
            # Pages need not wait until it has left.
            if shared.fits(presence):
                presence.attach(shared.feed)
            tasks.cancel_scope.cancel()
