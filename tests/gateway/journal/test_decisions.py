"""The table of decisions and the index of names: what the fold of all entries would say."""

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from meup_agent import ProposalState
from meup_agent.gateway import JournalConfig
from meup_agent.protocol.wire.envelope import rfc3339
from tests.effort import scaled
from tests.gateway.journal.conftest import Clock, change, handed_over, opened, read, settled
from tests.gateways import SEGMENT_ENTRIES, Archive, DecisionQuery, SqliteJournal
from tests.patience import PATIENCE
from tests.spaces import (
    SORT_KEYS,
    Audit,
    DecisionRow,
    Entry,
    FoldBegin,
    HistoryPage,
    HistoryQuery,
    proposal_as_json,
    select_decisions,
    space_server,
)

NAMES = ("alice", "bob", "tools")
SECOND = 1_000_000
CALL = {"method": "tools/call", "params": {"name": "read"}}
STEPS = 300
OF_TIME = {"pending", "in_progress", "expired"}
ACTS = (
    *("propose", "propose", "propose", "request", "request", "respond", "respond", "refuse"),
    *("withdraw", "reject", "chat", "cancel", "progress", "renew", "wait", "restart"),
)


class History:
    """What three participants say at random, under few ids, to a space over a journal."""

    def __init__(self, path: Path, random: Random, clock: Clock, **config: Any) -> None:
        self.path, self.random, self.clock = path, random, clock
        self._config = JournalConfig(path, **config)
        self._numbers = count(1)
        self.said = dict[str, list[str]]()
        """The ids of each kind."""
        self.open()

    def open(self) -> None:
        self.journal = SqliteJournal(self._config, self.clock)
        ids = count(1)
        begun = self.clock()
        self.space = space_server(
            {name: [{"kind": "mcp/*"}, {"kind": "chat"}] for name in NAMES},
            self.clock,
            journal=self.journal,
            new_id=lambda: f"g{begun}-{next(ids)}",
            announce_withdrawals=True,
        )

    async def restart(self) -> None:
        if self.random.random() < 0.5:
            self.journal.abandon()  # killed: what waits is lost
        await self.journal.aclose()
        self.open()

    def one_of(self, kind: str) -> str:
        return self.random.choice(self.said.get(kind) or ["unknown"])

    def say(self, sender: str, kind: str, payload: dict[str, Any], *about: str) -> None:
        known = self.said.setdefault(kind, [])
        again = self.random.random() < 0.1
        name = self.random.choice(known) if known and again else f"n{next(self._numbers)}"
        self.clock.now += 1_000
        envelope = {
            "protocol": "meup/v0.1",
            "id": name,
            "from": sender,
            "kind": kind,
            "payload": payload,
            **({"correlation_id": list(about)} if about else {}),
        }
        frame = json.dumps(envelope).encode()
        self.space.owner.receive_as(sender, frame, "meup/v0.1", lambda _: known.append(name))

    async def step(self) -> None:
        random, sender = self.random, self.random.choice(NAMES)
        proposal, request = self.one_of("mcp/proposal"), self.one_of("mcp/request")
        match random.choice(ACTS):
            case "propose":
                params: dict[str, Any] = {"name": random.choice(("read", "write"))}
                lasts = random.choice((None, 3, 300, 30 * 86_400))
                ttl = {} if lasts is None else {"ttl": lasts * 1_000}
                self.say(sender, "mcp/proposal", {"method": "tools/call", "params": params, **ttl})
            case "request":
                params = {"name": random.choice(("read", "write"))}
                call = {"method": "tools/call", "params": params, "id": random.randrange(9)}
                self.say(sender, "mcp/request", call, proposal)
            case "respond":
                self.say(sender, "mcp/response", {"result": {}}, request)
            case "refuse":
                data = {"reason": "refused"}
                error = {"code": -32000, "message": "no", "data": data}
                self.say(sender, "mcp/response", {"error": error}, request)
            case "withdraw":
                reason = random.choice(("timeout", "other", "no_longer_needed"))
                self.say(sender, "mcp/withdraw", {"reason": reason}, proposal)
            case "reject":
                self.say(sender, "mcp/reject", {"reason": "unsafe"}, proposal)
            case "chat":
                about = self.one_of(random.choice(("mcp/reject", "chat", "mcp/proposal")))
                self.say(sender, "chat", {"message": "why"}, about)
            case "cancel":
                params = {"requestId": random.choice((request, str(random.randrange(9))))}
                call = {"method": "notifications/cancelled", "params": params}
                self.say(sender, "mcp/request", call)
            case "progress":
                params = {"progressToken": request, "progress": 1}
                call = {"method": "notifications/progress", "params": params}
                self.say(sender, "mcp/request", call)
            case "renew":
                until = rfc3339(self.clock() + 900 * SECOND)
                self.say(sender, "mcp/renew", {"expires_at": until}, proposal)
            case "wait":
                self.clock.now += random.choice((1, 10)) * SECOND
            case _:
                await self.restart()


