"""Questions of readers: the test for each is found by its name, or by that of its file."""

import re

import pytest

from tests.programs import ROOT

QUESTIONS = {
    "a withdraw that comes twice": r"withdraw.*twice",
    "a withdraw before its proposal": r"withdraw.*before.*proposal",
    "a cancel that comes late": r"late_response|cancel.*late",
    "a cancel of something unknown": r"test_cancels|unknown.*cancel",
    "two reviewers at once": r"two_reviewers",
    "a late fulfillment": r"test_late_fulfill",
    "a rejection that comes twice": r"second_reject",
    "a broadcast that all reject": r"broadcast.*reject",
    "an id that another copies": r"copied_id",
    "the same request twice": r"same_request_twice",
    "progress and the timeout": r"progress.*timeout",
    "a proposer that leaves": r"proposer.*(left|leaves)",
    "messages that cross": r"test_crossing_messages",
    "a gap in what was missed": r"\w_gap_is_announced",
    "resuming after a restart of the gateway": r"resume.*restart",
    "a gateway that was killed": r"test_killed_gateway",
    "a full journal": r"full_journal",
    "a full disk": r"full_disk",
    "two gateways with one journal": r"second_gateway.*refused",
    "what is too old in a journal": r"too_old.*forgotten",
    "a token that is revoked while it is connected": r"revoked_token|token.*revoked",
    "wrong tokens again and again": r"test_auth_throttle",
    "a join that is said twice": r"join.*twice",
    "a message that is too large": r"too_large_a_message",
    "a slow reader": r"test_slow_readers",
    "the rate of messages": r"test_rate_limits",
    "the transfer of a stream": r"transfer",
    "frames that a slow reader loses": r"slow_reader_loses_frames",
    "somebody who is removed and comes back": r"removed.*(invited|comes_back)",
    "grants after a restart": r"grants_after_restart",
    "a policy that is reloaded": r"reload",
    "globs in a policy": r"glob.*rule",
    "the limit of a rule": r"a_limit_lets",
    "a quorum that is not reached": r"quorum.*(lost|reached)",
    "an edit that does not fit the schema": r"edit.*schema",
    "a key that stands twice in a file": r"test_strict_yaml",
    "metrics": r"test_metrics",
    "the clock of the gateway": r"test_wall_clock",
    "the pause between two dials": r"backoff",
    "an observer": r"test_observers",
}

TEST = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)


@pytest.fixture(scope="module")
def names() -> str:
    """The name of each file of tests and of each test, a line each."""
    files = (ROOT / "tests").rglob("test_*.py")
    found = [(path.stem, *TEST.findall(path.read_text(encoding="utf-8"))) for path in files]
    return "\n".join(name for each in found for name in each)


@pytest.mark.parametrize("question", QUESTIONS)
def test_question_is_answered_by_a_name(names: str, question: str) -> None:
    assert re.search(QUESTIONS[question], names), f"no test has a name like {question!r}"
