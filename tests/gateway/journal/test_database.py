"""Files that cannot be a journal, and what is said of them."""

import os
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.gateway import JournalConfig
from meup_agent.gateway.journal.rows import APPLICATION, VERSION
from tests.gateway.journal.conftest import Clock
from tests.gateways import Database, SqliteJournal

NOBODY = 65534
"""The user that owns nothing."""


def refused(path: Path) -> str:
    with pytest.raises(ConfigurationError) as error:
        Database(path, "normal")
    said = str(error.value)
    assert str(path) in said
    assert "\n" not in said
    return said.replace(str(path), "FILE")


def with_form(path: Path, application: int, version: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE envelope (seq INTEGER PRIMARY KEY)")
        connection.execute(f"PRAGMA application_id = {application}")
        connection.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (".", "is a directory; give a file"),
        ("nowhere/journal.db", "no such file or directory; give"),
        ("file/journal.db", "not a directory; give"),
    ],
)
def test_place_where_no_file_can_be(tmp_path: Path, place: str, why: str) -> None:
    (tmp_path / "file").touch()
    assert refused(tmp_path / place).startswith(f"the journal FILE cannot be used: {why}")


@contextmanager
def nobody_special() -> Iterator[Path]:
    """A folder, and the rights of a user for whom a file can be read-only: for root none is."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        if os.geteuid():
            yield folder
            return
        os.chown(folder, NOBODY, -1)
        os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            os.seteuid(0)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such rights")
def test_file_that_is_read_only() -> None:
    with nobody_special() as folder:
        path = folder / "journal.db"
        path.touch(0o400)
        said = refused(path)
        assert said.startswith("the journal FILE cannot be used: permission denied; give")
        path.chmod(0o600)
        Database(path, "normal").close()


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (None, "the journal FILE is damaged, or no journal: file is not a database;.*"),
        ((7, 1), "FILE is a database, but no journal of a gateway; give another file"),
        *(
            ((APPLICATION, other), rf"the journal FILE is of another version .* \({other}, not.*")
            for other in (VERSION - 1, VERSION + 1)
        ),
    ],
    ids=["no database", "another", "older", "newer"],
)
def test_file_that_is_no_journal(path: Path, form: tuple[int, int] | None, why: str) -> None:
    if form is None:
        path.write_bytes(b"spaces: {demo: {}}\n" * 100)
    else:
        with_form(path, *form)
    before = path.read_bytes()
    assert re.fullmatch(why, refused(path))
    assert path.read_bytes() == before


def test_a_journal_says_in_its_head_what_it_is(path: Path) -> None:
    """Where SQLite keeps such a mark: other programs tell files by it, and so do later releases."""
    Database(path, "normal").close()
    assert path.read_bytes()[68:72] == b"MEUP"


async def test_damaged_journal(path: Path, clock: Clock) -> None:
    with_form(path, APPLICATION, VERSION)
    with pytest.raises(ConfigurationError, match="its tables are not those of a journal; restore"):
        SqliteJournal(JournalConfig(path), clock)


@pytest.mark.parametrize(("said", "means"), [("normal", 1), ("full", 2)])
def test_synchronous_writes(path: Path, said: Literal["normal", "full"], means: int) -> None:
    with closing(Database(path, said)) as database:
        assert database.writer.execute("PRAGMA synchronous").fetchone() == (means,)
        assert database.writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
