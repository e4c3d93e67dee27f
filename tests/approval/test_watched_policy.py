"""A changed policy file counts once it has stood still, and only where it is whole and good."""

import logging
import os
from pathlib import Path

import pytest

from meup_agent.approval import Policy, load_policy
from meup_agent.approval.policy.file import STILL_SECONDS, WatchedPolicy
from meup_agent.errors import ConfigurationError
from tests.wire import payloads

POLICY = "rules: [{ask: {tool: add}}]\nend: true\n"
ALLOW = "rules: [{allow: {tool: add}}]\nend: true\n"
DENY = "rules: [{deny:  {tool: add}}]\nend: true\n"


class Clock:
    """A clock that goes on when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def verdict(watched: WatchedPolicy) -> str:
    """The verdict, as a decider has it: a doubt makes an allow an ask."""
    call = payloads.Call("tools/call", {"name": "add"})
    found = watched.current().decide(call, "bob").verdict
    return "ask" if found == "allow" and watched.doubt else found


def later(watched: WatchedPolicy, clock: Clock) -> str:
    """The verdict after the file has stood still."""
    verdict(watched)
    clock.now += STILL_SECONDS * 1.1
    return verdict(watched)


def test_a_reload_counts_once_the_file_has_stood_still(path: Path, clock: Clock) -> None:
    watched = WatchedPolicy(write(path, DENY), clock)
    write(path, ALLOW)
    assert [verdict(watched), verdict(watched)] == ["deny", "deny"]
    clock.now += STILL_SECONDS * 0.9
    assert verdict(watched) == "deny"
    write(path, ALLOW + "# more\n")
    clock.now += STILL_SECONDS * 0.9
    assert verdict(watched) == "deny"
    assert later(watched, clock) == "allow"


def test_until_then_what_the_policy_allows_is_asked_about(path: Path, clock: Clock) -> None:
    watched = WatchedPolicy(write(path, ALLOW), clock)
    assert verdict(watched) == "allow"
    write(path, DENY)
    assert verdict(watched) == "ask"
    assert "changed less than 0.5 s ago" in watched.doubt
    write(path, ALLOW)  # as it was
    assert verdict(watched) == "allow"
    write(path, DENY)
    assert later(watched, clock) == "deny"
    assert watched.doubt == ""


def test_a_write_that_changes_neither_size_nor_time_is_a_reload(path: Path, clock: Clock) -> None:
    write(path, ALLOW)
    watched = WatchedPolicy(path, clock)
    before = path.stat()
    write(path, ALLOW.replace("allow", "deny "))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert verdict(watched) == "ask"
    assert later(watched, clock) == "deny"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rules: [{alow: {tool: add}}]\nend: true\n", "unknown key"),
        (
            "rules: [{quorum: {tool: add, of: 2, among: [lead]}}]\nend: true\n",
            "2 votes cannot come of 1",
        ),
        ("", "it is the beginning of the file before it, perhaps cut off"),
        (DENY, "it is the beginning of the file before it, perhaps cut off"),
        ("a: b\n", "expected the key 'rules'"),
        (ALLOW.removesuffix("\n"), "its last line has no end"),
        (ALLOW.replace("end: true\n", ""), "its last key is not 'end: true'"),
    ],
)
def test_a_reload_of_a_bad_file_is_refused_whole_once(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    write(path, DENY + "# nothing more\n")
    watched = WatchedPolicy(path, clock)
    write(path, text)
    with caplog.at_level(logging.INFO, "meup_agent.approval"):
        assert [later(watched, clock) for _ in range(3)] == ["deny"] * 3
    [line] = caplog.messages
    assert said in line
    assert "the policy before it stays" in line
    assert watched.doubt == ""
    write(path, ALLOW)
    assert later(watched, clock) == "allow"


def test_a_file_that_disappears_leaves_the_policy_until_a_reload(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    write(path, DENY)
    watched = WatchedPolicy(path, clock)
    path.unlink()
    assert [verdict(watched), verdict(watched)] == ["deny", "deny"]
    assert len(caplog.messages) == 1
    write(path, ALLOW)
    assert later(watched, clock) == "allow"
    path.unlink()
    assert verdict(watched) == "allow"
    assert len(caplog.messages) == 2


WHOLE = """\
# Rules of the harbour.
rules:
  - allow:
      tool: read_file
      arguments:
        path: "docs/**"
      proposer: bot
  - deny: {tool: "shell*", explain: "no shells here"}
  - allow: {tool: [list_files, "git_*"], target: files}
  - limit:
      tool: send_mail
      count: 5
      every: 1h
      then: deny
  - allow:
      tool: send_mail
      arguments:
        to:
          - "*@example.com"
          - lead@example.org
      others: [subject, body]
end: true
"""


@pytest.mark.thorough
def test_a_file_that_is_cut_off_anywhere_does_not_load(path: Path) -> None:
    for size in range(len(WHOLE)):
        with pytest.raises(ConfigurationError):
            load_policy(write(path, WHOLE[:size]))


def test_a_file_that_is_cut_off_while_watched_changes_nothing(path: Path, clock: Clock) -> None:
    watched = WatchedPolicy(write(path, WHOLE), clock)
    before: Policy = watched.current()
    assert len(before.rules) == 5
    for size in range(len(WHOLE)):
        write(path, WHOLE[:size])
        later(watched, clock)
        assert watched.current() is before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("end: true\nrules: [{ask: {tool: a}}]\n", "its last key is not 'end: true'"),
        ("rules: [{ask: {tool: a}}]\nend: yes please\n", "its last key is not 'end: true'"),
        ("rules: [{ask: {tool: a}}]\nend:\n", "its last key is not 'end: true'"),
        ("rules: [{ask: {tool: a}}]\nend: true", "its last line has no end"),
    ],
)
def test_the_last_key_says_that_a_policy_is_whole(path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load_policy(write(path, text))
