"""Grants, revocations, invitations and removals, decided by hand and carried out without a loop."""

import json
from hashlib import sha256
from itertools import count
from typing import Any

import pytest

from meup_agent.protocol.management_payloads import MAX_GRANTED
from meup_agent.protocol.space.counters import SpaceCounters
from meup_agent.protocol.space.decisions import Refusal
from meup_agent.protocol.space.grants import MAX_GRANTED_TOGETHER, member_capabilities
from meup_agent.protocol.space.journal import Entry, Journal, MemoryJournal
from meup_agent.protocol.space.management import MAX_INVITED
from meup_agent.protocol.space.server import SpaceServer
from tests.protocol.space.test_server import Listener

CALL = {"kind": "mcp/request", "payload": {"method": "tools/call"}}
READ = {"kind": "mcp/request", "payload": {"method": "tools/call", "params": {"name": "read"}}}
GRANTING = {"kind": "capability/grant"}
REVOKING = {"kind": "capability/revoke"}
SPACE = {"kind": "space/*"}

CAPABILITIES: dict[str, list[dict[str, Any]]] = {
    "admin": [{"kind": "*"}],
    "lead": [CALL, GRANTING, REVOKING, SPACE, {"kind": "chat"}],
    "worker": [{"kind": "mcp/proposal"}],
    "onlooker": [],
}


class Doors:
    """Lets people in by tokens that a test can foresee."""

    def __init__(self) -> None:
        self.admitted: dict[str, str] = {}
        self._tokens = count(1)

    def new_token(self) -> str:
        return f"token-{next(self._tokens)}"

    def admit(self, participant: str, token_sha256: str) -> None:
        self.admitted[participant] = token_sha256

    def address(self) -> str:
        return "ws://somewhere/ws?space=demo"


class Scene:
    """A space, everybody in it, and what each of them has got."""

    def __init__(
        self,
        capabilities: dict[str, list[dict[str, Any]]] | None = None,
        *,
        journal: Journal | None = None,
        present: tuple[str, ...] = ("admin", "lead", "worker", "onlooker"),
        doors: Doors | None = None,
        announce_withdrawals: bool = False,
    ) -> None:
        known = CAPABILITIES if capabilities is None else capabilities
        self.ids, gateway_ids = count(1), count(1)
        self.refused: list[Any] = []
        """What was answered to those who are not in the space."""
        self.journal = journal or MemoryJournal(lambda: 0)
        self.doors = doors or Doors()
        self.host = SpaceServer(
            "demo",
            new_id=lambda: f"g{next(gateway_ids)}",
            participants={name: member_capabilities(each) for name, each in known.items()},
            journal=self.journal,
            now=lambda: 0,
            counters=SpaceCounters(),
            invites=self.doors,
            announce_withdrawals=announce_withdrawals,
        )
        self.members = {name: self.join(name) for name in present if name in known}
        self.forget()

    def join(self, name: str) -> Listener:
        member = Listener(name)
        self.host.join(member)
        return member

    def forget(self) -> None:
        """Throw away what everybody has got so far."""
        for member in self.members.values():
            member.frames.clear()

    def say(
        self, sender: str, kind: str, payload: object = None, *, id: str = "", **header: Any
    ) -> str:
        """Say something; its id."""
        envelope_id = id or f"e{next(self.ids)}"
        said = {
            "protocol": "meup/v0.1",
            "id": envelope_id,
            "from": sender,
            "kind": kind,
            "payload": {} if payload is None else payload,
            **header,
        }
        frame = json.dumps(said).encode()
        member = self.members.get(sender)
        if member is not None:
            self.host.receive(member, frame)
        else:
            self.host.receive_as(sender, frame, "meup/v0.1", self.refused.append)
        return envelope_id

    def got(self, name: str) -> list[dict[str, Any]]:
        """What somebody has got since the last time."""
        member = self.members[name]
        frames, member.frames = member.frames, []
        return [json.loads(frame) for frame in frames]

    def error(self, name: str) -> dict[str, Any]:
        """The one thing that somebody has got: an error."""
        (only,) = self.got(name)
        assert only["kind"] == "system.error"
        payload: dict[str, Any] = only["payload"]
        assert payload["message"]
        return payload

    def may(self, name: str, capability: dict[str, Any] = CALL) -> bool:
        """Whether somebody may send what a capability of exact values is for."""
        return self.host.capabilities(name).allow(capability["kind"], capability.get("payload", {}))

    def grant(self, sender: str, to: str, *capabilities: dict[str, Any], id: str = "") -> str:
        payload = {"recipient": to, "capabilities": list(capabilities), "reason": "trust"}
        return self.say(sender, "capability.grant", payload, id=id)

    def revoke(self, sender: str, payload: dict[str, Any]) -> str:
        return self.say(sender, "capability.revoke", payload)


