"""The envelopes of a space as rows of a sequence diagram, and their feed to browsers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from meup_agent.gateway.console.event_queue import FRESH, GATHER_SECONDS, EventQueues, pack
from meup_agent.gateway.console.sentences import describe
from meup_agent.gateway.console.template_environment import key_of, make_environment
from meup_agent.gateway.console.threads import ThreadIndex, names_in
from meup_agent.gateway.console.timeline_rows import TimelineRow, fold_rows
from meup_agent.gateway.edge.http.context import Problem, read_journal
from meup_agent.gateway.edge.http.space_views import proposals_of
from meup_agent.protocol import kinds
from meup_agent.protocol.control_payloads import STATUS
from meup_agent.protocol.dialects import DEFAULT_DIALECT
from meup_agent.protocol.exchange.roster import read_participant
from meup_agent.protocol.space.subscriber import FrameFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from anyio.abc import TaskGroup

    from meup_agent.gateway.runtime import GatewayRuntime
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.payloads import JsonObject
    from meup_agent.protocol.space.journal import Entry
    from meup_agent.protocol.space.server import SpaceServer

MAX_COLUMNS: Final = 8
"""Participants with a column of their own; all others share one more."""

MAX_ROWS_PUSHED: Final = 200
"""Rows of one push; of a space that is livelier, browsers load the timeline anew."""

PAGE_ROWS: Final = 100
"""Rows that a page of the timeline begins with, and loads at a time."""

MAX_HEARD: Final = 1_000
"""Envelopes that are read back to know when participants were heard last."""

MAX_COUNT: Final = 10**9
"""A number that a participant says of itself is below it, or none."""

MAX_STATUS_CHARS: Final = 60
"""Characters of a status that a participant says of itself."""

KEEP_ALIVE_SECONDS: Final = 15.0
"""Seconds of silence after which a comment is sent, and the session looked at again."""

OTHERS: Final = "others"


class OwnStatus(NamedTuple):
    """The latest status that a participant said of itself, with ``None`` for what it left out."""

    at: float  # seconds since 1970 (UTC)
    status: str
    handlers: int | None
    queued: int | None
    messages: int | None  # in its context


class LaneColumns:
    """The columns of a space's diagram: who spoke first stands first, and keeps its place."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add(self, *names: str) -> bool:
        """Give participants a column while there are any; true if one was added."""
        before = len(self.names)
        for each in names:
            if each not in self.names and len(self.names) < MAX_COLUMNS + 1:
                full = len(self.names) == MAX_COLUMNS
                self.names.append(OTHERS if full else each)
        return len(self.names) != before

    def place(self, name: str) -> float:
        """The middle of a participant's column, in percent."""
        count = max(len(self.names), 1)
        at = self.names.index(name) if name in self.names else count - 1
        return round((at + 0.5) * 100 / count, 2)

    @property
    def places(self) -> list[float]:
        """The middles of all columns."""
        return [self.place(each) for each in self.names]


