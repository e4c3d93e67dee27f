"""Threads: the proposals that envelopes belong to, and the lines of thought and the streams.

An envelope names what it answers by id. What was said lately is remembered; of an older page of the
timeline the ids that it names are looked for in what was said before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from meup_agent.gateway.console.sentences import REASONING, STREAM
from meup_agent.gateway.edge.http.context import read_journal
from meup_agent.protocol import kinds, payloads

if TYPE_CHECKING:
    from meup_agent.protocol.audit import ProposalAudit
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.space.journal import Entry
    from meup_agent.protocol.space.server import SpaceServer

MAX_THREADS: Final = 10_000
"""Ids of envelopes whose proposal is remembered."""

MAX_LOOK_BACK: Final = 1_000
"""Entries before a page in which the envelopes that it names are looked for."""

LOOK_BACK_STEP: Final = 200
"""Entries that are looked through at a time."""


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

    def learn(self, proposal: ProposalAudit) -> None:
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
    """The line of thought, or the stream, that an envelope is folded into."""
    if envelope.kind == kinds.REASONING_CANCEL and known.startswith(REASONING):
        return known  # also that of another participant, who stops it
    if envelope.kind.startswith(REASONING):
        return f"{REASONING}{envelope.sender}/{envelope.context or envelope.id}"
    if not envelope.kind.startswith(STREAM):
        return ""
    stream = _stream_of(envelope) or envelope.id
    return known if known.startswith(STREAM) else f"{STREAM}{stream}"


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
    earlier: list[list[Entry]] = []
    missing = _named(entries, threads) - {each.envelope.id for each in entries}
    upper = entries[0].seq - 1 if entries else 0
    floor = host.journal.floor(host.name)
    for _ in range(MAX_LOOK_BACK // LOOK_BACK_STEP):
        if not missing or upper <= floor:
            break
        lower = max(floor, upper - LOOK_BACK_STEP)
        page = list(await read_journal(host, after=lower, until=upper, limit=LOOK_BACK_STEP))
        if not page:
            # The numbers go on from the clock at each start of a gateway.
            upper = await newest_number(host, floor, lower)
            continue
        here = {each.envelope.id for each in page}
        meant = [each for each in page if each.envelope.id in missing]
        missing = (missing | _named(meant, threads)) - here
        earlier.append(page)
        upper = lower
    for page in reversed(earlier):
        for each in page:
            threads.of(each.envelope)


async def newest_number(host: SpaceServer, floor: int, until: int) -> int:
    """The number of the newest entry up to another number; the floor where there is none."""
    low, high = floor, until
    while low < high:
        middle = (low + high) // 2
        entries = await read_journal(host, after=middle, until=high, limit=1)
        if entries:
            low = entries[0].seq
        else:
            high = middle
    return low


def _named(entries: Iterable[Entry], known: ThreadIndex) -> set[str]:
    return {
        name for each in entries for name in names_in(each.envelope) if known.find(name) is None
    }
