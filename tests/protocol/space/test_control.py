"""Pauses and shutdowns to which a gateway holds a participant, without a loop."""

import json
from typing import Any

import pytest

from meup_agent.protocol.space.state.control import PAUSED_FACT, SHUT_DOWN_FACT
from tests.protocol.space.scene import Scene, facts, kinds_of
from tests.spaces import MemoryJournal

BOSS = [{"kind": "participant/*"}, {"kind": "chat"}]
WORKS: list[dict[str, Any]] = [
    {"kind": "mcp/*"},
    {"kind": "chat"},
    {"kind": "chat/*"},
    {"kind": "reasoning/*"},
]
PEOPLE: dict[str, list[dict[str, Any]]] = {
    "boss": BOSS,
    "deputy": [{"kind": "participant/pause"}],
    "worker": WORKS,
    "other": WORKS,
}


class Controlled(Scene):
    def __init__(self, **more: Any) -> None:
        super().__init__(PEOPLE, present=tuple(PEOPLE), **more)

    def pauses(self, by: str = "boss", to: str = "worker", **payload: Any) -> str:
        pause = self.say(by, "participant.pause", payload, to=[to])
        self.forget()
        return pause

    def error_of(self, name: str, kind: str, payload: Any = None, **header: Any) -> str:
        """The code of the error that an envelope gets; empty: it was delivered."""
        self.forget()
        self.say(name, kind, payload, **header)
        (said,) = self.got(name)
        if said["kind"] != "system.error":
            assert said["kind"] == kind
            return ""
        return str(said["payload"]["error"])


@pytest.fixture
def scene() -> Controlled:
    return Controlled()


@pytest.mark.rule("3.control.held")
def test_error_says_who_paused_and_for_how_long(scene: Controlled) -> None:
    pause = scene.pauses(reason="too loud", timeout_seconds=60)
    scene.at = 20.0
    scene.say("worker", "chat", {"message": "hello"})
    error = scene.error("worker")
    assert error.pop("message").startswith("you are paused by 'boss' (too loud), for 40 s more")
    assert error == {
        "error": "paused",
        "id": pause,
        "by": "boss",
        "reason": "too loud",
        "seconds_left": 40.0,
    }


@pytest.mark.rule("3.control.lifted")
def test_pause_ends_at_its_time_or_by_a_resume(scene: Controlled) -> None:
    scene.pauses(timeout_seconds=10)
    scene.at = 9.9
    assert scene.error_of("worker", "chat") == "paused"
    scene.at = 10.0
    assert scene.error_of("worker", "chat") == ""
    pause = scene.pauses()
    scene.say("boss", "participant.resume", {}, to=["worker"], correlationId="another")
    assert scene.error_of("worker", "chat") == "paused"
    scene.say("boss", "participant.resume", {}, to=["worker"], correlationId=pause)
    assert scene.error_of("worker", "chat") == ""
    scene.pauses()
    scene.say("boss", "participant.resume", {}, to=["worker"])
    assert scene.error_of("worker", "chat") == ""


@pytest.mark.rule("3.control.lifted")
def test_paused_participant_cannot_lift_its_pause(scene: Controlled) -> None:
    pause = scene.pauses(timeout_seconds=10)
    for header in ({"to": ["boss"], "correlationId": pause}, {"correlationId": pause}):
        assert scene.error_of("worker", "participant.resume", **header) == "paused"
    for to in (["worker"], ["other"], []):
        refused = scene.error_of("worker", "participant.resume", to=to)
        assert refused == "capability_violation"
    # Nor by a connection of its own, a shorter pause, or one of another participant.
    scene.members["worker"] = scene.join("worker")
    scene.pauses("deputy", timeout_seconds=0.001)
    scene.at = 8.0
    assert scene.error_of("worker", "chat") == "paused"
    # When its time is as good as over it announces that.
    scene.at = 9.5
    announced = {"to": ["boss"], "correlationId": pause}
    assert scene.error_of("worker", "participant.resume", **announced) == ""
    assert scene.error_of("worker", "chat") == ""


@pytest.mark.rule("3.control.lifted")
def test_announcement_lifts_no_pause_of_another(scene: Controlled) -> None:
    pause = scene.say("boss", "participant.pause", {"timeout_seconds": 9}, to=["worker", "other"])
    scene.pauses(to="other", timeout_seconds=90)
    scene.at = 9.0
    assert scene.error_of("worker", "participant.resume", to=["boss"], correlationId=pause) == ""
    both = {"to": ["boss", "other"], "correlationId": pause}
    assert scene.error_of("worker", "participant.resume", **both) == "capability_violation"
    assert scene.error_of("other", "chat") == "paused"


@pytest.mark.rule("3.control.longer")
@pytest.mark.parametrize(
    ("first", "second", "at"), [(10, 5, 9.9), (5, 10, 9.9), (None, 10, 1e6), (10, None, 1e6)]
)
def test_of_two_pauses_the_longer_holds(
    scene: Controlled, first: Any, second: Any, at: float
) -> None:
    scene.pauses(timeout_seconds=first)
    scene.pauses("deputy", timeout_seconds=second)
    scene.at = at
    assert scene.error_of("worker", "chat") == "paused"
    # Its own, the one that paused changes as it likes.
    scene.pauses(timeout_seconds=1e6)
    by = "boss" if first is None or (second is not None and first > second) else "deputy"
    scene.pauses(by, timeout_seconds=1)
    scene.at += 1.0
    expected = "paused" if by == "deputy" and second is not None else ""
    assert scene.error_of("worker", "chat") == expected


