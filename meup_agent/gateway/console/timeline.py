"""The envelopes of a space as rows of a sequence diagram, and their feed to browsers."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

import anyio
from anyio.abc import TaskGroup

from meup_agent.approval.reviewer.methods import WAITING
from meup_agent.gateway.console.event_queue import FRESH, GATHER_SECONDS, EventQueues, pack
from meup_agent.gateway.console.templating import key_of, make_environment
from meup_agent.gateway.edge.http.context import Problem, newest_number, read_journal
from meup_agent.gateway.edge.http.views import current_proposals, proposals_of
from meup_agent.gateway.runtime import RESTARTING, GatewayRuntime
from meup_agent.protocol.audit import AuditRecord
from meup_agent.protocol.dialects import DEFAULT_DIALECT
from meup_agent.protocol.roster import read_participant
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.link import FrameFormat, UnqueuedSubscriber
from meup_agent.protocol.space.owner import SpaceServer
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.outcomes import read_report
from meup_agent.protocol.wire.payloads import (
    LEFT_TO_OTHERS,
    STATUS,
    JsonObject,
    as_list,
    as_object,
)
from meup_agent.protocol.wire.scoped_yes import YES_KINDS
from meup_agent.wording import describe_reason, format_call, format_proposed, state_name

# --- rows of the timeline, and their folds ---
# A line of thought, or a stream, is one, its parts inside.
#
# By itself, since the page and the feed that renews it fold alike.


class TimelineRow(NamedTuple):
    """One envelope, in words and as an arrow."""

    seq: int
    at: float  # seconds since 1970 (UTC)
    kind: str
    tone: str  # the class of its colour
    sender: str
    to: tuple[str, ...]
    verb: str
    words: str
    thread: str  # the key of the proposal that it belongs to; empty: none
    state: str  # the state that this proposal has now; empty: it is not known
    word: str  # its name
    # The line of thought, the stream, or the asker's lists that it is folded into; empty: none.
    group: str
    begin: float  # the place of its sender, in percent
    ends: tuple[float, ...]  # the places of its addressees; empty: to all


class FoldedRow(NamedTuple):
    """A row of the timeline as it stands there."""

    lead: TimelineRow  # the newest
    key: str  # of its group; empty: it is a row by itself
    parts: list[TimelineRow]  # all of them, the newest first; none of a row by itself


def fold_rows(rows: Iterable[TimelineRow]) -> list[FoldedRow]:
    """Fold rows that come the newest first: a fold stands where its newest part does."""
    folded: list[FoldedRow] = []
    by_group: dict[str, FoldedRow] = {}
    for row in rows:
        if not row.group:
            folded.append(FoldedRow(row, "", []))
        elif row.group in by_group:
            by_group[row.group].parts.append(row)
        else:
            fold = by_group[row.group] = FoldedRow(row, key_of("group", row.group), [row])
            folded.append(fold)
    return folded


# --- envelopes in words ---
# A verb, the rest of its sentence, and the class of its colour.

MAX_WORDS: Final = 240
"""Characters of an envelope's words; all of them are a link away."""

REASONING: Final = "reasoning/"
STREAM: Final = "stream/"
LISTS: Final = "lists/"
"""Beginning of the group of what one participant asks for lists, with the answers."""

_WORDS: Final = {
    kinds.MCP_PROPOSAL: "proposes",
    kinds.MCP_REQUEST: "asks",
    kinds.MCP_RESPONSE: "answers",
    kinds.MCP_REJECT: "rejects",
    kinds.MCP_WITHDRAW: "withdraws",
    kinds.MCP_REPORT: "reports",
    kinds.CHAT: "says",
    "reasoning/start": "begins to think",
    "reasoning/thought": "thinks",
    "reasoning/conclusion": "concludes",
    "reasoning/cancel": "stops the thinking",
    "stream/request": "asks for a stream",
    "stream/open": "opens a stream",
    "stream/close": "closes a stream",
}

