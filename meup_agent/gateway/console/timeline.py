"""The envelopes of a space as rows of a sequence diagram, and their feed to browsers."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from meup_agent.gateway.console.rendering import key_of, make_environment
from meup_agent.gateway.console.stream import FRESH, GATHER_SECONDS, EventQueues, pack
from meup_agent.gateway.edge.http.context import Problem, read_journal
from meup_agent.gateway.edge.http.space_views import proposals_of
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.dialects import DEFAULT_DIALECT
from meup_agent.protocol.payloads import as_object
from meup_agent.protocol.space.fanout import FrameFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from meup_agent.protocol.audit import ProposalAudit
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.space.journal import Entry
    from meup_agent.protocol.space.server import SpaceServer

MAX_COLUMNS: Final = 8
"""Participants with a column of their own; all others share one more."""

MAX_THREADS: Final = 10_000
"""Ids of envelopes whose proposal is remembered."""

MAX_ROWS_PUSHED: Final = 200
"""Rows of one push; of a space that is livelier, browsers load the timeline anew."""

PAGE_ROWS: Final = 100
"""Rows that a page of the timeline begins with, and loads at a time."""

MAX_WORDS: Final = 240

OTHERS: Final = "others"

_WORDS: Final = {
    kinds.MCP_PROPOSAL: "proposes",
    kinds.MCP_REQUEST: "asks",
    kinds.MCP_RESPONSE: "answers",
    kinds.MCP_REJECT: "rejects",
    kinds.MCP_WITHDRAW: "withdraws",
    kinds.CHAT: "says",
}


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
    proposal: str  # the id of that proposal
    begin: float  # the place of its sender, in percent
    ends: tuple[float, ...]  # the places of its addressees; empty: to all


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


class Threads:
    """The proposals that envelopes belong to, by the ids that they have and name."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def learn(self, proposal: ProposalAudit) -> None:
        """Know a proposal of before, and what was said of it."""
        found = (proposal.proposer, proposal.id)
        for name in (proposal.id, *(each.id for each in proposal.steps)):
            self._note(name, found)

    def of(self, envelope: Envelope) -> tuple[str, str]:
        """Proposer and id of the proposal of an envelope; two empty texts: it belongs to none."""
        found = ("", "")
        if envelope.kind == kinds.MCP_PROPOSAL:
            found = (envelope.sender, envelope.id)
        else:
            for each in (*envelope.correlation, _named_by_cancel(envelope)):
                if each in self._known:
                    found = self._known[each]
                    break
        if found[1]:
            self._note(envelope.id, found)
        return found

    def _note(self, name: str, proposal: tuple[str, str]) -> None:
        self._known[name] = proposal
        if len(self._known) > MAX_THREADS:
            self._known.popitem(last=False)


