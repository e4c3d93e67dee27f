"""Keys in capabilities that no payload has are found, and nothing else is taken for one."""

from typing import Any

import pytest

from meup_agent.gateway import dev_config, load_config
from meup_agent.protocol.capability.payload_keys import UnknownKey, find_unknown_keys
from tests.programs import ROOT

REQUEST = "mcp/request"


@pytest.mark.parametrize(
    ("kind", "payload", "expected"),
    [
        (REQUEST, {"methd": "tools/call"}, ("methd", REQUEST, "method")),
        ("mcp.request", {"methd": "tools/call"}, ("methd", REQUEST, "method")),
        (REQUEST, {"color": 1}, ("color", REQUEST, "")),
        (REQUEST, [{"method": "ping"}, {"parms": {}}], ("parms", REQUEST, "params")),
        (
            [REQUEST, "mcp/proposal"],
            {"methd": "x"},
            ("methd", "mcp/proposal or mcp/request", "method"),
        ),
        (
            REQUEST,
            {"method": "tools/call", "params": {"nam": "x"}},
            ("params.nam", "tools/call", "name"),
        ),
        (
            "mcp/proposal",
            {"method": "tools/call", "params": [{"name": "x"}, {"argument": {}}]},
            ("params.argument", "tools/call", "arguments"),
        ),
        (
            REQUEST,
            {"method": "resources/read", "params": {"name": "x"}},
            ("params.name", "resources/read", ""),
        ),
        (REQUEST, {"params": {"nam": "x"}}, ("params.nam", "MCP", "name")),
        (REQUEST, {"method": "tools/*", "params": {"nme": 1}}, ("params.nme", "MCP", "name")),
        ("chat", {"mesage": "*"}, ("mesage", "chat", "message")),
        ("capability/grant", {"recipent": "bob"}, ("recipent", "capability/grant", "recipient")),
        ("space/kick", {"participant": "x"}, ("participant", "space/kick", "participant_id")),
    ],
)
def test_a_misspelt_key_is_found(kind: Any, payload: Any, expected: tuple[str, str, str]) -> None:
    path, *told = expected
    found = UnknownKey(f"payload.{path}", *told)
    assert list(find_unknown_keys({"kind": kind, "payload": payload})) == [found]


@pytest.mark.parametrize(
    "capability",
    [
        {"kind": REQUEST},
        {"kind": REQUEST, "payload": {}},
        {
            "kind": REQUEST,
            "payload": {"method": "tools/call", "params": {"name": "x", "_meta": {}}},
        },
        {"kind": REQUEST, "payload": {"method": "tools/call", "params": {"arguments": {"nam": 1}}}},
        # Keys that are patterns themselves.
        {"kind": REQUEST, "payload": {"**": "x", "$.params.nam": 1, "met*": 1, "m?thd": 1}},
        # A method, a kind, a parameter of somebody's own.
        {"kind": REQUEST, "payload": {"method": "acme/own", "params": {"nam": 1}}},
        {"kind": REQUEST, "payload": {"params": {"colour": "red"}}},
        {"kind": "acme/own", "payload": {"methd": 1}},
        {"kind": "*", "payload": {"methd": 1}},
        {"kind": "mcp/proposal", "payload": {"proposal": {"methd": 1}}},
        {"kind": "chat", "payload": {"text": "*", "format": "plain"}},
    ],
)
def test_nothing_else_is_taken_for_one(capability: dict[str, Any]) -> None:
    assert list(find_unknown_keys(capability)) == []


def test_the_files_that_are_shown_have_none() -> None:
    shown = [
        load_config(ROOT / "examples" / name) for name in ("space.yaml", "existing_space.yaml")
    ]
    for space in (space for config in (dev_config(), *shown) for space in config.spaces):
        for entry in space.participants.values():
            for capability in entry.capabilities.patterns:
                assert list(find_unknown_keys(capability)) == []
