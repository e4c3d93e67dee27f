"""Lists of proposals as a space answers them: their place, their bounds, and their cost."""

import json
from typing import Any

import pytest

from meup_agent.protocol.space.owner import ANSWERED_SECONDS
from meup_agent.protocol.space.state.inflight import MAX_CONSIDERED, MAX_LISTED_BYTES, MAX_RECENT
from tests.properties.late_journal import File, LateJournal
from tests.protocol.frames import frame_by
from tests.protocol.space.scene import Scene
from tests.protocol.space.test_server import Listener, joins
from tests.spaces import FrameFormat, Place

ALL: dict[str, list[dict[str, Any]]] = {
    name: [{"kind": "*"}] for name in ("ann", "bob", "eve", "tools")
}
MICROSECONDS = 1_000_000


def scene_of(*present: str, announce: bool = False) -> Scene:
    return Scene(ALL, present=present or ("ann", "bob"), announce_withdrawals=announce)


def propose(scene: Scene, sender: str = "ann", *, tool: str = "write", **header: Any) -> str:
    text, ttl = header.pop("text", ""), header.pop("ttl", None)
    call: dict[str, Any] = {"method": "tools/call", "params": {"name": tool, "arguments": {}}}
    call["params"]["arguments"]["text"] = text
    return scene.say(sender, "mcp.proposal", call | ({} if ttl is None else {"ttl": ttl}), **header)


def ask(scene: Scene, asker: str, **query: Any) -> dict[str, Any]:
    """The page that answers a question, which must be all that its asker gets."""
    scene.forget()
    question = scene.say(asker, "space.list-proposals", query)
    (only,) = scene.got(asker)
    assert (only["kind"], only["to"]) == ("space.proposals", [asker])
    assert only["correlationId"] == question
    page: dict[str, Any] = only["payload"]
    return page


def ids(page: dict[str, Any]) -> list[str]:
    return [each["envelope"]["id"] for each in page.get("proposals", [])]


def pages(scene: Scene, asker: str, **query: Any) -> list[dict[str, Any]]:
    found = [ask(scene, asker, **query)]
    while "next" in found[-1]:
        found.append(ask(scene, asker, **query, after=found[-1]["next"]))
    return found


def all_ids(scene: Scene, asker: str, **query: Any) -> list[str]:
    return [each for page in pages(scene, asker, **query) for each in ids(page)]


@pytest.mark.rule("3.list.open")
def test_an_open_proposal_is_listed_as_it_was_accepted_with_what_was_said_since() -> None:
    scene = scene_of()
    proposal = propose(scene, ttl=60_000, context="c1", extra={"kept": 1})
    scene.at += 1
    until = "1970-01-01T01:00:00.000Z"
    scene.say("ann", "mcp.renew", {"expires_at": until}, correlationId=proposal)
    rule = {"_meta": {"dev.meup/rule": {"rule": "never"}}}
    for who in ("eve", "bob", "eve"):
        scene.say(who, "mcp.reject", {"reason": "unsafe", **rule}, correlationId=proposal, id=who)
    call = {"method": "tools/call", "params": {"name": "write", "arguments": {"text": ""}}}
    request = scene.say(
        "tools", "mcp.request", {**call, "id": 1}, correlationId=proposal, to=["ann"]
    )
    cancel = {"method": "notifications/cancelled", "params": {"requestId": request}}
    scene.say("tools", "mcp.request", cancel)
    (listed,) = ask(scene, "bob")["proposals"]
    assert (listed["envelope"]["id"], listed["envelope"]["extra"]) == (proposal, {"kept": 1})
    assert listed["expires_at"] == until
    assert [each["by"] for each in listed["rejections"]] == ["bob", "eve"]  # the asker's first
    assert listed["rejections"][1] == {
        "by": "eve",
        "id": "eve",
        "reason": "unsafe",
        "rule": "never",
    }
    assert [(each["envelope"]["id"], each["cancelled"]) for each in listed["requests"]] == [
        (request, True)
    ]
    assert "decision" not in listed
    scene.host.leave(scene.members["ann"])
    assert ask(scene, "bob")["proposals"][0]["proposer_left"] == "1970-01-01T00:00:01.000Z"


