"""Responses of the published dialects that decide a proposal by themselves (PROTOCOL 2)."""

from typing import Any

import pytest

from tests.protocol.frames import frame_by
from tests.protocol.space.scene import CALL, Scene
from tests.spaces import Entry, Refusal

WRITE = {"method": "tools/call", "params": {"name": "write"}}
MINUTE = 60.0


def scene_of(**how: Any) -> Scene:
    may: dict[str, list[dict[str, Any]]] = {
        "proposer": [{"kind": "mcp/proposal"}],
        "published": [CALL],
        "approver": [CALL],
    }
    return Scene(may, **how)


def answer(scene: Scene) -> Any:
    header: dict[str, Any] = {"protocol": "mew/v0.4", "id": "a", "correlation_id": ["p"]}
    frame, told = frame_by("published", "mcp/response", {"result": {}}, **header), list[Any]()
    scene.host.owner.receive_as("published", frame, "mew/v0.4", told.append)
    return told[0]


@pytest.mark.rule("3.ids.not_pending", "9.fold")
@pytest.mark.parametrize("restarted", [False, True])
def test_what_such_a_response_decided_is_decided_after_a_restart(restarted: bool) -> None:
    scene = scene_of(present=("proposer",))
    scene.say("proposer", "mcp.proposal", WRITE, id="p")
    assert isinstance(answer(scene), Entry)
    if restarted:
        scene = scene_of(journal=scene.journal, present=())
    scene.members["approver"] = scene.join("approver")
    scene.forget()
    scene.say("approver", "mcp.request", {**WRITE, "id": 1}, correlationId="p", to=["published"])
    assert scene.error("approver")["error"] == "not_pending"


@pytest.mark.rule("4.2.expiry")
def test_an_expired_proposal_is_decided_by_none() -> None:
    scene = scene_of(present=("proposer",))
    scene.say("proposer", "mcp.proposal", {**WRITE, "ttl": 1_000}, id="p")
    scene.at += 2 * MINUTE
    assert isinstance(answer(scene), Refusal)
