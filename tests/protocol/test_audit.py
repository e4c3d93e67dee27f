"""The audit: the end of each proposal, read from the journal."""

from collections.abc import Callable
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
    assert journal.outcome[:2] == ("fulfilled", "bob")
    assert only.decision is not None
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
    assert journal.outcome == ("rejected", "bob", "unsafe")
    told = [(step.by, step.reason) for step in journal.only.rejections]
    assert told == [("eve", "disagree"), ("bob", "unsafe")]
    assert journal.only.decision is not None
    assert journal.only.explanation(journal.only.decision.step) == "it leaves the workspace"


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


REFUSAL = {"code": -32000, "message": "no", "data": {"reason": "refused"}}
STORIES: dict[str, Any] = {
    "a withdrawal with a reason of its own is a withdrawal": (
        lambda j: (j.reject("p"), j.withdraw("p", reason="timeout")),
        ("withdrawn", "alice", "timeout"),
        [None, None],
    ),
    "a rejection while it is carried out is only recorded": (
        lambda j: (j.request("p"), j.reject("p"), j.withdraw("p", reason="no_longer_needed")),
        ("withdrawn", "alice", "no_longer_needed"),
        [None, None, None],
    ),
    "what was withdrawn stays, and what comes later is marked": (
        lambda j: (
            (j.request("p"), j.withdraw("p", reason="policy"), j.respond()),
            (j.withdraw("p"), j.reject("p", by="eve")),
        ),
        ("withdrawn", "alice", "policy"),
        [None, None, Ignored.LATE, Ignored.LATE, Ignored.LATE],
    ),
    "the response wins over a later withdrawal": (
        lambda j: (j.request("p"), j.respond(), j.withdraw("p")),
        ("fulfilled", "bob", ""),
        [None, None, Ignored.LATE],
    ),
    "only the proposer withdraws, and only who was asked answers": (
        lambda j: (
            (j.withdraw("p", by="eve"), j.request("p")),
            (j.respond(by="eve"), j.reject("p", by="alice")),
        ),
        ("in_progress", None, None),
        [Ignored.NOT_THEIRS, None, Ignored.NOT_THEIRS, Ignored.OWN_PROPOSAL],
    ),
    "what is said again is marked": (
        lambda j: [
            *(j.request("p") for _ in range(2)),
            *(j.respond() for _ in range(2)),
            *(j.reject("p", by="eve") for _ in range(2)),
        ],
        ("fulfilled", "bob", ""),
        [None, Ignored.AGAIN, None, Ignored.AGAIN, Ignored.LATE, Ignored.AGAIN],
    ),
    "what all executors refuse was answered by none": (
        lambda j: [
            j.request("p", to=("files", "copies"), path="b.txt"),
            *(j.respond(by=each, error=REFUSAL) for each in ("files", "files", "copies")),
        ],
        ("pending", None, None),
        [None, Ignored.REFUSED, Ignored.AGAIN, Ignored.REFUSED],
    ),
    "without to each owner that carries it out is shown": (
        lambda j: (j.request("p", to=None), j.respond(by="files"), j.respond(by="copies")),
        ("fulfilled", "bob", ""),
        [None, None, Ignored.AGAIN],
    ),
}


@pytest.mark.rule("3.audit.withdrawals", "4.2.withdrawn_stays_visible", "4.2.gateway_order")
@pytest.mark.rule("4.4.without_to")
@pytest.mark.parametrize(("story", "outcome", "ignored"), STORIES.values(), ids=STORIES)
def test_each_step_is_shown_and_marked_where_it_changes_nothing(
    journal: Journal, story: Callable[[Journal], object], outcome: tuple[Any, ...], ignored: Any
) -> None:
    journal.propose(id="p", to=("bob",))
    story(journal)
    assert journal.outcome == outcome
    assert [step.ignored for step in journal.only.steps[1:]] == ignored


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


