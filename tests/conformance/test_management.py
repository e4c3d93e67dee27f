"""Management of a space: grants, revocations, invitations, removals (section 3.6)."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from meup_agent.gateway import Gateway, JournalConfig
from tests.conformance.conftest import only_v04
from tests.conformance.reference_peers import ReferencePeer
from tests.conformance.versions import MEW_V04
from tests.conformance.wire import Json, Site, Wire, config_of
from tests.gateways import Archive
from tests.spaces import Audit

LIST: Json = {"kind": "mcp/request", "payload": {"method": "tools/list"}}
TOOLS: Json = {"kind": "mcp/request", "payload": {"method": "tools/*"}}
ANSWERS: Json = {"id": "mcp-response", "kind": "mcp/response"}
WITHDRAW: Json = {"kind": "mcp/withdraw"}
MANAGERS: list[Json] = [
    {"kind": "capability/*"},
    {"kind": "space/*"},
    {"kind": "mcp/request", "payload": {"method": "tools/*"}},
    {"kind": "chat"},
]
PEOPLE: dict[str, list[Json]] = {
    "manager": MANAGERS,
    "alice": [{"kind": "chat"}],
    "bob": [{"kind": "capability/grant"}, {"kind": "chat"}],
}


def grant(manager: Wire, recipient: str, *capabilities: Json, **header: Any) -> str:
    payload = {"recipient": recipient, "capabilities": capabilities, "reason": "trust"}
    return manager.send("capability/grant", payload, to=[recipient], **header)


def revoke(manager: Wire, recipient: str, granted: str) -> None:
    payload = {"recipient": recipient, "grant_id": granted, "reason": "done"}
    manager.send("capability/revoke", payload)


def tries(wire: Wire, method: str = "tools/list") -> bool:
    """True for a request that is let through; whatever was said before is read over."""
    sent = wire.send("mcp/request", {"method": method})
    while True:
        said = wire.hear_any()
        if said["kind"] == "mcp/request" and said["id"] == sent:
            return True
        if said["kind"] == "system/error" and said["correlation_id"] == [sent]:
            return False


@pytest.mark.rule("A.G19", "A.G23", "C.W9", "C.W15")
def test_what_is_granted_is_added_and_what_is_revoked_is_gone_at_once(site: Site) -> None:
    with site.join("manager", "alice") as (manager, alice):
        assert not tries(alice)
        first = grant(manager, "alice", LIST)
        second = grant(manager, "alice", {"kind": "mcp/request", "payload": {"method": "tools/x"}})
        alice.until("capability/grant")
        alice.until("capability/grant")
        assert tries(alice)
        assert tries(alice, "tools/x")
        assert not tries(alice, "tools/call")
        for grant_id, method, other in ((first, "tools/list", "tools/x"), (second, "tools/x", "")):
            revoke(manager, "alice", grant_id)
            alice.until("capability/revoke")
            assert not tries(alice, method)
            assert tries(alice, other) is bool(other)
        revoke(manager, "alice", first)
        assert manager.refusal() == "unknown_grant"


@pytest.mark.rule("A.G7", "A.G19", "C.W9")
def test_a_grant_outlives_the_connection(site: Site) -> None:
    with site.join("manager", "bob") as (manager, bob):
        grant(manager, "alice", LIST)
        bob.until("capability/grant")
        with site.join("alice") as (alice,):
            assert tries(alice)
        with site.member("alice") as alice:
            you = alice.hear("system/welcome")["payload"]["you"]
            assert you["capabilities"] == [{"kind": "chat"}, WITHDRAW, LIST, ANSWERS]
            with site.member("bob") as newer:
                others = newer.hear("system/welcome")["payload"]["participants"]
                assert you in others


@pytest.mark.rule("A.G20", "A.G21", "C.W15", "3.manage.lacking")
def test_nobody_grants_without_the_right_to_or_what_they_lack(site: Site) -> None:
    with site.join("alice", "bob", "manager") as (alice, bob, manager):
        grant(alice, "alice", {"kind": "chat"})
        assert alice.refusal() == "capability_violation"
        lacked = ("*", "capability/revoke", "!chat", ["chat", "mcp/reject"])
        for lacking in (LIST, *({"kind": kind} for kind in lacked)):
            grant(bob, "alice", {"kind": "chat"}, lacking)
            error = bob.until("system/error")["payload"]
            assert (error["error"], error["capability"]) == ("capability_lacking", lacking)
        grant(manager, "alice", LIST, {"kind": "mcp/request"})
        assert manager.refusal() == "capability_lacking"
        for never in ({"kind": "system/presence"}, {"kind": "/(/"}):
            grant(manager, "alice", never)
            assert manager.refusal() == "invalid_capability"
        grant(manager, "nobody", LIST)
        assert manager.refusal() == "unknown_participant"
        assert not tries(alice)


@pytest.mark.rule("A.G22", "C.W15")
def test_what_was_granted_on_ends_with_the_grant_before_it(site: Site) -> None:
    """A chain of grants is kept, and none keeps what the one before them has no more."""
    with site.join("manager", "bob", "alice") as (manager, bob, alice):
        first = grant(manager, "bob", LIST)
        bob.until("capability/grant")
        grant(bob, "alice", LIST)
        alice.until("capability/grant")
        alice.until("capability/grant")
        assert tries(alice)
        revoke(manager, "bob", first)
        alice.until("capability/revoke")
        assert not tries(alice)
        assert not tries(bob)


@pytest.mark.rule("A.G24", "3.manage.revoke.pattern")
def test_revoking_by_pattern_takes_everything_that_it_covers(site: Site) -> None:
    with site.join("manager", "alice") as (manager, alice):
        for method in ("tools/list", "tools/call"):
            grant(manager, "alice", {"kind": "mcp/request", "payload": {"method": method}})
            alice.until("capability/grant")
        for pattern in (TOOLS, {"kind": "*"}):
            manager.send("capability/revoke", {"recipient": "alice", "capabilities": [pattern]})
            update = alice.until("system/welcome")["payload"]["you"]["capabilities"]
            alice.until("capability/revoke")
        assert update == [WITHDRAW, ANSWERS]
        assert not tries(alice)
        assert not tries(alice, "tools/call")
        # Also what it was configured to have.
        alice.send("chat", {"text": "hi"})
        assert alice.until("system/error")["payload"]["attempted_kind"] == "chat"


@pytest.mark.rule("A.G23", "C.W15")
def test_a_revocation_ends_what_is_in_flight(site: Site) -> None:
    with site.join("manager", "alice", "bob") as (manager, alice, bob):
        granted = grant(manager, "alice", LIST)
        alice.until("capability/grant")
        request = alice.send("mcp/request", {"id": 7, "method": "tools/list"}, to=["bob"])
        assert bob.until("mcp/request")["id"] == request
        revoke(manager, "alice", granted)
        cancel = bob.until("mcp/request")
        assert (cancel["from"], cancel["to"]) == ("system:gateway", ["bob"])
        assert cancel["correlation_id"] == [request]
        assert cancel["payload"]["method"] == "notifications/cancelled"
        params = cancel["payload"]["params"]
        assert (params["requestId"], params["reason"]) == (request, "revoked")
        assert params["_meta"] == {"dev.meup/begun_by": "alice"}
        error = alice.until("system/error")
        assert (error["payload"]["error"], error["correlation_id"]) == ("revoked", [request])


@pytest.mark.rule("A.G25", "C.W8")
def test_the_recipient_is_told_what_it_may_and_acknowledges(site: Site) -> None:
    with site.join("manager", "alice") as (manager, alice):
        granted = grant(manager, "alice", LIST)
        welcome = alice.until("system/welcome")["payload"]
        assert LIST in welcome["you"]["capabilities"]
        assert [other["id"] for other in welcome["participants"]] == ["manager"]
        assert alice.hear("capability/grant")["id"] == granted
        manager.until("capability/grant")
        # Nothing but the grant lets it say so, and the gateway says it for nobody.
        alice.send("capability/grant-ack", {"status": "accepted"}, correlation_id=["another"])
        assert alice.refusal() == "capability_violation"
        alice.send("capability/grant-ack", {"status": "accepted"}, correlation_id=[granted])
        ack = manager.until("capability/grant-ack")
        assert (ack["from"], ack["correlation_id"]) == ("alice", [granted])


@only_v04
@pytest.mark.rule("C.W8")
def test_an_existing_participant_acknowledges_a_grant(site: Site) -> None:
    with site.join("manager") as (manager,):
        with ReferencePeer(site.gateway.url, "alice", version=MEW_V04, space="demo") as alice:
            granted = grant(manager, "alice", LIST)
            assert manager.until("capability/grant-ack")["correlation_id"] == [granted]
            assert LIST in alice.you["capabilities"]


@pytest.mark.rule("C.W7")
def test_participants_are_named_by_what_their_token_says(site: Site) -> None:
    """There are no other names: what a grant, a revocation and `to` name is who is meant."""
    with site.join("manager", "alice") as (manager, alice):
        granted = grant(manager, "alice", LIST)
        assert alice.until("system/welcome")["payload"]["you"]["id"] == "alice"
        revoke(manager, "bob", granted)
        assert manager.refusal() == "unknown_grant"
        assert tries(alice)


@pytest.mark.rule("A.G27", "C.W10")
def test_who_is_invited_joins_with_what_they_were_given(site: Site) -> None:
    with site.join("manager", "alice") as (manager, alice):
        payload: Json = {"participant_id": "dave", "initial_capabilities": [LIST], "reason": "r"}
        manager.send("space/invite", payload)
        token = manager.until("space/invite-ack")["payload"]["token"]
        told = alice.until("system/presence")["payload"]
        assert (told["event"], told["participant"]["id"]) == ("invited", "dave")
        for _ in range(2):  # also when it comes back
            header = {"Authorization": f"Bearer {token}"}
            with site.by_frame("dave", "/ws?space=demo", headers=header) as dave:
                you = dave.hear("system/welcome")["payload"]["you"]
                assert (you["id"], you["capabilities"]) == ("dave", [WITHDRAW, LIST, ANSWERS])
                assert tries(dave)
        manager.send("space/invite", {"participant_id": "bob"})
        assert manager.until("space/invite-ack")["payload"]["status"] == "already_exists"
        payload |= {"participant_id": "eve", "initial_capabilities": [{"kind": "*"}]}
        manager.send("space/invite", payload)
        assert manager.refusal() == "capability_lacking"


@pytest.mark.rule("C.W10", "C.W11")
def test_the_token_of_an_invitation_is_the_inviters_alone(site: Site) -> None:
    with site.join("manager", "alice") as (manager, alice):
        invite = manager.send("space/invite", {"participant_id": "dave"})
        ack = manager.until("space/invite-ack")
        assert (ack["to"], ack["correlation_id"]) == (["manager"], [invite])
        manager.send("chat", {"text": "done"})
        heard: list[str] = []
        while not heard or '"chat"' not in heard[-1]:
            heard.append(alice.read())
        assert len(heard) == 3  # the invitation, the presence, the chat
        assert not [frame for frame in heard if ack["payload"]["token"] in frame]
        assert not [frame for frame in heard if "invite-ack" in frame]


@pytest.mark.rule("A.G26", "C.W12", "C.W13")
def test_an_invitation_is_not_mailed_and_has_no_path(site: Site) -> None:
    with site.join("manager") as (manager,):
        manager.send("space/invite", {"participant_id": "dave", "email": "dave@example.org"})
        ack = manager.until("space/invite-ack")["payload"]
        assert ack["email_sent"] is False
        url = ack.get("connection_url", site.gateway.url)
        assert url.startswith("ws://127.0.0.1:")
        assert "/participants/" not in url


@pytest.mark.rule("A.G28", "C.W14")
def test_who_is_kicked_goes_and_stays_out(site: Site) -> None:
    with site.join("manager", "alice") as (manager, alice):
        manager.send("space/kick", {"participant_id": "alice", "reason": "noise"})
        assert alice.until("space/kick")["from"] == "manager"
        assert alice.end() == 4403
        left = manager.until("system/presence")["payload"]
        assert left == {"event": "leave", "participant": {"id": "alice"}}
        with pytest.raises(InvalidStatus) as refused:
            site.dial({"Authorization": "Bearer alice-token"})
        assert refused.value.response.status_code == 403
        manager.send("space/invite", {"participant_id": "alice"})
        assert manager.until("space/invite-ack")["payload"]["status"] == "restored"
        with site.join("alice") as (again,):
            again.send("chat", {"text": "hi"})
            assert again.hear("chat")["from"] == "alice"


@pytest.mark.rule("A.G22", "A.G29", "C.W15", "3.audit.managing")
def test_all_that_was_done_to_a_space_can_be_read_later(dialect: str, tmp_path: Path) -> None:
    """In the journal's file, by whom and in which order, and no token with it."""
    file = tmp_path / "journal.db"
    config = replace(config_of(PEOPLE, dialect=dialect), journal=JournalConfig(path=file))
    with Gateway(config=config).in_thread() as gateway:
        with Site(gateway, dialect).join("manager", "bob") as (manager, bob):
            first = grant(manager, "bob", LIST)
            bob.until("capability/grant")
            second = grant(bob, "alice", LIST)
            heard = [manager.until("capability/grant")["id"] for _ in range(2)]
            assert heard == [first, second]
            manager.send("space/invite", {"participant_id": "dave"})
            token = manager.until("space/invite-ack")["payload"]["token"]
            revoke(manager, "bob", first)
            third = grant(manager, "bob", LIST)
            manager.send("space/kick", {"participant_id": "bob", "reason": "noise"})
            assert grant(manager, "nobody", LIST)  # refused, so not done
            manager.until("system/error")
    audit = Audit()
    with closing(Archive(file)) as archive:
        for entry in archive.read("demo", after=0, until=archive.latest("demo"), limit=1_000):
            audit.add(entry)
    done = [
        (each.what, each.by, each.whom, each.grant or each.id, each.rests_on, each.ended)
        for each in audit.pop_operations()
    ]
    invited, kicked = done[2][3], done[-1][3]
    assert done == [
        ("grant", "manager", "bob", first, (), ()),
        ("grant", "bob", "alice", second, (first,), ()),
        ("invite", "manager", "dave", invited, (), ()),
        ("revoke", "manager", "bob", first, (), (first, second)),
        ("grant", "manager", "bob", third, (), ()),
        ("kick", "manager", "bob", kicked, (), (third,)),
    ]
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"noise" in written
    assert token.encode() not in written
