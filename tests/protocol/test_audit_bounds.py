"""Bounds of an audit, the operations on its space, and its JSON."""

from itertools import product
from typing import Any

import pytest

from meup_agent.protocol.audit import MAX_RESULT_BYTES, MAX_STEPS, operation_as_json
from tests.protocol.audit_journal import BEGIN, SECOND, Journal
from tests.spaces import Audit, Entry, proposal_as_json
from tests.wire import draft, kinds, payloads


def test_the_gateway_takes_back_what_was_revoked(journal: Journal) -> None:
    proposal = journal.propose(to=("bob",))
    journal.request(proposal)
    cancel = payloads.cancelled_by_gateway("r1", "revoked", "bob")
    journal.say(kinds.GATEWAY, kinds.MCP_REQUEST, cancel, to=("files",), correlation=("r1",))
    cancelled = journal.only.fulfillments[0].cancelled
    assert cancelled is not None
    assert (cancelled.by, cancelled.text) == (kinds.GATEWAY, "revoked")
    assert journal.only.state == "pending"
    withdraw = {"reason": "revoked", payloads.META: {payloads.BEGUN_BY: "alice"}}
    journal.say(kinds.GATEWAY, kinds.MCP_WITHDRAW, withdraw, correlation=(proposal,))
    assert journal.outcome == ("withdrawn", kinds.GATEWAY, "revoked")


def test_talk_about_a_proposal_is_bounded(journal: Journal) -> None:
    proposal = journal.propose()
    for number in range(MAX_STEPS + 10):
        journal.chat("bob", f"{number}", proposal)
    assert len(journal.only.steps) == MAX_STEPS
    assert journal.only.omitted == 11
    journal.request(proposal)
    journal.respond()
    assert journal.only.state == "fulfilled"
    assert journal.only.decision is not None


def test_long_answers_are_not_kept(journal: Journal) -> None:
    proposal = journal.propose()
    journal.request(proposal)
    payload = payloads.result("r1", {"content": [], "text": "x" * MAX_RESULT_BYTES})
    journal.say("files", kinds.MCP_RESPONSE, payload, to=("bob",), correlation=("r1",))
    (fulfillment,) = journal.only.fulfillments
    assert fulfillment.answer is None
    assert fulfillment.response is not None


@pytest.mark.parametrize("decides", [True, False])
def test_with_a_limit_what_is_decided_is_forgotten_first(decides: bool) -> None:
    journal = Journal(limit=3)
    for number in range(50):
        proposal = journal.propose(id=f"p{number}")
        if decides and number:
            journal.respond(journal.request(proposal, id=f"r{number}"))
    kept = ["p0" if decides else "p47", "p48", "p49"]
    assert [item.id for item in journal.audit.proposals] == kept
    journal.respond(journal.request(kept[0], id="late"))
    assert journal.audit.proposals[0].state == "fulfilled"


def test_with_a_limit_bytes_are_bounded_too() -> None:
    audit = Audit(limit=100, max_bytes=50_000)
    payload = payloads.proposal("tools/call", {"name": "x", "arguments": {"text": "x" * 9_000}})
    for seq in range(1, 20):
        envelope = draft(kinds.MCP_PROPOSAL, payload, id=f"p{seq}", sender="alice")
        audit.add(Entry(seq, "demo", BEGIN, envelope))
    assert 4 <= len(audit.proposals) <= 6
    for seq in range(20, 500):
        text = {"message": "x" * 1_000}
        envelope = draft(kinds.CHAT, text, id=f"c{seq}", sender="eve", correlation=("p19",))
        audit.add(Entry(seq, "demo", BEGIN, envelope))
    assert sum(item.size for item in audit.proposals) <= 50_000


