"""Grants, revocations and what they end that is in flight, carried out without a loop."""

from typing import Any

import pytest

from meup_agent.protocol.space.state.grants import MAX_GRANTED_TOGETHER
from meup_agent.protocol.wire.payloads import MAX_GRANTED
from tests.protocol.frames import frame_by
from tests.protocol.space.scene import (
    CALL,
    CAPABILITIES,
    GRANTING,
    READ,
    TOOL_CALL,
    Scene,
    facts,
    kinds_of,
)
from tests.spaces import Entry


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
def test_grant_that_cannot_be_carried_out(scene: Scene, payload: dict[str, Any], code: str) -> None:
    scene.say("admin", "capability.grant", payload)
    assert scene.error("admin")["error"] == code
    assert scene.got("worker") == []


def test_id_of_a_grant_in_force_names_no_other(scene: Scene) -> None:
    scene.grant("lead", "worker", CALL, id="g")
    scene.forget()
    scene.grant("admin", "onlooker", {"kind": "chat"}, id="g")
    assert scene.error("admin")["error"] == "id_in_use"


def test_grant_that_is_sent_again_is_the_same_grant(scene: Scene) -> None:
    payload = {"recipient": "worker", "capabilities": [CALL]}
    frame = frame_by("lead", "capability.grant", payload, id="g")
    answers: list[Any] = []
    for _ in range(2):
        scene.host.owner.receive_as("lead", frame, "meup/v0.1", answers.append)
    assert all(isinstance(answer, Entry) for answer in answers)
    assert answers[0].seq == answers[1].seq
    assert kinds_of(scene.got("onlooker")) == ["capability.grant", "system.presence"]


@pytest.mark.rule("3.manage.limits")
def test_more_than_a_participant_can_hold_is_refused(scene: Scene) -> None:
    for batch in range(3):
        kinds = [{"kind": f"k{batch}-{number}"} for number in range(MAX_GRANTED)]
        scene.grant("admin", "worker", *kinds)
    scene.forget()
    scene.grant("admin", "worker", *({"kind": f"more-{n}"} for n in range(MAX_GRANTED)))
    assert scene.error("admin")["error"] == "invalid_capability"
    assert not scene.may("worker", {"kind": "more-0"})


@pytest.mark.rule("3.manage.limits")
def test_more_than_can_be_granted_in_a_space_is_refused(scene: Scene) -> None:
    full, rest = divmod(MAX_GRANTED_TOGETHER - 1, MAX_GRANTED)
    for number in [MAX_GRANTED] * full + [rest]:
        scene.grant("admin", "worker", *[{"kind": "chat"}] * number)
    scene.forget()
    scene.grant("admin", "worker", {"kind": "chat"}, {"kind": "mcp/reject"})
    error = scene.error("admin")
    assert (error["error"], error["limit"]) == ("limit_exceeded", "max_granted")
    assert error["max"] == MAX_GRANTED_TOGETHER
    scene.grant("admin", "worker", {"kind": "mcp/reject"})
    assert scene.may("worker", {"kind": "mcp/reject"})


@pytest.mark.rule("3.manage.limits")
def test_what_a_journal_might_not_take_whole_is_refused(scene: Scene) -> None:
    scene.forget()
    scene.grant("admin", "worker", {"kind": "chat", "payload": {"message": "x" * 70_000}})
    error = scene.error("admin")
    assert (error["error"], error["limit"]) == ("limit_exceeded", "max_lasting_bytes")
    assert error["max"] == 65_536


@pytest.mark.rule("3.manage.revoke.pattern")
def test_broader_capability_is_named_and_nothing_is_revoked(scene: Scene) -> None:
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
def test_revocation_that_cannot_be_carried_out(
    scene: Scene, payload: dict[str, Any], code: str
) -> None:
    scene.grant("lead", "worker", CALL, id="g")
    scene.forget()
    scene.revoke("admin", payload)
    assert scene.error("admin")["error"] == code
    assert scene.may("worker")


@pytest.mark.rule("3.manage.rests")
def test_what_rests_on_another_capability_stays(scene: Scene) -> None:
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


@pytest.mark.rule("3.manage.rests")
def test_chain_of_grants_stands_in_what_is_kept(scene: Scene) -> None:
    first = scene.grant("lead", "worker", CALL, GRANTING)
    second = scene.grant("worker", "onlooker", READ)
    kept = facts(scene.journal, "grant/")
    assert kept[f"grant/{first}"]["rests_on"] == []
    assert kept[f"grant/{second}"]["rests_on"] == [first]
    assert kept[f"grant/{second}"]["by"] == "worker"
    scene.revoke("admin", {"grant_id": first})
    assert facts(scene.journal, "grant/") == {}


@pytest.mark.rule("3.manage.in_flight")
def test_what_is_still_allowed_or_has_ended_goes_on(scene: Scene) -> None:
    scene.grant("lead", "worker", READ)
    grant = scene.grant("lead", "worker", CALL)
    read = {"method": "tools/call", "params": {"name": "read"}}
    scene.say("worker", "mcp.request", read, to=["onlooker"])
    scene.say("onlooker", "mcp.response", {"result": {}}, correlationId=scene.request())
    scene.forget()
    scene.revoke("admin", {"grant_id": grant})
    assert kinds_of(scene.got("onlooker")) == ["capability.revoke", "system.presence"]


@pytest.mark.rule("3.manage.in_flight")
def test_what_expires_as_a_revocation_ends_its_request_is_announced() -> None:
    proposing = {"kind": "mcp/proposal"}
    scene = Scene({**CAPABILITIES, "worker": []}, announce_withdrawals=True)
    grant = scene.grant("admin", "worker", CALL, proposing, GRANTING)
    scene.grant("worker", "onlooker", proposing)
    until = {"_meta": {"dev.meup/expires_at": "1970-01-01T00:00:01.000Z"}}
    wanted = {**TOOL_CALL, "params": {"name": "x", **until}}
    proposal = scene.say("onlooker", "mcp.proposal", wanted)
    scene.say("worker", "mcp.request", TOOL_CALL, to=["lead"], correlationId=proposal)
    scene.at = 1_000.0
    scene.forget()
    scene.revoke("admin", {"grant_id": grant})
    scene.host.owner.expire()
    said = scene.got("admin")
    assert "system.expired" in kinds_of(said)
    assert "mcp.withdraw" not in kinds_of(said)
