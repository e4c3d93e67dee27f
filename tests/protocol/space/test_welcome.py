"""Welcomes: put together from parts, and never older than they are."""

from typing import Any

from meup_agent import Envelope
from tests.spaces import SpaceState, member_capabilities

CHAT: dict[str, Any] = {"kind": "chat"}
CALL: dict[str, Any] = {"kind": "mcp/request"}


def space(*names: str) -> SpaceState:
    return SpaceState({name: member_capabilities([CHAT]) for name in names})


def others(welcome: Envelope) -> list[tuple[str, list[Any]]]:
    return [(each["id"], each["capabilities"]) for each in welcome.payload_object["participants"]]


def names(welcome: Envelope) -> list[str]:
    return [name for name, _ in others(welcome)]


def test_newcomer_is_told_of_the_others_in_the_order_in_which_they_came() -> None:
    it = space("ann", "bob", "cy", "dan")
    assert names(it.join("ann").welcome) == []
    assert names(it.join("bob").welcome) == ["ann"]
    assert names(it.join("cy").welcome) == ["ann", "bob"]
    it.leave("ann")
    assert names(it.join("dan").welcome) == ["bob", "cy"]
    assert names(it.join("ann").welcome) == ["bob", "cy", "dan"]
    # A newer connection of somebody who is there.
    assert names(it.join("cy").welcome) == ["bob", "dan", "ann"]
    assert names(it.observe("cy")) == ["bob", "cy", "dan", "ann"]
    assert list(it.present) == ["bob", "cy", "dan", "ann"]


def test_welcome_says_what_each_may_send_at_the_moment() -> None:
    it = space("ann", "bob", "cy")
    it.join("ann")
    it.grants.configure("ann", member_capabilities([CALL]))
    ((_, ann),) = others(it.join("bob").welcome)
    assert CALL in ann
    assert CHAT not in ann
    it.grants.configure("bob", member_capabilities([]))
    it.leave("ann")
    it.join("ann")
    told = dict(others(it.join("cy").welcome))
    assert CHAT not in told["bob"]
    assert list(told) == ["bob", "ann"]
    you = it.join("bob").welcome.payload_object["you"]
    assert CHAT not in you["capabilities"]


def test_names_that_json_has_to_escape() -> None:
    odd = ('q"uote', "back\\slash", "é%b")
    it = space(*odd)
    for name in odd:
        it.join(name)
    welcome = it.join("é%b").welcome
    assert names(welcome) == ['q"uote', "back\\slash"]
    assert welcome.payload_object["you"]["id"] == "é%b"