_TOLD: Final = (
    "message",
    "text",
    "thought",
    "content",
    "conclusion",
    "input",
    "description",
    "reason",
)
"""Members of a payload that may have words, in the order in which they are looked for."""


def describe(envelope: Envelope) -> tuple[str, str, str]:
    """An envelope's verb, the rest of its sentence, and the class of its colour."""
    try:
        verb, words, tone = _describe(envelope)
    except (ValueError, RecursionError):
        verb, words, tone = "sends", f"{envelope.kind}, which cannot be read", "other"
    if len(words) > MAX_WORDS:
        words = words[:MAX_WORDS] + " …"
    return verb, words, tone


def _describe(envelope: Envelope) -> tuple[str, str, str]:
    kind = envelope.kind
    verb = _WORDS.get(kind, "sends")
    payload = envelope.payload_object
    if kind == kinds.MCP_PROPOSAL:
        call = payloads.read_proposal(envelope.payload)
        return verb, format_proposed(call, MAX_WORDS), "proposal"
    if kind == kinds.MCP_REQUEST:
        call = payloads.read_call(envelope.payload)
        if call.method == kinds.CANCELLED:
            return "cancels", str(call.params.get("reason", "")), "cancel"
        left = call.meta.get(LEFT_TO_OTHERS)
        if call.method == kinds.PROGRESS and isinstance(left, bool):
            return f"leaves it to others{'' if left else ' no longer'}", "", "progress"
        if call.method == kinds.PROGRESS:
            done, total = call.params.get("progress"), call.params.get("total")
            of = "" if total is None else f" of {total}"
            return "progress", f"{done}{of} {call.params.get('message') or ''}".strip(), "progress"
        return verb, format_call(call, MAX_WORDS), "request"
    if kind == kinds.MCP_RESPONSE:
        failed = "error" in payload or as_object(payload.get("result")).get("isError") is True
        words = words_of_answer(payload.get("error", payload.get("result")))
        return ("fails", words, "error") if failed else (verb, words, "response")
    if kind in (kinds.MCP_REJECT, kinds.MCP_WITHDRAW):
        tone = "reject" if kind == kinds.MCP_REJECT else "withdraw"
        return verb, describe_reason(str(payload.get("reason") or "")), tone
    if kind == kinds.MCP_REPORT and (report := read_report(payload)) is not None:
        return verb, str(report), "error" if report.has_failed else "response"
    if kind == kinds.CHAT:
        text = payload.get("message", payload.get("text"))
        return verb, text if isinstance(text, str) else "", "chat"
    if kind == kinds.SYSTEM_PRESENCE:
        name = as_object(payload.get("participant")).get("id", "")
        event = {"join": "came", "leave": "left"}.get(str(payload.get("event")), "changed")
        return "tells", f"{name} {event}", "system"
    if kind.startswith((REASONING, STREAM)):
        told = (payload.get(each) for each in _TOLD)
        words = next((each for each in told if isinstance(each, str)), "")
        if kind not in _WORDS:
            words = f"{kind} {words or _compact(payload)}"
        return verb, words, "reasoning" if kind.startswith(REASONING) else "stream"
    return verb, f"{kind} {_compact(payload)}", "system" if kind.startswith("system") else "other"


def words_of_answer(body: object) -> str:
    """An answer's own words, where it has nothing but words; the names of tools; else its JSON."""
    said = as_object(body)
    content, tools = as_list(said.get("content")), as_list(said.get("tools"))
    message = said.get("message")
    if content:
        texts = [as_object(each).get("text") for each in content[:MAX_WORDS]]
        if all(isinstance(each, str) for each in texts):
            return " ".join(str(each)[: 2 * MAX_WORDS] for each in texts)
    if tools:
        names = (str(as_object(each).get("name"))[:MAX_WORDS] for each in tools[:MAX_WORDS])
        return f"{len(tools)} tool{'s' * (len(tools) != 1)}: {', '.join(names)}"
    return message if isinstance(message, str) else _compact(body)


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))[: 2 * MAX_WORDS]


