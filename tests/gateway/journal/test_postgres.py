"""The journal in PostgreSQL: its fence, its lock, and a server that goes away."""

import asyncio
import importlib
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
import anyio.to_thread
import psycopg
import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.gateway import Config, Gateway, JournalConfig
from meup_agent.gateway.config import PostgresConfig
from meup_agent.gateway.journal.postgres import log, tables
from meup_agent.gateway.journal.postgres.journal import PostgresArchive, PostgresJournal
from meup_agent.gateway.journal.postgres.log import DatabaseSession, Ended, OwnedLog, check
from meup_agent.gateway.journal.rows import row_of
from meup_agent.gateway.journal.waiting import WriteJob
from meup_agent.protocol.proposals import ProposalState
from tests.gateway.conftest import envelope
from tests.gateway.journal.conftest import (
    NOW,
    Clock,
    chat,
    failure_of,
    handed_over,
    ids,
    kept,
    postgres_config,
    read,
    settled,
)
from tests.gateway.journal.test_gateway import config_with, dial, hear_chats
from tests.gateway.test_reload import new_certificate
from tests.patience import PATIENCE, wait_until
from tests.postgres_servers import PostgresServer, shared_postgres, tls_before
from tests.spaces import DecisionRow, Entry, Fact, HistoryPage, HistoryQuery, ProposalChange
from tests.wire import decode

pytestmark = pytest.mark.anyio


@pytest.fixture
def config(path: Path) -> PostgresConfig:
    """A schema that no other test has."""
    return postgres_config(path)


@asynccontextmanager
async def journal_at(
    config: PostgresConfig, clock: Clock, **more: Any
) -> AsyncGenerator[PostgresJournal]:
    journal = PostgresJournal(JournalConfig(postgres=config, **more), clock)
    try:
        yield journal
    finally:
        await journal.aclose()


def execute(config: PostgresConfig, sql: str) -> list[Any]:
    """What somebody else does there."""
    with psycopg.connect(config.url, autocommit=True) as connection:
        connection.execute(f'SET search_path TO "{config.schema}"')
        cursor = connection.execute(sql.encode())
        return [] if cursor.description is None else cursor.fetchall()


def end_connections(config: PostgresConfig) -> None:
    """End whatever connection holds the lock of a schema."""
    number = f"hashtextextended('meup journal \"{config.schema}\"', 0)"
    execute(
        config,
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        f" AND objid::bigint = {number} & 4294967295",
    )


