"""The audit: the end of each proposal, read from the journal."""

from typing import Any

import pytest

from tests.protocol.audit_journal import BEGIN, SECOND, Journal
from tests.spaces import Ignored, StepKind
from tests.wire import kinds, payloads

PUBLISHED = ["meup/v0.2", "mew/v0.4"]
DIALECTS = ["mcpx/v0.1", "meup/v0.1", *PUBLISHED]


def decided_by(dialect: str, name: str) -> tuple[str, ...]:
    """The ``to`` of a proposal that a participant decides, in dialects that have that."""
    return () if dialect in PUBLISHED else (name,)


@pytest.mark.rule("4.2.audit")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_fulfilled_proposal_says_who_approved_and_what_was_edited(dialect: str) -> None:
    journal = Journal(dialect=dialect)
    proposal = journal.propose(to=decided_by(dialect, "bob"))
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
    proposal = journal.propose(to=decided_by(dialect, "bob"))
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


@pytest.mark.rule("4.16.one_envelope")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_withdrawal_of_several_is_one_of_each_and_its_explanation_too(dialect: str) -> None:
    journal = Journal(dialect=dialect)
    ids = tuple(journal.propose() for _ in range(3))
    kept = journal.propose()
    withdraw = journal.say("alice", kinds.MCP_WITHDRAW, {"reason": "duplicate"}, correlation=ids)
    journal.chat("alice", "made three times", withdraw)
    for each in journal.audit.proposals:
        if each.id == kept:
            assert each.state == "pending"
            continue
        assert each.state == "withdrawn"
        assert each.decision is not None
        assert (each.decision.by, each.decision.reason) == ("alice", "duplicate")
        assert each.explanation(each.decision.step) == "made three times"


def test_a_withdrawal_with_a_reason_of_its_own_is_a_withdrawal(journal: Journal) -> None:
    proposal = journal.propose(to=("bob",))
    journal.reject(proposal)
    journal.withdraw(proposal, reason="timeout")
    only = journal.only
    assert only.state == "withdrawn"
    assert only.decision is not None
    assert (only.decision.by, only.decision.reason) == ("alice", "timeout")


def test_a_rejection_while_somebody_carries_it_out_is_only_recorded(journal: Journal) -> None:
    proposal = journal.propose()
    journal.request(proposal)
    journal.reject(proposal, by="eve")
    journal.withdraw(proposal)
    assert journal.only.state == "withdrawn"
    assert [step.by for step in journal.only.rejections] == ["eve"]


@pytest.mark.rule("3.audit.withdrawals", "4.2.withdrawn_stays_visible")
def test_a_withdrawn_proposal_stays_and_what_came_later_is_marked(journal: Journal) -> None:
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
def test_the_response_wins_over_a_later_withdrawal(journal: Journal) -> None:
    proposal = journal.propose()
    journal.request(proposal)
    journal.respond()
    journal.withdraw(proposal)
    assert journal.only.state == "fulfilled"
    assert journal.only.steps[-1].ignored is Ignored.LATE


def test_a_cancelled_fulfillment_leaves_the_proposal_pending(journal: Journal) -> None:
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


REFUSAL = {"code": -32000, "message": "no", "data": {"reason": "refused"}}


def test_a_result_decides_although_another_executor_refused(journal: Journal) -> None:
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


def test_a_request_that_all_executors_refuse_is_none_that_was_answered(journal: Journal) -> None:
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


def test_a_cancel_is_not_late_while_another_executor_runs_the_request(journal: Journal) -> None:
    request = journal.request(journal.propose(), to=("files", "copies"))
    journal.respond(request, by="files", error=REFUSAL)
    journal.cancel(request)
    assert journal.only.steps[-1].ignored is None
    assert journal.only.fulfillments[0].cancelled is journal.only.steps[-1]
    assert journal.only.state == "pending"


@pytest.mark.rule("3.audit.withdrawals")
def test_only_the_proposer_withdraws_and_only_who_was_asked_answers(journal: Journal) -> None:
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


def test_a_request_for_something_else_carries_nothing_out(journal: Journal) -> None:
    proposal = journal.propose()
    journal.request(proposal, name="read_file")
    journal.respond()
    assert journal.only.state == "pending"
    assert journal.only.steps[1].what is StepKind.REFERRED
    assert journal.only.steps[1].text == "tools/call read_file"


def test_what_is_said_again_is_marked(journal: Journal) -> None:
    proposal = journal.propose(id="p1")
    journal.request(proposal)
    journal.request(proposal)
    journal.respond()
    journal.respond()
    journal.reject(proposal, by="eve")
    journal.reject(proposal, by="eve")
    ignored = [step.ignored for step in journal.only.steps]
    assert ignored == [
        None,
        None,
        Ignored.AGAIN,
        None,
        Ignored.AGAIN,
        Ignored.LATE,
        Ignored.AGAIN,
    ]


@pytest.mark.rule("6.said_again")
def test_a_proposal_that_is_made_a_second_time_is_another_one() -> None:
    """A gateway delivers no copy, but what a client that does not resume says again."""
    journal = Journal()
    for name in ("r1", "r2"):
        journal.request(journal.propose(id="p1"), id=name)
        journal.respond(name)
    journal.propose(id="p1")
    journal.propose(id="p1")
    said = [each.state for each in journal.audit.proposals]
    assert said == ["fulfilled", "fulfilled", "withdrawn", "pending"]


