"""The audit of proposals that expire: by the gateway's times, and the same whenever it is read."""

from typing import Any

import pytest

from meup_agent import ProposalState
from meup_agent.protocol.wire.envelope import rfc3339
from tests.protocol.audit_journal import BEGIN, SECOND, Journal
from tests.spaces import AuditRecord, Ignored, StepKind, proposal_as_json
from tests.wire import kinds, payloads


def proposed(journal: Journal, *, seconds: int = 60, **said: Any) -> AuditRecord:
    """A proposal made one second after the journal's beginning, with its deadline after that."""
    call = {"name": "write_file", "arguments": {"path": "a.txt", "text": "hi"}}
    meta = {payloads.EXPIRES_AT: rfc3339(BEGIN + seconds * SECOND)}
    body = payloads.proposal("tools/call", {**call, "_meta": meta})
    journal.say("alice", kinds.MCP_PROPOSAL, {**body, **said}, id="p1")
    return journal.audit.named("p1")[0]


def state(proposal: AuditRecord) -> ProposalState:
    return proposal.state


def later(journal: Journal, seconds: int) -> None:
    journal.pass_time(seconds)
    journal.say("carol", kinds.CHAT, {"message": "hello"})


@pytest.mark.rule("4.2.expiry", "4.2.audit")
def test_it_expires_when_the_gateway_accepts_something_later(journal: Journal) -> None:
    proposal = proposed(journal)
    later(journal, 117)
    assert state(proposal) is ProposalState.PENDING
    assert proposal.is_past(BEGIN / SECOND + 61)  # a hint, by the reader's clock
    later(journal, 1)
    assert state(proposal) is ProposalState.EXPIRED
    decision = proposal.decision
    assert decision is not None
    assert (decision.by, decision.reason, decision.at) == ("", "timeout", BEGIN + 120 * SECOND)
    assert decision.step.what is StepKind.EXPIRED
    assert not proposal.is_past(BEGIN / SECOND + 1000)
    told = proposal_as_json(proposal, timeline=True)
    assert (told["state"], told["decision"]["by"]) == ("expired", None)


@pytest.mark.rule("4.2.expiry")
def test_who_has_the_gateways_clock_says_so_without_another_envelope(journal: Journal) -> None:
    proposal = proposed(journal)
    journal.audit.pass_time(BEGIN + 120 * SECOND)
    assert state(proposal) is ProposalState.PENDING
    journal.audit.pass_time(BEGIN + 120 * SECOND + 1)
    assert state(proposal) is ProposalState.EXPIRED


@pytest.mark.rule("4.2.expiry.accepted_before")
@pytest.mark.parametrize("completes", [True, False])
def test_what_was_asked_for_in_time_is_not_expired(journal: Journal, completes: bool) -> None:
    proposal = proposed(journal)
    journal.request("p1")
    later(journal, 1000)
    assert state(proposal) is ProposalState.IN_PROGRESS
    if completes:
        journal.respond()
        assert state(proposal) is ProposalState.FULFILLED
        return
    journal.cancel("r1")
    later(journal, 1)
    assert state(proposal) is ProposalState.EXPIRED
    assert proposal.decision is not None
    assert proposal.decision.at > BEGIN + 1000 * SECOND


@pytest.mark.rule("4.2.expiry")
def test_what_comes_after_it_is_late(journal: Journal) -> None:
    proposal = proposed(journal)
    later(journal, 1000)
    journal.request("p1")
    journal.say("alice", kinds.MCP_WITHDRAW, {"reason": "timeout"}, correlation=("p1",))
    assert state(proposal) is ProposalState.EXPIRED
    assert [step.ignored for step in proposal.steps[-2:]] == [Ignored.LATE, Ignored.LATE]


@pytest.mark.rule("6.ttl")
def test_a_foreign_ttl_counts_from_the_journals_time(journal: Journal) -> None:
    journal.say("alice", kinds.MCP_PROPOSAL, {"method": "x", "ttl": 5000, "params": {}})
    for seconds, expected in ((64, ProposalState.PENDING), (1, ProposalState.EXPIRED)):
        later(journal, seconds)
        assert journal.only.state is expected


@pytest.mark.rule("4.17.renew", "4.17.bounds")
def test_renewals_are_told_in_one_step_and_those_of_others_change_nothing(journal: Journal) -> None:
    proposal = proposed(journal)

    def renew(by: str, seconds: int) -> None:
        until = {"expires_at": rfc3339(BEGIN + seconds * SECOND)}
        journal.say(by, kinds.MCP_RENEW, until, correlation=("p1",))

    for seconds in (500, 600, 700):
        renew("alice", seconds)
    renew("bob", 9000)
    later(journal, 730)
    assert state(proposal) is ProposalState.PENDING
    later(journal, 30)
    assert state(proposal) is ProposalState.EXPIRED
    renew("alice", 9000)
    steps = [
        (step.by, step.times, step.ignored)
        for step in proposal.steps
        if step.what is StepKind.RENEWED
    ]
    assert steps == [("alice", 3, None), ("alice", 1, Ignored.LATE)]
    assert proposal_as_json(proposal)["expires_at"] == "2023-11-14T22:25:00+00:00"
