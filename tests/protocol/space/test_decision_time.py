"""The time of an entry: that of the decision, however often a clock is read meanwhile."""

import json
from itertools import count
from typing import Any

import pytest

from meup_agent.protocol.wire.envelope import rfc3339
from tests.protocol.space.test_server import Listener
from tests.spaces import Entry, MemoryJournal, space_server

MAY: dict[str, list[dict[str, Any]]] = {
    "alice": [{"kind": "mcp/*"}, {"kind": "chat"}],
    "bob": [{"kind": "mcp/*"}],
    "admin": [{"kind": "*"}],
}


@pytest.mark.rule("9.time")
def test_entry_has_the_time_of_the_decision_and_so_has_what_follows() -> None:
    """The gateway fills in the time of its decision as `ts`, in its own envelopes as well."""
    milliseconds, ids = count(1), count(1)
    starts = iter([0])  # the journal asks once, for the number of its start
    journal = MemoryJournal(lambda: next(starts))
    host = space_server(
        MAY, lambda: next(milliseconds) * 1_000, journal=journal, announce_withdrawals=True
    )
    alice, bob = Listener("alice"), Listener("bob")
    host.join(alice)
    host.join(bob)

    def say(sender: str, kind: str, payload: Any, **header: Any) -> None:
        said = {"protocol": "mew/v0.4", "id": f"e{next(ids)}", "from": sender, "kind": kind}
        frame = json.dumps({**said, "payload": payload, **header}).encode()
        host.owner.receive_as(sender, frame, "mew/v0.4", lambda _: None)

    call = {"method": "tools/call", "params": {"name": "read", "arguments": {}}}
    say("alice", "mcp/proposal", call, id="p1")
    say("alice", "mcp/withdraw", {"reason": "no_longer_needed"}, correlation_id=["p1"])
    say("alice", "mcp/request", {"jsonrpc": "2.0", "id": 1, **call}, to=["bob"])
    say("admin", "space/kick", {"participant_id": "alice", "reason": "enough"})
    host.leave(bob)

    entries: list[Entry] = []
    journal.read("demo", after=0, until=100, limit=100, then=entries.extend)
    found = [entry.envelope.kind for entry in entries]
    for kind in ("system/presence", "system/withdrawn", "mcp/proposal", "space/kick"):
        assert kind in found
    assert [entry.envelope.ts for entry in entries] == [rfc3339(entry.at) for entry in entries]
