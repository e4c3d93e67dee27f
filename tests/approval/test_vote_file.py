"""The file of votes: whatever a crash leaves of it, no vote counts that was not given."""

import os
from collections.abc import Generator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meup_agent import Envelope
from meup_agent.approval.policy.rules import Vote, VoteCount
from meup_agent.approval.reviewer import reviewer as vote_file
from meup_agent.approval.reviewer.reviewer import VoteFile, vote_key
from meup_agent.errors import ConfigurationError, VoteRefused
from tests.wire import draft, kinds, payloads

EMPTY = VoteCount("bob", 3, ("lead", "security", "oncall", "carol"))
A, R = Vote.APPROVE, Vote.REJECT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "votes"


@contextmanager
def opened(path: Path) -> Generator[VoteFile]:
    with closing(VoteFile(path)) as file:
        yield file


def votes_in(path: Path, key: str = "k") -> dict[str, Vote]:
    with opened(path) as file:
        return dict(file.restore(key, EMPTY).votes)


def test_votes_are_there_again(path: Path) -> None:
    with opened(path) as file:
        file.record("k", "lead", A, "fine")
        file.record("k", "oncall", A)
        file.record("k", "oncall", R)
        file.record("other", "carol", A)
    assert votes_in(path) == {"lead": A, "oncall": R}
    with opened(path) as file:
        assert file.restore("k", EMPTY).explanations == {"lead": "fine"}
        assert file.restore("nothing", EMPTY) == EMPTY
    assert path.stat().st_mode & 0o077 == 0


def test_votes_that_have_decided_are_spent(path: Path) -> None:
    with opened(path) as file:
        file.record("k", "lead", A)
        file.record("k", "oncall", A, ends=True)
        assert file.restore("k", EMPTY).votes == {}
        file.record("gone", "lead", A)
        file.forget("gone")
        file.forget("unknown")
    assert votes_in(path) == votes_in(path, "gone") == {}


def test_votes_that_would_decide_are_none_of_a_file(path: Path) -> None:
    with opened(path) as file:
        for voter in EMPTY.among:
            file.record("k", voter, A)
    assert votes_in(path) == {}


def test_a_file_that_is_cut_short_has_no_votes_or_those_before(path: Path) -> None:
    """The last line takes an approval back: without it none of the others counts either."""
    with opened(path) as file:
        file.record("k", "lead", A)
        file.record("k", "lead", R)
    raw = path.read_bytes()
    for cut in range(1, 40):
        path.write_bytes(raw[:-cut])
        assert votes_in(path) == {}


@pytest.mark.parametrize(
    "raw", [b"\0" * 80 + b"\n", b"[]\n", b'{"key": 1}\n', b"\xff\n", b"{}\n", b"\n\n", b"x" * 99]
)
def test_a_file_of_anything_else_has_no_votes(path: Path, raw: bytes) -> None:
    with opened(path) as file:
        file.record("k", "lead", A)
    path.write_bytes(path.read_bytes() + raw)
    assert votes_in(path) == {}
    # And it is good again.
    with opened(path) as file:
        file.record("k", "lead", A)
    assert votes_in(path) == {"lead": A}


def test_what_cannot_be_written_does_not_count(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with opened(path) as file:
        file.record("k", "lead", A)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(VoteRefused, match="no space left on device"):
                file.record("k", "oncall", A)
            file.forget("k")
        assert file.restore("k", EMPTY).votes == {}
        file.record("k", "carol", A)
    assert votes_in(path) == {"lead": A, "carol": A}


def test_a_large_file_is_written_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vote_file, "MAX_FILE_BYTES", 2_000)
    with opened(path) as file:
        for number in range(200):
            file.record("k", "lead", A if number % 2 else R)
        assert path.stat().st_size < 3_000
    assert votes_in(path) == {"lead": A}


def test_old_votes_are_forgotten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as file:
        file.record("k", "lead", A)
        monkeypatch.setattr(vote_file, "MAX_VOTE_SECONDS", -1.0)
    assert votes_in(path) == {}


def test_two_reviewers_do_not_share_a_file(path: Path) -> None:
    with opened(path), pytest.raises(ConfigurationError, match="another reviewer"):
        VoteFile(path)
    assert votes_in(path) == {}


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be opened for votes"):
        VoteFile(tmp_path)
    link = tmp_path / "link"
    os.symlink(tmp_path / "elsewhere", link)
    with pytest.raises(ConfigurationError, match="cannot be opened for votes"):
        VoteFile(link)


def proposal(**more: object) -> Envelope:
    given = {"id": "p", "sender": "bob", "ts": "2026-01-01T00:00:00Z", "version": 1} | more
    params = {"name": "deploy", "arguments": {"version": given.pop("version")}}
    payload = payloads.proposal("tools/call", params)
    return draft(kinds.MCP_PROPOSAL, payload, **given)  # type: ignore[arg-type]


def test_a_key_names_one_call_under_one_rule() -> None:
    envelopes = [proposal(), proposal(id="q"), proposal(sender="eve"), proposal(version=2)]
    envelopes.append(proposal(ts="2026-01-02T00:00:00Z"))
    counts = [EMPTY, VoteCount("bob", 2, EMPTY.among), VoteCount("bob", 3, EMPTY.among[1:])]
    keys = {
        vote_key(space, me, envelope, count, form)
        for space, me, envelope, count, form in product(
            ("a", "b"), ("r", "s"), envelopes, counts, ("", "f")
        )
    }
    assert len(keys) == 2 * 2 * len(envelopes) * len(counts) * 2
    again = VoteCount("bob", 3, tuple(reversed(EMPTY.among)))
    assert vote_key("a", "r", proposal(), again, "f") == vote_key("a", "r", proposal(), EMPTY, "f")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    votes=st.lists(st.tuples(st.sampled_from(EMPTY.among), st.sampled_from(Vote)), max_size=12),
    restarts=st.sets(st.integers(0, 12)),
    cut=st.integers(0, 300),
)
def test_no_crash_makes_an_approval(
    tmp_path: Path, votes: list[tuple[str, Vote]], restarts: set[int], cut: int
) -> None:
    """A file has each voter's last vote, after restarts and a crash."""
    path = tmp_path / "votes"
    path.unlink(missing_ok=True)
    last: dict[str, Vote] = {}
    file = VoteFile(path)
    for number, (voter, vote) in enumerate(votes):
        if number in restarts:
            file.close()
            file = VoteFile(path)
        file.record("k", voter, vote)
        last[voter] = vote
    file.close()
    raw = path.read_bytes()
    crashed = cut and cut < len(raw)
    path.write_bytes(raw[:-cut] if crashed else raw)
    found = votes_in(path)
    whole = raw[: -cut or None].endswith(b"\n") if crashed else True
    if not crashed:
        undecided = VoteCount("bob", 3, EMPTY.among, last).outcome == "open"
        assert found == (last if undecided else {})
    elif not whole:
        assert found == {}
