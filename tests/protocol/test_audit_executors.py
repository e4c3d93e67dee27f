"""The audit of proposals whose ``to`` names the executor, and whose ids count from one again."""

from itertools import count
from typing import Any

import pytest

from tests.protocol.audit_journal import BEGIN, Journal
from tests.spaces import proposal_as_json
from tests.wire import kinds, payloads

PUBLISHED = ["meup/v0.2", "mew/v0.4"]
CALL = payloads.Call("tools/call", {"name": "write_file", "arguments": {"path": "a.txt"}})


class Restarted(Journal):
    """A proposer of a published dialect that names the executor, and counts anew at each start."""

    def __init__(self, dialect: str) -> None:
        super().__init__(dialect=dialect)
        self._times = count(1)

    def call(self, path: str) -> payloads.Call:
        return payloads.Call("tools/call", {"name": "write_file", "arguments": {"path": path}})

    def propose_again(self, path: str) -> None:
        payload = payloads.proposal("tools/call", self.call(path).params)
        ts = f"2026-01-01T00:00:{next(self._times):02}.000Z"
        self.say("alice", kinds.MCP_PROPOSAL, payload, id="alice-1", to=("files",), ts=ts)

    def fulfill(self, path: str, request: str, *, bare: bool = False) -> None:
        """Fulfill as an agent of ours does, which was told the executor, or as a terminal."""
        if bare:
            params = self.call(path).params
        else:
            target = {"_meta": {payloads.TARGET: "files"}}
            told = payloads.Call("tools/call", {**self.call(path).params, **target})
            params, _ = payloads.build_fulfillment(told, None, "files", proposer="alice")
        payload = payloads.request("tools/call", params, request)
        to = () if bare else ("files",)
        self.say("bob", kinds.MCP_REQUEST, payload, id=request, to=to, correlation=("alice-1",))


@pytest.mark.rule("4.4.executor", "4.4.reused_id")
@pytest.mark.parametrize("dialect", PUBLISHED)
@pytest.mark.parametrize("bare", [False, True])
def test_each_of_several_under_one_id_shows_what_became_of_it(dialect: str, bare: bool) -> None:
    journal = Restarted(dialect)
    for number, path in enumerate(("a.txt", "b.txt", "c.txt")):
        journal.propose_again(path)
        journal.fulfill(path, f"r{number}", bare=bare)
        assert journal.audit.proposals[-1].state == "in_progress"
        journal.respond(f"r{number}")
    said = [proposal_as_json(each) for each in journal.audit.proposals]
    assert [each["state"] for each in said] == ["fulfilled"] * 3
    assert [each["target"] for each in said] == ["files"] * 3
    assert [each["to"] for each in said] == [["files"]] * 3, "as it was sent"
    assert [each["changes"] for each in said] == [[]] * 3


@pytest.mark.rule("4.4.executor")
@pytest.mark.parametrize("dialect", PUBLISHED)
def test_another_executor_than_the_one_in_to_is_an_edit(dialect: str) -> None:
    journal = Restarted(dialect)
    journal.propose_again("a.txt")
    params: dict[str, Any] = {**CALL.params, "_meta": {payloads.EDITED: True}}
    payload = payloads.request("tools/call", params, "r1")
    journal.say("bob", kinds.MCP_REQUEST, payload, id="r1", to=("disk",), correlation=("alice-1",))
    (change,) = journal.only.changes
    assert (change.path, change.proposed, change.fulfilled) == ("target", "files", "disk")


@pytest.mark.rule("4.5.audit")
@pytest.mark.parametrize("dialect", PUBLISHED)
def test_the_executor_in_to_is_no_decider(dialect: str) -> None:
    """As of any broadcast proposal, the last rejection ends the wait."""
    journal = Restarted(dialect)
    journal.propose_again("a.txt")
    journal.reject("alice-1", by="files", reason="busy")
    journal.reject("alice-1", by="bob", reason="unsafe")
    journal.withdraw("alice-1")
    assert journal.outcome == ("rejected", "bob", "unsafe")


@pytest.mark.rule("4.2.audit")
@pytest.mark.parametrize("dialect", ["meup/v0.1", *PUBLISHED])
@pytest.mark.parametrize(
    ("seconds", "state"), [(-10, "withdrawn"), (0, "expired"), (30, "expired")]
)
def test_a_withdraw_for_its_deadline_is_an_expiry(dialect: str, seconds: int, state: str) -> None:
    journal = Journal(dialect=dialect)
    call = {"name": "write_file", "_meta": {payloads.EXPIRES_AT: "2023-11-14T22:15:00+00:00"}}
    journal.say("alice", kinds.MCP_PROPOSAL, payloads.proposal("tools/call", call), id="p")
    deadline = 1_700_000_100
    journal.pass_time(deadline - BEGIN // 1_000_000 - 2 + seconds)
    journal.withdraw("p", reason="timeout")
    assert journal.outcome == (state, "alice" if state == "withdrawn" else "", "timeout")
    assert proposal_as_json(journal.only)["state"] == state