@pytest.mark.rule("3.control.answers")
def test_who_is_let_go_on_tells_its_status_without_a_capability(scene: Controlled) -> None:
    pause = scene.pauses()
    resumed = scene.say("boss", "participant.resume", {}, to=["worker"], correlationId=pause)
    answer = {"to": ["boss"], "correlationId": resumed}
    status = {"status": "active"}
    assert scene.error_of("worker", "participant.status", status, **answer) == ""
    assert scene.error_of("other", "participant.status", status, **answer)


@pytest.mark.rule("3.control.answers", "3.control.restart")
@pytest.mark.parametrize("restarted", [False, True])
def test_answer_takes_none(restarted: bool) -> None:
    journal = MemoryJournal(lambda: 0)
    scene = Controlled(journal=journal)
    asked = scene.say("boss", "participant.request-status", {}, to=["worker"], id="asked")
    answer = {"to": ["boss"], "correlationId": asked}
    if restarted:
        scene = Controlled(journal=journal)
    scene.pauses()
    for kind in ("participant.status", "participant.compact-done"):
        assert scene.error_of("worker", kind, {"status": "paused"}, **answer, id=kind) == ""
        assert scene.error_of("other", kind, {}, **answer, id="o") == "capability_violation"
        assert scene.error_of("worker", kind, {}, id="w") == "capability_violation"


@pytest.mark.rule("3.control.payload")
@pytest.mark.parametrize(
    ("kind", "payload", "header", "code"),
    [
        ("pause", {}, {"to": []}, "invalid_envelope"),
        ("shutdown", {}, {"to": []}, "invalid_envelope"),
        ("pause", {}, {"to": ["worker", "nobody"]}, "unknown_participant"),
        ("pause", {"timeout_seconds": 0}, {}, "invalid_envelope"),
        ("pause", {"timeout_seconds": True}, {}, "invalid_envelope"),
        ("pause", {"timeout_seconds": 1e300}, {}, "invalid_envelope"),
        ("pause", {"timeout_seconds": "1"}, {}, "invalid_envelope"),
        ("pause", {"timeout_seconds": -(10**300)}, {}, "invalid_envelope"),
        ("pause", {"reason": "x" * 1001}, {}, "invalid_envelope"),
        ("forget", {"direction": "all"}, {}, "invalid_envelope"),
        ("forget", {"entries": -1}, {}, "invalid_envelope"),
        ("compact", {"target_tokens": 1.5}, {}, "invalid_envelope"),
        ("request-status", {"fields": "tokens"}, {}, "invalid_envelope"),
    ],
)
def test_control_that_cannot_be_meant_is_refused(
    scene: Controlled, kind: str, payload: Any, header: dict[str, Any], code: str
) -> None:
    said = {"to": ["worker"], **header}
    assert scene.error_of("boss", f"participant.{kind}", payload, **said) == code
    assert scene.error_of("worker", "chat") == ""


@pytest.mark.rule("3.control.restart")
def test_pause_and_shutdown_outlive_the_gateway() -> None:
    journal = MemoryJournal(lambda: 0)
    first = Controlled(journal=journal)
    first.pauses(timeout_seconds=60)
    first.say("boss", "participant.shutdown", {}, to=["other"])
    assert facts(journal, SHUT_DOWN_FACT).keys() == {SHUT_DOWN_FACT + "other"}
    again = Controlled(journal=journal)  # all join, which ends the shutdown
    again.at = 59.0
    assert again.error_of("worker", "chat") == "paused"
    assert again.error_of("other", "chat") == ""
    assert not facts(journal, SHUT_DOWN_FACT)
    again.at = 60.0
    assert again.error_of("worker", "chat") == ""


@pytest.mark.rule("3.control.bounded")
def test_many_pauses_are_kept_as_one(scene: Controlled) -> None:
    for _ in range(1_500):
        scene.pauses(timeout_seconds=60)
    assert facts(scene.journal, PAUSED_FACT).keys() == {PAUSED_FACT + "worker"}
    asked = scene.host.owner._state.control._asked  # pyright: ignore[reportPrivateUsage]
    assert len(asked.by_id) == 1_000


@pytest.mark.rule("3.control.held")
def test_paused_participants_go_on_controlling(scene: Controlled) -> None:
    scene.pauses("deputy", to="boss")
    assert scene.error_of("boss", "participant.pause", to=["deputy"]) == ""
    assert scene.error_of("boss", "participant.resume", to=["boss"]) == "paused"
    scene.forget()
    scene.say("boss", "participant.pause", to=["deputy", "worker"])
    assert kinds_of(scene.got("worker")) == ["participant.pause"]
    assert json.dumps(facts(scene.journal, PAUSED_FACT))
