"""`meup audit`: what became of each proposal, from a file and from a gateway that runs."""

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from meup_agent.cli.commands.journal import moment
from meup_agent.cli.render.formatting import IdPrefixes
from meup_agent.errors import ConfigurationError
from meup_agent.protocol.audit import LOOK_AHEAD
from meup_agent.wording import IGNORED, duration
from tests.bench.audit import envelopes, write
from tests.cli.audited import PARTICIPANTS, Past, past
from tests.cli.commands import Output, exit_codes
from tests.cli.conftest import Done, Here, assert_fails
from tests.cli.processes import meup
from tests.cli.stage import ESCAPED, HOSTILE
from tests.gateways import Archive, first_token
from tests.spaces import Ignored
from tests.wire import kinds

Audit = Callable[..., Done]


@pytest.fixture(scope="module")
def the_past(tmp_path_factory: pytest.TempPathFactory) -> Generator[Past]:
    with past(tmp_path_factory.mktemp("past")) as found:
        yield found


@pytest.fixture
def audit(the_past: Past, command: Here) -> Audit:
    """Runs the command in this process, on the file."""

    def run_audit(*arguments: str, journal: Path = the_past.journal, **variables: str) -> Done:
        return command("audit", "--journal", str(journal), *arguments, **variables)

    return run_audit


@contextmanager
def copied(the_past: Past, copy: Path) -> Generator[sqlite3.Connection]:
    """A copy of the journal, to be changed in a block."""
    with closing(sqlite3.connect(the_past.journal)) as source:
        with closing(sqlite3.connect(copy)) as target, target:
            source.backup(target)
            yield target


def states(out: str) -> list[tuple[str, str, str]]:
    found = [json.loads(line) for line in out.splitlines()]
    return [(each["proposer"], each["id"], each["state"]) for each in found]


STATES = [
    ("alice", "p-fulfilled", "fulfilled"),
    ("alice", "p-rejected", "rejected"),
    ("alice", "p-withdrawn", "withdrawn"),
    ("carol", "p-twice", "in_progress"),
    ("alice", "p-twice", "pending"),
]


def test_each_proposal_is_a_line_where_no_terminal_is(audit: Audit) -> None:
    done = audit()
    assert (done.code, done.err) == (0, "")
    lines = [line[21:] for line in done.out.splitlines()]
    fulfilled, rejected, withdrawn, begun, open_one = lines
    assert fulfilled.startswith(
        'p-fulfilled  alice  files.write_file(path="a.txt", text="hi")  fulfilled  by bob '
    )
    assert fulfilled.endswith('edited: path is "b.txt" instead of "a.txt"')
    assert "  rejected  by bob " in rejected
    assert f"unsafe: it leaves the workspace {ESCAPED}".replace("\\r", " ") in rejected
    assert "  withdrawn  by alice " in withdrawn
    assert withdrawn.endswith(": timeout")
    assert open_one.startswith("p-twice      alice  write_file(")
    assert open_one.endswith("  pending")
    assert "  in progress  bob carries it out since " in begun


@pytest.mark.rule("4.2.audit")
def test_the_file_and_the_gateway_tell_the_same(audit: Audit, the_past: Past) -> None:
    from_file = audit("--json")
    over_http = meup("audit", "--json", variables=the_past.variables())
    assert (from_file.code, over_http.returncode, over_http.stderr) == (0, 0, "")
    assert states(from_file.out) == STATES
    assert from_file.out.isascii()
    ours, theirs = (
        [json.loads(line) for line in out.splitlines()] for out in (from_file.out, over_http.stdout)
    )
    assert ours == theirs


def test_one_proposal_is_a_timeline(audit: Audit) -> None:
    done = audit("--proposal", "p-f")
    assert (done.code, done.err) == (0, "")
    head, proposed, decided, edited, _, _, *steps = done.out.splitlines()
    assert head == "p-fulfilled  fulfilled"
    assert proposed == 'alice proposed files.write_file(path="a.txt", text="hi") to bob'
    assert decided.startswith("decided by bob after ")
    assert edited == 'edited: path is "b.txt" instead of "a.txt"'
    assert [step[14:] for step in steps if "progress  3 times" not in step] == [
        'alice  proposal  files.write_file(path="a.txt", text="hi") → bob  [pending]',
        'bob    request   write_file(path="b.txt", text="hi") → files, edited: path is'
        ' "b.txt" instead of "a.txt"  [in progress]',
        "files  response  done  [fulfilled]",
        "alice  withdraw  policy  [ignored: too late]",
    ]
    assert len(steps) == 5


