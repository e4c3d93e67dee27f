"""A journal's file is one gateway's, whatever another one calls it."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal import sqlite as sqlite_module
from meup_agent.gateway.journal.sqlite import FileLock
from tests.gateways import Database

HOLD = """
import sys
from pathlib import Path
from meup_agent.gateway.journal.sqlite import Database
database = Database(Path(sys.argv[1]), "normal")
print("held", flush=True)
sys.stdin.readline()
"""

TRY = """
import sys
from pathlib import Path
from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.sqlite import Database
try:
    Database(Path(sys.argv[1]), "normal").close()
except ConfigurationError as error:
    print(error)
else:
    print("opened")
"""


@contextmanager
def held_elsewhere(path: Path) -> Generator[subprocess.Popen[str]]:
    """The file, held by another process."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def tried_elsewhere(path: Path) -> str:
    """The end of another process that opens the file."""
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(path)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def named(path: Path, name: str) -> Path:
    """Another name of the file."""
    other = path.with_name(name)
    if name == "symbolic":
        other.symlink_to(path)
    elif name == "hard":
        other.hardlink_to(path)
    elif name == "in-a-linked-folder":
        folder = path.parent / "folder"
        folder.symlink_to(path.parent, target_is_directory=True)
        return folder / path.name
    else:
        return path
    return other


@pytest.mark.thorough
@pytest.mark.rule("6.journal.one_gateway")
@pytest.mark.parametrize("name", ["same", "symbolic", "hard", "in-a-linked-folder"])
def test_second_gateway_is_refused_by_whatever_name_and_ends_no_lock(path: Path, name: str) -> None:
    with closing(Database(path, "normal")):
        other = named(path, name)
        for _ in range(3):
            with pytest.raises(ConfigurationError, match="another gateway's, which is running"):
                Database(other, "normal")
        for each in (path, other):
            assert "another gateway's" in tried_elsewhere(each)
    Database(other, "normal").close()


def test_other_connections_of_the_process_end_no_lock(path: Path) -> None:
    """A record lock would end with the first descriptor of the file that is closed."""
    with closing(Database(path, "normal")):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("SELECT count(*) FROM entry")
        path.read_bytes()
        assert "another gateway's" in tried_elsewhere(path)
    assert tried_elsewhere(path) == "opened"


def test_killed_gateway_leaves_no_lock(path: Path) -> None:
    with held_elsewhere(path) as process:
        process.kill()
        process.wait(timeout=60)
        Database(path, "normal").close()


def test_file_that_was_removed_under_its_gateway_is_another_one_then(path: Path) -> None:
    with closing(Database(path, "normal")):
        for each in path.parent.glob("journal.db*"):
            each.unlink()
        other = Database(path, "normal")
        assert os.stat(path).st_ino
        other.close()


def test_nothing_is_left_beside_a_closed_journal(path: Path) -> None:
    Database(path, "normal").close()
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_link_that_leads_nowhere_or_to_itself(path: Path) -> None:
    path.symlink_to(path)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        Database(path, "normal")
    path.unlink()
    path.symlink_to(path.with_name("elsewhere.db"))
    Database(path, "normal").close()
    assert path.with_name("elsewhere.db").is_file()


def test_failed_lock_leaves_no_descriptor_open(path: Path) -> None:
    with held_elsewhere(path):
        before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
        for _ in range(20):
            with pytest.raises(ConfigurationError):
                FileLock(path)
        after = len(os.listdir("/proc/self/fd")) if before else 0
        # Others may have been closed meanwhile.
        assert after <= before


@pytest.fixture
def no_descriptor_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "HAS_DESCRIPTOR_LOCKS", False)


@pytest.mark.usefixtures("no_descriptor_locks")
@pytest.mark.parametrize("name", ["same", "symbolic", "in-a-linked-folder"])
def test_lock_beside_the_file_is_that_of_the_file_itself(path: Path, name: str) -> None:
    database = Database(path, "normal")
    other = named(path, name)
    sqlite_module._held.clear()  # as another process, which knows nothing of this one
    try:
        with pytest.raises(ConfigurationError, match="another gateway's"):
            Database(other, "normal")
    finally:
        database.close()
    Database(other, "normal").close()


@pytest.mark.usefixtures("no_descriptor_locks")
def test_file_with_several_names_is_refused_where_it_cannot_be_locked(path: Path) -> None:
    path.touch()
    named(path, "hard")
    with pytest.raises(ConfigurationError, match=r"has 2 names \(hard links\)"):
        Database(path, "normal")