def kinds_of(said: list[dict[str, Any]]) -> list[str]:
    return [each["kind"] for each in said]


# --- grants ---


@pytest.mark.rule("3.manage.grant")
def test_grant_takes_effect_at_once_and_its_recipient_is_told_first() -> None:
    scene = Scene()
    assert not scene.may("worker")
    grant = scene.grant("lead", "worker", CALL)
    assert scene.may("worker")
    welcome, granted, update = scene.got("worker")
    assert kinds_of([welcome, granted, update]) == [
        "system.welcome",
        "capability.grant",
        "system.presence",
    ]
    assert CALL in welcome["payload"]["you"]["capabilities"]
    assert granted["id"] == grant
    others = scene.got("onlooker")
    assert kinds_of(others) == ["capability.grant", "system.presence"]
    assert others[1]["payload"]["event"] == "update"
    assert CALL in others[1]["payload"]["participant"]["capabilities"]


@pytest.mark.rule("3.manage.grant")
def test_grants_to_somebody_who_is_away_are_there_when_they_come() -> None:
    scene = Scene(present=("lead", "onlooker"))
    scene.grant("lead", "worker", CALL)
    assert kinds_of(scene.got("onlooker")) == ["capability.grant"]
    scene.members["worker"] = scene.join("worker")
    assert CALL in scene.got("worker")[0]["payload"]["you"]["capabilities"]
    # They survive a reconnect.
    scene.host.leave(scene.members["worker"])
    scene.join("worker")
    assert scene.may("worker")


def test_grants_add_up() -> None:
    scene = Scene()
    scene.grant("lead", "worker", CALL)
    scene.grant("lead", "worker", {"kind": "chat"})
    assert scene.may("worker", CALL)
    assert scene.may("worker", {"kind": "chat"})
    assert scene.may("worker", {"kind": "mcp/proposal"})


@pytest.mark.rule("3.manage.lacking")
@pytest.mark.parametrize(
    "lacking", [{"kind": "*"}, {"kind": "mcp/request"}, {"kind": ["chat", "mcp/reject"]}]
)
def test_nobody_grants_what_they_lack(lacking: dict[str, Any]) -> None:
    scene = Scene()
    scene.grant("lead", "worker", {"kind": "chat"}, lacking)
    error = scene.error("lead")
    assert error["error"] == "capability_lacking"
    assert error["capability"] == lacking
    assert not scene.may("worker", {"kind": "chat"})
    assert scene.got("worker") == []


@pytest.mark.rule("3.manage.lacking")
def test_less_than_one_has_can_be_granted() -> None:
    scene = Scene()
    scene.grant("lead", "worker", READ)
    assert scene.may("worker", READ)
    assert not scene.may("worker", CALL)


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({}, "invalid_envelope"),
        ({"recipient": "worker"}, "invalid_envelope"),
        ({"recipient": "worker", "capabilities": []}, "invalid_envelope"),
        ({"recipient": "worker", "capabilities": "chat"}, "invalid_envelope"),
        ({"recipient": "worker", "capabilities": ["chat"]}, "invalid_envelope"),
        ({"recipient": "", "capabilities": [CALL]}, "invalid_envelope"),
        ({"recipient": 1, "capabilities": [CALL]}, "invalid_envelope"),
        ({"recipient": "worker", "capabilities": [CALL] * (MAX_GRANTED + 1)}, "invalid_envelope"),
        ({"recipient": "worker", "capabilities": [CALL], "reason": 1}, "invalid_envelope"),
        ({"recipient": "worker", "capabilities": [CALL], "reason": "x" * 2000}, "invalid_envelope"),
        ({"recipient": "nobody", "capabilities": [CALL]}, "unknown_participant"),
        ({"recipient": "worker", "capabilities": [{}]}, "invalid_capability"),
        ({"recipient": "worker", "capabilities": [{"kind": "/(/"}]}, "invalid_capability"),
        ({"recipient": "worker", "capabilities": [{"kind": "system/error"}]}, "invalid_capability"),
    ],
)
def test_grant_that_cannot_be_carried_out(payload: dict[str, Any], code: str) -> None:
    scene = Scene()
    scene.say("admin", "capability.grant", payload)
    assert scene.error("admin")["error"] == code
    assert scene.got("worker") == []