@pytest.fixture
def a_lock_that_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways that all believe that they have the lock."""

    monkeypatch.setattr(OwnedLog, "_lock", lambda _: True)


async def test_the_extra_is_named_where_its_library_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = OwnedLog.__module__
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ConfigurationError, match=r"pip install 'meup-agent\[postgres\]'"):
        importlib.import_module(module)


@pytest.mark.usefixtures("a_lock_that_lies")
async def test_an_owner_that_wakes_appends_nothing(config: PostgresConfig, clock: Clock) -> None:
    """The epoch alone keeps it from that, whoever has the lock."""
    told = list[Entry]()
    async with journal_at(config, clock) as first:
        (one,) = await kept(first, chat(1), facts=(Fact("grant/a", {"n": 1}),))
        async with journal_at(config, clock) as second:
            (two,) = await kept(second, chat(2))
            assert two.seq > one.seq
            fact = Fact("grant/b", {"n": 1})
            first.append("demo", NOW, chat(3), (fact, Fact("grant/a", None)), told.append)
            first.append("other", NOW, chat(4), (), told.append)
            assert "has taken over" in await failure_of(first)
            assert first.is_replaced
            (five,) = await kept(second, chat(5))
            assert await read(second) == (one, two, five)
            assert second.recover("demo", since=0, limit=9).facts == {"grant/a": {"n": 1}}
    assert told == []
    assert execute(config, "SELECT count(*) FROM space") == [(1,)]


@pytest.mark.usefixtures("a_lock_that_lies")
async def test_an_owner_that_says_nothing_learns_that_it_is_replaced(
    config: PostgresConfig, clock: Clock
) -> None:
    async with journal_at(config, clock) as first, journal_at(config, clock):
        assert "has taken over" in await failure_of(first)


@pytest.mark.usefixtures("a_lock_that_lies")
async def test_an_owner_that_was_replaced_forgets_nothing(
    config: PostgresConfig, clock: Clock
) -> None:
    async with journal_at(config, clock, max_bytes=1) as first:
        (one,) = await kept(first, chat(1))
        async with journal_at(config, clock) as second:
            await failure_of(first)
            assert one.seq >= second.floor("demo")
            (two,) = await kept(second, chat(2))
            assert (await read(second))[-1] == two


STALE: dict[str, tuple[str, Any]] = {
    "append": (
        tables.APPEND,
        tables.batch_values(
            [
                WriteJob(
                    row_of(Entry(NOW + 9, "other", NOW, chat(9))),
                    (Fact("grant/b", {"n": 1}),),
                    NOW,
                    (),
                    (DecisionRow(1, "demo", "alice", "9", "ls", NOW, None, "pending"),),
                ),
                WriteJob(row_of(Entry(NOW + 10, "demo", NOW, chat(10))), (Fact("grant/a", None),)),
            ],
            epoch=0,
            before=0,
        )
        | {"is_part": False},
    ),
    "forget": (tables.FORGET, {"until": 2**60, "epoch": 0}),
    "seen": (tables.SEEN, (b"demo", b"alice", 9, 0)),
    "tell": (tables.TELL, (b"", 0)),
}
"""Each statement that writes, as a gateway whose epoch was 0 says it."""


@pytest.mark.parametrize("name", STALE)
async def test_nothing_of_an_older_epoch_takes_effect(
    config: PostgresConfig, clock: Clock, name: str
) -> None:
    def all_rows() -> list[Any]:
        names = ("owner", "entry", "fact", "proposal", "seen", "space")
        return [execute(config, f"SELECT * FROM {each}") for each in names]

    async with journal_at(config, clock) as journal:
        begins = ProposalChange("alice", "1", "ls", NOW, begins=True, at=NOW)
        journal.append("demo", NOW, chat(1), (Fact("grant/a", {}),), lambda _: None, (begins,))
        await settled(journal)
    before = all_rows()
    ((_, _, epoch, last, *_),) = before[0]
    assert epoch == 1
    sql, values = STALE[name]
    if name == "append":
        values = values | {"before": last}
    with psycopg.connect(config.url, autocommit=True) as connection:
        connection.execute(f'SET search_path TO "{config.schema}"'.encode())
        connection.execute(sql.encode(), values)
    assert all_rows() == before


@pytest.mark.usefixtures("a_lock_that_lies")
async def test_one_that_is_replaced_while_it_forgets_learns_it(
    config: PostgresConfig, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, reached = DatabaseSession.ask, asyncio.Event()
    taken_over = threading.Event()

    def held(session: DatabaseSession, sql: str, values: Any = None) -> Any:
        if sql is tables.FORGET and not reached.is_set():
            loop.call_soon_threadsafe(reached.set)
            taken_over.wait(PATIENCE)
        return ask(session, sql, values)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(DatabaseSession, "ask", held)
    async with journal_at(config, clock, max_bytes=1) as first:
        failure = asyncio.ensure_future(failure_of(first))
        await kept(first, chat(1))
        clock.now += 1_000_000
        with anyio.fail_after(PATIENCE):
            await reached.wait()
        async with journal_at(config, clock) as second:
            taken_over.set()
            assert "has taken over" in await failure
            assert ids(await read(second)) == ["1"]


@pytest.mark.thorough
async def test_only_one_has_it(config: PostgresConfig, clock: Clock) -> None:
    first_one = replace(config, node="first")
    async with journal_at(first_one, clock) as first:
        await kept(first, chat(1))
        with pytest.raises(ConfigurationError, match="the gateway first uses the journal"):
            PostgresJournal(JournalConfig(postgres=config), clock)
    async with journal_at(config, clock) as second:
        assert ids(await read(second)) == ["1"]


async def test_connection_that_is_ended_comes_back(config: PostgresConfig, clock: Clock) -> None:
    async with journal_at(config, clock) as journal:
        await kept(journal, chat(1))
        end_connections(config)
        await kept(journal, chat(2))
        assert ids(await read(journal)) == ["1", "2"]
        assert journal.problem == ""


async def test_an_answer_that_got_lost_is_asked_for_again(
    config: PostgresConfig, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, lost = DatabaseSession.ask, list[int]()

    def forgetful(session: DatabaseSession, sql: str, values: Any = None) -> Any:
        rows = ask(session, sql, values)
        if sql is tables.APPEND and not lost:
            lost.append(1)
            raise psycopg.OperationalError("it got lost")
        return rows

    monkeypatch.setattr(DatabaseSession, "ask", forgetful)
    async with journal_at(config, clock) as journal:
        await kept(journal, chat(1), facts=(Fact("grant/a", {}),))
        await kept(journal, chat(2))
        assert lost
        assert ids(await read(journal)) == ["1", "2"]


@pytest.mark.thorough
async def test_a_server_that_hangs_is_told_of_and_goes_on(path: Path, clock: Clock) -> None:
    with closing(PostgresServer()) as server:
        async with journal_at(postgres_config(path, server), clock) as journal:
            await kept(journal, chat(0))
            server.pause()
            journal.append("demo", NOW, chat(1), (), lambda _: None)
            await wait_until(lambda: journal.problem)
            assert "does not answer" in journal.problem
            server.go_on()
            await settled(journal)
            assert ids(await read(journal)) == ["0", "1"]
            assert journal.problem == ""


@pytest.mark.thorough
async def test_a_server_that_hangs_holds_up_no_end(path: Path, clock: Clock) -> None:
    server = PostgresServer()
    try:
        with patch("meup_agent.gateway.journal.waiting.CLOSE_SECONDS", 0.01):
            async with journal_at(postgres_config(path, server), clock) as journal:
                await kept(journal, chat(0))
                server.pause()
                journal.append("demo", NOW, chat(1), (), lambda _: None)
        journal.log.join(PATIENCE)
        assert not journal.log.is_alive()
    finally:
        server.go_on()
        server.close()


async def test_a_session_ends_while_its_connection_is_set_up(config: PostgresConfig) -> None:
    session, name = DatabaseSession(config), "'meup hangs'"
    hangs = f"SELECT set_config('application_name', {name}, false), pg_sleep(600), %s, %s, %s"

    def ask() -> None:
        with pytest.raises(Ended):
            session.ask("SELECT 1")

    asks = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = {name}"
    with patch("meup_agent.gateway.journal.postgres.log._SET_UP", hangs):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, ask)
            with anyio.fail_after(PATIENCE):
                await wait_until(lambda: execute(config, asks) != [(0,)])
                session.close()


@pytest.mark.thorough
async def test_a_gateway_begins_after_a_server_that_starts_again_meanwhile(
    path: Path, clock: Clock
) -> None:
    server = PostgresServer()
    postgres = postgres_config(path, server)
    config = replace(config_with(path), journal=JournalConfig(postgres=postgres))
    before = OwnedLog(JournalConfig(postgres=replace(postgres, node="before")), clock, {})
    gateway = Gateway(config=config)
    try:
        before.open()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gateway.__aenter__)
            await wait_until(lambda: len(execute(postgres, OWNERS)) >= 2)
            server.stop()
            before.let_go()
            server.start()
        async with dial(gateway, gateway.token("alice")) as alice:
            await alice.send(envelope("alice", id="1"))
            await hear_chats(alice, 1)
    finally:
        await gateway.__aexit__(None, None, None)
        server.close()


OWNERS = "SELECT FROM pg_stat_activity WHERE application_name LIKE 'meup _%: %'"

NAMES = ["a.b", "*", ">", "ü", "a\0b", "Demo", "demo", "x" * 60_000, "';--", "%s"]


@pytest.mark.parametrize("space", NAMES, ids=range(len(NAMES)))
async def test_any_name_and_frame(config: PostgresConfig, clock: Clock, space: str) -> None:
    said = decode(
        b'{"protocol":"meup/v0.1","id":"\\u0000","from":"a\\u0000","kind":"x/\\u0000",'
        b'"correlation_id":["\\u0000", "%s"],"payload":{"a":"\\u0000 \xc3\xbc"}}'
    )
    facts = (Fact(f"grant/{space[:100]}\0", {"n": "\0"}),)
    async with journal_at(config, clock) as journal:
        (one,) = await kept(journal, said, space=space, facts=facts)
        journal.mark_seen(space, "a\0", 7)
    async with journal_at(config, clock) as journal:
        assert await read(journal, space) == (one,)
        assert journal.recover(space, since=0, limit=1)[:2] == (dict(facts), (one,))
        assert journal.seen(space, "a\0") == 7


async def test_the_oldest_are_forgotten_by_size(config: PostgresConfig, clock: Clock) -> None:
    async with journal_at(config, clock, max_bytes=200_000) as journal:
        entries = await kept(journal, *(chat(each, message="x" * 400) for each in range(1_000)))
        size = journal.size()
        with anyio.fail_after(PATIENCE):
            while size is None or size > 200_000:
                await kept(journal, chat(1_000))
                clock.now += 1_000_000
                size = journal.size()
        floor = journal.floor("demo")
        assert entries[0].seq < floor
        assert (await read(journal))[0].seq > floor
        assert journal.resume_from("demo", entries[0].seq) == floor
    async with journal_at(config, clock) as journal:
        assert journal.floor("demo") == floor


async def test_the_oldest_are_forgotten_by_age(config: PostgresConfig, clock: Clock) -> None:
    async with journal_at(config, clock, max_age=60) as journal:
        await kept(journal, chat(0))
        size_of_one = journal.size() or 0
        old = await kept(journal, chat(1), chat(2))
        clock.now += 61_000_000
        (new,) = await kept(journal, chat(9), at=clock.now)
        with anyio.fail_after(PATIENCE):
            while await read(journal) != (new,):  # noqa: ASYNC110 - nobody is told of it
                await anyio.sleep(0.01)
        assert journal.floor("demo") == old[-1].seq
        await kept(journal, chat(8), at=clock.now)
        assert journal.size() == 2 * size_of_one


async def test_what_is_open_and_decided_is_known_again(
    config: PostgresConfig, clock: Clock
) -> None:
    hour = 3_600_000_000

    def begins(number: int, expires_at: int) -> ProposalChange:
        return ProposalChange("alice", str(number), "ls", expires_at, begins=True, at=NOW)

    def proposal(number: int) -> Any:
        return decode(
            b'{"protocol":"meup/v0.1","id":"%d","from":"alice","kind":"mcp/proposal","payload":{}}'
            % number
        )

    async with journal_at(config, clock) as journal:
        for number, expires_at in ((1, NOW), (2, NOW + hour), (3, NOW + hour)):
            change = begins(number, expires_at)
            journal.append("demo", NOW, proposal(number), (), lambda _: None, (change,))
            await kept(journal, chat(number + 10))
        ends = replace_change(begins(2, NOW), by="bob")
        journal.append("demo", NOW + 5, chat(9), (), lambda _: None, (ends,))
        await settled(journal)

    async with journal_at(config, clock) as journal:
        recovered = journal.recover("demo", since=NOW + 5, limit=10, open_at=NOW + hour // 2)
        assert ids(recovered.entries) == ["9"]
        assert [each.envelope.id for each in recovered.older] == ["3"]
        query = HistoryQuery(until=NOW + 10)
        page: HistoryPage = await handed_over(partial(journal.find_decisions, "demo", query))
        assert [(row.id, row.state, row.by) for row in page.rows] == [
            ("2", ProposalState.REJECTED, "bob"),
            ("1", ProposalState.EXPIRED, ""),
        ]


def replace_change(change: ProposalChange, by: str) -> ProposalChange:
    return change._replace(
        begins=False, ended=True, state=ProposalState.REJECTED, by=by, at=NOW + 5
    )


async def test_it_is_read_from_outside(config: PostgresConfig, clock: Clock) -> None:
    async with journal_at(config, clock) as journal:
        one, two = await kept(journal, chat(1), chat(2), facts=(Fact("grant/a", {}),))
        (three,) = await kept(journal, chat(3), at=NOW + 5)
        journal.mark_seen("demo", "alice", 3)
        await settled(journal)
        with closing(PostgresArchive(config)) as archive:
            assert archive.spaces == ["demo"]
            assert archive.latest("demo") == three.seq
            assert archive.before("demo", NOW + 5) == two.seq
            found = archive.read("demo", after=one.seq, until=three.seq, limit=9, kinds=("chat",))
            assert found == (two, three)
            assert archive.facts("demo") == {"grant/a": {}}
            assert archive.find_owner() is not None
    with closing(PostgresArchive(config)) as archive:
        assert archive.find_owner() is None
        assert archive.seen("demo") == {"alice": 3}


def _nobody_listens(config: PostgresConfig) -> PostgresConfig:
    return replace(config, url="postgresql://meup@127.0.0.1:1/postgres")


def _neither_listens(config: PostgresConfig) -> PostgresConfig:
    return replace(config, url="postgresql://meup@127.0.0.1:1,127.0.0.2:1/postgres")


def _no_address(config: PostgresConfig) -> PostgresConfig:
    return replace(config, url="postgres//meup:s3cret@127.0.0.1/x")


def _at_in_password(config: PostgresConfig) -> PostgresConfig:
    return replace(config, url="postgresql://meup:a@s3cret@127.0.0.1/x")


def _slash_in_password(config: PostgresConfig) -> PostgresConfig:
    return replace(config, url="postgresql://meup:1/s3cret@127.0.0.1/x")


def _other_encoding(config: PostgresConfig) -> PostgresConfig:
    with suppress(psycopg.errors.DuplicateDatabase):
        execute(config, "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    return replace(config, url=config.url.replace("/postgres", "/latin"))


def _wrong_password(config: PostgresConfig) -> PostgresConfig:
    return replace(config, password="wrong-one")


def _no_permission(config: PostgresConfig) -> PostgresConfig:
    execute(
        config,
        "DO $$ BEGIN CREATE ROLE poor LOGIN PASSWORD 'poor'; EXCEPTION WHEN duplicate_object THEN"
        " END $$",
    )
    return replace(config, user="poor", password="poor")


def _other_tables(config: PostgresConfig) -> PostgresConfig:
    execute(config, f'CREATE SCHEMA "{config.schema}"; CREATE TABLE entry (a int)')
    return config


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_nobody_listens, r"at 127.0.0.1:1/postgres .* cannot be reached \(.*refused"),
        (_neither_listens, r"at 127.0.0.1:1,127.0.0.2:1/postgres .* cannot be reached"),
        (_no_address, r"^journal.postgres.url: expected the address of a database"),
        (_at_in_password, r"'@' or '/' within its password is written %40 or %2F"),
        (_slash_in_password, r"'@' or '/' within its password is written %40 or %2F"),
        (_other_encoding, r"is a database in LATIN1; give one .* ENCODING 'UTF8'"),
        (_wrong_password, r"cannot be reached \(.*password authentication failed"),
        (_no_permission, r"may not make the schema|permission denied"),
        (_other_tables, r"has tables that are not a journal's; give another schema"),
    ],
)
async def test_what_cannot_be_used_is_refused_in_a_sentence(
    config: PostgresConfig,
    clock: Clock,
    spoil: Callable[[PostgresConfig], PostgresConfig],
    said: str,
) -> None:
    journal = JournalConfig(postgres=spoil(config))
    with pytest.raises(ConfigurationError, match=said) as refused:
        check(journal)
    assert "\n" not in str(refused.value)
    assert "s3cret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match=said):
        PostgresJournal(journal, clock)


async def test_settings_of_a_database_change_nothing(config: PostgresConfig, clock: Clock) -> None:
    execute(config, f'CREATE DATABASE "{config.schema}"')
    for each in ("standard_conforming_strings = off", "client_encoding = 'LATIN1'"):
        execute(config, f'ALTER DATABASE "{config.schema}" SET {each}')
    there = replace(config, url=config.url.replace("/postgres", f"/{config.schema}"))
    said = decode(
        b'{"protocol":"meup/v0.1","id":"1","from":"alice","kind":"chat","payload":{},'
        b'"correlation_id":["\xe2\x82\xac"]}'
    )
    async with journal_at(there, clock) as journal:
        (one,) = await kept(journal, said, facts=(Fact("grant/a", {"n": "€"}),))
        assert await read(journal) == (one,)
        assert journal.recover("demo", since=0, limit=1).facts == {"grant/a": {"n": "€"}}


async def test_tables_of_another_version_are_refused(config: PostgresConfig, clock: Clock) -> None:
    async with journal_at(config, clock):
        pass
    execute(config, "UPDATE owner SET format = 99")
    for use in (check, lambda journal: PostgresJournal(journal, clock)):
        with pytest.raises(ConfigurationError, match=r"of another version .*\(99, not 1\)"):
            use(JournalConfig(postgres=config))


async def test_a_server_that_loses_all_in_a_power_cut_is_warned_of(
    config: PostgresConfig, caplog: pytest.LogCaptureFixture
) -> None:
    assert execute(config, "SHOW fsync") == [("off",)]
    check(JournalConfig(postgres=config))
    assert f"(schema {config.schema}) has fsync off" in caplog.text


async def test_nothing_is_made_by_looking(config: PostgresConfig) -> None:
    place = check(JournalConfig(postgres=config))
    assert place.endswith(f"/postgres (schema {config.schema})")
    assert "s3cret" not in place
    assert execute(config, "SELECT current_schema()") == [(None,)]


async def test_a_schema_of_its_own_is_all_that_a_user_needs(
    config: PostgresConfig, clock: Clock
) -> None:
    poor = _no_permission(config)
    execute(config, f'CREATE SCHEMA "{config.schema}" AUTHORIZATION poor')
    check(JournalConfig(postgres=poor))
    async with journal_at(poor, clock) as journal:
        await kept(journal, chat(1), facts=(Fact("grant/a", {}),))
    check(JournalConfig(postgres=poor))


async def test_over_tls_the_server_is_known_by_its_certificate(path: Path) -> None:
    mine, others = path.with_name("mine.pem"), path.with_name("others.pem")
    for each in (mine, others):
        each.write_bytes(new_certificate())
    async with tls_before(shared_postgres(), mine) as port:

        def look(authority: Path) -> str:
            # As the certificate names it.
            address = shared_postgres().url_at(port).replace("127.0.0.1", "localhost")
            url = f"{address}?sslmode=verify-full&sslrootcert={authority}&hostaddr=127.0.0.1"
            return check(JournalConfig(postgres=replace(postgres_config(path), url=url)))

        # Another thread, since the loop of the test passes on what it says.
        assert "localhost" in await anyio.to_thread.run_sync(look, mine)
        with pytest.raises(ConfigurationError, match="certificate verify failed"):
            await anyio.to_thread.run_sync(look, others)


async def test_a_server_older_than_is_supported_is_refused(
    config: PostgresConfig, clock: Clock
) -> None:
    with patch("psycopg.ConnectionInfo.server_version", log.OLDEST_SERVER):
        check(JournalConfig(postgres=config))
    with patch("psycopg.ConnectionInfo.server_version", log.OLDEST_SERVER - 1):
        for use in (check, partial(PostgresJournal, now=clock)):
            with pytest.raises(ConfigurationError, match=r"is version 13; .* needs 14 or later"):
                use(JournalConfig(postgres=config))


async def test_a_pool_of_connections_is_refused(config: PostgresConfig, clock: Clock) -> None:
    """It shows another process than that which answers."""
    with patch("psycopg.ConnectionInfo.backend_pid", 1):
        for use in (check, partial(PostgresJournal, now=clock)):
            with pytest.raises(ConfigurationError, match=r"is a pool of connections.*own address"):
                use(JournalConfig(postgres=config))


def test_a_secret_is_not_shown() -> None:
    config = PostgresConfig(url=shared_postgres().url, password="s3cret")
    assert "s3cret" not in repr(Config((), journal=JournalConfig(postgres=config)))