@asynccontextmanager
async def lived(path: Path, clock: Clock, seed: int = 0, **config: Any) -> AsyncGenerator[History]:
    history = History(path, Random(seed), clock, **config)
    try:
        yield history
        await settled(history.journal)
    finally:
        await history.journal.aclose()


def folded(entries: list[Entry], until: int) -> Audit:
    audit = Audit()
    for entry in entries:
        audit.add(entry)
    audit.pass_time(until)
    return audit


def check(path: Path, *, cut: bool = False) -> None:
    """Compare with the fold of all entries, the first of which may have been cut away."""
    with closing(Archive(path)) as archive:
        entries = list(archive.read("demo", after=0, until=2**62, limit=100_000))
        until = entries[-1].at if entries else 0
        whole = folded(entries, until)
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT seq, state FROM proposal ORDER BY seq").fetchall()
        assert [seq for seq, _ in rows] == [each.first.seq for each in whole.proposals]
        for each, (_, state) in zip(whole.proposals, rows, strict=True):
            # Of what the table calls pending the fold says whether a request is out, or its time
            # over; or that its proposer used its id again. Where the journal was cut, a withdrawal
            # of the earlier one of an id seems to be of the later one.
            again = whole.latest_of(each.proposer, each.id) is not each
            if state != "pending" or not (cut or again or each.state in OF_TIME):
                assert state == each.state
            chains = archive.find_chains("demo", DecisionQuery(each.id, each.proposer))
            assert chains is not None
            assert chains.until == until
            found = folded(chains.entries, chains.until).proposals
            (alone,) = (other for other in found if other.first.seq == each.first.seq)
            assert proposal_as_json(alone, timeline=True) == proposal_as_json(each, timeline=True)
        for state in ProposalState:
            chains = archive.find_chains("demo", DecisionQuery(states=frozenset({state})))
            assert chains is not None
            listed = folded(chains.entries, chains.until).proposals
            some = {each.first.seq for each in listed if each.state is state}
            assert some == {each.first.seq for each in whole.proposals if each.state is state}


def decided(path: Path) -> list[tuple[Any, ...]]:
    """The rows of the table; of one that has expired it may say that, or that it is pending."""
    with closing(sqlite3.connect(path)) as connection:
        query = (
            "SELECT seq, id, tool, proposed_at, rule, replace(state, 'expired', 'pending'), decided"
        )
        return connection.execute(f"{query} FROM proposal ORDER BY seq").fetchall()


async def find_begin(journal: SqliteJournal, most: int) -> FoldBegin:
    found = partial(journal.find_begin, "demo", proposals=most)
    return await handed_over(lambda then: found(then=then))