def test_only_who_may_grant_grants() -> None:
    scene = Scene()
    scene.grant("worker", "onlooker", {"kind": "mcp/proposal"})
    assert scene.error("worker")["error"] == "capability_violation"


def test_id_of_a_grant_in_force_names_no_other() -> None:
    scene = Scene()
    scene.grant("lead", "worker", CALL, id="g")
    scene.forget()
    scene.grant("admin", "onlooker", {"kind": "chat"}, id="g")
    assert scene.error("admin")["error"] == "id_in_use"


def test_grant_that_is_sent_again_is_the_same_grant() -> None:
    scene = Scene()
    payload = {"recipient": "worker", "capabilities": [CALL]}
    frame = json.dumps(
        {"protocol": "meup/v0.1", "id": "g", "from": "lead", "kind": "capability.grant",
         "payload": payload}
    ).encode()  # fmt: skip
    answers: list[Any] = []
    for _ in range(2):
        scene.host.receive_as("lead", frame, "meup/v0.1", answers.append)
    assert all(isinstance(answer, Entry) for answer in answers)
    assert answers[0].seq == answers[1].seq
    assert kinds_of(scene.got("onlooker")) == ["capability.grant", "system.presence"]


@pytest.mark.rule("3.manage.limits")
def test_more_than_a_participant_can_hold_is_refused() -> None:
    scene = Scene()
    for batch in range(3):
        kinds = [{"kind": f"k{batch}-{number}"} for number in range(MAX_GRANTED)]
        scene.grant("admin", "worker", *kinds)
    scene.forget()
    scene.grant("admin", "worker", *({"kind": f"more-{n}"} for n in range(MAX_GRANTED)))
    assert scene.error("admin")["error"] == "invalid_capability"
    assert not scene.may("worker", {"kind": "more-0"})


@pytest.mark.rule("3.manage.limits")
def test_more_than_can_be_granted_in_a_space_is_refused() -> None:
    scene = Scene()
    full, rest = divmod(MAX_GRANTED_TOGETHER - 1, MAX_GRANTED)
    for number in [MAX_GRANTED] * full + [rest]:
        scene.grant("admin", "worker", *[{"kind": "chat"}] * number)
    scene.forget()
    scene.grant("admin", "worker", {"kind": "chat"}, {"kind": "mcp/reject"})
    error = scene.error("admin")
    assert (error["error"], error["limit"], error["max"]) == (
        "limit_exceeded",
        "max_granted",
        MAX_GRANTED_TOGETHER,
    )
    scene.grant("admin", "worker", {"kind": "mcp/reject"})
    assert scene.may("worker", {"kind": "mcp/reject"})


@pytest.mark.rule("3.manage.ack")
def test_recipient_may_acknowledge_and_nobody_else() -> None:
    scene = Scene()
    grant = scene.grant("lead", "worker", CALL)
    scene.forget()
    scene.say("worker", "capability.grant-ack", {"status": "accepted"}, correlationId=grant)
    assert kinds_of(scene.got("lead")) == ["capability.grant-ack"]
    scene.forget()
    scene.say("onlooker", "capability.grant-ack", {"status": "accepted"}, correlationId=grant)
    assert scene.error("onlooker")["error"] == "capability_violation"


# --- revocations ---


@pytest.mark.rule("3.manage.revoke.id")
@pytest.mark.parametrize("recipient", [{}, {"recipient": "worker"}])
def test_revoked_by_the_grants_id(recipient: dict[str, str]) -> None:
    scene = Scene()
    grant = scene.grant("lead", "worker", CALL)
    scene.forget()
    scene.revoke("admin", {"grant_id": grant, **recipient})
    assert not scene.may("worker")
    welcome, revoked, update = scene.got("worker")
    assert CALL not in welcome["payload"]["you"]["capabilities"]
    assert revoked["kind"] == "capability.revoke"
    assert CALL not in update["payload"]["participant"]["capabilities"]