# --- threads ---
# The proposals that envelopes belong to, and the lines of thought and the streams.
#
# An envelope names what it answers by id. What was said lately is remembered; of an older page of
# the timeline the ids that it names are looked for in what was said before it.

MAX_THREADS: Final = 10_000
"""Ids of envelopes whose proposal is remembered."""

MAX_LOOK_BACK: Final = 1_000
"""Entries before a page in which the envelopes that it names are looked for."""

LOOK_BACK_STEP: Final = 200
"""Entries that are looked through at a time."""

LOOK_BACK_STRETCHES: Final = 20
"""Stretches of numbers that are read for them at most: it goes less far back in a quiet space."""


PAGE_ROWS: Final = 100
"""Rows that a page of the timeline begins with, and loads at a time."""

LONG_STRETCH: Final = 10_000
"""Numbers of which none is the space's, after which its next entry is searched for by halves."""

STRETCH_GROWTH: Final = 4
"""Factor by which the next stretch is longer: where few numbers are the space's, it takes few."""


class Thread(NamedTuple):
    """The place of an envelope: its proposal, or nothing; its line of thought or stream."""

    proposer: str = ""
    proposal: str = ""
    group: str = ""


NO_THREAD: Final = Thread()


class ThreadIndex:
    """The threads of envelopes, by their ids.

    Args:
        later: Those of what was said later, and of what is remembered.
    """

    def __init__(self, later: ThreadIndex | None = None) -> None:
        self._known: OrderedDict[str, Thread] = OrderedDict()
        self._later = later

    def learn(self, proposal: AuditRecord) -> None:
        """Know a proposal of before, and what was said of it."""
        found = Thread(proposal.proposer, proposal.id)
        for name in (proposal.id, *(each.id for each in proposal.steps)):
            self._note(name, found)

    def find(self, name: str) -> Thread | None:
        """The thread of the envelope with an id; ``None``: it is not known."""
        found = self._known.get(name)
        return self._later.find(name) if found is None and self._later is not None else found

    def of(self, envelope: Envelope) -> Thread:
        """The thread of an envelope, which is remembered with it."""
        if envelope.kind == kinds.MCP_PROPOSAL:
            found = Thread(envelope.sender, envelope.id)
        else:
            named = (self.find(each) for each in names_in(envelope))
            found = next((each for each in named if each), NO_THREAD)
            found = found._replace(group=_group(envelope, found.group))
            if stream := _stream_of(envelope):
                self._note(f"{STREAM}{stream}", found)
        if any(found):
            self._note(envelope.id, found)
        return found

    def _note(self, name: str, thread: Thread) -> None:
        self._known[name] = thread
        if len(self._known) > MAX_THREADS:
            self._known.popitem(last=False)


def names_in(envelope: Envelope) -> tuple[str, ...]:
    """The ids by which an envelope names others."""
    context = (envelope.context,) if envelope.context else ()
    stream = _stream_of(envelope)
    return (
        *envelope.correlation,
        *context,
        *_named_by_cancel(envelope),
        *((f"{STREAM}{stream}",) if stream else ()),
    )


def _group(envelope: Envelope, known: str) -> str:
    """The line of thought, the stream, or the asker's lists that an envelope is folded into."""
    if envelope.kind == kinds.MCP_REQUEST and _is_chatter(envelope):
        return f"{LISTS}{envelope.sender}"
    if envelope.kind == kinds.MCP_RESPONSE and known.startswith(LISTS):
        return known
    if envelope.kind == kinds.REASONING_CANCEL and known.startswith(REASONING):
        return known  # also that of another participant, who stops it
    if envelope.kind.startswith(REASONING):
        return f"{REASONING}{envelope.sender}/{envelope.context or envelope.id}"
    if not envelope.kind.startswith(STREAM):
        return ""
    stream = _stream_of(envelope) or envelope.id
    return known if known.startswith(STREAM) else f"{STREAM}{stream}"