def test_a_result_decides_although_another_executor_refused(journal: Journal) -> None:
    request = journal.request(journal.propose(), to=("files", "copies"))
    journal.respond(request, by="files", error=REFUSAL)
    assert (journal.only.state, journal.only.answered) == ("in_progress", None)
    journal.respond(request, by="copies")
    assert journal.outcome[:2] == ("fulfilled", "bob")
    (fulfillment,) = journal.only.fulfillments
    assert fulfillment.response is not None
    assert fulfillment.response.by == "copies"
    assert not fulfillment.is_error
    assert journal.only.answered is fulfillment
    journal.respond(request, by="files")
    ignored = [step.ignored for step in journal.only.steps[-3:]]
    assert ignored == [Ignored.REFUSED, None, Ignored.AGAIN]


def test_of_a_request_that_all_executors_refuse_no_change_is_told(journal: Journal) -> None:
    proposal = journal.propose()
    journal.respond(journal.request(proposal, path="b.txt"), error=REFUSAL)
    journal.respond(journal.request(proposal, by="carol", id="r2"), to="carol")
    assert (journal.only.state, journal.only.changes) == ("fulfilled", ())


def test_a_cancel_is_not_late_while_another_executor_runs_the_request(journal: Journal) -> None:
    request = journal.request(journal.propose(), to=("files", "copies"))
    journal.respond(request, by="files", error=REFUSAL)
    journal.cancel(request)
    assert journal.only.steps[-1].ignored is None
    assert journal.only.fulfillments[0].cancelled is journal.only.steps[-1]
    assert journal.only.state == "pending"


def test_a_request_for_something_else_carries_nothing_out(journal: Journal) -> None:
    proposal = journal.propose()
    journal.request(proposal, name="read_file")
    journal.respond()
    assert journal.only.state == "pending"
    assert journal.only.steps[1].what is StepKind.REFERRED
    assert journal.only.steps[1].text == "tools/call read_file"


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
    decided = [
        (each.proposer, each.state, each.decision and each.decision.by, len(each.fulfillments))
        for each in journal.audit.named("p1")
    ]
    assert decided == [("alice", "withdrawn", "alice", 0), ("mallory", "fulfilled", "bob", 1)]


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
def test_an_id_that_is_used_again_for_something_else_is_another_proposal(journal: Journal) -> None:
    journal.propose(id="p1")
    payload = payloads.proposal("tools/call", {"name": "delete_file"})
    journal.say("alice", kinds.MCP_PROPOSAL, payload, id="p1")
    journal.request("p1", id="b1")  # for what was replaced
    older, newer = journal.audit.named("p1")
    assert (older.state, newer.state) == ("withdrawn", "pending")
    assert (older.call.name, newer.call.name) == ("write_file", "delete_file")
    assert (older.steps[-1].what, older.steps[-1].ignored) == (StepKind.REQUESTED, Ignored.LATE)
    journal.withdraw("p1", reason="policy")
    assert newer.state == "withdrawn"
    assert (len(older.steps), len(newer.steps)) == (3, 2)


@pytest.mark.rule("4.4.without_to")
def test_without_to_the_target_carries_it_out_and_nothing_is_edited(journal: Journal) -> None:
    meta = {payloads.TARGET: "files"}
    call = {"name": "write_file", "arguments": {"path": "a.txt", "text": "hi"}, "_meta": meta}
    journal.say("alice", kinds.MCP_PROPOSAL, payloads.proposal("tools/call", call), id="p1")
    journal.respond(journal.request("p1", to=None), by="mallory")
    assert journal.only.state == "in_progress"
    journal.respond("r1", by="files")
    assert (journal.only.state, journal.only.changes) == ("fulfilled", ())


def test_a_withdrawal_before_its_proposal_takes_effect(journal: Journal) -> None:
    journal.withdraw("p1", reason="policy")
    journal.propose(id="p1")
    assert journal.outcome == ("withdrawn", "alice", "policy")


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
