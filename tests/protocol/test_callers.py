"""Callers: participants that may call a tool, and those that could if it were granted."""

from typing import Any

import pytest

from meup_agent.protocol.wire.outcomes import (
    MAX_LOOKED_AT,
    Allowed,
    allowed_arguments,
    capability_for,
    find_missing,
)
from tests.wire import compile_capabilities, payloads

REJECTS = [{"kind": "mcp/reject"}]
READS = [{"kind": "mcp/request", "payload": {"method": "tools/call", "params": {"name": "read"}}}]
LISTS = [{"kind": "mcp/request", "payload": {"method": "tools/list"}}]
MANAGES = [{"kind": "capability/*"}]


def call(name: str = "write", target: str | None = "files") -> payloads.Call:
    meta = {} if target is None else {payloads.TARGET: target}
    return payloads.Call("tools/call", {"name": name, payloads.META: meta})


@pytest.mark.rule("4.6.missing")
def test_sentence_names_the_decider_the_capability_and_who_grants_it() -> None:
    people: dict[str, list[Any]] = {
        "me": [{"kind": "mcp/proposal"}],
        "files": REJECTS,
        "reader": READS,
        "reviewer": REJECTS,
        "lead": MANAGES,
    }
    missing = find_missing(call(), people.items(), me="me")
    assert (missing.could, missing.may_grant) == (("reviewer",), ("lead",))
    assert str(missing) == (
        'nobody here may call files.write; reviewer could, if granted {"kind": "mcp/request",'
        ' "payload": {"method": "tools/call", "params": {"name": "write"}}}, which lead may do'
    )
    # Where no participant rejects, one that makes other calls is named.
    people = {"me": [{"kind": "*"}], "lister": LISTS, "reader": READS}
    missing = find_missing(call(target=None), people.items(), me="me")
    assert missing.could == ("reader",)
    assert str(missing).startswith("nobody here may call write; reader could, if granted ")


@pytest.mark.parametrize(
    "name", ["write", "a*", "!b", "/c/", "[d]", "$e", "{f,g}", "h?", "w\x1b[2J\u202e", "x" * 500]
)
def test_capability_allows_that_call_alone(name: str) -> None:
    granted = compile_capabilities([capability_for("tools/call", name)])
    for other in ("write2", "aa", "b", "c", "d", "e", "f", "hh", name + "x", "x" + name):
        payload = {"method": "tools/call", "params": {"name": other, "arguments": {"a": 1}}}
        assert granted.allow("mcp/request", payload) is (other == name)
    assert granted.allow("mcp/request", {"method": "tools/call", "params": {"name": name}})


def test_names_of_strangers_are_escaped_and_few() -> None:
    people = [(f"\x1b[2J{number}", REJECTS) for number in range(10_000)]
    missing = find_missing(call("w\n", "\u202e"), people, me="me")
    assert str(missing).isprintable()
    assert len(missing.could) == 4
    late: list[tuple[str, Any]] = [("x", [])] * MAX_LOOKED_AT
    assert find_missing(call(), [*late, ("reviewer", REJECTS)], me="me").could == ()


@pytest.mark.parametrize(
    ("capabilities", "allowed"),
    [
        ([{"kind": "*"}], Allowed.ANY),
        (READS, Allowed.ANY),
        (LISTS, Allowed.NONE),
        ([], Allowed.NONE),
        ([{"kind": "mcp/request", "payload": []}], Allowed.NONE),
        ([5, {"kind": "mcp/request", "payload": {"params": 3}}], Allowed.NONE),
        (
            [{"kind": "mcp.request", "payload": {"params": {"arguments": {"path": "docs/**"}}}}],
            Allowed.SOME,
        ),
    ],
)
def test_arguments_with_which_a_tool_may_be_called(
    capabilities: list[Any], allowed: Allowed
) -> None:
    assert allowed_arguments(capabilities, "read") is allowed


def test_capability_that_limits_addressees_counts_for_these() -> None:
    limited = [{"kind": "mcp/request", "to": "files"}]
    assert allowed_arguments(limited, "read", "files") is Allowed.ANY
    assert allowed_arguments(limited, "read", "shell") is Allowed.NONE
    assert allowed_arguments(limited, "read") is Allowed.SOME
    rejects = {"reviewer": [{"kind": "mcp/reject", "to": "me"}]}
    assert find_missing(call(), rejects.items(), me="me").could == ("reviewer",)
    assert find_missing(call(), rejects.items(), me="other").could == ()
