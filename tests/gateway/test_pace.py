"""Withdrawals, bytes and their pace, at each edge, over real sockets."""

import json

import pytest
from websockets.sync.client import ClientConnection

from tests.gateway.conftest import envelope
from tests.gateway.edges import edge
from tests.gateway.edges import kind as kind
from tests.patience import PATIENCE

CALL = {"method": "tools/call", "params": {"name": "write"}}


def heard(socket: ClientConnection, number: int, said: str) -> list[str]:
    """The ids of so many envelopes of a kind; nothing else counts."""
    found: list[str] = []
    while len(found) < number:
        each = json.loads(socket.recv(PATIENCE))
        if each["kind"] == said:
            found.append(each["id"])
    return found


@pytest.mark.thorough
@pytest.mark.rule("3.withdraw.rate", "3.pace.ends")
def test_1800_withdrawals_at_once_all_arrive_in_order(kind: str) -> None:
    most = 1_800
    limits = {"messages_burst": 10_000, "max_open_proposals": most, "max_queued_frames": 20_000}
    with edge(kind, withdrawals_per_second=1_000, **limits) as it:
        # Alice reads nothing of what comes back, so her goodbye would wait for it.
        with it.join("alice", close_timeout=0.1) as alice, it.join("bob") as bob:
            for number in range(most):
                alice.send(envelope("alice", "mcp.proposal", CALL, id=f"p{number}"))
            for number in range(most):
                withdraw = {"correlationId": f"p{number}", "id": f"w{number}"}
                alice.send(envelope("alice", "mcp.withdraw", {"reason": "other"}, **withdraw))
            # Each of them ended a proposal: there is room again.
            alice.send(envelope("alice", "mcp.proposal", CALL, id="q"))
            assert heard(bob, most, "mcp.withdraw") == [f"w{number}" for number in range(most)]
            assert heard(bob, 1, "mcp.proposal") == ["q"]
        assert it.place.counters.refused == {}


@pytest.mark.rule("3.pace.ends")
@pytest.mark.limit("withdrawals_per_second", "withdrawals_burst")
def test_withdrawal_over_http_that_comes_too_fast_is_to_come_later(kind: str) -> None:
    with edge(kind, withdrawals_per_second=0.01, withdrawals_burst=1) as it:
        withdraw = {"kind": "mcp.withdraw", "correlationId": "p", "payload": {"reason": "other"}}
        assert it.post("alice", json.dumps(withdraw).encode()).status_code == 200
        answer = it.post("alice", json.dumps(withdraw).encode())
        assert (answer.status_code, answer.json()["limit"]) == (429, "withdrawals_per_second")
        assert 1 <= int(answer.headers["Retry-After"]) <= 100
        # What is not a withdrawal goes through meanwhile.
        assert it.post("alice", b'{"kind": "chat", "payload": {}}').status_code == 200


@pytest.mark.rule("3.pace.bytes")
@pytest.mark.limit("bytes_per_second", "bytes_burst")
def test_bytes_over_http_that_come_too_fast_are_to_come_later(kind: str) -> None:
    with edge(kind, bytes_per_second=100, bytes_burst=10_000) as it:
        large = json.dumps({"kind": "chat", "payload": {"x": "x" * 8_000}}).encode()
        assert it.post("alice", large).status_code == 200
        answer = it.post("alice", large)
        assert (answer.status_code, answer.json()["limit"]) == (429, "bytes_per_second")
        assert 1 <= int(answer.headers["Retry-After"]) <= 70