async def check_begin(journal: SqliteJournal, whole: Audit, most: int) -> None:
    """The latest proposals and all that are pending are known without the rest."""
    begin = await find_begin(journal, most)
    entries = [*begin.older, *await read(journal, after=begin.after)]
    assert entries == sorted(entries, key=lambda each: each.seq)
    part = folded(entries, entries[-1].at)
    used = Counter(each.id for each in whole.proposals)
    # Of an id that was used again, the part before the beginning may be what tells which is meant.
    once = [each for each in whole.proposals if used[each.id] == 1]
    latest = {each.first.seq for each in whole.proposals[-most:]}
    wanted = {
        each.first.seq: each.state
        for each in once
        if each.state.is_pending or each.first.seq in latest
    }
    states = {each.first.seq: each.state for each in part.proposals}
    assert wanted.items() <= states.items()


@pytest.mark.rule("9.decisions")
@pytest.mark.parametrize("seed", range(scaled(4)))
@pytest.mark.parametrize("max_age", [None, 15.0])
async def test_the_table_and_the_index_say_what_the_fold_says(
    path: Path, clock: Clock, max_age: float | None, seed: int
) -> None:
    async with lived(path, clock, seed, max_age=max_age) as history:
        for _ in range(STEPS):
            await history.step()
    check(path, cut=max_age is not None)
    kept = decided(path)
    # A start makes them anew where they are not there, and they are the same.
    change(path, "DROP TABLE proposal")
    async with opened(path, clock) as journal:
        entries = list(await read(journal))
        for most in (1, 4) if max_age is None else ():
            await check_begin(journal, folded(entries, entries[-1].at), most)
    check(path, cut=True)
    assert decided(path) == kept or max_age is not None


@pytest.mark.rule("9.decisions")
async def test_writing_hides_no_entry_of_a_proposal_that_is_read(path: Path, clock: Clock) -> None:
    loop, kept = asyncio.get_running_loop(), Event()

    def write_more() -> None:
        for _ in range(SEGMENT_ENTRIES):
            history.say("bob", "chat", {"message": "hi"})
        history.journal.call_when_kept(kept.set)

    def interrupt(statement: str) -> None:
        if "FROM entry WHERE seq >" in statement:
            loop.call_soon_threadsafe(write_more)
            assert kept.wait(PATIENCE)

    async with lived(path, clock) as history:
        history.say("alice", "mcp/proposal", CALL)
        history.say("bob", "mcp/reject", {"reason": "unsafe"}, "n1")
        for _ in range(2):
            history.say("alice", "mcp/proposal", CALL)
        await settled(history.journal)
        history.journal._database.reader.set_trace_callback(interrupt)
        begin = await find_begin(history.journal, 1)
    assert kept.is_set()
    assert [entry.envelope.id for entry in begin.older] == ["n1", "n2", "n3"]