class SpaceFeed:
    """Follows one space: rows of its timeline, rendered once for all browsers that want them."""

    def __init__(self, host: SpaceServer) -> None:
        self.queues = EventQueues(self._subscribe_if_wanted)
        self.columns = LaneColumns()
        self.threads = ThreadIndex()
        self.last_heard: dict[str, float] = {}
        # Of those who have been in the space, as the one before.
        self.statuses: dict[str, OwnStatus] = {}
        self._heard = 0
        self.form = FrameFormat(DEFAULT_DIALECT)
        self._host = host
        self._template = make_environment().get_template("timeline_rows.html")
        self._seen = host.fanout.delivered
        self._changed = anyio.Event()
        self._subscribed = False
        self._closed = False
        self.columns.add(*(each.participant for each in host.delivery.members))

    async def follow(self) -> None:
        """Publish what is said until cancelled."""
        try:
            while not self._closed:
                await self._changed.wait()
                # One rendering for all that comes in this time.
                await anyio.sleep(GATHER_SECONDS)
                self._changed = anyio.Event()
                await self._publish()
        finally:
            self._host.fanout.unsubscribe(self)

    def _subscribe_if_wanted(self) -> None:
        """Hear of envelopes only while a browser shows them: delivery pays for each."""
        wanted, fanout = self.queues.wants("space"), self._host.fanout
        if wanted is self._subscribed or self._closed:
            return
        self._subscribed = wanted
        if wanted:
            self._seen = fanout.delivered
            fanout.subscribe(self, None)
            # What is delivered until then calls nothing here.
            self._host.journal.call_when_kept(lambda: self._changed.set())
        else:
            fanout.unsubscribe(self)

    async def _publish(self) -> None:
        host, until = self._host, self._host.fanout.delivered
        if not self.queues.wants("space"):
            return
        entries: list[Entry] = []
        after = max(self._seen, host.journal.floor(host.name))
        try:
            # As many as it takes: a journal hands over a few megabytes at a time.
            while (
                after < until
                and len(entries) <= MAX_ROWS_PUSHED
                and (
                    page := await read_journal(
                        host, after=after, until=until, limit=MAX_ROWS_PUSHED + 1
                    )
                )
            ):
                entries += page
                after = page[-1].seq
        except Problem:
            return
        self._seen = until
        if len(entries) > MAX_ROWS_PUSHED:
            self.queues.publish("space", FRESH)
            return
        proposals = proposals_of(host)
        await proposals.catch_up(host, host.now())
        for entry in entries:
            # What was said while no browser showed it is known to the audit alone.
            if any(self.threads.find(each) is None for each in names_in(entry.envelope)):
                for proposal in proposals.audit.find_referenced(entry.envelope):
                    self.threads.learn(proposal)
        widened = self.columns.add(*self._speakers(entries))
        rows = [self.row(entry) for entry in entries]
        folds = fold_rows(reversed(rows))
        html = "" if widened else self._template.render(folds=folds, places=self.columns.places)
        touched = {row.thread: row.state for row in rows if row.thread}
        who = any(_is_about_members(entry.envelope) for entry in entries)
        event = {"rows": html, "wider": widened, "touched": touched, "members": who}
        self.queues.publish("space", pack("space", event))

    def row(self, entry: Entry, threads: ThreadIndex | None = None) -> TimelineRow:
        """The row of an entry, which comes after all rows before it; of an old one with its own."""
        envelope, at = entry.envelope, entry.at / 1_000_000
        proposer, proposal, group = (threads or self.threads).of(envelope)
        audit = proposals_of(self._host).audit.latest_of(proposer, proposal) if proposal else None
        verb, words, tone = describe(envelope)
        place = self.columns.place
        return TimelineRow(
            seq=entry.seq,
            at=at,
            kind=envelope.kind,
            tone=tone,
            sender=envelope.sender,
            to=envelope.to,
            verb=verb,
            words=words,
            thread=key_of(proposer, proposal) if proposal else "",
            state="" if audit is None else audit.state.value,
            group=group,
            begin=place(envelope.sender),
            ends=tuple(place(each) for each in envelope.to[: MAX_COLUMNS + 1]),
        )

    async def note_heard(self) -> None:
        """Note when each participant was heard last, and came or left, as far as is read back."""
        host, until = self._host, self._host.fanout.delivered
        after = max(self._heard, until - MAX_HEARD, host.journal.floor(host.name))
        for entry in await read_journal(host, after=after, until=until, limit=MAX_HEARD):
            envelope, at = entry.envelope, entry.at / 1_000_000
            self.last_heard[envelope.sender] = at
            if envelope.kind == STATUS:
                self.statuses[envelope.sender] = _read_status(envelope.payload_object, at)
            elif envelope.kind == kinds.SYSTEM_PRESENCE:
                told = read_participant(envelope.payload_object.get("participant"))
                if told is not None:
                    self.last_heard[told.id] = at
            self._heard = entry.seq

    def note_speakers(self, entries: Iterable[Entry]) -> None:
        """Give those who speak in some entries their columns."""
        self.columns.add(*self._speakers(entries))

    def _speakers(self, entries: Iterable[Entry]) -> list[str]:
        return [
            name
            for entry in entries
            for name in (entry.envelope.sender, *entry.envelope.to[:MAX_COLUMNS])
        ]

    # --- a subscriber of the space ----------------------------------------------------------

    def deliver(self, packed: bytes) -> None:
        """Note that something was said; it is read from the journal, with its number and time."""
        self._changed.set()

    def close(self, code: int, reason: str) -> None:
        """End: the space is closed."""
        self._closed = True
        self._changed.set()

    def ready(self, then: Callable[[], None]) -> None:
        """Nothing is kept back here."""
        then()


class SpaceFeeds:
    """The feeds of a gateway's spaces; one follows its space while a stream wants it."""

    def __init__(self, runtime: GatewayRuntime, tasks: TaskGroup) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._feeds: dict[str, SpaceFeed] = {}
        tasks.start_soon(self._beat)

    def of(self, space: str) -> SpaceFeed:
        """The feed of a space, which begins to follow it."""
        feed = self._feeds.get(space)
        if feed is None:
            feed = self._feeds[space] = SpaceFeed(self._runtime.spaces[space])
            self._tasks.start_soon(feed.follow)
        return feed

    async def _beat(self) -> None:
        """Keep all streams alive: one timer for all, since a thousand of them cost more."""
        while True:
            await anyio.sleep(KEEP_ALIVE_SECONDS)
            for feed in self._feeds.values():
                for queue in feed.queues:
                    queue.beat()


def _read_status(payload: JsonObject, at: float) -> OwnStatus:
    def number(name: str) -> int | None:
        said = payload.get(name)
        return said if type(said) is int and 0 <= said < MAX_COUNT else None

    status = payload.get("status")
    return OwnStatus(
        at,
        status[:MAX_STATUS_CHARS] if isinstance(status, str) else "",
        number("handlers"),
        number("queued"),
        number("messages_in_context"),
    )


def _is_about_members(envelope: Envelope) -> bool:
    return envelope.kind.startswith(("system/presence", "capability/", "space/"))