@pytest.mark.rule("3.manage.revoke.pattern")
def test_pattern_takes_away_all_that_it_covers_the_configured_too() -> None:
    scene = Scene()
    scene.grant("lead", "worker", CALL)
    scene.grant("admin", "worker", READ, {"kind": "chat"})
    scene.revoke("admin", {"recipient": "worker", "capabilities": [{"kind": "mcp/*"}]})
    assert not scene.may("worker", CALL)
    assert not scene.may("worker", READ)
    assert not scene.may("worker", {"kind": "mcp/proposal"})
    assert scene.may("worker", {"kind": "chat"})
    # What was proposed can still be taken back.
    assert scene.may("worker", {"kind": "mcp/withdraw"})


@pytest.mark.rule("3.manage.revoke.pattern")
def test_broader_capability_is_named_and_nothing_is_revoked() -> None:
    scene = Scene()
    scene.grant("lead", "worker", CALL)
    scene.forget()
    scene.revoke("admin", {"recipient": "worker", "capabilities": [READ, {"kind": "mcp/proposal"}]})
    error = scene.error("admin")
    assert error["error"] == "nothing_to_revoke"
    assert error["capability"] == CALL
    assert scene.may("worker", {"kind": "mcp/proposal"})


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({}, "invalid_envelope"),
        ({"recipient": "worker"}, "invalid_envelope"),
        ({"recipient": "worker", "capabilities": []}, "invalid_envelope"),
        ({"recipient": "worker", "capabilities": [CALL], "grant_id": "g"}, "invalid_envelope"),
        ({"capabilities": [CALL]}, "invalid_envelope"),
        ({"grant_id": 5}, "invalid_envelope"),
        ({"grant_id": "unknown"}, "unknown_grant"),
        ({"grant_id": "g", "recipient": "onlooker"}, "unknown_grant"),
        ({"grant_id": "g", "recipient": "nobody"}, "unknown_participant"),
        ({"recipient": "nobody", "capabilities": [CALL]}, "unknown_participant"),
        ({"recipient": "worker", "capabilities": [{"kind": "/(/"}]}, "invalid_capability"),
        ({"recipient": "onlooker", "capabilities": [CALL]}, "nothing_to_revoke"),
    ],
)
def test_revocation_that_cannot_be_carried_out(payload: dict[str, Any], code: str) -> None:
    scene = Scene()
    scene.grant("lead", "worker", CALL, id="g")
    scene.forget()
    scene.revoke("admin", payload)
    assert scene.error("admin")["error"] == code
    assert scene.may("worker")


@pytest.mark.rule("3.manage.rests")
def test_nobody_keeps_what_its_granter_no_longer_has() -> None:
    scene = Scene()
    first = scene.grant("lead", "worker", CALL, GRANTING)
    scene.grant("worker", "onlooker", READ)
    assert scene.may("onlooker", READ)
    scene.forget()
    scene.revoke("admin", {"grant_id": first})
    assert not scene.may("onlooker", READ)
    assert kinds_of(scene.got("onlooker"))[:2] == ["system.welcome", "capability.revoke"]


@pytest.mark.rule("3.manage.rests")
def test_what_rests_on_another_capability_stays() -> None:
    scene = Scene()
    first = scene.grant("lead", "worker", CALL, GRANTING)
    scene.grant("admin", "worker", CALL)
    scene.grant("worker", "onlooker", READ, id="onward")
    scene.revoke("admin", {"grant_id": first})
    assert scene.may("onlooker", READ)
    # But two who grant it to each other do not keep each other in it.
    scene = Scene()
    first = scene.grant("lead", "worker", CALL, GRANTING)
    scene.grant("worker", "onlooker", CALL, GRANTING)
    scene.grant("onlooker", "worker", CALL)
    scene.revoke("admin", {"grant_id": first})
    assert not scene.may("worker")
    assert not scene.may("onlooker")


def facts(journal: Journal, prefix: str = "") -> dict[str, dict[str, Any]]:
    found = journal.recover("demo", since=0, limit=0).facts
    return {key: value for key, value in found.items() if key.startswith(prefix)}


@pytest.mark.rule("3.manage.rests")
def test_chain_of_grants_stands_in_what_is_kept() -> None:
    scene = Scene()
    first = scene.grant("lead", "worker", CALL, GRANTING)
    second = scene.grant("worker", "onlooker", READ)
    kept = facts(scene.journal, "grant/")
    assert kept[f"grant/{first}"]["rests_on"] == []
    assert kept[f"grant/{second}"]["rests_on"] == [first]
    assert kept[f"grant/{second}"]["by"] == "worker"
    scene.revoke("admin", {"grant_id": first})
    assert facts(scene.journal) == {}


