"""What became of each proposal, read from the journal."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.audit import (
    Audit,
    Ignored,
    ProposalAudit,
    StepKind,
    operation_as_json,
    proposal_as_json,
)
from meup_agent.protocol.audit.records import MAX_RESULT_BYTES, MAX_STEPS
from meup_agent.protocol.dialects import decode, encode
from meup_agent.protocol.envelope import draft
from meup_agent.protocol.space.journal import Entry

SECOND = 1_000_000
BEGIN = 1_700_000_000 * SECOND


class Journal:
    """Entries as a gateway makes them, one second after the other."""

    def __init__(self, *, limit: int | None = None, dialect: str = "") -> None:
        self.audit = Audit(limit=limit)
        self._seq = count(1)
        self._dialect = dialect
        self._at = BEGIN

    def pass_time(self, seconds: int) -> None:
        self._at += seconds * SECOND

    def say(self, sender: str, kind: str, payload: Any, *, id: str = "", **header: Any) -> str:
        seq = next(self._seq)
        envelope = draft(kind, payload, id=id or f"e{seq}", sender=sender, **header)
        if self._dialect and sender != kinds.GATEWAY:
            envelope = decode(encode(envelope, self._dialect), self._dialect)
        self._at += SECOND
        self.audit.add(Entry(seq, "demo", self._at, envelope))
        return envelope.id

    def propose(self, sender: str = "alice", *, id: str = "", **header: Any) -> str:
        call = {"name": "write_file", "arguments": {"path": "a.txt", "text": "hi"}}
        payload = payloads.proposal("tools/call", call)
        return self.say(sender, kinds.MCP_PROPOSAL, payload, id=id, **header)

    def request(
        self,
        proposal: str,
        *,
        by: str = "bob",
        to: str | tuple[str, ...] | None = "files",
        path: str = "a.txt",
        id: str = "r1",
        name: str = "write_file",
        meta: dict[str, Any] | None = None,
    ) -> str:
        params: dict[str, Any] = {"name": name, "arguments": {"path": path, "text": "hi"}}
        if meta is not None:
            params["_meta"] = meta
        payload = payloads.request("tools/call", params, id)
        asked = () if to is None else (to,) if isinstance(to, str) else to
        return self.say(by, kinds.MCP_REQUEST, payload, id=id, to=asked, correlation=(proposal,))

    def cancel(self, request: str, *, by: str = "bob") -> str:
        params = {"requestId": request, "reason": "no_longer_needed: changed my mind"}
        payload = payloads.notification(kinds.CANCELLED, params)
        return self.say(by, kinds.MCP_REQUEST, payload, to=("files",), correlation=(request,))

    def respond(
        self, request: str = "r1", *, by: str = "files", to: str = "bob", error: Any = None
    ) -> str:
        result = {"content": [{"type": "text", "text": "done"}]}
        payload = payloads.result(request, result)
        if error is not None:
            payload = {"jsonrpc": "2.0", "id": request, "error": error}
        return self.say(by, kinds.MCP_RESPONSE, payload, to=(to,), correlation=(request,))

    def reject(self, proposal: str, *, by: str = "bob", reason: str = "unsafe") -> str:
        return self.say(by, kinds.MCP_REJECT, {"reason": reason}, correlation=(proposal,))

    def withdraw(
        self, proposal: str, *, by: str = "alice", reason: str = "no_longer_needed"
    ) -> str:
        return self.say(by, kinds.MCP_WITHDRAW, {"reason": reason}, correlation=(proposal,))

    def chat(self, sender: str, text: str, about: str) -> str:
        return self.say(sender, kinds.CHAT, {"message": text}, correlation=(about,))

    @property
    def only(self) -> ProposalAudit:
        (proposal,) = self.audit.proposals
        return proposal


DIALECTS = ["mcpx/v0.1", "meup/v0.1", "meup/v0.2", "mew/v0.4"]


@pytest.mark.rule("4.2.audit")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_fulfilled_proposal_says_who_approved_and_what_was_edited(dialect: str) -> None:
    journal = Journal(dialect=dialect)
    proposal = journal.propose(to=("bob",))
    request = journal.request(proposal, path="b.txt")
    assert (journal.only.state, journal.only.decision) == ("in_progress", None)
    journal.respond(request)

    only = journal.only
    assert only.state == "fulfilled"
    assert only.decision is not None
    assert only.decision.by == "bob"
    assert only.decision.at == BEGIN + 2 * SECOND, "it was decided when it was requested"
    assert [(each.path, each.proposed, each.fulfilled) for each in only.changes] == [
        ("arguments.path", "a.txt", "b.txt")
    ]
    (fulfillment,) = only.fulfillments
    assert (fulfillment.id, fulfillment.by, fulfillment.to) == ("r1", "bob", ("files",))
    assert fulfillment.answer == {"result": {"content": [{"type": "text", "text": "done"}]}}
    assert not fulfillment.is_error


@pytest.mark.rule("4.3.audit", "4.5.audit")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_rejection_counts_when_its_proposer_takes_it_for_an_answer(dialect: str) -> None:
    journal = Journal(dialect=dialect)
    proposal = journal.propose(to=("bob",))
    journal.reject(proposal, by="eve", reason="disagree")
    reject = journal.reject(proposal, by="bob", reason="unsafe")
    assert journal.only.state == "pending"
    journal.withdraw(proposal)
    journal.chat("bob", "it leaves the workspace", reject)

    only = journal.only
    assert only.state == "rejected"
    assert only.decision is not None
    assert (only.decision.by, only.decision.reason) == ("bob", "unsafe")
    assert [(step.by, step.reason) for step in only.rejections] == [
        ("eve", "disagree"),
        ("bob", "unsafe"),
    ]
    assert only.explanation(only.decision.step) == "it leaves the workspace"


def test_a_withdrawal_with_a_reason_of_its_own_is_a_withdrawal() -> None:
    journal = Journal()
    proposal = journal.propose(to=("bob",))
    journal.reject(proposal)
    journal.withdraw(proposal, reason="timeout")
    only = journal.only
    assert only.state == "withdrawn"
    assert only.decision is not None
    assert (only.decision.by, only.decision.reason) == ("alice", "timeout")


def test_a_rejection_while_somebody_carries_it_out_is_only_recorded() -> None:
    journal = Journal()
    proposal = journal.propose()
    journal.request(proposal)
    journal.reject(proposal, by="eve")
    journal.withdraw(proposal)
    assert journal.only.state == "withdrawn"
    assert [step.by for step in journal.only.rejections] == ["eve"]


@pytest.mark.rule("3.audit.withdrawals", "4.2.withdrawn_stays_visible")
def test_a_withdrawn_proposal_stays_and_what_came_later_is_marked() -> None:
    journal = Journal()
    proposal = journal.propose()
    journal.request(proposal)
    journal.withdraw(proposal, reason="policy")
    journal.respond()
    journal.withdraw(proposal)
    journal.reject(proposal, by="eve")
    only = journal.only
    assert only.state == "withdrawn"
    assert [(step.what, step.ignored) for step in only.steps] == [
        (StepKind.PROPOSED, None),
        (StepKind.REQUESTED, None),
        (StepKind.WITHDREW, None),
        (StepKind.RESPONDED, Ignored.LATE),
        (StepKind.WITHDREW, Ignored.LATE),
        (StepKind.REJECTED, Ignored.LATE),
    ]


@pytest.mark.rule("4.2.gateway_order")
def test_the_response_wins_over_a_later_withdrawal() -> None:
    journal = Journal()
    proposal = journal.propose()
    journal.request(proposal)
    journal.respond()
    journal.withdraw(proposal)
    assert journal.only.state == "fulfilled"
    assert journal.only.steps[-1].ignored is Ignored.LATE


def test_a_cancelled_fulfillment_leaves_the_proposal_pending() -> None:
    journal = Journal()
    proposal = journal.propose()
    journal.request(proposal)
    journal.cancel("r1")
    journal.cancel("r1")
    only = journal.only
    assert only.state == "pending"
    assert [step.ignored for step in only.steps[-2:]] == [None, Ignored.LATE]
    (fulfillment,) = only.fulfillments
    assert fulfillment.cancelled is not None
    assert fulfillment.cancelled.text == "no_longer_needed: changed my mind"
    journal.respond(error={"code": -32000, "message": "cancelled"})
    assert only.state == "pending"


def test_what_an_executor_refuses_was_not_carried_out() -> None:
    journal = Journal()
    proposal = journal.propose()
    journal.request(proposal)
    journal.respond(error={"code": -32000, "message": "no", "data": {"reason": "refused"}})
    assert journal.only.state == "pending"
    assert journal.only.steps[-1].ignored is Ignored.REFUSED
    assert journal.only.fulfillments[0].is_error


REFUSAL = {"code": -32000, "message": "no", "data": {"reason": "refused"}}


def test_a_result_decides_although_another_executor_refused() -> None:
    journal = Journal()
    request = journal.request(journal.propose(), to=("files", "copies"))
    journal.respond(request, by="files", error=REFUSAL)
    assert (journal.only.state, journal.only.answered) == ("in_progress", None)
    journal.respond(request, by="copies")
    only = journal.only
    assert only.state == "fulfilled"
    assert only.decision is not None
    assert only.decision.by == "bob"
    (fulfillment,) = only.fulfillments
    assert fulfillment.response is not None
    assert fulfillment.response.by == "copies"
    assert not fulfillment.is_error
    assert only.answered is fulfillment
    assert [step.ignored for step in only.steps[-2:]] == [Ignored.REFUSED, None]
    journal.respond(request, by="files")
    assert only.steps[-1].ignored is Ignored.AGAIN


def test_a_request_that_all_executors_refuse_is_none_that_was_answered() -> None:
    journal = Journal()
    proposal = journal.propose()
    request = journal.request(proposal, to=("files", "copies"), path="b.txt")
    for executor in ("files", "files", "copies"):
        journal.respond(request, by=executor, error=REFUSAL)
    assert journal.only.state == "pending"
    assert [step.ignored for step in journal.only.steps[-3:]] == [
        Ignored.REFUSED,
        Ignored.AGAIN,
        Ignored.REFUSED,
    ]
    journal.respond(journal.request(proposal, by="carol", id="r2"), to="carol")
    assert (journal.only.state, journal.only.changes) == ("fulfilled", ())


def test_a_cancel_is_not_late_while_another_executor_runs_the_request() -> None:
    journal = Journal()
    request = journal.request(journal.propose(), to=("files", "copies"))
    journal.respond(request, by="files", error=REFUSAL)
    journal.cancel(request)
    assert journal.only.steps[-1].ignored is None
    assert journal.only.fulfillments[0].cancelled is journal.only.steps[-1]
    assert journal.only.state == "pending"


@pytest.mark.rule("3.audit.withdrawals")
def test_only_the_proposer_withdraws_and_only_who_was_asked_answers() -> None:
    journal = Journal()
    proposal = journal.propose()
    journal.withdraw(proposal, by="eve")
    journal.request(proposal)
    journal.respond(by="eve")
    journal.reject(proposal, by="alice")
    assert journal.only.state == "in_progress"
    assert [step.ignored for step in journal.only.steps[1:]] == [
        Ignored.NOT_THEIRS,
        None,
        Ignored.NOT_THEIRS,
        Ignored.OWN_PROPOSAL,
    ]


def test_a_request_for_something_else_carries_nothing_out() -> None:
    journal = Journal()
    proposal = journal.propose()
    journal.request(proposal, name="read_file")
    journal.respond()
    assert journal.only.state == "pending"
    assert journal.only.steps[1].what is StepKind.REFERRED
    assert journal.only.steps[1].text == "tools/call read_file"


def test_what_is_said_again_is_marked() -> None:
    journal = Journal()
    proposal = journal.propose(id="p1")
    journal.propose(id="p1")
    journal.request(proposal)
    journal.request(proposal)
    journal.respond()
    journal.respond()
    journal.reject(proposal, by="eve")
    journal.reject(proposal, by="eve")
    ignored = [step.ignored for step in journal.only.steps]
    assert ignored == [
        None,
        Ignored.AGAIN,
        None,
        Ignored.AGAIN,
        None,
        Ignored.AGAIN,
        Ignored.LATE,
        Ignored.AGAIN,
    ]


@pytest.mark.rule("4.8.audit")
def test_two_proposers_may_use_one_id() -> None:
    journal = Journal()
    journal.propose("alice", id="p1")
    journal.propose("carol", id="p1")
    journal.withdraw("p1", by="carol", reason="policy")
    states = {item.proposer: item.state.value for item in journal.audit.named("p1")}
    assert states == {"alice": "pending", "carol": "withdrawn"}
    assert [item.proposer for item in journal.audit.named("p1", proposer="carol")] == ["carol"]


@pytest.mark.rule("4.4.by_proposer", "4.8.audit")
def test_the_decisions_of_two_proposals_with_one_id_are_not_swapped() -> None:
    journal = Journal()
    journal.propose("alice", id="p1")
    journal.propose("mallory", id="p1")
    meta = {payloads.PROPOSER: "mallory"}
    journal.respond(journal.request("p1", by="bob", id="b1", meta=meta))
    journal.withdraw("p1", by="alice", reason="policy")
    hers, his = journal.audit.named("p1")
    assert (hers.proposer, hers.state, hers.decision and hers.decision.by) == (
        "alice",
        "withdrawn",
        "alice",
    )
    assert (his.proposer, his.state, his.decision and his.decision.by) == (
        "mallory",
        "fulfilled",
        "bob",
    )
    assert (hers.fulfillments, len(his.fulfillments)) == ([], 1)


@pytest.mark.rule("4.4.ambiguous")
def test_in_an_old_journal_an_id_that_stands_twice_is_ambiguous() -> None:
    journal = Journal()
    journal.propose("alice", id="p1")
    journal.propose("mallory", id="p1")
    journal.respond(journal.request("p1", by="bob", id="b1"), to="bob")
    for proposal in journal.audit.named("p1"):
        assert proposal.state == "pending"
        step = proposal.steps[1]
        assert (step.what, step.by, step.ignored) == (StepKind.REFERRED, "bob", Ignored.AMBIGUOUS)


@pytest.mark.rule("4.4.one_proposal")
def test_a_request_that_names_two_is_shown_at_both_and_decides_none() -> None:
    journal = Journal()
    first, second = journal.propose("alice"), journal.propose("carol")
    payload = payloads.request("tools/call", {"name": "write_file", "arguments": {}}, "b1")
    journal.say("bob", kinds.MCP_REQUEST, payload, id="b1", correlation=(first, second))
    journal.respond("b1")
    for proposal in journal.audit.proposals:
        assert proposal.state == "pending"
        assert proposal.steps[1].ignored is Ignored.AMBIGUOUS


@pytest.mark.rule("4.4.reused_id")
def test_a_request_for_what_was_replaced_is_shown_there() -> None:
    journal = Journal()
    journal.propose(id="p1")
    other = payloads.proposal("tools/call", {"name": "write_file", "arguments": {"path": "b"}})
    journal.say("alice", kinds.MCP_PROPOSAL, other, id="p1")
    journal.request("p1", id="b1")
    older, newer = journal.audit.named("p1")
    assert (older.state, newer.state) == ("withdrawn", "pending")
    assert [(step.what, step.ignored) for step in older.steps[-1:]] == [
        (StepKind.REQUESTED, Ignored.LATE)
    ]
    assert len(newer.steps) == 1


@pytest.mark.rule("4.4.without_to")
def test_without_to_the_target_carries_it_out_and_nothing_is_edited() -> None:
    journal = Journal()
    meta = {payloads.TARGET: "files"}
    call = {"name": "write_file", "arguments": {"path": "a.txt", "text": "hi"}, "_meta": meta}
    journal.say("alice", kinds.MCP_PROPOSAL, payloads.proposal("tools/call", call), id="p1")
    journal.respond(journal.request("p1", to=None), by="mallory")
    assert journal.only.state == "in_progress"
    journal.respond("r1", by="files")
    assert (journal.only.state, journal.only.changes) == ("fulfilled", ())


@pytest.mark.rule("4.4.without_to")
def test_without_to_each_owner_that_carries_it_out_is_shown() -> None:
    journal = Journal()
    request = journal.request(journal.propose(), to=None)
    journal.respond(request, by="files")
    journal.respond(request, by="copies")
    answers = [step for step in journal.only.steps if step.what is StepKind.RESPONDED]
    assert [(step.by, step.ignored) for step in answers] == [
        ("files", None),
        ("copies", Ignored.AGAIN),
    ]
    assert journal.only.state == "fulfilled"


def test_an_id_that_is_used_again_for_something_else_is_another_proposal() -> None:
    journal = Journal()
    journal.propose(id="p1")
    payload = payloads.proposal("tools/call", {"name": "delete_file"})
    journal.say("alice", kinds.MCP_PROPOSAL, payload, id="p1")
    older, newer = journal.audit.named("p1")
    assert (older.state, newer.state) == ("withdrawn", "pending")
    assert (older.call.name, newer.call.name) == ("write_file", "delete_file")
    journal.withdraw("p1", reason="policy")
    assert newer.state == "withdrawn"
    assert len(older.steps) == 2


def test_a_withdrawal_before_its_proposal_takes_effect() -> None:
    journal = Journal()
    journal.withdraw("p1", reason="policy")
    journal.propose(id="p1")
    assert journal.only.state == "withdrawn"
    assert journal.only.decision is not None


def test_a_decision_may_take_days() -> None:
    journal = Journal()
    proposal = journal.propose()
    journal.pass_time(7 * 86_400)
    journal.request(proposal)
    journal.pass_time(7 * 86_400)
    journal.respond()
    assert journal.only.state == "fulfilled"


def test_decisions_about_what_is_older_than_the_journal_are_counted() -> None:
    journal = Journal()
    journal.withdraw("gone")
    journal.reject("gone")
    assert journal.audit.proposals == []
    assert journal.audit.unknown == 2


def test_progress_is_gathered() -> None:
    journal = Journal()
    proposal = journal.propose()
    journal.request(proposal)
    for done in range(1, 101):
        said = payloads.progress("r1", done, 100, None)
        journal.say("files", kinds.MCP_REQUEST, said, to=("bob",), correlation=("r1",))
    journal.say("eve", kinds.MCP_REQUEST, payloads.progress("r1", 101, 100, None))
    assert journal.only.fulfillments[0].progress == 100
    progressed = journal.only.steps[-1]
    assert (progressed.what, progressed.times) == (StepKind.PROGRESSED, 100)
    assert progressed.until - progressed.at == 99 * SECOND


def test_the_gateway_takes_back_what_was_revoked() -> None:
    journal = Journal()
    proposal = journal.propose(to=("bob",))
    journal.request(proposal)
    params = {
        "requestId": "r1",
        "reason": "revoked",
        payloads.META: {payloads.BEGUN_BY: "bob"},
    }
    journal.say(
        kinds.GATEWAY,
        kinds.MCP_REQUEST,
        payloads.notification(kinds.CANCELLED, params),
        to=("files",),
        correlation=("r1",),
    )
    cancelled = journal.only.fulfillments[0].cancelled
    assert cancelled is not None
    assert (cancelled.by, cancelled.text) == (kinds.GATEWAY, "revoked")
    assert journal.only.state == "pending"
    withdraw = {"reason": "revoked", payloads.META: {payloads.BEGUN_BY: "alice"}}
    journal.say(kinds.GATEWAY, kinds.MCP_WITHDRAW, withdraw, correlation=(proposal,))
    assert journal.only.state == "withdrawn"
    assert journal.only.decision is not None
    assert (journal.only.decision.by, journal.only.decision.reason) == (kinds.GATEWAY, "revoked")


def test_talk_about_a_proposal_is_bounded() -> None:
    journal = Journal()
    proposal = journal.propose()
    for number in range(MAX_STEPS + 10):
        journal.chat("bob", f"{number}", proposal)
    assert len(journal.only.steps) == MAX_STEPS
    assert journal.only.omitted == 11
    journal.request(proposal)
    journal.respond()
    assert journal.only.state == "fulfilled"
    assert journal.only.decision is not None


def test_long_answers_are_not_kept() -> None:
    journal = Journal()
    proposal = journal.propose()
    journal.request(proposal)
    payload = payloads.result("r1", {"content": [], "text": "x" * MAX_RESULT_BYTES})
    journal.say("files", kinds.MCP_RESPONSE, payload, to=("bob",), correlation=("r1",))
    (fulfillment,) = journal.only.fulfillments
    assert fulfillment.answer is None
    assert fulfillment.response is not None


def test_with_a_limit_what_is_decided_is_forgotten_first() -> None:
    journal = Journal(limit=3)
    open_one = journal.propose(id="p0")
    for number in range(1, 50):
        proposal = journal.propose(id=f"p{number}")
        journal.request(proposal, id=f"r{number}")
        journal.respond(f"r{number}")
    ids = [item.id for item in journal.audit.proposals]
    assert ids == ["p0", "p48", "p49"]
    journal.request(open_one, id="late")
    journal.respond("late")
    assert journal.audit.proposals[0].state == "fulfilled"


def test_with_a_limit_everything_is_bounded() -> None:
    journal = Journal(limit=3)
    for number in range(50):
        journal.propose(id=f"p{number}")
    assert [item.id for item in journal.audit.proposals] == ["p47", "p48", "p49"]


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


def test_past_its_time_is_a_hint_only() -> None:
    journal = Journal()
    call = {"name": "x", "_meta": {payloads.EXPIRES_AT: "2023-11-14T22:14:00+00:00"}}
    journal.say("alice", kinds.MCP_PROPOSAL, payloads.proposal("tools/call", call))
    expires = BEGIN / SECOND + 40
    assert not journal.only.is_past(expires - 1)
    assert journal.only.is_past(expires + 1)
    assert journal.only.state == "pending"
    journal.withdraw(journal.only.id)
    assert not journal.only.is_past(expires + 1)


@pytest.mark.rule("3.audit.managing")
def test_what_was_done_to_the_space_is_kept() -> None:
    journal = Journal()
    capabilities = [{"kind": "mcp/request"}]
    grant = {"recipient": "bob", "capabilities": capabilities, "reason": "trusted"}
    grant_id = journal.say("alice", "capability/grant", grant)
    journal.say("bob", "capability/grant-ack", {"status": "accepted"}, correlation=(grant_id,))
    journal.say("alice", "capability/revoke", {"recipient": "bob", "grant_id": grant_id})
    journal.say("alice", "space/invite", {"participant_id": "carol"})
    journal.say("alice", "space/kick", {"participant_id": "carol", "reason": "spam"})
    journal.chat("alice", "hello", "nothing")
    told = [
        (item.what, item.by, item.whom, item.grant, item.reason)
        for item in journal.audit.operations
    ]
    assert told == [
        ("grant", "alice", "bob", "", "trusted"),
        ("grant_ack", "bob", "", grant_id, ""),
        ("revoke", "alice", "bob", grant_id, ""),
        ("invite", "alice", "carol", "", ""),
        ("kick", "alice", "carol", "", "spam"),
    ]
    said = operation_as_json(journal.audit.operations[0])
    assert said["details"]["capabilities"] == capabilities
    assert said["at"] == "2023-11-14T22:13:21.000Z"


def join(journal: Journal, name: str, *kinds_of: str) -> None:
    you = {"id": name, "capabilities": [{"kind": kind} for kind in kinds_of]}
    payload = {"event": "join", "participant": you}
    journal.say(kinds.GATEWAY, kinds.SYSTEM_PRESENCE, payload)


def grant(journal: Journal, by: str, to: str, id: str) -> None:
    payload = {"recipient": to, "capabilities": [{"kind": "chat"}]}
    journal.say(by, "capability/grant", payload, id=id)


@pytest.mark.rule("3.audit.managing")
def test_chains_of_grants_are_followed() -> None:
    journal = Journal()
    join(journal, "alice", "chat", "capability/grant", "capability/revoke")
    grant(journal, "alice", "bob", "g1")
    join(journal, "bob", "chat", "capability/grant")
    grant(journal, "bob", "carol", "g2")
    grant(journal, "carol", "dave", "g3")
    journal.say("alice", "capability/revoke", {"grant_id": "g1"})
    grant(journal, "alice", "bob", "g4")
    journal.say("alice", "space/kick", {"participant_id": "bob"})
    journal.say("alice", "capability/revoke", {"grant_id": "gone"})
    told = [(item.what, item.rests_on, item.ended) for item in journal.audit.operations]
    assert told == [
        ("grant", (), ()),
        ("grant", ("g1",), ()),
        ("grant", ("g2",), ()),
        ("revoke", (), ("g1", "g2", "g3")),
        ("grant", (), ()),
        ("kick", (), ("g4",)),
        ("revoke", (), ()),
    ]


def test_as_json() -> None:
    journal = Journal()
    proposal = journal.propose(to=("bob",))
    journal.reject(proposal)
    journal.withdraw(proposal)
    said = proposal_as_json(journal.only, timeline=True)
    timeline = said.pop("timeline")
    assert [step["what"] for step in timeline] == ["proposed", "rejected", "withdrew"]
    assert said == {
        "id": "e1",
        "proposer": "alice",
        "seq": 1,
        "at": "2023-11-14T22:13:21.000Z",
        "to": ["bob"],
        "target": None,
        "method": "tools/call",
        "params": {"name": "write_file", "arguments": {"path": "a.txt", "text": "hi"}},
        "expires_at": None,
        "state": "rejected",
        "in_progress_by": None,
        "decision": {
            "by": "bob",
            "at": "2023-11-14T22:13:22.000Z",
            "reason": "unsafe",
            "explanation": "",
        },
        "changes": [],
        "fulfillments": [],
        "rejections": [
            {
                "by": "bob",
                "at": "2023-11-14T22:13:22.000Z",
                "id": "e2",
                "reason": "unsafe",
                "explanation": "",
            }
        ],
        "omitted": 0,
    }


@pytest.mark.rule("5.hostile")
def test_whatever_decodes_is_taken() -> None:
    audit = Audit()
    odd: list[Any] = [
        {},
        {"method": 5},
        {"params": []},
        {"reason": {}},
        {"method": kinds.CANCELLED},
    ]
    seq = 0
    for kind in kinds.KINDS:
        for payload in odd:
            for correlation in ((), ("x",), ("x", "y")):
                seq += 1
                envelope = draft(
                    kind, payload, id=f"{seq % 3}", sender="eve", correlation=correlation
                )
                audit.add(Entry(seq, "demo", seq, envelope))
    assert audit.latest == seq