def _is_chatter(envelope: Envelope) -> bool:
    """True for a request of what there is, or whether one is there: programs ask at every turn."""
    raw = envelope.raw_payload
    if b"/list" not in raw and b"ping" not in raw and b"waiting" not in raw:
        return False  # most are read by this alone
    method = payloads.read_call(envelope.payload).method
    # An inbox asks its reviewer what waits for each page that a person looks at.
    return method in (payloads.PING, WAITING) or method.endswith("/list")


def _stream_of(envelope: Envelope) -> str:
    if not envelope.kind.startswith(STREAM):
        return ""
    try:
        named = envelope.payload_object.get("stream_id")
    except (ValueError, RecursionError):
        return ""
    return named if isinstance(named, str) else ""


def _named_by_cancel(envelope: Envelope) -> tuple[str, ...]:
    """The id of the request that a cancel names."""
    if envelope.kind != kinds.MCP_REQUEST:
        return ()
    try:
        call = payloads.read_call(envelope.payload)
    except (ValueError, RecursionError):
        return ()
    named = call.params.get("requestId") if call.method == kinds.CANCELLED else None
    return (named,) if isinstance(named, str) else ()


async def learn_before(host: SpaceServer, threads: ThreadIndex, entries: list[Entry]) -> None:
    """Learn the threads that a page of entries names, as far as they began shortly before it."""
    earlier: list[Entry] = []
    missing = _named(entries, threads) - {each.envelope.id for each in entries}
    upper = entries[0].seq if entries else 0
    for _ in range(MAX_LOOK_BACK // LOOK_BACK_STEP):
        # None at the journal's floor: so many stretches find an entry anywhere else.
        if not missing or not (
            page := await newest_before(host, upper, LOOK_BACK_STEP, LOOK_BACK_STRETCHES)
        ):
            break
        meant = [each for each in page if each.envelope.id in missing]
        missing = (missing | _named(meant, threads)) - {each.envelope.id for each in page}
        earlier, upper = [*page, *earlier], page[0].seq
    for each in earlier:
        threads.of(each.envelope)


async def newest_before(
    host: SpaceServer, before: int, most: int = PAGE_ROWS, stretches: float = math.inf
) -> list[Entry]:
    """The newest entries before a number, oldest first; fewer once so many stretches are read.

    Numbers are shared by the spaces of a gateway, so that a stretch of them may have few entries;
    and at each start they go on from the clock, so that billions in between have none.
    """
    found: list[Entry] = []
    floor, step = host.journal.floor(host.name), most
    upper = before - 1
    while len(found) < most and upper > floor and stretches > 0:
        stretches -= 1
        lower = max(floor, upper - step)
        stretch = await read_stretch(host, after=lower, until=upper, step=most + 1, most=most + 1)
        if len(stretch) > most:
            # The oldest of it, and the newest are asked for.
            step = (upper - lower) // 2
            continue
        found = [*stretch, *found]
        upper = lower if stretch or step < LONG_STRETCH else await newest_number(host, lower)
        step *= STRETCH_GROWTH
    return found[-most:]


async def read_stretch(
    host: SpaceServer, *, after: int, until: int, step: int, most: float = math.inf
) -> list[Entry]:
    """The entries of a stretch of numbers, oldest first; no further ones once there are so many."""
    found: list[Entry] = []
    # As many readings as it takes: a journal hands over a few megabytes at a time.
    while (
        after < until
        and len(found) < most
        and (page := await read_journal(host, after=after, until=until, limit=step))
    ):
        found += page
        after = page[-1].seq
    return found


def _named(entries: Iterable[Entry], known: ThreadIndex) -> set[str]:
    return {
        name for each in entries for name in names_in(each.envelope) if known.find(name) is None
    }


# --- timeline ---

MAX_COLUMNS: Final = 8
"""Participants with a column of their own; all others share one more."""

MAX_ROWS_PUSHED: Final = 200
"""Rows of one push; of a space that is livelier, browsers load the timeline anew."""

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
        return [self.place(each) for each in self.names]


class SpaceFeed(UnqueuedSubscriber):
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
        self.host = host
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
            self.host.fanout.unsubscribe(self)

    def _subscribe_if_wanted(self) -> None:
        """Hear of envelopes only while a browser shows them: delivery pays for each."""
        wanted, fanout = self.queues.wants("space"), self.host.fanout
        if wanted is self._subscribed or self._closed:
            return
        self._subscribed = wanted
        if wanted:
            self._seen = fanout.delivered
            fanout.subscribe(self, None)
            # What is delivered until then calls nothing here.
            self.host.journal.call_when_kept(lambda: self._changed.set())
        else:
            fanout.unsubscribe(self)

    async def _publish(self) -> None:
        host, until = self.host, self.host.fanout.delivered
        if not self.queues.wants("space"):
            return
        after, most = max(self._seen, host.journal.floor(host.name)), MAX_ROWS_PUSHED + 1
        try:
            entries = await read_stretch(host, after=after, until=until, step=most, most=most)
        except Problem:
            return
        self._seen = until
        if len(entries) > MAX_ROWS_PUSHED:
            self.queues.publish("space", FRESH)
            return
        proposals = await current_proposals(host)
        for entry in entries:
            # What was said while no browser showed it is known to the audit alone.
            if any(self.threads.find(each) is None for each in names_in(entry.envelope)):
                for proposal in proposals.audit.find_referenced(entry.envelope):
                    self.threads.learn(proposal)
        widened = self.note_speakers(entries)
        rows = [self.row(entry) for entry in entries]
        folds = fold_rows(reversed(rows))
        html = "" if widened else self._template.render(folds=folds, places=self.columns.places)
        touched = {row.thread: (row.state, row.word) for row in rows if row.thread}
        about_members = ("system/presence", "capability/", "space/")
        who = any(entry.envelope.kind.startswith(about_members) for entry in entries)
        yeses = any(entry.envelope.kind in YES_KINDS for entry in entries)
        event = {"rows": html, "wider": widened, "touched": touched, "members": who, "yeses": yeses}
        self.queues.publish("space", pack("space", event))

    def row(self, entry: Entry, threads: ThreadIndex | None = None) -> TimelineRow:
        """The row of an entry, which comes after all rows before it; of an old one with its own."""
        envelope, at = entry.envelope, entry.at / 1_000_000
        proposer, proposal, group = (threads or self.threads).of(envelope)
        audit = proposals_of(self.host).audit.latest_of(proposer, proposal) if proposal else None
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
            word=""
            if audit is None
            else state_name(audit.state, failed=audit.has_failed, ran_anyway=audit.ran_anyway),
            group=group,
            begin=place(envelope.sender),
            ends=tuple(place(each) for each in envelope.to[: MAX_COLUMNS + 1]),
        )

    async def note_heard(self) -> None:
        """Note when each participant was heard last, and came or left, as far as is read back."""
        host, until = self.host, self.host.fanout.delivered
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

    def note_speakers(self, entries: Iterable[Entry]) -> bool:
        """Give those who speak, and those who are spoken to, a column; true if one was added."""
        said = [entry.envelope for entry in entries]
        return self.columns.add(
            *(name for each in said for name in (each.sender, *each.to[:MAX_COLUMNS]))
        )

    # --- a subscriber of the space ----------------------------------------------------------

    def deliver(self, packed: bytes) -> None:
        """Note that something was said; it is read from the journal, with its number and time."""
        self._changed.set()

    def close(self, code: int, reason: str) -> None:
        self._closed = True
        self._changed.set()


class SpaceFeeds:
    """The feeds of a gateway's spaces; one follows its space while a stream wants it."""

    def __init__(self, runtime: GatewayRuntime, tasks: TaskGroup) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._feeds: dict[str, SpaceFeed] = {}
        tasks.start_soon(self._beat)

    def of(self, space: str) -> SpaceFeed:
        """The feed of a space, which begins to follow it."""
        host, feed = self._runtime.spaces[space], self._feeds.get(space)
        if feed is None or feed.host is not host:  # a space that began anew
            if feed is not None:
                feed.close(RESTARTING, "the space began anew")
            feed = self._feeds[space] = SpaceFeed(host)
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