# --- what is in flight ---


@pytest.mark.rule("3.manage.in_flight")
def test_request_in_flight_is_cancelled_and_its_requester_told() -> None:
    scene = Scene()
    grant = scene.grant("lead", "worker", CALL)
    request = scene.say("worker", "mcp.request", {"method": "tools/call"}, to=["onlooker"])
    scene.forget()
    scene.revoke("admin", {"grant_id": grant})
    said = scene.got("onlooker")
    assert kinds_of(said) == ["capability.revoke", "system.presence", "mcp.request"]
    cancel = said[-1]
    assert cancel["from"] == "system:gateway"
    assert cancel["to"] == ["onlooker"]
    assert cancel["correlationId"] == request
    assert cancel["payload"]["method"] == "notifications/cancelled"
    params = cancel["payload"]["params"]
    assert (params["requestId"], params["reason"]) == (request, "revoked")
    assert params["_meta"] == {"dev.meup/begun_by": "worker"}
    error = scene.got("worker")[-2]
    assert (error["kind"], error["payload"]["error"]) == ("system.error", "revoked")
    assert error["correlationId"] == request


@pytest.mark.rule("3.manage.in_flight")
def test_pending_proposal_is_withdrawn() -> None:
    scene = Scene()
    proposal = scene.say("worker", "mcp.proposal", {"method": "tools/call"})
    scene.forget()
    scene.revoke("admin", {"recipient": "worker", "capabilities": [{"kind": "mcp/proposal"}]})
    withdraw = scene.got("onlooker")[-1]
    assert (withdraw["kind"], withdraw["from"]) == ("mcp.withdraw", "system:gateway")
    assert withdraw["correlationId"] == proposal
    assert withdraw["payload"]["reason"] == "revoked"
    assert scene.got("worker")[-2]["payload"]["error"] == "revoked"


@pytest.mark.rule("3.manage.in_flight")
def test_what_is_still_allowed_or_has_ended_goes_on() -> None:
    scene = Scene()
    scene.grant("lead", "worker", READ)
    grant = scene.grant("lead", "worker", CALL)
    read = {"method": "tools/call", "params": {"name": "read"}}
    scene.say("worker", "mcp.request", read, to=["onlooker"])
    ended = scene.say("worker", "mcp.request", {"method": "tools/call"}, to=["onlooker"])
    scene.say("onlooker", "mcp.response", {"result": {}}, correlationId=ended)
    scene.forget()
    scene.revoke("admin", {"grant_id": grant})
    assert kinds_of(scene.got("onlooker")) == ["capability.revoke", "system.presence"]


# --- invitations ---


def invite(scene: Scene, sender: str, name: str, *capabilities: dict[str, Any], **more: Any) -> str:
    payload = {"participant_id": name, "initial_capabilities": list(capabilities), **more}
    return scene.say(sender, "space.invite", payload)


@pytest.mark.rule("3.manage.invite")
def test_invitation_gives_its_token_to_the_inviter_alone() -> None:
    scene = Scene()
    envelope = invite(scene, "lead", "guest", {"kind": "chat"}, email="guest@example.org")
    echo, ack, presence = scene.got("lead")
    assert kinds_of([echo, ack, presence]) == [
        "space.invite",
        "space.invite-ack",
        "system.presence",
    ]
    assert ack["correlationId"] == envelope
    assert ack["payload"] == {
        "status": "created",
        "participant_id": "guest",
        "token": "token-1",
        "connection_url": "ws://somewhere/ws?space=demo",
        "email_sent": False,
    }
    assert presence["payload"]["event"] == "invited"
    assert kinds_of(scene.got("onlooker")) == ["space.invite", "system.presence"]
    # It is kept as a digest, and nowhere in what is kept does it stand itself.
    digest = sha256(b"token-1").hexdigest()
    assert facts(scene.journal, "invite/")["invite/guest"]["token_sha256"] == digest
    assert scene.doors.admitted == {"guest": digest}
    kept: list[tuple[Entry, ...]] = []
    scene.journal.read("demo", after=0, until=10**18, limit=100, then=kept.append)
    assert kept[0]
    assert "token-1" not in repr(kept)
    # The guest comes, and may do what it was invited for.
    scene.members["guest"] = scene.join("guest")
    assert scene.may("guest", {"kind": "chat"})
    assert not scene.may("guest", CALL)


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
def test_invitation_that_cannot_be_carried_out(payload: dict[str, Any], code: str) -> None:
    scene = Scene()
    scene.say("lead", "space.invite", payload)
    assert scene.error("lead")["error"] == code
    assert scene.doors.admitted == {}


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


