"""Gateways without a file: what each participant of a space to try out may do."""

import pytest

from meup_agent.errors import UsageError
from meup_agent.gateway import Gateway, dev_config
from meup_agent.gateway.config import GUESTS
from tests.gateways import PARTICIPANTS, Identity


def test_dev_participants_may_what_each_needs() -> None:
    config = dev_config({"tools": "kept"}, "space")
    (space,) = config.spaces
    assert space.id == "space"
    assert list(space.participants) == list(PARTICIPANTS)
    tokens = {name: token for name, entry in space.participants.items() for token in entry.tokens}
    assert len(set(tokens.values())) == len(PARTICIPANTS)
    assert tokens["tools"] == "kept"
    for name, token in tokens.items():
        assert config.tokens().identify(token) == Identity("space", name)
    may = {name: entry.capabilities.allow for name, entry in space.participants.items()}
    call, listing = {"method": "tools/call"}, {"method": "tools/list"}
    assert may["proposer"]("mcp/proposal", call)
    assert may["proposer"]("mcp/request", listing)
    for method in ("resources/templates/list", "resources/read", "prompts/get"):
        assert may["proposer"]("mcp/request", {"method": method, "params": {}})
    assert not may["proposer"]("mcp/request", call)
    assert may["fulfiller"]("mcp/request", call)
    assert may["fulfiller"]("mcp/reject", {})
    assert may["tools"]("mcp/response", {})
    assert not may["tools"]("mcp/request", call)
    for kind in ("chat", "mcp/request", "mcp/response", "mcp/proposal", "mcp/reject"):
        assert not may["observer"](kind, call)
    for kind in ("capability/grant", "capability/revoke", "space/invite", "space/kick"):
        assert may["admin"](kind, {})
        assert not any(may[name](kind, {}) for name in PARTICIPANTS if name != "admin")
    for name in GUESTS:
        assert may[name]("mcp/proposal", call)
        assert not may[name]("mcp/request", call)


def test_gateway_outside_of_its_block_says_so() -> None:
    with pytest.raises(UsageError, match="async with"):
        _ = Gateway().url
    with pytest.raises(KeyError, match="name a participant"):
        Gateway().token("nobody")
