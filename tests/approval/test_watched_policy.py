"""A policy file is reloaded when it changes, and stays as it was where the new one is not good."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from meup_agent.approval.watched_policy import WatchedPolicy
from tests.wire import payloads

ASK = "rules: [{ask: {tool: add}}]"
ALLOW = "rules: [{allow: {tool: add}}]"
DENY = "rules: [{deny:  {tool: add}}]"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "policy.yaml", ASK)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def verdict(watched: WatchedPolicy) -> str:
    call = payloads.Call("tools/call", {"name": "add"})
    return watched.current().decide(call, "bob").verdict


def test_a_reload_counts_for_the_next_decision(path: Path) -> None:
    watched = WatchedPolicy(path)
    assert verdict(watched) == "ask"
    write(path, ALLOW)
    assert verdict(watched) == "allow"


def test_a_write_that_changes_neither_size_nor_time_is_a_reload(path: Path) -> None:
    write(path, ALLOW)
    watched = WatchedPolicy(path)
    before = path.stat()
    write(path, ALLOW.replace("allow", "deny "))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert verdict(watched) == "deny"


def test_without_a_change_there_is_no_reload(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(path, (1_000, 1_000))
    watched = WatchedPolicy(path)
    monkeypatch.setattr("meup_agent.approval.watched_policy.read_file", None)
    assert verdict(watched) == "ask"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rules: [{alow: {tool: add}}]", "unknown key"),
        ("rules: [{ask: {tool: add}}, {allow: {tool: add}}]", "can never match"),
        ("rules: [{quorum: {tool: add, of: 2, among: [lead]}}]", "2 votes cannot come of 1"),
        ("", "expected the key 'rules'"),
    ],
)
def test_a_reload_of_a_bad_file_is_refused_whole_once(
    path: Path, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    write(path, DENY)
    watched = WatchedPolicy(path)
    write(path, text)
    with caplog.at_level(logging.INFO, "meup_agent.approval"):
        assert [verdict(watched) for _ in range(3)] == ["deny"] * 3
    [line] = caplog.messages
    assert said in line
    assert "the policy before it stays" in line
    write(path, ALLOW)
    assert verdict(watched) == "allow"


def test_a_file_that_disappears_leaves_the_policy_until_a_reload(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(path, DENY)
    watched = WatchedPolicy(path)
    path.unlink()
    assert [verdict(watched), verdict(watched)] == ["deny", "deny"]
    assert len(caplog.messages) == 1
    write(path, ALLOW)
    assert verdict(watched) == "allow"