@pytest.mark.rule("4.4.by_proposer", "4.8.audit")
def test_the_decisions_of_two_proposals_with_one_id_are_not_swapped(journal: Journal) -> None:
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
def test_in_an_old_journal_an_id_that_stands_twice_is_ambiguous(journal: Journal) -> None:
    journal.propose("alice", id="p1")
    journal.propose("mallory", id="p1")
    journal.respond(journal.request("p1", by="bob", id="b1"), to="bob")
    for proposal in journal.audit.named("p1"):
        assert proposal.state == "pending"
        step = proposal.steps[1]
        assert (step.what, step.by, step.ignored) == (StepKind.REFERRED, "bob", Ignored.AMBIGUOUS)


@pytest.mark.rule("4.4.one_proposal")
def test_a_request_that_names_two_is_shown_at_both_and_decides_none(journal: Journal) -> None:
    first, second = journal.propose("alice"), journal.propose("carol")
    payload = payloads.request("tools/call", {"name": "write_file", "arguments": {}}, "b1")
    journal.say("bob", kinds.MCP_REQUEST, payload, id="b1", correlation=(first, second))
    journal.respond("b1")
    for proposal in journal.audit.proposals:
        assert proposal.state == "pending"
        assert proposal.steps[1].ignored is Ignored.AMBIGUOUS


@pytest.mark.rule("4.4.reused_id")
def test_a_request_for_what_was_replaced_is_shown_there(journal: Journal) -> None:
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
def test_without_to_the_target_carries_it_out_and_nothing_is_edited(journal: Journal) -> None:
    meta = {payloads.TARGET: "files"}
    call = {"name": "write_file", "arguments": {"path": "a.txt", "text": "hi"}, "_meta": meta}
    journal.say("alice", kinds.MCP_PROPOSAL, payloads.proposal("tools/call", call), id="p1")
    journal.respond(journal.request("p1", to=None), by="mallory")
    assert journal.only.state == "in_progress"
    journal.respond("r1", by="files")
    assert (journal.only.state, journal.only.changes) == ("fulfilled", ())


@pytest.mark.rule("4.4.without_to")
def test_without_to_each_owner_that_carries_it_out_is_shown(journal: Journal) -> None:
    request = journal.request(journal.propose(), to=None)
    journal.respond(request, by="files")
    journal.respond(request, by="copies")
    answers = [step for step in journal.only.steps if step.what is StepKind.RESPONDED]
    assert [(step.by, step.ignored) for step in answers] == [
        ("files", None),
        ("copies", Ignored.AGAIN),
    ]
    assert journal.only.state == "fulfilled"


def test_an_id_that_is_used_again_for_something_else_is_another_proposal(journal: Journal) -> None:
    journal.propose(id="p1")
    payload = payloads.proposal("tools/call", {"name": "delete_file"})
    journal.say("alice", kinds.MCP_PROPOSAL, payload, id="p1")
    older, newer = journal.audit.named("p1")
    assert (older.state, newer.state) == ("withdrawn", "pending")
    assert (older.call.name, newer.call.name) == ("write_file", "delete_file")
    journal.withdraw("p1", reason="policy")
    assert newer.state == "withdrawn"
    assert len(older.steps) == 2


def test_a_withdrawal_before_its_proposal_takes_effect(journal: Journal) -> None:
    journal.withdraw("p1", reason="policy")
    journal.propose(id="p1")
    assert journal.only.state == "withdrawn"
    assert journal.only.decision is not None


def test_decisions_about_what_is_older_than_the_journal_are_counted(journal: Journal) -> None:
    journal.withdraw("gone")
    journal.reject("gone")
    assert journal.audit.proposals == []
    assert journal.audit.unknown == 2


def test_progress_is_gathered(journal: Journal) -> None:
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


@pytest.mark.rule("5.pins.acceptance")
def test_acceptance_of_tools_is_told_once_the_bridge_has_confirmed_it() -> None:
    journal = Journal()

    def ask(by: str, to: tuple[str, ...] = ("files",), *, id: str = "") -> str:
        payload = payloads.request(kinds.ACCEPT_TOOLS, {"digest": "d1"}, "1")
        return journal.say(by, kinds.MCP_REQUEST, payload, to=to, id=id)

    def answer(by: str, asked: str, to: str, **body: Any) -> None:
        payload = {"jsonrpc": "2.0", "id": "1", **body}
        journal.say(by, kinds.MCP_RESPONSE, payload, to=(to,), correlation=(asked,))

    refused = ask("you")
    answer("files", refused, "you", error={"code": -32000, "message": "changed"})
    asked = ask("you")
    # Another's answer, and another's request under the same id, confirm nothing.
    answer("other", asked, "you", result={})
    ask("mallory", id=asked)
    answer("files", asked, "lookalike", result={})
    ask("you", ("files", "notes"), id="both")
    answer("files", "both", "you", result={})
    assert journal.audit.pop_operations() == []
    answer("files", asked, "you", result={})
    answer("files", asked, "you", result={})
    [said] = journal.audit.pop_operations()
    assert (said.what, said.by, said.whom, said.id) == ("accept_tools", "you", "files", asked)
    assert said.details == {"digest": "d1"}
