"""Reading of payloads."""

from typing import Any

import pytest

from tests.wire import payloads, read_call, read_proposal

DELETE = {"method": "tools/call", "params": {"name": "delete_all"}}


@pytest.mark.rule("1.read.wrapper")
def test_a_proposal_is_read_with_and_without_its_wrapper() -> None:
    assert read_proposal(DELETE).name == read_proposal({"proposal": DELETE}).name == "delete_all"


@pytest.mark.rule("3.capability.as_read")
@pytest.mark.parametrize(
    "payload",
    [
        {"proposal": DELETE, "params": {"name": "read_file"}},
        {"proposal": {"proposal": DELETE}},
        {"proposal": "delete_all"},
        {},
    ],
)
def test_what_is_no_wrapper_is_not_looked_into(payload: dict[str, Any]) -> None:
    assert read_proposal(payload).method == ""
    assert read_call({"proposal": DELETE}).method == "", "a request has none"


@pytest.mark.rule("1.read.notification")
@pytest.mark.parametrize(
    ("method", "id", "expected"),
    [
        ("notifications/cancelled", None, True),
        ("notifications/cancelled", 1, True),
        ("notifications/", None, True),
        ("tools/call", None, False),
        ("tools/call", "1", False),
        ("notifications", None, False),
    ],
)
def test_the_method_alone_makes_a_notification(method: str, id: Any, expected: bool) -> None:
    said = {"method": method} if id is None else {"method": method, "id": id}
    assert read_call(said).is_notification is expected


@pytest.mark.rule("1.read.payloads")
@pytest.mark.parametrize("odd", [None, 5, "x", [], {}, {"method": 5}, {"method": "m", "params": 5}])
def test_an_odd_message_is_read_as_far_as_it_goes(odd: Any) -> None:
    call = read_call(odd)
    assert (call.params, call.arguments, call.meta, call.name) == ({}, {}, {}, "")
    assert call.rpc_id is None


@pytest.mark.rule("1.write.strict")
def test_what_we_write_is_json_rpc() -> None:
    request = payloads.request("tools/list", {}, "r1")
    assert request == {"jsonrpc": "2.0", "id": "r1", "method": "tools/list", "params": {}}
    assert payloads.result("r1", {})["jsonrpc"] == "2.0"
    assert payloads.error(7, -32601, "no such method")["id"] == 7
    assert "id" not in payloads.notification("notifications/progress", {})


@pytest.mark.parametrize(
    ("told", "client"),
    [
        ({"name": "editor", "version": "1"}, "editor 1"),
        ({"name": "e" * 70, "version": "1" * 60_000}, f"{'e' * 64} {'1' * 64}"),
        ({"name": ["editor"], "version": None}, ""),
        ("editor", ""),
    ],
    ids=["both", "long", "odd", "no object"],
)
def test_a_client_is_named_in_a_few_characters(told: object, client: str) -> None:
    said = {"method": "tools/call", "params": {"_meta": {"dev.meup/client": told}}}
    assert read_proposal(said).client == client
