"""Exchanges that a gateway refuses to begin: of a taken id, of what is decided (PROTOCOL 3)."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from meup_agent.protocol.space.state.indexes import MAX_DECIDED
from meup_agent.protocol.space.state.rules import owner_by_name
from tests.protocol.frames import frame_by
from tests.protocol.space.test_state import accept, refuse
from tests.spaces import (
    MAX_ORIGINS,
    Acceptance,
    Entry,
    FrameVerdict,
    SpaceState,
    member_capabilities,
)
from tests.wire import DIALECTS, draft, encode, payloads

DIALECT = "meup/v0.1"
NAMES = ("alice", "bob", "carol", "tools", "a", "a-b")
WRITE = {"name": "write", "arguments": {"path": "x"}}
REFUSED = {"error": {"code": -32000, "message": "no", "data": {"reason": "refused"}}}
CANCEL = {"method": "notifications/cancelled", "params": {"requestId": "s"}}
SECOND = 1_000_000


class Here:
    def __init__(self) -> None:
        self.now = 1_735_689_600 * SECOND
        self.journal: list[tuple[Any, int]] = []
        self.ids: Iterator[int] = count()
        self.space = self._begin()

    def _begin(self) -> SpaceState:
        space = SpaceState(now=lambda: self.now)
        for name in NAMES:
            space.grants.configure(name, member_capabilities([{"kind": "mcp/*"}, {"kind": "chat"}]))
        return space

    def restart(self) -> None:
        self.space = self._begin()
        for envelope, at in self.journal:
            self.space.apply(Entry(0, "demo", at, envelope))

    def say(self, sender: str, kind: str, payload: dict[str, Any], **header: Any) -> FrameVerdict:
        header.setdefault("id", f"said-{next(self.ids)}x")
        decision = self.space.decide(sender, frame_by(sender, kind, payload, **header), DIALECT)
        if isinstance(decision, Acceptance):
            self.journal.append((decision.envelope, self.now))
        return decision

    def propose(self, sender: str, id: str, meta: dict[str, Any] | None = None) -> FrameVerdict:
        params = WRITE if meta is None else {**WRITE, "_meta": meta}
        return self.say(sender, "mcp/proposal", {"method": "tools/call", "params": params}, id=id)

    def request(
        self,
        sender: str,
        id: str,
        *names: str,
        proposer: str | None = None,
        tool: str = "write",
        to: list[str] | None = None,
        method: str = "tools/call",
    ) -> FrameVerdict:
        params: dict[str, Any] = {**WRITE, "name": tool}
        if proposer is not None:
            params["_meta"] = {"dev.meup/proposer": proposer}
        payload = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        correlation = list(names) if len(names) > 1 else names[0] if names else None
        return self.say(
            sender, "mcp/request", payload, id=id, to=to or ["tools"], correlationId=correlation
        )

    def respond(self, request: str, payload: dict[str, Any] | None = None) -> FrameVerdict:
        result: dict[str, Any] = {"jsonrpc": "2.0", "id": request, "result": {}}
        body = result if payload is None else payload
        return self.say("tools", "mcp/response", body, correlationId=request)

    def withdraw(self, sender: str, proposal: str) -> FrameVerdict:
        return self.say(sender, "mcp/withdraw", {"reason": "other"}, correlationId=proposal)


@pytest.fixture
def here() -> Here:
    return Here()


@pytest.mark.rule("3.ids.claimed")
@pytest.mark.parametrize("restarted", [False, True])
def test_an_id_of_anothers_proposal_begins_nothing(here: Here, restarted: bool) -> None:
    accept(here.propose("alice", "p"))
    if restarted:
        here.restart()
    error = refuse(here.propose("bob", "p"), "id_in_use")
    assert "'alice'" in error["message"]
    refuse(here.request("bob", "p"), "id_in_use")
    accept(here.withdraw("alice", "p"))
    if restarted:
        here.restart()
    refuse(here.propose("bob", "p"), "id_in_use")


@pytest.mark.rule("3.ids.claimed", "3.ids.not_pending")
def test_a_sender_uses_its_own_id_again(here: Here) -> None:
    for _ in range(2):
        accept(here.propose("alice", "p"))
        accept(here.request("alice", "p"))
    accept(here.withdraw("alice", "p"))
    accept(here.propose("alice", "p"))
    accept(here.request("carol", "r", "p"))


@pytest.mark.rule("3.ids.claimed")
def test_only_what_begins_an_exchange_claims_an_id_or_is_kept_back_by_one(here: Here) -> None:
    result: dict[str, Any] = {"result": 1}
    for number, (kind, payload) in enumerate(
        [("chat", {}), ("mcp/reject", {}), ("mcp/response", result), ("mcp/request", CANCEL)]
    ):
        for begins in (False, True, False):
            if begins:
                accept(here.propose("alice", f"p{number}"))
            else:
                accept(here.say("bob", kind, payload, id=f"p{number}", correlationId="q"))
    accept(here.say("bob", "mcp/response", result, correlationId="unknown"))
    accept(here.propose("alice", "unknown"))  # named by another, and begun by nobody


@pytest.mark.thorough
@pytest.mark.rule("3.ids.claimed", "3.ids.not_pending")
def test_who_begins_much_loses_their_own_claims_alone(here: Here) -> None:
    accept(here.propose("alice", "hers"))
    accept(here.withdraw("alice", "hers"))
    for number in range(MAX_DECIDED + 1):
        at = f"mine{number}"
        accept(here.propose("bob", at))
        accept(here.withdraw("bob", at))
        here.now += SECOND
    refuse(here.propose("carol", "hers"), "id_in_use")
    refuse(here.request("carol", "r", "hers"), "not_pending")
    accept(here.propose("carol", "mine0"))
    refuse(here.propose("carol", "mine1"), "id_in_use")


@pytest.mark.thorough
@pytest.mark.rule("3.ids.claimed")
def test_what_is_open_keeps_its_id_however_much_comes_after(here: Here) -> None:
    accept(here.propose("alice", "hers"))
    for number in range(MAX_DECIDED + 1):
        accept(here.propose("alice", f"p{number}"))
        accept(here.withdraw("alice", f"p{number}"))
        here.now += SECOND // 2
    refuse(here.propose("bob", "hers"), "id_in_use")


@pytest.mark.thorough
@pytest.mark.rule("3.ids.claimed")
def test_a_flood_of_ids_leaves_a_bounded_memory(here: Here) -> None:
    # Through the state alone, since so many frames take long.
    proposal = accept(here.propose("alice", "p"))
    withdraw = proposal.replace(kind="mcp/withdraw", correlation=("p",))
    payload = proposal.payload_object
    for number in range(2 * (MAX_DECIDED + MAX_ORIGINS)):
        name = f"p{number}"
        here.space.open.track(proposal.replace(id=name), payload, here.now)
        here.space.open.track(withdraw.replace(correlation=(name,)), {}, here.now)
    assert len(here.space.open.proposals.ended.by_id) <= MAX_DECIDED


def test_ids_that_two_used_before_stay_both_theirs(here: Here) -> None:
    first = accept(here.propose("alice", "p"))
    here.journal.append((first.replace(sender="bob"), here.now))  # an older gateway let it through
    here.restart()
    accept(here.propose("alice", "p"))
    accept(here.propose("bob", "p"))
    refuse(here.propose("carol", "p"), "id_in_use")


COUNTED = ["a-7", "a-b-7", "a--7", "a-007"]
UNCOUNTED = ["a-", "a-7b", "a7", "a-²", "a-٣", "a-+7", "-7", "7", ""]


@pytest.mark.parametrize("id", [*COUNTED, *UNCOUNTED])
def test_the_name_that_an_id_is_counted_from(id: str) -> None:
    assert owner_by_name(id) == (id.rpartition("-")[0] if id in COUNTED else "")


@pytest.mark.rule("3.ids.by_name")
def test_ids_that_a_participant_counts_are_its_own_before_it_comes(here: Here) -> None:
    assert not here.space.present
    refuse(here.propose("bob", "alice-1"), "id_in_use")
    refuse(here.request("bob", "alice-99"), "id_in_use")
    refuse(here.propose("a", "a-b-7"), "id_in_use")
    refuse(here.propose("a-b", "a-7"), "id_in_use")
    accept(here.propose("a-b", "a-b-7"))
    accept(here.propose("a", "a-7"))
    accept(here.propose("alice", "alice-1"))
    accept(here.propose("bob", "nobody-1"))


@pytest.mark.rule("3.ids.by_name")
def test_who_comes_later_does_not_take_what_is_open(here: Here) -> None:
    accept(here.propose("alice", "new-1"))
    here.space.grants.configure("new", member_capabilities([{"kind": "mcp/*"}]))
    refuse(here.propose("new", "new-1"), "id_in_use")
    accept(here.propose("alice", "new-1"))  # hers, as long as it is open
    refuse(here.propose("alice", "new-2"), "id_in_use")
    accept(here.withdraw("alice", "new-1"))
    refuse(here.propose("alice", "new-1"), "id_in_use")
    accept(here.propose("new", "new-1"))
    refuse(here.propose("alice", "new-1"), "id_in_use")


@pytest.mark.rule("3.ids.claimed")
def test_who_was_removed_keeps_their_ids(here: Here) -> None:
    here.space.grants.configure("admin", member_capabilities([{"kind": "space/kick"}]))
    accept(here.propose("alice", "p"))
    accept(here.say("admin", "space/kick", {"participant_id": "alice"}))
    refuse(here.propose("bob", "p"), "id_in_use")
    refuse(here.propose("bob", "alice-1"), "id_in_use")
    error = refuse(here.request("carol", "r", "p"), "not_pending")
    assert error["state"] == "withdrawn"


@pytest.mark.rule("3.ids.not_pending")
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("proposer", [None, "alice", "nobody"])
def test_a_request_that_names_a_withdrawn_proposal_is_refused(
    here: Here, restarted: bool, proposer: str | None
) -> None:
    accept(here.propose("alice", "p"))
    accept(here.withdraw("alice", "p"))
    if restarted:
        here.restart()
    error = refuse(here.request("carol", "r", "p", proposer=proposer), "not_pending")
    assert error["state"] == "withdrawn"
    refuse(here.request("carol", "r", "unknown", "p"), "not_pending")
    refuse(here.request("carol", "r", "p", tool="read"), "not_pending")
    refuse(here.request("carol", "r", "p", method="ping"), "not_pending")
    accept(here.request("carol", "r"))


@pytest.mark.rule("3.ids.not_pending")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_request_that_names_a_fulfilled_proposal_is_refused(here: Here, restarted: bool) -> None:
    accept(here.propose("alice", "p"))
    for _ in range(2):
        accept(here.request("carol", "r", "p"))  # in progress: its executor knows it again
    accept(here.respond("r"))
    if restarted:
        here.restart()
    for sender, id in (("carol", "r"), ("bob", "s"), ("carol", "s")):
        assert refuse(here.request(sender, id, "p"), "not_pending")["state"] == "fulfilled"


@pytest.mark.rule("3.ids.not_pending")
def test_what_was_refused_or_cancelled_waits_again(here: Here) -> None:
    accept(here.propose("alice", "p"))
    accept(here.request("carol", "r", "p"))
    accept(here.respond("r", REFUSED))
    accept(here.request("carol", "s", "p"))
    accept(here.say("carol", "mcp/request", CANCEL))
    accept(here.request("carol", "t", "p"))


@pytest.mark.rule("5.who.fulfill")
def test_a_request_for_little_does_not_decide_what_others_proposed(here: Here) -> None:
    accept(here.propose("alice", "p"))
    accept(here.request("bob", "r", "p", method="ping"))
    accept(here.respond("r"))
    accept(here.request("carol", "s", "p"))


@pytest.mark.rule("3.ids.not_pending")
def test_of_two_with_one_id_the_one_that_is_meant_decides(here: Here) -> None:
    first = accept(here.propose("alice", "p"))
    here.journal.append((first.replace(sender="bob"), here.now))  # an older gateway let it through
    here.restart()
    accept(here.withdraw("alice", "p"))
    refuse(here.request("carol", "r", "p", proposer="alice"), "not_pending")
    accept(here.request("carol", "r", "p", proposer="bob"))
    accept(here.request("carol", "s", "p"))  # its executor knows that it is ambiguous
    accept(here.withdraw("bob", "p"))
    refuse(here.request("carol", "t", "p"), "not_pending")


@pytest.mark.rule("3.ids.not_pending")
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("said", ["expires_at", "ttl", "ttl in a wrapper"])
def test_what_has_certainly_expired_is_not_fulfilled(
    here: Here, said: str, restarted: bool
) -> None:
    """A foreign ttl counts in milliseconds from the acceptance."""
    body: dict[str, Any] = {"method": "tools/call", "params": WRITE, "ttl": 10_000}
    if said == "expires_at":
        meta = {"dev.meup/expires_at": "2025-01-01T00:00:10Z"}
        body = {"method": "tools/call", "params": {**WRITE, "_meta": meta}}
    for id in ("p", "q"):
        payload = {"proposal": body} if said == "ttl in a wrapper" else body
        accept(here.say("alice", "mcp/proposal", payload, id=id))
    if restarted:
        here.restart()
    here.now += 70 * SECOND
    accept(here.request("carol", "r", "q"))
    here.now += 1
    assert refuse(here.request("carol", "s", "p"), "not_pending")["state"] == "expired"
    accept(here.request("bob", "t", "q"))  # in progress since before


PAST = ["0001-01-01T00:00:00+14:00", "1969-12-31T23:59:59Z"]


@pytest.mark.parametrize(
    "moment",
    [*PAST, "soon", 7, "2025-01-01T00:00:00", "0001-01-01T00:00:00", None, "9" * 100_000, {}],
)
def test_any_moment_of_the_past_is_read_and_what_is_none_says_nothing(
    here: Here, moment: object
) -> None:
    accept(here.propose("alice", "p", {"dev.meup/expires_at": moment}))
    if moment in PAST:
        refuse(here.request("carol", "r", "p"), "not_pending")
    else:
        here.now += 30 * 60 * SECOND
        accept(here.request("carol", "r", "p"))


@pytest.mark.rule("3.ids.one_proposal")
def test_a_request_that_names_two_proposals_is_refused(here: Here) -> None:
    accept(here.propose("alice", "p"))
    accept(here.propose("alice", "q"))
    error = refuse(here.request("carol", "r", "p", "q"), "several_proposals")
    assert "2 proposals" in error["message"]
    accept(here.withdraw("alice", "p"))
    refuse(here.request("carol", "r", "p", "q"), "several_proposals")
    accept(here.request("carol", "r", "q", "q"))
    accept(here.request("carol", "s", "r", "q"))  # the first is a request


@pytest.mark.rule("3.ids.one_proposal")
@pytest.mark.parametrize("named", [65, 10_000])
def test_a_request_that_names_more_than_64_is_refused(here: Here, named: int) -> None:
    names = [f"p{number}" for number in range(named)]
    refuse(here.request("carol", "r", *names), "invalid_envelope")


@pytest.mark.rule("3.ids.proposer_key")
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("beside", [{}, {"more": 1}])
@pytest.mark.parametrize("key", ["dev.meup/proposer", "dev.meup/request", "dev.meup/proposal"])
@pytest.mark.parametrize("whose", ["alice", None])
def test_a_proposal_does_not_say_whose_it_is(
    here: Here, wrapped: bool, beside: dict[str, Any], key: str, whose: str | None
) -> None:
    call = {"method": "tools/call", "params": {**WRITE, "_meta": {key: whose}}}
    payload = {"proposal": call, **beside} if wrapped else {**call, **beside}
    # A wrapper with something beside it is none, so there is no method.
    is_call = not (wrapped and beside)
    decision = here.say("bob", "mcp/proposal", payload)
    error = refuse(decision, "reserved_key" if is_call else "invalid_envelope")
    assert error.get("key") == (key if is_call else None)
    arguments = {"_meta": {key: "alice"}}
    payload = {"method": "tools/call", "params": {"name": "write", "arguments": arguments}}
    accept(here.say("bob", "mcp/proposal", payload))
    accept(here.request("carol", "r", proposer="alice"))


@pytest.mark.rule("3.ids.claimed", "3.ids.not_pending", "3.ids.one_proposal")
@pytest.mark.parametrize("asker", DIALECTS)
@pytest.mark.parametrize("proposer", DIALECTS)
def test_it_is_so_between_all_dialects(proposer: str, asker: str) -> None:
    here = Here()

    def say(sender: str, dialect: str, kind: str, payload: Any, **header: Any) -> FrameVerdict:
        envelope = draft(kind, payload, sender=sender, **header)
        return here.space.decide(sender, encode(envelope, dialect), dialect)

    call = payloads.proposal("tools/call", WRITE)
    asked = payloads.request("tools/call", WRITE, "r")
    for id in ("p", "q"):
        accept(say("alice", proposer, "mcp/proposal", call, id=id))
        refuse(say("bob", asker, "mcp/proposal", call, id=id), "id_in_use")
    both = {"id": "r", "to": ("tools",), "correlation": ("p", "q")}
    refuse(say("carol", asker, "mcp/request", asked, **both), "several_proposals")
    withdraw = {"id": "w", "correlation": ("p",)}
    accept(say("alice", proposer, "mcp/withdraw", {"reason": "other"}, **withdraw))
    late = {"id": "r", "to": ("tools",), "correlation": ("p",)}
    refuse(say("carol", asker, "mcp/request", asked, **late), "not_pending")
    accept(say("carol", asker, "mcp/request", asked, id="r", to=("tools",), correlation=("q",)))