def test_a_cancelled_request_and_the_next_are_in_the_timeline(audit: Audit) -> None:
    done = audit("--proposal", "p-twice", "--from", "carol")
    kinds = [line.split()[2] for line in done.out.splitlines()[4:]]
    assert kinds == ["proposal", "request", "cancel", "request"]
    assert done.out.count("[in progress]") == 2


def test_an_id_of_two_is_asked_about(audit: Audit) -> None:
    done = audit("--proposal", "p-twice")
    assert (done.code, done.out) == (exit_codes.USAGE, "")
    assert done.err == (
        "meup: several participants have used the id 'p-twice': carol, alice; say with --from"
        " whose is meant\n"
    )
    assert_fails(audit("--proposal", "p-"), exit_codes.USAGE, "several proposals begin with 'p-'")
    assert audit("--proposal", "nothing").code == exit_codes.FAILED


def test_what_is_shown_can_be_narrowed(audit: Audit) -> None:
    chosen = audit("--json", "--state", "withdrawn", "--state", "in-progress")
    assert states(chosen.out) == [STATES[2], STATES[3]]
    assert states(audit("--json", "--from", "carol").out) == [STATES[3]]
    assert states(audit("--json", "--since", "1h").out) == STATES
    assert audit("--json", "--since", "2999-01-01").out == ""
    assert audit("--json", "--since", "yesterday").code == exit_codes.USAGE


def test_nothing_to_show_is_said(audit: Audit) -> None:
    done = audit("--from", "nobody")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("meup: 0 proposals; what is kept begins ")


def test_who_granted_is_told(audit: Audit) -> None:
    done = audit("--grants")
    assert done.out[21:] == "g-1  bob  granted carol (chat)  trusted\n"
    (said,) = [json.loads(line) for line in audit("--grants", "--json").out.splitlines()]
    assert (said["operation"], said["by"], said["whom"]) == ("grant", "bob", "carol")
    assert audit("--grants", "--proposal", "p").code == exit_codes.USAGE