def test_past_its_time_is_a_hint_only(journal: Journal) -> None:
    call = {"name": "x", "_meta": {payloads.EXPIRES_AT: "2023-11-14T22:14:00+00:00"}}
    journal.say("alice", kinds.MCP_PROPOSAL, payloads.proposal("tools/call", call))
    expires = BEGIN / SECOND + 40
    assert not journal.only.is_past(expires - 1)
    assert journal.only.is_past(expires + 1)
    assert journal.only.state == "pending"
    journal.withdraw(journal.only.id)
    assert not journal.only.is_past(expires + 1)


@pytest.mark.rule("3.audit.managing")
def test_what_was_done_to_the_space_is_kept(journal: Journal) -> None:
    capabilities = [{"kind": "mcp/request"}]
    grant = {"recipient": "bob", "capabilities": capabilities, "reason": "trusted"}
    grant_id = journal.say("alice", "capability/grant", grant)
    journal.say("bob", "capability/grant-ack", {"status": "accepted"}, correlation=(grant_id,))
    journal.say("alice", "capability/revoke", {"recipient": "bob", "grant_id": grant_id})
    journal.say("alice", "space/invite", {"participant_id": "carol"})
    journal.say("alice", "space/kick", {"participant_id": "carol", "reason": "spam"})
    terms = {"proposer": "bob", "seconds": 60, "most": 2, "form": "f", "digest": "d"}
    journal.say("alice", "yes/give", terms, correlation=("p",))
    journal.say("alice", "yes/revoke", {"yes_id": "y", "reason": "done"})
    journal.chat("alice", "hello", "nothing")
    operations = journal.audit.pop_operations()
    told = [(item.what, item.by, item.whom, item.grant, item.reason) for item in operations]
    assert told == [
        ("grant", "alice", "bob", "", "trusted"),
        ("grant_ack", "bob", "", grant_id, ""),
        ("revoke", "alice", "bob", grant_id, ""),
        ("invite", "alice", "carol", "", ""),
        ("kick", "alice", "carol", "", "spam"),
        ("yes", "alice", "bob", "", ""),
        ("revoke_yes", "alice", "", "", "done"),
    ]
    assert operation_as_json(operations[-2])["details"] == {**terms, "proposal": "p"}
    said = operation_as_json(operations[0])
    assert said["details"]["capabilities"] == capabilities
    assert said["at"] == "2023-11-14T22:13:21.000Z"


def test_as_json(journal: Journal) -> None:
    proposal = journal.propose(to=("bob",))
    journal.reject(proposal)
    journal.withdraw(proposal)
    said = proposal_as_json(journal.only, timeline=True)
    timeline = said.pop("timeline")
    assert [step["what"] for step in timeline] == ["proposed", "rejected", "withdrew"]
    told = {"by": "bob", "at": "2023-11-14T22:13:22.000Z", "reason": "unsafe", "explanation": ""}
    assert said == {
        "id": "e1",
        "proposer": "alice",
        "client": "",
        "seq": 1,
        "at": "2023-11-14T22:13:21.000Z",
        "to": ["bob"],
        "target": None,
        "method": "tools/call",
        "params": {"name": "write_file", "arguments": {"path": "a.txt", "text": "hi"}},
        "expires_at": None,
        "state": "rejected",
        "in_progress_by": None,
        "decision": {**told, "rule": None},
        "report": None,
        "changes": [],
        "fulfillments": [],
        "rejections": [{**told, "id": "e2", "rule": None}],
        "omitted": 0,
    }


@pytest.mark.rule("5.hostile")
def test_whatever_decodes_is_taken(journal: Journal) -> None:
    cancel = {"method": kinds.CANCELLED}
    odd: list[Any] = [{}, {"method": 5}, {"params": []}, {"reason": {}}, cancel]
    said = list(product(kinds.KINDS, odd, ((), ("x",), ("x", "y"))))
    for seq, (kind, payload, correlation) in enumerate(said):
        journal.say("eve", kind, payload, id=f"{seq % 3}", correlation=correlation)
    assert journal.audit.latest == len(said)