@pytest.mark.rule("3.list.decided")
def test_each_end_is_listed_in_the_order_of_the_decisions() -> None:
    scene = scene_of()
    fulfilled, rejected, withdrawn, expired, revoked = (
        propose(scene, ttl=60_000 if nth == 3 else None, to=["bob"]) for nth in range(5)
    )
    meta = {"_meta": {"dev.meup/rule": {"rule": "writes"}}}
    params = {"name": "write", "arguments": {"text": ""}, **meta}
    call = {"method": "tools/call", "params": params}
    request = scene.say("eve", "mcp.request", call, correlationId=fulfilled, to=["tools"])
    scene.say("tools", "mcp.response", {"result": 1}, correlationId=request, to=["eve"])
    scene.say("bob", "mcp.reject", {"reason": "unsafe", **meta}, correlationId=rejected)
    scene.say("ann", "mcp.withdraw", {"reason": "no_longer_needed"}, correlationId=rejected)
    scene.say("ann", "mcp.withdraw", {"reason": "duplicate"}, correlationId=withdrawn)
    scene.at += 200
    ask(scene, "bob")  # nothing else ends it where expiries are not announced
    scene.at += 1
    scene.revoke("eve", {"recipient": "ann", "capabilities": [{"kind": "*"}]})
    page = ask(scene, "bob", state="decided")
    ends = [
        (each["envelope"]["id"], *(each["decision"].get(key) for key in ("state", "by", "reason")))
        for each in page["proposals"]
    ]
    assert ends == [
        (fulfilled, "fulfilled", "eve", None),
        (rejected, "rejected", "bob", "unsafe"),
        (withdrawn, "withdrawn", "ann", "duplicate"),
        (expired, "expired", None, "timeout"),
        (revoked, "withdrawn", "system:gateway", "revoked"),
    ]
    assert [each["decision"].get("rule") for each in page["proposals"]] == [
        "writes",
        "writes",
        None,
        None,
        None,
    ]
    assert page["proposals"][-1]["decision"]["at"] == "1970-01-01T00:03:21.000Z"
    # A restart reads the same in the journal, of what it is told there.
    again = Scene(ALL, journal=scene.journal, present=("bob",))
    again.at = scene.at
    assert ids(ask(again, "bob", state="decided"))[:3] == [fulfilled, rejected, withdrawn]


@pytest.mark.rule("3.list.decided")
def test_a_flood_of_one_leaves_the_decided_proposals_of_another() -> None:
    scene = scene_of()
    first = propose(scene, "bob")
    scene.say("bob", "mcp.withdraw", {}, correlationId=first)
    for _ in range(MAX_RECENT + 10):
        scene.at += 0.1
        scene.say("ann", "mcp.withdraw", {}, correlationId=propose(scene))
    found = all_ids(scene, "bob", state="decided")
    assert (len(found), found[0]) == (MAX_RECENT, first)
    scene.at += 25 * 3_600
    assert all_ids(scene, "bob", state="decided") == []


@pytest.mark.rule("3.list.place")
def test_an_answer_has_what_was_accepted_before_it_and_no_more() -> None:
    scene = scene_of()
    first = propose(scene)
    bob = scene.members["bob"] = Listener("bob")
    bob.form = FrameFormat("meup/v0.1", numbered=True)
    scene.host.join(bob)
    scene.forget()
    question = scene.say("bob", "space.list-proposals")
    second = propose(scene)
    answer, news = scene.got("bob")
    assert (answer["correlationId"], ids(answer["payload"]), news["id"]) == (
        question,
        [first],
        second,
    )
    (listed,) = answer["payload"]["proposals"]
    assert listed["seq"] <= answer["payload"]["seq"] == answer["seq"] < news["seq"]


@pytest.mark.rule("3.list.pages")
def test_pages_go_on_where_the_last_one_ended_while_others_decide() -> None:
    scene = scene_of()
    proposals = [propose(scene, "ann" if nth % 3 else "eve") for nth in range(10)]
    page = ask(scene, "bob", limit=4)
    assert (ids(page), page["left"]) == (proposals[:4], 6)
    scene.say("ann", "mcp.withdraw", {}, correlationId=proposals[2])
    scene.say("ann", "mcp.withdraw", {}, correlationId=proposals[4])
    late = propose(scene)
    page = ask(scene, "bob", limit=4, after=page["next"])
    assert ids(page) == proposals[5:9]
    page = ask(scene, "bob", limit=4, after=page["next"])
    assert (ids(page), page.get("next"), page.get("left")) == ([proposals[9], late], None, None)
    assert all_ids(scene, "bob", limit=1, proposer="eve") == proposals[0:10:3]
    assert all_ids(scene, "bob", id=late) == [late]


