"""The rules of an audit: each decision has the one that its sender tells, safe to print."""

from typing import Any

import pytest

from meup_agent.protocol.wire.payloads import MAX_TOLD_CHARS, MAX_TOLD_VOTES, RULE, read_told_rule
from tests.cli.commands import AuditListing, AuditTimeline, Glyphs
from tests.protocol.audit_journal import Journal
from tests.spaces import AuditRecord, proposal_as_json
from tests.wire import META, kinds

ALLOWED = {"verdict": "allow", "rule": "reads", "policy": "0123456789abcdef"}
VOTED = {
    "verdict": "quorum",
    "rule": "four eyes",
    "policy": "0123456789abcdef",
    "of": 2,
    "among": ["lead", "security", "oncall"],
    "votes": {"lead": "approve", "oncall": "reject", "security": "approve"},
}


def text_of(proposal: AuditRecord) -> str:
    glyphs = Glyphs("utf-8")
    listed = AuditListing(None, 0.0).proposals([proposal])
    told = AuditTimeline(None, glyphs).lines(proposal)
    return "\n".join(str(each) for each in [*listed, *told])


def reject(journal: Journal, proposal: str, rule: object) -> None:
    payload = {"reason": "policy", META: {RULE: rule}}
    journal.say("bob", kinds.MCP_REJECT, payload, correlation=(proposal,))


def test_a_fulfillment_has_its_rule(journal: Journal) -> None:
    p = journal.propose()
    journal.request(p, meta={RULE: ALLOWED})
    journal.respond()
    said = proposal_as_json(journal.only, timeline=True)
    assert said["decision"]["rule"] == ALLOWED
    assert said["fulfillments"][0]["rule"] == ALLOWED
    assert [each.get("rule") for each in said["timeline"]] == [None, ALLOWED, None]
    assert text_of(journal.only).count("by the rule reads of policy 0123456789abcdef") == 3


def test_a_rejection_has_its_rule(journal: Journal) -> None:
    p = journal.propose(to=("bob",))
    reject(journal, p, ALLOWED | {"verdict": "deny"})
    assert "rejected by bob (policy, by the rule reads" in text_of(journal.only)
    journal.withdraw(p)
    said = proposal_as_json(journal.only)
    assert said["decision"]["rule"]["rule"] == "reads"
    assert said["rejections"][0]["rule"]["verdict"] == "deny"
    assert "by the rule reads" in text_of(journal.only)


def test_votes_stand_beside_their_rule(journal: Journal) -> None:
    p = journal.propose()
    journal.request(p, meta={RULE: VOTED})
    journal.respond()
    said = proposal_as_json(journal.only)["decision"]["rule"]
    assert (said["of"], said["votes"]) == (2, VOTED["votes"])
    words = "2 approvals needed (approve: lead, security; reject: oncall)"
    assert f"by the rule four eyes of policy 0123456789abcdef, {words}" in text_of(journal.only)


def test_a_rule_of_a_proposal_means_nothing(journal: Journal) -> None:
    params = {"name": "write_file", "arguments": {}, META: {RULE: ALLOWED}}
    payload = {"method": "tools/call", "params": params}
    journal.say("alice", kinds.MCP_PROPOSAL, payload)
    assert "reads" not in text_of(journal.only)


@pytest.mark.parametrize(
    "rule", [None, [], "reads", {}, {"rule": 7}, {"rule": ""}, {"rule": None, "verdict": "allow"}]
)
def test_what_is_no_rule_is_none(rule: Any) -> None:
    assert read_told_rule({META: {RULE: rule}}) is None
    assert read_told_rule({META: rule}) is None
    assert read_told_rule(rule) is None


def test_words_of_a_participant_are_bounded_and_escaped(journal: Journal) -> None:
    hostile = "x\x1b[2J\u202egnp\n"
    votes = {f"{hostile}{number}": hostile for number in range(500)}
    rule = {"rule": hostile + "y" * 9_999, "policy": hostile, "of": True, "votes": votes}
    told = read_told_rule({META: {RULE: rule}})
    assert told is not None
    assert len(told.name) == MAX_TOLD_CHARS
    assert len(told.votes) == MAX_TOLD_VOTES
    assert told.of == 0
    p = journal.propose()
    journal.request(p, meta={RULE: rule | {"of": 2}})
    journal.respond()
    text = text_of(journal.only)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "by the rule x" in text
