"""The engine on NATS JetStream, as the spaces of a gateway see it: on the gateway's loop."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing, closing
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.archive import ServerArchive
from meup_agent.gateway.journal.nats.follower import (
    QUIET_SECONDS,
    F,
    KeptSpace,
    LogFollower,
    NoFold,
)
from meup_agent.gateway.journal.nats.link import ApiError, Link, NoAnswer
from meup_agent.gateway.journal.nats.log import (
    CHECKPOINT_ENTRIES,
    CHECKPOINT_SECONDS,
    PAGE,
    SpaceLog,
    Waiting,
)
from meup_agent.gateway.journal.nats.records import (
    FORMAT,
    MAX_BATCH,
    Checkpoint,
    ForeignMessage,
    Ownership,
    encode_entry,
    read_batch,
)
from meup_agent.gateway.journal.waiting import (
    MAX_RECOVERED_BYTES,
    PendingEntry,
    WaitingJournal,
    WaitingRoom,
    node_name,
)
from meup_agent.protocol.space.journal import (
    Entry,
    Fact,
    HistoryPage,
    HistoryQuery,
    NumberRange,
    ProposalChange,
    Recovered,
)

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig, NatsConfig
    from meup_agent.protocol.wire.envelope import Envelope


log = logging.getLogger("meup_agent.gateway")

START_SECONDS: Final = 600.0
"""For a gateway that starts to read the log of one space."""

CLOSE_SECONDS: Final = 5.0
"""For what waits to be kept before the end; what NATS does not answer for by then is lost."""


class LoggedEntry(PendingEntry):
    """An entry that waits to be kept, of a space's log, which gives it its number."""

    log: SpaceLog
    at: int
    envelope: Envelope
    facts: tuple[Fact, ...]
    changes: tuple[ProposalChange, ...]


