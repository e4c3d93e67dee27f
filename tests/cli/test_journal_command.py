"""`meup journal backup`: a copy of a journal while its gateway runs, whole and for one's own."""

import json
import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.cli.commands import exit_codes
from tests.cli.conftest import Done, assert_fails
from tests.cli.processes import INTERRUPT, meup
from tests.faults.gateways import free_port, gateway, space_yaml
from tests.gateways import LAST_SEEN_HEADER, RESUME_HEADER
from tests.journal_files import kept_ids
from tests.patience import PATIENCE

ENOUGH = 300
"""So many messages have been accepted before the journal is copied."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a space's file and its journal, in which three things were said."""
    file, port = space_yaml(tmp_path, ("alice",)), free_port()
    with gateway(file, port) as process:
        with dialled(port) as alice:
            for number in range(3):
                say(alice, number)
        assert process.end(INTERRUPT) == exit_codes.OK
    return tmp_path


@contextmanager
def dialled(port: int, seen: int | None = None) -> Generator[ClientConnection]:
    headers = {"Authorization": "Bearer alice", RESUME_HEADER: "1"}
    if seen is not None:
        headers[LAST_SEEN_HEADER] = str(seen)
    url = f"ws://127.0.0.1:{port}/ws?space=demo"
    with connect(url, additional_headers=headers, open_timeout=PATIENCE) as socket:
        yield socket


def say(socket: ClientConnection, number: int) -> int:
    """Say something; its number in the journal."""
    payload = {"message": "x" * 1_000}
    said = {"protocol": "meup/v0.1", "id": str(number), "from": "alice", "kind": "chat"}
    socket.send(json.dumps({**said, "payload": payload}))
    while True:
        heard = json.loads(socket.recv(PATIENCE))
        if heard["id"] == str(number):
            return int(heard["seq"])


def backup(folder: Path, *arguments: str) -> Done:
    done = meup("journal", "backup", *arguments, cwd=folder)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.rule("9.backup")
def test_copy_of_a_journal_written_meanwhile_is_whole_and_its_owners(tmp_path: Path) -> None:
    file, port = space_yaml(tmp_path, ("alice",)), free_port()
    copy = tmp_path / "copy.db"
    going, enough = threading.Event(), threading.Event()
    accepted: list[int] = []
    with gateway(file, port) as process:

        def talk() -> None:
            with dialled(port) as alice:
                while not going.is_set():
                    accepted.append(say(alice, len(accepted)))
                    if len(accepted) == ENOUGH:
                        enough.set()

        talker = threading.Thread(target=talk)
        talker.start()
        try:
            assert enough.wait(PATIENCE)
            before = len(accepted)
            mask = os.umask(0)
            try:
                done = backup(tmp_path, "copy.db")
            finally:
                os.umask(mask)
            after = len(accepted)
        finally:
            going.set()
            talker.join(PATIENCE)
        with dialled(port) as alice:  # the copy may have had everything until here
            accepted.append(say(alice, len(accepted)))
        assert done.code == exit_codes.OK, done.err
        assert process.end(INTERRUPT) == exit_codes.OK
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    copied = kept_ids(copy, "chat")
    assert copied == [str(number) for number in range(len(copied))]
    assert before <= len(copied) <= after + 1
    with closing(sqlite3.connect(copy)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM entry").fetchone()
    assert done.out == f"copy.db: {count:,} envelopes\n"
    assert not list(tmp_path.glob(".copy.db*"))

    # A gateway goes on from it, and tells who had seen more.
    for each in tmp_path.glob("journal.db*"):
        each.unlink()
    shutil.copy(copy, tmp_path / "journal.db")
    with gateway(file, port):
        with dialled(port, accepted[-1]) as alice:
            assert json.loads(alice.recv(PATIENCE))["payload"]["gap"] is True
        with dialled(port, accepted[len(copied) - 1]) as alice:
            assert json.loads(alice.recv(PATIENCE))["payload"]["gap"] is False


def test_journal_is_named_or_that_of_the_space_s_file(folder: Path) -> None:
    for number, arguments in enumerate(
        ((), ("--config", "space.yaml"), ("--journal", "journal.db"))
    ):
        done = backup(folder, f"{number}.db", *arguments)
        assert (done.code, done.err) == (exit_codes.OK, "")
        assert kept_ids(folder / f"{number}.db", "chat") == ["0", "1", "2"]


@pytest.mark.rule("9.backup")
@pytest.mark.parametrize("is_link", [False, True])
def test_file_that_is_there_is_left_as_it_is(folder: Path, is_link: bool) -> None:
    there, target = folder / "there.db", folder / "target.db"
    there.write_text("mine")
    if is_link:
        target.symlink_to(folder / "nowhere.db")
    else:
        target = there
    done = backup(folder, target.name)
    assert done.code == exit_codes.USAGE
    assert done.err == f"meup: {target.name} is there already; give a new name\n"
    assert there.read_text() == "mine"
    assert not (folder / "nowhere.db").exists()


@pytest.mark.rule("9.backup")
def test_damaged_journal_is_not_copied(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "journal.db")) as connection, connection:
        connection.execute("UPDATE entry SET at = at + 1 WHERE kind = 'chat'")
    before = {each.name for each in folder.iterdir()}
    done = backup(folder, "copy.db")
    assert_fails(done, exit_codes.USAGE, "meup: the journal", "is damaged: numbers ")
    assert {each.name for each in folder.iterdir()} - before <= {"journal.db-wal", "journal.db-shm"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("copy.db", "--journal", "nothing.db"), "there is no journal nothing.db"),
        (("copy.db", "--journal", "a.db", "--config", "b"), "give --journal or --config, not both"),
        (("nowhere/copy.db",), "cannot be copied to nowhere/copy.db: no such file or directory"),
        (("copy.db", "--config", "memory.yaml"), "memory.yaml: its journal is in memory, so there"),
    ],
)
def test_what_cannot_be_copied_is_said(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    (folder / "memory.yaml").write_text("space: {id: demo}\nparticipants: {}\n")
    assert_fails(backup(folder, *arguments), exit_codes.USAGE, said)


def test_without_a_space_s_file_the_journal_is_asked_for(tmp_path: Path) -> None:
    done = backup(tmp_path, "copy.db")
    assert done.code == exit_codes.USAGE
    assert "there is no space.yaml in this folder; give --journal FILE" in done.err
