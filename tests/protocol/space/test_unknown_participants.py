"""Messages to names that no participant of a space has, or ever had."""

from typing import Any

import pytest

from tests.protocol.frames import frame_by
from tests.protocol.space.scene import TOOL_CALL, Scene, invite
from tests.spaces import Acceptance, SpaceState, member_capabilities
from tests.wire import payloads

EVERYTHING: list[dict[str, Any]] = [{"kind": "*"}]
PEOPLE: dict[str, list[dict[str, Any]]] = {"alice": EVERYTHING, "tool": EVERYTHING}


def call_at(target: str) -> dict[str, Any]:
    params = {"name": "x", payloads.META: {payloads.TARGET: target}}
    return {"method": "tools/call", "params": params}


BEGINS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("mcp.request", TOOL_CALL, ["toll"]),
    ("mcp.request", {**TOOL_CALL, "id": 1}, ["toll", "tool"]),
    ("mcp.proposal", TOOL_CALL, ["tool", "toll"]),
    ("mcp.proposal", call_at("toll"), []),
    ("mcp.proposal", {"proposal": call_at("toll")}, ["tool"]),
    ("chat", {"message": "hello"}, ["toll"]),
    ("stream.request", {"direction": "upload"}, ["toll"]),
    ("com.example/hint", {}, ["toll"]),
]
ENDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("mcp.withdraw", {"reason": "other"}, {"correlationId": "p"}),
    ("mcp.reject", {"reason": "other"}, {"correlationId": "p"}),
    ("mcp.response", {"id": 1, "result": {}}, {"correlationId": "r"}),
    ("mcp.request", {"method": "notifications/cancelled", "params": {"requestId": "r"}}, {}),
    ("mcp.request", {"method": "notifications/progress", "params": {"progress": 1}}, {}),
]


def kind_of_answer(scene: Scene, kind: str, payload: object, **header: Any) -> str:
    """The kind of the first envelope that the sender gets: an error, or its own echo."""
    scene.forget()
    scene.say("alice", kind, payload, **header)
    kind_got: str = scene.got("alice")[0]["kind"]
    return kind_got


@pytest.mark.rule("3.names.unknown")
@pytest.mark.parametrize(("kind", "payload", "to"), BEGINS)
def test_nothing_begins_for_a_name_that_nobody_has(
    kind: str, payload: dict[str, Any], to: list[str]
) -> None:
    scene = Scene(PEOPLE, present=("alice", "tool"))
    scene.say("alice", kind, payload, id="e", to=to)
    (error,) = scene.got("alice")
    assert error["correlationId"] == "e"
    assert error["payload"]["error"] == "unknown_participant"
    assert error["payload"]["participant_id"] == "toll"
    assert "'toll'" in error["payload"]["message"]
    assert scene.got("tool") == []


@pytest.mark.rule("3.names.unknown")
@pytest.mark.parametrize(("kind", "payload", "header"), ENDS)
def test_what_ends_or_answers_passes_whatever_it_names(
    kind: str, payload: dict[str, Any], header: dict[str, Any]
) -> None:
    scene = Scene(PEOPLE, present=("alice", "tool"))
    assert kind_of_answer(scene, kind, payload, to=["toll"], **header) == kind
    assert len(scene.got("tool")) == 1


@pytest.mark.rule("3.names.unknown")
@pytest.mark.parametrize("present", [("alice",), ("alice", "tool")])
@pytest.mark.parametrize("to", ["tool", "alice", "system:gateway"])
def test_participant_may_be_away(present: tuple[str, ...], to: str) -> None:
    scene = Scene(PEOPLE, present=present)
    assert kind_of_answer(scene, "chat", {"message": "hello"}, to=[to]) == "chat"
    assert kind_of_answer(scene, "mcp.proposal", call_at(to)) == "mcp.proposal"


@pytest.mark.rule("3.names.unknown")
def test_who_is_invited_or_removed_is_known() -> None:
    scene = Scene(PEOPLE, present=("alice",))
    assert kind_of_answer(scene, "mcp.request", TOOL_CALL, to=["guest"]) == "system.error"
    invite(scene, "alice", "guest")
    assert kind_of_answer(scene, "mcp.request", TOOL_CALL, to=["guest"]) == "mcp.request"
    scene.say("alice", "space.kick", {"participant_id": "guest"})
    assert kind_of_answer(scene, "mcp.request", TOOL_CALL, to=["guest"]) == "mcp.request"


@pytest.mark.rule("3.names.unknown")
@pytest.mark.parametrize("left", [True, False])
def test_who_was_here_before_a_restart_is_known(left: bool) -> None:
    scene = Scene(PEOPLE, present=("alice", "tool"))
    if left:
        scene.host.leave(scene.members["tool"])
    fewer = {"alice": EVERYTHING}
    again = Scene(fewer, journal=scene.journal, present=("alice",))
    assert kind_of_answer(again, "mcp.request", TOOL_CALL, to=["tool"]) == "mcp.request"
    anew = Scene(fewer, present=("alice",))
    assert kind_of_answer(anew, "mcp.request", TOOL_CALL, to=["tool"]) == "system.error"


@pytest.mark.rule("3.names.unknown")
def test_who_may_not_send_it_is_told_nothing_of_names() -> None:
    scene = Scene({"alice": [], "tool": EVERYTHING}, present=("alice",))
    errors: list[str] = []
    for name in ("tool", "toll"):
        scene.say("alice", "mcp.request", TOOL_CALL, to=[name])
        errors.append(scene.error("alice")["error"])
    assert errors == ["capability_violation"] * 2


@pytest.mark.rule("3.names.unknown")
@pytest.mark.parametrize(
    ("dialect", "kind", "passes"),
    [
        ("meup/v0.2", "mcp/request", True),
        ("mew/v0.4", "mcp/request", True),
        ("mcpx/v0.1", "mcp", False),
    ],
)
def test_published_dialects_keep_what_their_gateways_do(
    dialect: str, kind: str, passes: bool
) -> None:
    space = SpaceState({name: member_capabilities(each) for name, each in PEOPLE.items()})
    space.join("alice", dialect=dialect)
    frame = frame_by("alice", kind, {**TOOL_CALL, "id": 1}, protocol=dialect, to=["toll"])
    assert isinstance(space.decide("alice", frame, dialect), Acceptance) is passes