class SpaceFeed:
    """Follows one space: rows of its timeline, rendered once for all browsers that want them."""

    def __init__(self, host: SpaceServer) -> None:
        self.queues = EventQueues()
        self.columns = LaneColumns()
        self.threads = Threads()
        self.last_heard: dict[str, float] = {}
        self.form = FrameFormat(DEFAULT_DIALECT)
        self._host = host
        self._template = make_environment().get_template("timeline_rows.html")
        self._seen = host.fanout.delivered
        self._changed = anyio.Event()
        self._closed = False
        self.columns.add(*(each.participant for each in host.members))
        for proposal in proposals_of(host).audit.proposals:
            self.threads.learn(proposal)

    async def follow(self) -> None:
        """Publish what is said until cancelled."""
        host = self._host
        host.fanout.subscribe(self, None)
        try:
            while not self._closed:
                await self._changed.wait()
                # One rendering for all that comes in this time.
                await anyio.sleep(GATHER_SECONDS)
                self._changed = anyio.Event()
                await self._publish()
        finally:
            host.fanout.unsubscribe(self)

    async def _publish(self) -> None:
        host, until = self._host, self._host.fanout.delivered
        if not self.queues.wants("space"):
            self._seen = until
            return
        try:
            entries = await read_journal(
                host, after=max(self._seen, host.journal.floor(host.name)), until=until,
                limit=MAX_ROWS_PUSHED + 1,
            )  # fmt: skip
        except Problem:
            return
        self._seen = until
        if len(entries) > MAX_ROWS_PUSHED:
            self.queues.publish("space", FRESH)
            return
        widened = self.columns.add(*self._speakers(entries))
        rows = [self.row(entry) for entry in entries]
        html = "" if widened else self._template.render(rows=rows, places=self.columns.places)
        touched = {row.thread for row in rows if row.thread}
        who = any(_is_about_members(entry.envelope) for entry in entries)
        event = {"rows": html, "wider": widened, "touched": sorted(touched), "members": who}
        self.queues.publish("space", pack("space", event))

    def row(self, entry: Entry) -> TimelineRow:
        """The row of an entry, which comes after all rows before it."""
        envelope, at = entry.envelope, entry.at / 1_000_000
        self.last_heard[envelope.sender] = max(at, self.last_heard.get(envelope.sender, 0.0))
        proposer, proposal = self.threads.of(envelope)
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
            proposal=proposal,
            begin=place(envelope.sender),
            ends=tuple(place(each) for each in envelope.to[: MAX_COLUMNS + 1]),
        )

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
        target = f"{call.target}." if call.target else ""
        return verb, f"{target}{_call(call)}", "proposal"
    if kind == kinds.MCP_REQUEST:
        call = payloads.read_call(envelope.payload)
        if call.method == kinds.CANCELLED:
            return "cancels", str(call.params.get("reason", "")), "cancel"
        if call.method == kinds.PROGRESS:
            done, total = call.params.get("progress"), call.params.get("total")
            of = "" if total is None else f" of {total}"
            return "progress", f"{done}{of} {call.params.get('message') or ''}".strip(), "progress"
        return verb, _call(call), "request"
    if kind == kinds.MCP_RESPONSE:
        failed = "error" in payload or payload.get("result", {}) == {"isError": True}
        body = payload.get("error") if "error" in payload else payload.get("result")
        return ("fails" if failed else verb), _compact(body), "error" if failed else "response"
    if kind == kinds.MCP_REJECT:
        return verb, str(payload.get("reason", "")), "reject"
    if kind == kinds.MCP_WITHDRAW:
        return verb, str(payload.get("reason", "")), "withdraw"
    if kind == kinds.CHAT:
        text = payload.get("message", payload.get("text"))
        return verb, text if isinstance(text, str) else "", "chat"
    if kind == kinds.SYSTEM_PRESENCE:
        name = as_object(payload.get("participant")).get("id", "")
        event = {"join": "came", "leave": "left"}.get(str(payload.get("event")), "changed")
        return "tells", f"{name} {event}", "system"
    return verb, f"{kind} {_compact(payload)}", "system" if kind.startswith("system") else "other"


def _call(call: payloads.Call) -> str:
    if call.method != "tools/call":
        return f"{call.method} {_compact({k: v for k, v in call.params.items() if k != '_meta'})}"
    given = ", ".join(f"{key}: {_compact(value)}" for key, value in call.arguments.items())
    return f"{call.name}({given})"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))[: 2 * MAX_WORDS]


def _named_by_cancel(envelope: Envelope) -> str:
    """The id of the request that a cancel names."""
    if envelope.kind != kinds.MCP_REQUEST:
        return ""
    try:
        call = payloads.read_call(envelope.payload)
    except (ValueError, RecursionError):
        return ""
    named = call.params.get("requestId") if call.method == kinds.CANCELLED else None
    return named if isinstance(named, str) else ""


def _is_about_members(envelope: Envelope) -> bool:
    return envelope.kind.startswith(("system/presence", "capability/", "space/"))