class NatsJournal(WaitingJournal[LoggedEntry]):
    """A :class:`~meup_agent.protocol.space.journal.Journal` on NATS JetStream.

    A gateway has one for each space, which it opens (:meth:`open`), so that one of them can fail by
    itself; they share the connection and the room for what waits. Without a connection it makes its
    own, and reads a space's log when that is first asked for, which blocks. :meth:`aclose` ends it.
    After a failure nothing is called any more, since nothing is kept.

    Args:
        config: The journal's configuration.
        now: A clock in microseconds since 1970.
        link: The connection that it shares.
        room: The room that it shares.
        is_copy: True to make logs that no gateway opens before :meth:`~SpaceLog.end_copy`.
    """

    def __init__(
        self,
        config: JournalConfig,
        now: Callable[[], int],
        link: Link | None = None,
        room: WaitingRoom | None = None,
        *,
        is_copy: bool = False,
    ) -> None:
        nats = config.nats
        assert nats is not None, "the table of engines asked before"
        super().__init__(room)
        self.max_bytes = config.max_bytes
        """See :attr:`~meup_agent.protocol.space.journal.Journal.max_bytes`; of each space."""
        self.problem = ""
        self.configuration: Callable[[], dict[str, str]] = dict
        """Digests of the parts of the gateway's configuration, for the record of who owns."""
        self.format: Callable[[], int] = lambda: FORMAT
        """The format of batches that all gateways read which may follow or own the space next."""
        self._config = config
        self._is_copy = is_copy
        self._nats = nats
        # What a stream forgets must have been written down, also that it held no facts.
        self._forgets = config.max_age is not None or config.max_bytes is not None
        self._now = now
        self._ownership = Ownership(node_name(nats), secrets.token_hex(16), _version(), now())
        self._spaces: dict[str, KeptSpace] = {}
        self._follower: LogFollower[Any] | None = None

        self._shares_link = link is not None
        self._link = link or Link(nats)
        self._told_away = partial(self._to_loop, self._on_away)
        self._link.on_away.add(self._told_away)
        if link is None:
            self._link.open()

    @property
    def max_frame_bytes(self) -> int | None:
        return max_frame_bytes(self._link)

    async def follow(self, space: str, begin: Callable[[], F]) -> bool:
        """Read what another gateway has written into the log of a space since it was read last.

        With ``begin`` a fold begins, which takes the entries; where what was read before does not
        hold any more, it begins anew. True: there was something.

        Raises:
            ConfigurationError: The log cannot be read.
        """
        return await self._follower_of(space, begin).look()

    async def wait_for_more(self) -> None:
        """Wait until there may be more to read in the log that it follows."""
        if self._follower is None:
            await anyio.sleep(QUIET_SECONDS)
        else:
            await self._follower.wait()

    async def open(self, space: str, begin: Callable[[], F]) -> F:
        """Own the log of a space, and read what is not read yet; the fold of all of it.

        What the space recovers from it is in the fold; see :meth:`follow`.

        Raises:
            ConfigurationError: It cannot be owned, or cannot be read.
        """
        follower = self._follower_of(space, begin)
        space_log = follower.log
        try:
            async with follower.turn:
                await self._link.do(space_log.open(self._config, self._owning()))
                space_log.begin()
                await follower.finish()
        except BaseException:
            space_log.stop()
            raise
        follower.known.is_folded = True
        self._add(follower)
        return follower.fold

    def epoch(self, space: str) -> int:
        """The sequence of the message by which it owns a space."""
        return self._space(space).log.epoch

    @property
    def is_replaced(self) -> bool:
        """True if it has failed because another gateway owns a space."""
        return any(space.log.is_replaced for space in self._spaces.values())

    @property
    def link(self) -> Link:
        """The connection to NATS."""
        return self._link

    def _space(self, name: str) -> KeptSpace:
        space = self._spaces.get(name)
        if space is None:
            if self._shares_link:
                raise KeyError(name)  # no other space's
            follower = self._follower_of(name, NoFold)
            opening = follower.log.open(self._config, self._owning())
            self._link.wait(opening, START_SECONDS)
            follower.log.begin()
            follower.read_now()
            follower.end()
            space = self._add(follower)
        return space

    def _follower_of(self, name: str, begin: Callable[[], F]) -> LogFollower[F]:
        if self._follower is None or self._follower.log.space != name:
            on_kept = partial(self._soon, self._on_kept)
            on_lost = partial(self._soon, self._fail)
            space_log = SpaceLog(
                self._link, self._nats, name, self._now, on_kept, on_lost, self._is_copy
            )
            space_log.format = lambda: self.format()
            self._follower = LogFollower(self._link, space_log, begin)
        return self._follower

    def _owning(self) -> Ownership:
        config = self.configuration()
        return msgspec.structs.replace(self._ownership, at=self._now(), config=config)

    def _add(self, follower: LogFollower[Any]) -> KeptSpace:
        known = self._spaces[follower.log.space] = follower.known
        self._follower = None
        # At once: a stream that forgets what nobody wrote down could not be read again, also where
        # nothing was said since.
        if self._forgets:
            self._write_checkpoint(known)
        elif known.unwritten:
            self._note_unwritten(known, 0)
        return known

    # --- the contract -----------------------------------------------------------------------

    def append(
        self,
        space: str,
        at: int,
        envelope: Envelope,
        facts: tuple[Fact, ...],
        then: Callable[[Entry], None],
        changes: tuple[ProposalChange, ...] = (),
    ) -> None:
        if self._ended:
            return
        space_log = self._space(space).log
        size = len(envelope.frame)
        self._pending.append(LoggedEntry(then, size, space_log, at, envelope, facts, changes))
        self._room.enter(size)
        # Encoded here: the gateway's loop would wait for another thread that does it. The log
        # takes in its next turn what comes in this one, so that goes into one message.
        encoded = encode_entry(at, envelope, facts, changes)
        space_log.put([Waiting(encoded, len(encoded))])

    def read(
        self,
        space: str,
        *,
        after: int,
        until: int,
        limit: int,
        then: Callable[[tuple[Entry, ...]], None],
    ) -> None:
        if not self._ended:
            page = partial(self._space(space).log.page, after=after, until=until, limit=limit)
            self._link.begin(lambda: self._read(page, then))

    def find_decisions(
        self, space: str, query: HistoryQuery, then: Callable[[HistoryPage], None]
    ) -> None:
        then(self._space(space).decisions.find(space, query))

    def seen(self, space: str, participant: str) -> int:
        return self._space(space).seen.get(participant, 0)

    def mark_seen(self, space: str, participant: str, at: int) -> None:
        known = self._space(space)
        if not self._ended and at > known.seen.get(participant, 0):
            known.seen[participant] = at
            self._note_unwritten(known, 0)

    def floor(self, space: str) -> int:
        return self._space(space).log.floor

    def latest(self, space: str) -> int:
        return max(self._space(space).log.latest, self.floor(space))

    def size(self) -> int | None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.size`; of one replica."""
        return sum(space.log.size for space in self._spaces.values())

    def resume_from(self, space: str, seen: int) -> int:
        floor = self.floor(space)
        if not floor <= seen <= self.latest(space):
            return floor
        for damaged in reversed(self._space(space).log.damaged):
            if seen < damaged.last:
                return max(floor, damaged.last)
        return seen

    def damaged(self, space: str, *, after: int, until: int) -> tuple[NumberRange, ...]:
        return tuple(
            NumberRange(max(each.first, after + 1), min(each.last, until))
            for each in self._space(space).log.damaged
            if each.first <= until and after < each.last
        )

    def recover(
        self, space: str, *, since: int, limit: int, open_at: int | None = None
    ) -> Recovered:
        known = self._space(space)
        if known.is_folded:
            return Recovered(dict(known.facts), ())
        found, size = deque[Entry](), 0
        for entry in _entries(self._link.insist, known.log) if limit else ():
            if entry.at < since:
                continue
            found.append(entry)
            size += len(entry.envelope.frame)
            while len(found) > limit or (size > MAX_RECOVERED_BYTES and len(found) > 1):
                size -= len(found.popleft().envelope.frame)
        # It does not tell those about what is open from the others, so it hands all over.
        before = found[0].seq if found else known.log.latest + 1
        all_entries = () if open_at is None else _entries(self._link.insist, known.log)
        older = takewhile(lambda entry: entry.seq < before, all_entries)
        return Recovered(dict(known.facts), tuple(found), older)

    def replace_facts(self, space: str, facts: dict[str, Any], seen: dict[str, int]) -> None:
        """Let a space hold these facts and marks, and not those that its entries made.

        They are written down when it is closed.
        """
        known = self._space(space)
        known.facts, known.seen = facts, seen
        self._note_unwritten(known, 0)

    # --- the end ------------------------------------------------------------------------------

    async def aclose(self) -> None:
        await self.flush(CLOSE_SECONDS)
        lost = sum(isinstance(each, LoggedEntry) for each in self._pending)
        ended, self._ended = self._ended, True
        if not ended:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._write_last_checkpoints)
        self._end()
        if not self._shares_link:
            with anyio.CancelScope(shield=True):
                await self._link.aclose()
        if lost:
            log.error("%s hangs; %d messages that waited for it are lost", self._link.place, lost)

    def abandon(self) -> None:
        if self._follower is not None:
            self._follower.stop()
        self._end()

    def _end(self) -> None:
        super()._end()
        self._link.on_away.discard(self._told_away)
        for space in self._spaces.values():
            if space.timer is not None:
                space.timer.cancel()
            space.log.stop()

    # --- between the threads ------------------------------------------------------------------

    async def _read(self, page: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Read a page however long it takes: a reader asks for the next when it has come."""
        while True:
            try:
                found = await page()
            except NoAnswer:
                await asyncio.sleep(1.0)
            except Exception as error:
                self._to_loop(self._fail, f"the journal cannot be read: {error}")
                return
            else:
                self._to_loop(then, found)
                return

    def _on_away(self, problem: str) -> None:
        self.problem = problem

    def _on_kept(self, space_log: SpaceLog, sequence: int, count: int) -> None:
        first = space_log.number(sequence)
        known = self._spaces[space_log.space]
        known.kept.extend(range(first, first + count))
        known.reported = sequence
        self.problem = ""
        if not self._is_delivering:
            self._deliver()

    def _kept_entry(self, waiting: LoggedEntry) -> Entry | None:
        known = self._spaces[waiting.log.space]
        if not known.kept:
            return None
        seq = known.kept.popleft()
        known.log.latest = seq
        entry = Entry(seq, known.log.space, waiting.at, waiting.envelope, waiting.facts)
        if waiting.changes:
            known.decide(seq, waiting.changes)
        if waiting.facts and known.hold(waiting.facts):
            self._note_unwritten(known, 1)
        elif self._forgets and known.timer is None:
            self._note_unwritten(known, 0)
        return entry

    # --- checkpoints --------------------------------------------------------------------------

    def _note_unwritten(self, known: KeptSpace, entries: int) -> None:
        known.unwritten += entries
        if known.unwritten >= CHECKPOINT_ENTRIES:
            self._write_checkpoint(known)
        elif known.timer is None:
            known.timer = self._loop.call_later(CHECKPOINT_SECONDS, self._write_checkpoint, known)

    def _write_checkpoint(self, known: KeptSpace) -> None:
        if known.timer is not None:
            known.timer.cancel()
            known.timer = None
        known.unwritten = 0
        checkpoint = self._checkpoint(known)
        self._link.begin(lambda: self._write(known, checkpoint))

    async def _write(self, known: KeptSpace, checkpoint: Checkpoint) -> None:
        """Write one down, or try again later; in the link's thread."""
        try:
            await known.log.write_checkpoint(checkpoint)
        except Exception as error:
            # The next one has it, and a start reads the log after the last one.
            log.warning("the facts of space %r are not written down: %s", known.log.space, error)
            self._to_loop(self._note_unwritten, known, 0)

    def _checkpoint(self, known: KeptSpace) -> Checkpoint:
        """The facts and marks that hold after all that was delivered."""
        latest = known.log.sequence(known.log.latest) - 1 if known.kept else known.reported
        return Checkpoint(max(0, latest), dict(known.facts), dict(known.seen))

    def _write_last_checkpoints(self) -> None:
        for known in self._spaces.values():
            if known.timer is not None or self._forgets:
                try:
                    self._link.wait(self._write(known, self._checkpoint(known)), CLOSE_SECONDS)
                except ConfigurationError as error:
                    log.warning("the facts of space %r are not written: %s", known.log.space, error)


SPARE_BYTES: Final = 64 * 1024
"""Bytes of a message of NATS that are left for what an entry has besides its frame."""


def max_frame_bytes(link: Link) -> int:
    """Bytes of the largest frame that fits into a message."""
    return link.max_payload - SPARE_BYTES


def _version() -> str:
    from importlib.metadata import version

    return version("meup-agent")


def check(config: JournalConfig) -> tuple[str, int]:
    """Look whether NATS can be reached: its place, and the bytes of the largest frame.

    Raises:
        ConfigurationError: It cannot, or it serves no JetStream.
    """
    nats = config.nats
    assert nats is not None, "the table of engines asked before"
    with closing(Link(nats)) as link:
        link.open()
        link.wait(link.find_jetstream(), START_SECONDS)
        if nats.replicas > 1 and not link.server.get("cluster"):
            raise ConfigurationError(
                f"journal.nats.replicas: {link.place} is one server alone, and {nats.replicas} are"
                " to have each message; make it one of several, or set replicas: 1"
            )
        return f"{link.place} (prefix {nats.prefix})", max_frame_bytes(link)


# --- streams as other programs read them: nothing in them changes by it ---

T = TypeVar("T")


class NatsArchive(ServerArchive):
    """The logs of some spaces, as far as they go when it is opened; close it in the end."""

    def __init__(self, config: NatsConfig, spaces: Iterable[str]) -> None:
        self._logs: dict[str, SpaceLog] = {}
        self._prefix = config.prefix
        self._link = Link(config)
        self._link.open()
        try:
            self._wait(self._link.find_jetstream)
            for space in spaces:
                log = SpaceLog(self._link, config, space)
                if self._wait(log.look):
                    self._logs[space] = log
        except BaseException:
            self.close()
            raise

    @property
    def spaces(self) -> list[str]:
        return list(self._logs)

    @property
    def damaged(self) -> list[NumberRange]:
        return sorted(each for log in self._logs.values() for each in log.damaged)

    def log_of(self, space: str) -> SpaceLog:
        """The stream of a space."""
        return self._logs[space]

    def latest(self, space: str) -> int:
        log = self._logs[space]
        return log.latest if log.latest > log.floor else 0

    def before(self, space: str, at: int) -> int:
        log = self._logs[space]
        low, high = log.first, log.last + 1
        while low < high:
            # Below `low` all entries are older; the last one of the first message with any that
            # comes from `high` on is not.
            middle = (low + high) // 2
            last = self._wait(partial(_last_of_next, log, middle))
            if last is not None and last.at < at:
                low = log.sequence(last.seq) + 1
            else:
                high = middle
        entries = self.read(space, after=log.number(low) - 1, until=log.latest, limit=MAX_BATCH)
        older = [entry.seq for entry in entries if entry.at < at]
        return older[-1] if older else log.number(low) - 1

    def page(self, space: str, after: int, until: int, limit: int) -> tuple[Entry, ...]:
        page = partial(self._logs[space].page, after=after, until=until, limit=limit)
        return self._wait(page)

    def facts(self, space: str) -> dict[str, dict[str, Any]]:
        checkpoint = self._checkpoint(space)
        kept = KeptSpace(self._logs[space], checkpoint.facts, {})
        for entry in _entries(self._wait, kept.log, checkpoint.until + 1):
            kept.hold(entry.facts)
        return kept.facts

    def seen(self, space: str) -> dict[str, int]:
        return self._checkpoint(space).seen

    def find_owner(self) -> str | None:
        from meup_agent.gateway.cluster.membership import find_owner

        return self._link.wait(find_owner(self._link, self._prefix))

    def has_grown(self, space: str) -> bool:
        log = self._logs[space]
        return self._wait(log.refresh) != log.last

    def is_part(self, space: str) -> bool:
        return self._logs[space].is_copied_to

    def end_copy(self, space: str) -> None:
        self._wait(self._logs[space].end_copy)

    def close(self) -> None:
        self._link.close()

    def _checkpoint(self, space: str) -> Checkpoint:
        return self._wait(self._logs[space].read_checkpoint)

    def _wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return self._link.insist(work)
        except ForeignMessage as error:
            raise ConfigurationError(f"a stream of {self._link.place}: {error}") from None
        except ApiError as error:
            raise ConfigurationError(f"{self._link.place} cannot be read: {error}") from None


async def _last_of_next(log: SpaceLog, sequence: int) -> Entry | None:
    """The last entry of a message, or of the first one after it that has any."""
    async with aclosing(log.batches(sequence, log.last)) as batches:
        async for number, batch in batches:
            for entry, _ in reversed([*read_batch(log.space, number, batch)]):
                return entry
    return None


def _entries(
    wait: Callable[[Callable[[], Coroutine[Any, Any, list[Entry]]]], list[Entry]],
    log: SpaceLog,
    begin: int = 0,
) -> Iterator[Entry]:
    """Each entry of a log from a message on, read while the caller waits."""

    async def read(first: int) -> list[Entry]:
        return [
            entry
            async for number, batch in log.batches(first, min(first + PAGE - 1, log.last))
            for entry, _ in read_batch(log.space, number, batch)
        ]

    for first in range(max(begin, log.first), log.last + 1, PAGE):
        yield from wait(partial(read, first))