@pytest.mark.parametrize("width", [44, 80, 120])
@pytest.mark.parametrize("arguments", [(), ("--proposal", "p-rej"), ("--proposal", "p-ful")])
def test_terminals_are_kept(audit: Audit, width: int, arguments: tuple[str, ...]) -> None:
    done = audit(*arguments, "--no-color", FORCE_COLOR="1", COLUMNS=str(width))
    lines = "".join(part.partition("m")[2] for part in f"\x1b[m{done.out}".split("\x1b["))
    assert all(len(line) <= width for line in lines.splitlines())
    assert not any(character in lines for character in HOSTILE if not character.isprintable())


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "journal.db"
    asyncio.run(write(path, envelopes(2 * LOOK_AHEAD)))
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_long_journal_is_shown_while_it_is_read(
    audit: Audit, long: Path, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    pages, first = 0, 0
    read, written = Archive.read, Output.write

    def reading(*arguments: Any, **more: Any) -> Any:
        nonlocal pages
        pages += 1
        return read(*arguments, **more)

    async def writing(output: Output, text: str) -> None:
        nonlocal first
        first = first or (pages if text else 0)
        await written(output, text)

    monkeypatch.setattr(Archive, "read", reading)
    monkeypatch.setattr(Output, "write", writing)
    done = audit(*form, journal=long)
    assert (done.code, done.err) == (0, "")
    told = envelopes(2 * LOOK_AHEAD)
    assert len(done.out.splitlines()) == sum(each.kind == kinds.MCP_PROPOSAL for each in told)
    assert 0 < first < pages * 3 // 4


def test_each_reason_to_ignore_a_step_has_words() -> None:
    assert IGNORED.keys() == set(Ignored)


def test_ids_that_begin_alike_are_longer_on_later_lines_too() -> None:
    ids = IdPrefixes()
    assert ids.of(["12345678" * 4, "1234567890" * 3]) == {
        "12345678" * 4: "123456781",
        "1234567890" * 3: "123456789",
    }
    assert ids.of(["123456781" * 4]) == {"123456781" * 4: "1234567811"}
    first, second = "x" * 200 + "1", "x" * 200 + "2"
    assert ids.of([first, second]) == {first: first, second: second}


@pytest.mark.rule("3.audit.no_token")
def test_no_token_is_in_the_journal_or_the_audit(audit: Audit, the_past: Past) -> None:
    beside = [the_past.journal.with_name(f"{the_past.journal.name}{end}") for end in ("", "-wal")]
    kept = b"".join(path.read_bytes() for path in beside if path.exists())
    assert b"p-fulfilled" in kept
    said = audit("--json").out + audit("--grants", "--json").out
    for name in PARTICIPANTS:
        token = first_token(the_past.config, name)
        assert token.encode() not in kept
        assert token not in said


def test_a_copy_in_a_read_only_folder_is_read(audit: Audit, the_past: Past, tmp_path: Path) -> None:
    copy = tmp_path / "kept" / "journal.db"
    copy.parent.mkdir()
    with copied(the_past, copy):
        pass
    os.chmod(copy, 0o400)
    os.chmod(copy.parent, 0o500)
    try:
        assert states(audit("--json", journal=copy).out) == STATES
    finally:
        os.chmod(copy.parent, 0o700)


def test_what_is_no_journal_is_said(audit: Audit, tmp_path: Path) -> None:
    missing = audit(journal=tmp_path / "nothing.db")
    assert_fails(missing, exit_codes.USAGE, "meup: there is no journal ")
    text = tmp_path / "text.db"
    text.write_text("no database " * 100)
    assert "or no journal: file is not a database" in audit(journal=text).err
    other = tmp_path / "other.db"
    database = sqlite3.connect(other)
    database.execute("CREATE TABLE x (y)")
    database.close()
    assert "is a database, but no journal" in audit(journal=other).err


def test_damage_is_refused_or_left_out(audit: Audit, the_past: Past, tmp_path: Path) -> None:
    copy = tmp_path / "damaged.db"
    with copied(the_past, copy) as target:
        (seq,) = target.execute(
            "SELECT seq FROM entry WHERE kind = 'mcp/reject' AND instr(frame, 'p-rejected')"
        ).fetchone()
        target.execute("UPDATE entry SET frame = x'ff' WHERE seq = ?", (seq,))
    done = audit("--json", journal=copy)
    assert done.code == exit_codes.USAGE
    assert f"is damaged: number {seq} cannot be read; read a backup, or what is left" in done.err
    done = audit("--json", "--accept-damage", journal=copy)
    assert done.code == exit_codes.OK
    assert done.err == f"meup: warning: damage took number {seq} of the journal\n"
    assert [name for _, name, _ in states(done.out)] == [name for _, name, _ in STATES]
    assert {name: state for _, name, state in states(done.out)}["p-rejected"] != "rejected"


def test_a_newer_journal_is_refused(audit: Audit, the_past: Past, tmp_path: Path) -> None:
    newer = tmp_path / "newer.db"
    with copied(the_past, newer) as target:
        target.execute("PRAGMA user_version = 999")
    assert_fails(audit(journal=newer), exit_codes.USAGE, "another version")


def test_space_must_be_there(audit: Audit) -> None:
    assert audit("--space", "demo", "--json").code == 0
    assert_fails(audit("--space", "other"), exit_codes.USAGE, "has no space 'other'; it has demo")


def test_a_source_is_needed(the_past: Past) -> None:
    nothing = meup("audit")
    assert_fails(nothing, exit_codes.USAGE, "give --journal with a gateway's journal, or --http")
    both = meup("audit", "--journal", str(the_past.journal), "--http", the_past.http)
    assert both.returncode == exit_codes.USAGE
    refused = meup("audit", variables=the_past.variables(MEUP_TOKEN="wrong"))
    assert refused.returncode == exit_codes.NO_CONNECTION


def test_nobody_in_the_space_notices(audit: Audit, the_past: Past) -> None:
    before = audit("--json").out
    meup("audit", variables=the_past.variables("bob"))
    assert audit("--json").out == before


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("90s", 1_000_000 - 90),
        ("2h", 1_000_000 - 7_200),
        ("9999w", 0),
        ("1970-01-02T00:00:00Z", 86_400),
    ],
)
def test_a_moment(given: str, found: int) -> None:
    assert moment(given, "--since", 1_000_000.0) == found * 1_000_000


@pytest.mark.parametrize("given", ["", "soon", "2h30m", "-2h", "2026-13-01", "99999999999s"])
def test_no_moment(given: str) -> None:
    with pytest.raises(ConfigurationError, match="neither"):
        moment(given, "--since", datetime.now(UTC).timestamp())


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-1, "0 s"),
        (0, "0 s"),
        (5, "5 s"),
        (0.0042, "4 ms"),
        (2.04, "2.0 s"),
        (59.6, "1 min"),
        (185, "3 min 5 s"),
        (7_200, "2 h"),
        (100_000, "1 d 3 h"),
    ],
)
def test_how_long_it_took(seconds: float, said: str) -> None:
    assert duration(seconds) == said