@pytest.mark.rule("3.list.pages")
def test_an_urgent_page_has_those_that_expire_first() -> None:
    scene = scene_of()
    found = {ttl: propose(scene, ttl=ttl) for ttl in (300_000, None, 100_000, 200_000)}
    other = propose(scene, ttl=50_000, to=["eve"])
    page = ask(scene, "bob", urgent=True, to_me=True, limit=3)
    assert ids(page) == [found[ttl] for ttl in (100_000, 200_000, 300_000)]
    assert (page["left"], "next" in page) == (2, False)
    assert ids(ask(scene, "bob", urgent=True))[0] == other


@pytest.mark.rule("3.list.place")
def test_what_is_decided_before_its_answer_is_kept_does_not_move_the_next_page() -> None:
    journal = LateJournal(File(), lambda: 1)
    scene = Scene(ALL, present=(), journal=journal)
    bob = scene.members["bob"] = scene.join("bob")
    journal.commit(99)
    first, second = propose(scene), propose(scene)
    scene.say("bob", "space.list-proposals", {"limit": 1})
    scene.say("ann", "mcp.withdraw", {}, correlationId=first)
    scene.forget()
    journal.commit(99)
    page = next(payload for kind, payload in bob.heard() if kind == "space.proposals")
    assert ids(page) == [first]
    scene.say("bob", "space.list-proposals", {"after": page["next"]})
    journal.commit(99)
    assert [ids(payload) for _, payload in bob.heard()] == [[second]]