@pytest.mark.rule("3.manage.rests")
def test_guest_loses_what_its_inviter_loses() -> None:
    scene = Scene()
    invite(scene, "lead", "guest", CALL)
    assert scene.may("guest")
    scene.revoke("admin", {"recipient": "lead", "capabilities": [{"kind": "mcp/*"}]})
    assert not scene.may("guest")


# --- removals ---


@pytest.mark.rule("3.manage.kick")
def test_who_is_removed_is_closed_and_stays_out() -> None:
    scene = Scene()
    grant = scene.grant("lead", "worker", CALL)
    request = scene.say("worker", "mcp.request", {"method": "tools/call"}, to=["onlooker"])
    scene.forget()
    scene.say("lead", "space.kick", {"participant_id": "worker", "reason": "loud"})
    assert scene.members["worker"].closed == (4403, "removed by lead: loud")
    assert scene.host.is_kicked("worker")
    assert scene.host.member("worker") is None
    said = scene.got("onlooker")
    assert kinds_of(said) == ["space.kick", "system.presence", "mcp.request"]
    assert said[1]["payload"] == {"event": "leave", "participant": {"id": "worker"}}
    assert said[2]["correlationId"] == request
    assert f"grant/{grant}" not in facts(scene.journal)
    # What still comes of it by another way is refused.
    scene.refused.clear()
    del scene.members["worker"]
    scene.say("worker", "mcp.proposal", {"method": "tools/call"})
    assert scene.refused[0].code == "kicked"


@pytest.mark.rule("3.manage.kick")
def test_invited_again_the_removed_may_come_back() -> None:
    scene = Scene()
    scene.say("lead", "space.kick", {"participant_id": "worker"})
    scene.forget()
    invite(scene, "lead", "worker", CALL)
    ack = scene.got("lead")[1]["payload"]
    assert ack["status"] == "restored"
    # Its configured tokens are its own, and nobody else is given another.
    assert "token" not in ack
    assert not scene.host.is_kicked("worker")
    assert scene.may("worker")
    assert "kicked/worker" not in facts(scene.journal)


@pytest.mark.rule("3.manage.kick")
def test_removed_guest_that_is_invited_again_begins_anew() -> None:
    scene = Scene()
    invite(scene, "lead", "guest", CALL)
    scene.grant("admin", "guest", {"kind": "capability/*"})
    scene.say("admin", "space.kick", {"participant_id": "guest"})
    invite(scene, "lead", "guest", {"kind": "chat"})
    assert scene.doors.admitted["guest"] == sha256(b"token-2").hexdigest()
    assert scene.may("guest", {"kind": "chat"})
    assert not scene.may("guest", CALL)
    assert not scene.may("guest", GRANTING)


def test_nobody_removes_who_is_not_there() -> None:
    scene = Scene()
    scene.say("lead", "space.kick", {"participant_id": "nobody"})
    assert scene.error("lead")["error"] == "unknown_participant"


# --- a restart ---


@pytest.mark.rule("3.manage.restart")
def test_everything_outlives_a_restart() -> None:
    scene = Scene()
    grant = scene.grant("lead", "worker", CALL, GRANTING)
    onward = scene.grant("worker", "onlooker", READ)
    invite(scene, "lead", "guest", {"kind": "chat"})
    scene.revoke("admin", {"recipient": "worker", "capabilities": [{"kind": "mcp/proposal"}]})
    proposal = scene.say("admin", "mcp.proposal", {"method": "tools/call"})
    scene.say("lead", "space.kick", {"participant_id": "lead"})
    again = Scene(journal=scene.journal, present=("admin", "worker"))
    assert again.may("worker")
    assert not again.may("worker", {"kind": "mcp/proposal"})
    assert again.may("onlooker", READ)
    assert again.may("guest", {"kind": "chat"})
    assert again.doors.admitted == scene.doors.admitted
    assert again.host.is_kicked("lead")
    # Who was granted something may still say so, and nobody else takes back what was proposed.
    again.say("worker", "capability.grant-ack", {"status": "accepted"}, correlationId=grant)
    again.say("worker", "mcp.withdraw", {"reason": "busy"}, correlationId=proposal)
    assert [each["payload"].get("error") for each in again.got("worker")] == [None, "not_proposer"]
    again.revoke("admin", {"grant_id": grant})
    assert not again.may("onlooker", READ)
    assert f"grant/{onward}" not in facts(scene.journal)


