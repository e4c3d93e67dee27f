"""Invitations to a space, and removals from it, carried out without a loop."""

from hashlib import sha256
from typing import Any

import pytest

from meup_agent.protocol.space.state.grants import MAX_INVITED
from tests.protocol.space.scene import CALL, GRANTING, Scene, facts, invite, kinds_of
from tests.spaces import Entry, Refusal


@pytest.mark.rule("3.manage.invite")
def test_invitation_gives_its_token_to_the_inviter_alone(scene: Scene) -> None:
    invite(scene, "lead", "guest", {"kind": "chat"}, email="guest@example.org")
    _, ack, _ = scene.got("lead")
    assert ack["payload"] == {
        "status": "created",
        "participant_id": "guest",
        "token": "token-1",
        "connection_url": "ws://somewhere/ws?space=demo",
        "email_sent": False,
    }
    # It is kept as a digest, and nowhere in what is kept does it stand itself.
    digest = sha256(b"token-1").hexdigest()
    assert facts(scene.journal, "invite/")["invite/guest"]["token_sha256"] == digest
    assert scene.invites.admitted == {"guest": digest}
    kept: list[tuple[Entry, ...]] = []
    scene.journal.read("demo", after=0, until=10**18, limit=100, then=kept.append)
    assert kept[0]
    assert "token-1" not in repr(kept)


@pytest.mark.rule("3.manage.invite")
@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({}, "invalid_envelope"),
        ({"participant_id": "a\nb"}, "invalid_envelope"),
        ({"participant_id": "x" * 257}, "invalid_envelope"),
        ({"participant_id": "guest", "initial_capabilities": {}}, "invalid_envelope"),
        ({"participant_id": "worker"}, "participant_exists"),
        ({"participant_id": "system:gateway"}, "participant_exists"),
        ({"participant_id": "g", "initial_capabilities": [{"kind": "*"}]}, "capability_lacking"),
        ({"participant_id": "g", "initial_capabilities": [{"kind": "/(/"}]}, "invalid_capability"),
    ],
)
def test_invitation_that_cannot_be_carried_out(
    scene: Scene, payload: dict[str, Any], code: str
) -> None:
    scene.say("lead", "space.invite", payload)
    assert scene.error("lead")["error"] == code
    assert scene.invites.admitted == {}


@pytest.mark.rule("3.names.look_alike")
@pytest.mark.parametrize("name", ["Worker", "w\u043erker", "worker\u2800", "w0rker", "\u0455ystem"])
def test_who_looks_like_another_participant_is_not_invited(scene: Scene, name: str) -> None:
    invite(scene, "lead", name)
    assert scene.error("lead")["error"] == "look_alike"
    assert scene.invites.admitted == {}


@pytest.mark.rule("3.names.look_alike")
def test_who_looks_like_an_invited_one_is_not_invited_after_a_restart_either(scene: Scene) -> None:
    invite(scene, "lead", "guest")
    scene.forget()
    invite(scene, "lead", "gu\u0435st")
    assert scene.error("lead")["error"] == "look_alike"
    again = Scene(journal=scene.journal)
    invite(again, "lead", "Guest")
    assert again.error("lead")["error"] == "look_alike"
    again.say("lead", "space.kick", {"participant_id": "guest"})
    again.forget()
    invite(again, "lead", "guest")
    assert "space.invite-ack" in kinds_of(again.got("lead"))


@pytest.mark.rule("3.manage.invite")
def test_who_could_not_be_told_the_token_does_not_invite() -> None:
    scene = Scene(present=("onlooker",))
    scene.refused.clear()
    invite(scene, "lead", "guest")
    (refused,) = scene.refused
    assert isinstance(refused, Refusal)
    assert refused.code == "no_invitations"


@pytest.mark.rule("3.manage.limits")
def test_more_invitations_than_a_space_takes_are_refused() -> None:
    scene = Scene(present=("lead",))
    for number in range(MAX_INVITED):
        invite(scene, "lead", f"guest-{number}")
    scene.forget()
    invite(scene, "lead", "one-more")
    assert scene.error("lead")["limit"] == "max_invited"


@pytest.mark.rule("3.manage.rests", "3.manage.kick")
def test_guest_loses_what_its_inviter_loses_and_removed_it_begins_anew(scene: Scene) -> None:
    invite(scene, "lead", "guest", CALL)
    assert scene.may("guest")
    scene.grant("admin", "guest", {"kind": "capability/*"})
    scene.say("admin", "space.kick", {"participant_id": "guest"})
    invite(scene, "lead", "guest", {"kind": "chat"})
    assert scene.invites.admitted["guest"] == sha256(b"token-2").hexdigest()
    allowed = [scene.may("guest", each) for each in ({"kind": "chat"}, CALL, GRANTING)]
    assert allowed == [True, False, False]
    scene.revoke("admin", {"recipient": "lead", "capabilities": [{"kind": "chat"}]})
    assert not scene.may("guest", {"kind": "chat"})


@pytest.mark.rule("3.manage.kick")
def test_who_is_removed_is_closed_and_stays_out(scene: Scene) -> None:
    grant = scene.grant("lead", "worker", CALL)
    request = scene.request()
    scene.forget()
    scene.say("lead", "space.kick", {"participant_id": "worker", "reason": "loud"})
    assert scene.members["worker"].closed == (4403, "removed by lead: loud")
    assert scene.host.owner.is_kicked("worker")
    assert scene.host.delivery.member("worker") is None
    said = scene.got("onlooker")
    assert kinds_of(said) == ["space.kick", "system.presence", "mcp.request"]
    assert said[1]["payload"] == {"event": "leave", "participant": {"id": "worker"}}
    assert said[2]["correlationId"] == request
    assert f"grant/{grant}" not in facts(scene.journal)
    # What still comes of it by another way is refused.
    scene.refused.clear()
    del scene.members["worker"]
    scene.propose()
    assert scene.refused[0].code == "kicked"


@pytest.mark.rule("3.manage.kick")
def test_invited_again_the_removed_may_come_back(scene: Scene) -> None:
    scene.say("lead", "space.kick", {"participant_id": "worker"})
    scene.forget()
    invite(scene, "lead", "worker", CALL)
    ack = scene.got("lead")[1]["payload"]
    assert ack["status"] == "restored"
    # Its configured tokens are its own, and nobody else is given another.
    assert "token" not in ack
    assert not scene.host.owner.is_kicked("worker")
    assert scene.may("worker")
    assert "kicked/worker" not in facts(scene.journal)


def test_nobody_removes_who_is_not_there(scene: Scene) -> None:
    scene.say("lead", "space.kick", {"participant_id": "nobody"})
    assert scene.error("lead")["error"] == "unknown_participant"