@pytest.mark.rule("3.list.pages")
def test_a_page_is_bounded_in_bytes_and_in_work() -> None:
    scene = scene_of()
    large = [propose(scene, text="x" * (MAX_LISTED_BYTES // 3)) for _ in range(4)]
    huge = propose(scene, "eve", text="x" * (MAX_LISTED_BYTES * 3 // 2))
    propose(scene, "eve", text="x" * (MAX_LISTED_BYTES * 3 // 2))  # no room is left for it
    small = propose(scene, "eve")
    page = ask(scene, "bob")
    assert ids(page) == large[:2]
    assert all_ids(scene, "bob") == [*large, huge, small]
    assert sum(each.get("omitted", 0) for each in pages(scene, "bob")) == 1
    scene = scene_of()
    for name in ("ann", "eve"):
        for _ in range(MAX_CONSIDERED // 2 + 10):
            scene.at += 0.1
            propose(scene, name)
    last = propose(scene, tool="read")
    page = ask(scene, "bob", tool="read")
    assert (ids(page), page["left"]) == ([], 21)
    assert ids(ask(scene, "bob", tool="read", urgent=True)) == []
    assert ids(ask(scene, "bob", tool="read", after=page["next"])) == [last]


@pytest.mark.rule("3.list.pages")
def test_a_page_is_bounded_whatever_is_said_of_its_proposals() -> None:
    others = [f"m{nth}" for nth in range(20)]
    scene = Scene(dict.fromkeys(("ann", "bob", *others), ALL["bob"]), present=("ann", "bob"))
    proposals = [propose(scene) for _ in range(40)]
    word = {"reason": "\1" * 64, "_meta": {"dev.meup/rule": {"rule": "\1" * 200}}}
    for nth, proposal in enumerate(proposals):
        for who in others:
            scene.say(
                who, "mcp.reject", word, correlationId=proposal, id=f"{nth}{who}".ljust(250, "é")
            )
    found = pages(scene, "bob")
    assert [each for page in found for each in ids(page)] == proposals
    sizes = [len(json.dumps(page, ensure_ascii=False).encode()) for page in found]
    assert max(sizes) < MAX_LISTED_BYTES * 1.1


@pytest.mark.rule("3.list.pages")
def test_the_bytes_of_answers_count_in_the_pace_of_who_asks() -> None:
    scene = scene_of("ann", "bob", "eve")
    propose(scene, text="x" * MAX_LISTED_BYTES)
    observer = joins(scene.host, "eve", Place.OBSERVING)
    for member, name in ((scene.members["bob"], "bob"), (observer, "eve")):
        frame = frame_by(name, "space.list-proposals")
        waits = [scene.host.receive(member, frame) for _ in range(100)]
        assert waits[0] == ANSWERED_SECONDS  # the others have their turn before the next page
        assert waits[-1] > 1
    for name in ("ann", "eve"):  # another, and the agent of who observes
        frame = frame_by(name, "space.list-proposals")
        assert scene.host.receive(scene.members[name], frame) == ANSWERED_SECONDS


@pytest.mark.rule("3.list.alone")
@pytest.mark.parametrize("place", [Place.OBSERVING, Place.BESIDE])
def test_an_answer_is_for_the_connection_that_asked(place: Place) -> None:
    scene = scene_of()
    propose(scene)
    observer = joins(scene.host, "bob", place)
    latest = scene.host.journal.latest("demo")
    frame = frame_by("bob", "space.list-proposals")
    observer.frames.clear()
    scene.forget()
    scene.host.receive(observer, frame)
    assert [kind for kind, _ in observer.heard()] == ["space.proposals"]
    assert scene.got("bob") == scene.got("ann") == []
    scene.say("bob", "space.list-proposals")
    assert observer.heard() == []
    assert scene.host.journal.latest("demo") == latest
    # In the name of another it asks as little as it says anything.
    scene.host.receive(observer, frame.replace(b"bob", b"ann"))
    assert [(kind, payload["error"]) for kind, payload in observer.heard()] == [
        ("system.error", "identity_mismatch")
    ]


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 101}, {"after": -1}, {"state": "lost"}, {"whose": "bob"}]
)
def test_a_question_that_cannot_be_meant_is_refused(query: dict[str, Any]) -> None:
    scene = scene_of()
    scene.say("bob", "space.list-proposals", query)
    assert scene.error("bob")["error"] == "invalid_envelope"


@pytest.mark.parametrize("dialect", ["meup/v0.1", "meup/v0.2", "mew/v0.4", "mcpx/v0.1"])
def test_each_dialect_asks_and_reads_a_proposal_in_its_own_form(dialect: str) -> None:
    scene = scene_of()
    proposal = propose(scene)
    bob = Listener("bob")
    bob.form = FrameFormat(dialect)
    scene.host.join(bob)
    bob.frames.clear()
    kind = "space.list-proposals" if dialect == "meup/v0.1" else "space/list-proposals"
    scene.host.receive(bob, frame_by("bob", kind, protocol=dialect))
    ((_, page),) = bob.heard()
    (listed,) = page["proposals"]
    assert (listed["envelope"]["protocol"], listed["envelope"]["id"]) == (dialect, proposal)


def test_what_expires_with_an_announcement_is_ended_by_that_alone() -> None:
    scene = scene_of(announce=True)
    expired = propose(scene, ttl=1_000)
    scene.at += 100
    assert ids(ask(scene, "bob")) == []
    assert ids(ask(scene, "bob", state="decided")) == []
    scene.host.owner.expire()
    assert [each["kind"] for each in scene.got("bob")] == ["system.expired"]
    assert ids(ask(scene, "bob", state="decided")) == [expired]


def tell(scene: Scene, sender: str, proposal: str, words: str) -> None:
    params = {"progressToken": proposal, "progress": 0, "message": words}
    said = {"method": "notifications/progress", "params": params}
    scene.say(sender, "mcp.request", said, correlationId=proposal)


def test_an_open_proposal_is_listed_with_the_last_words_of_who_may_carry_it_out() -> None:
    many = {f"p{each}": ALL["bob"] for each in range(9)}
    scene = Scene({**ALL, "low": [{"kind": "chat"}], **many}, present=("ann", "bob", "low", *many))
    proposal = propose(scene)
    assert "told" not in ask(scene, "bob")["proposals"][0]
    for sender, words in (("bob", "a"), ("bob", "b" * 300), ("low", "spam"), ("ann", "mine")):
        tell(scene, sender, proposal, words)
    tell(scene, "bob", "unknown", "about nothing")
    assert ask(scene, "p0")["proposals"][0]["told"] == {"bob": "b" * 200}
    for each in many:
        tell(scene, each, proposal, "queued")
    assert len(ask(scene, "p0")["proposals"][0]["told"]) == 8
    scene.say("ann", "mcp.withdraw", {"reason": "other"}, correlationId=proposal)
    tell(scene, "bob", proposal, "late")
    assert "told" not in ask(scene, "p0", state="decided")["proposals"][0]


def test_words_to_whom_it_is_not_addressed_are_not_kept() -> None:
    scene = scene_of("ann", "bob", "eve")
    proposal = propose(scene, to=["eve"])
    for each in ("bob", "eve"):
        tell(scene, each, proposal, "I look at it")
    assert ask(scene, "bob")["proposals"][0]["told"] == {"eve": "I look at it"}
