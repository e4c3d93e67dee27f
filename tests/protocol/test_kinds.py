"""The table of kinds, and its two spellings (PROTOCOL 1)."""

import re

import pytest

from tests.programs import ROOT
from tests.wire import kinds


def test_each_known_kind_has_two_spellings() -> None:
    for kind in kinds.KINDS:
        dotted = kinds.dotted(kind)
        assert dotted == kind.replace("/", ".")
        assert kinds.canonical(dotted) == kinds.canonical(kind) == kind


def test_no_two_kinds_are_spelled_alike() -> None:
    assert len({kinds.dotted(kind) for kind in kinds.KINDS}) == len(kinds.KINDS)


@pytest.mark.parametrize("kind", ["", "mcp", "mcp.requests", "a.b", "a/b", "system.heartbeat"])
def test_an_unknown_kind_stays_as_it_is(kind: str) -> None:
    assert kinds.canonical(kind) == kind
    assert kinds.dotted(kind) == kind


FROM_THE_GATEWAY = """
    system/welcome system/presence system/error system/withdrawn system/expired
    space/invite-ack space/proposals yes/listed stream/open stream/write-granted
    stream/write-revoked
    stream/ownership-transferred stream/lost
"""

CORRELATED = """
    mcp/response mcp/withdraw mcp/reject mcp/renew mcp/report
    chat/acknowledge chat/cancel
    capability/grant-ack space/invite-ack space/proposals yes/give yes/listed stream/open
"""


def test_what_only_the_gateway_says_and_what_refers_to_something() -> None:
    assert set(kinds.GATEWAY_KINDS) == set(FROM_THE_GATEWAY.split())
    assert set(CORRELATED.split()) == kinds.CORRELATED


def test_the_gateway_has_three_names() -> None:
    assert {"system:gateway", "gateway", "system"} == kinds.GATEWAY_NAMES
    assert kinds.GATEWAY in kinds.GATEWAY_NAMES


def named(text: str) -> set[str]:
    """The kinds that a text names, alone or several of one folder: `space/{invite,kick}`."""
    found = set(re.findall(r"[a-z]+(?:/[a-z-]+)?", text))
    for folder, names in re.findall(r"([a-z]+)/\{([a-z,-]+)\}", text):
        found.update(f"{folder}/{name}" for name in names.split(","))
    return found


def test_the_protocol_names_every_kind() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    assert kinds.KINDS.keys() - named(text) == set()
    assert {"space/rename", "participant/fly"}.isdisjoint(named(text))