@pytest.mark.rule("3.manage.restart")
def test_grant_that_its_granter_could_not_give_now_holds_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    grant = scene.grant("lead", "worker", CALL)
    stays = scene.grant("lead", "worker", {"kind": "chat"})
    less = {**CAPABILITIES, "lead": [{"kind": "chat"}]}
    again = Scene(less, journal=scene.journal)
    assert not again.may("worker")
    assert again.may("worker", {"kind": "chat"})
    assert grant in caplog.text
    assert stays not in caplog.text


class CutOff(MemoryJournal):
    """A journal whose process is killed after so many envelopes."""

    left: int | None = None

    def append(self, *said: Any) -> None:
        if self.left == 0:
            return
        if self.left is not None:
            self.left -= 1
        super().append(*said)


def ended(journal: Journal) -> list[str]:
    """What the gateway has ended in the name of others, by its kind."""
    found: list[str] = []
    for entry in journal.recover("demo", since=0, limit=1_000).entries:
        if entry.envelope.sender == "system:gateway" and entry.envelope.kind.startswith("mcp/"):
            found += [entry.envelope.kind]
    return found


@pytest.mark.rule("3.manage.restart")
def test_what_a_revocation_left_in_flight_is_ended_after_a_restart_and_once() -> None:
    journal = CutOff(lambda: 0)
    scene = Scene(journal=journal)
    scene.grant("lead", "worker", CALL)
    scene.say("worker", "mcp.request", {"method": "tools/call"}, to=["onlooker"])
    scene.say("worker", "mcp.proposal", {"method": "tools/call"})
    journal.left = 1
    scene.revoke("admin", {"recipient": "worker", "capabilities": [{"kind": "mcp/*"}]})
    assert ended(journal) == []
    journal.left = None
    for _ in range(2):
        Scene(journal=journal)
        assert ended(journal) == ["mcp/request", "mcp/withdraw"]


@pytest.mark.rule("3.manage.restart")
def test_what_the_configuration_allows_no_more_is_ended() -> None:
    scene = Scene()
    scene.say("lead", "mcp.request", {"method": "tools/call"}, to=["onlooker"])
    scene.say("worker", "mcp.proposal", {"method": "tools/call"})
    less = {name: each for name, each in CAPABILITIES.items() if name != "lead"}
    Scene(less, journal=scene.journal)
    assert ended(scene.journal) == ["mcp/request"]


# --- withdrawals and rejections ---


@pytest.mark.rule("3.withdraw.named")
@pytest.mark.parametrize("kind", ["mcp.withdraw", "mcp.reject"])
def test_withdraw_or_reject_that_names_no_proposal_is_refused(kind: str) -> None:
    scene = Scene()
    scene.say("admin", kind, {"reason": "busy"})
    assert scene.error("admin")["error"] == "invalid_envelope"


@pytest.mark.rule("3.withdraw.announced")
def test_withdrawal_that_takes_effect_is_announced_where_the_space_asks_for_it() -> None:
    scene = Scene(announce_withdrawals=True)
    proposal = scene.say("worker", "mcp.proposal", {"method": "tools/call"})
    scene.forget()
    for _ in range(2):
        scene.say("worker", "mcp.withdraw", {"reason": "busy"}, correlationId=proposal)
    first, notice, late = scene.got("onlooker")
    assert kinds_of([first, notice, late]) == ["mcp.withdraw", "system.withdrawn", "mcp.withdraw"]
    assert notice["payload"] == {"proposal_id": proposal, "by": "worker", "reason": "busy"}
    assert notice["correlationId"] == proposal
    # The late one is silent: no notice, and no error.
    assert "system.error" not in kinds_of(scene.got("worker"))


@pytest.mark.rule("3.withdraw.announced")
def test_without_that_nothing_is_announced() -> None:
    scene = Scene()
    proposal = scene.say("worker", "mcp.proposal", {"method": "tools/call"})
    scene.forget()
    scene.say("worker", "mcp.withdraw", {"reason": "busy"}, correlationId=proposal)
    assert kinds_of(scene.got("onlooker")) == ["mcp.withdraw"]