@pytest.mark.rule("9.decisions")
async def test_a_long_chain_of_names_is_not_followed_to_its_end(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = 8
    monkeypatch.setattr("meup_agent.gateway.journal.decisions.MAX_ROUNDS", rounds)
    async with lived(path, clock) as history:
        history.say("alice", "mcp/proposal", CALL)
        for said in range(1, rounds + 1):
            with closing(Archive(path)) as archive:
                await settled(history.journal)
                chains = archive.find_chains("demo", DecisionQuery("n1"))
                assert chains is not None
                assert len(chains.entries) == said
            history.say("bob", "chat", {"message": "why"}, f"n{said}")
        await settled(history.journal)
        with closing(Archive(path)) as archive:
            assert archive.find_chains("demo", DecisionQuery("n1")) is None


async def found(journal: SqliteJournal, query: HistoryQuery) -> HistoryPage:
    ask = partial(journal.find_decisions, "demo", query)
    return await handed_over(lambda then: ask(then=then))


QUERIES: list[dict[str, Any]] = [
    {},
    {"limit": 3, "skip": 2},
    {"sort": "waited", "limit": 20},
    {"sort": "tool", "ascending": True, "skip": 4, "limit": 20},
    {"states": frozenset({ProposalState.EXPIRED})},
    {"states": frozenset({ProposalState.FULFILLED, ProposalState.REJECTED})},
    {"text": "WRI", "limit": 5},
    {"text": "unsafe"},
    {"by": "bob"},
    {"proposer": "alice", "tool": "read"},
    {"text": "in none"},
]


@pytest.mark.rule("9.decisions")
@pytest.mark.parametrize("seed", range(2))
async def test_the_history_is_what_the_fold_says(
    path: Path, clock: Clock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(path, clock, seed) as history:
        for _ in range(STEPS):
            await history.step()
        await settled(history.journal)
        until, owner = clock(), history.space.owner
        with closing(Archive(path)) as archive:
            whole = folded(list(archive.read("demo", after=0, until=2**62, limit=100_000)), until)
        with closing(sqlite3.connect(path)) as connection:
            rows = [
                DecisionRow._make(row[:-1]) for row in connection.execute("SELECT * FROM proposal")
            ]
        everything = HistoryQuery(until, owner.open_at(until), limit=10_000)
        page = await found(history.journal, everything)
        told = {row.seq: (row.state, row.by) for row in page.rows}
        used = Counter((each.proposer, each.id) for each in whole.proposals)
        for each in whole.proposals:
            if used[each.proposer, each.id] > 1:
                continue
            decision = each.decision
            if each.state.is_pending:
                assert each.first.seq not in told
            else:
                assert decision is not None
                assert told[each.first.seq] == (each.state, decision.by)
        for given in QUERIES:
            query = everything._replace(**given)
            page, alike = await found(history.journal, query), select_decisions(rows, query)
            key = SORT_KEYS[query.sort]
            assert [*map(key, page.rows)] == [*map(key, alike.rows)]
            assert page.more == alike.more
            if query.sort == "when":
                assert page == alike
        # What is not looked through in one question is in the next ones.
        monkeypatch.setattr("meup_agent.gateway.journal.decisions.MAX_SEARCHED", 9)
        monkeypatch.setattr("meup_agent.protocol.space.journal.MAX_SEARCHED", 9)
        for in_file in (True, False):
            query, seen = everything, set[int]()
            while True:
                page = select_decisions(rows, query)
                if in_file:
                    page = await found(history.journal, query)
                seen.update(row.seq for row in page.rows)
                if page.searched_to is None:
                    break
                query = query._replace(until=min(page.searched_to, query.until - 1))
            assert seen == told.keys()


async def test_what_was_seen_outlives_the_process(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as journal:
        assert journal.seen("demo", "ann") == 0
        journal.mark_seen("demo", "ann", 7)
        journal.mark_seen("demo", "ann", 5)
        assert (journal.seen("demo", "ann"), journal.seen("other", "ann")) == (7, 0)
    async with opened(path, clock) as journal:
        assert journal.seen("demo", "ann") == 7


def lose_a_row(path: Path, table: str, *, of: int) -> None:
    """Let the only page of a table say that it has one row less, as a few flipped bits do."""
    query = "SELECT rootpage, (SELECT * FROM pragma_page_size) FROM sqlite_schema WHERE name = ?"
    with closing(sqlite3.connect(path)) as connection:
        page, size = connection.execute(query, (table,)).fetchone()
    content = bytearray(path.read_bytes())
    rows = (page - 1) * size + 4
    assert content[rows] == of
    content[rows] -= 1
    path.write_bytes(content)


@pytest.mark.rule("9.decisions")
async def test_a_table_that_damage_shortened_is_not_believed(path: Path, clock: Clock) -> None:
    async with lived(path, clock) as history:
        for _ in range(2):
            history.say("alice", "mcp/proposal", CALL)
    lose_a_row(path, "proposal", of=2)
    with closing(Archive(path, looks_through=False)) as archive:
        assert archive.find_chains("demo", DecisionQuery("n2")) is None
