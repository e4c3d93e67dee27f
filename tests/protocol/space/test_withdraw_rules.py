"""Withdraws and rejects at a gateway: which are refused, and which are announced."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.protocol.space.scene import CAPABILITIES, Scene, kinds_of
from tests.spaces import SPARE_DEADLINES, MemoryJournal


@pytest.mark.rule("3.withdraw.named")
@pytest.mark.parametrize("kind", ["mcp.withdraw", "mcp.reject"])
def test_withdraw_or_reject_that_names_no_proposal_is_refused(kind: str) -> None:
    scene = Scene()
    scene.say("admin", kind, {"reason": "busy"})
    assert scene.error("admin")["error"] == "invalid_envelope"


@pytest.mark.rule("3.withdraw.announced")
@pytest.mark.parametrize("announces", [True, False])
def test_withdrawal_that_takes_effect_is_announced_where_the_space_asks(announces: bool) -> None:
    scene = Scene(announce_withdrawals=announces)
    proposal = scene.propose()
    scene.forget()
    for _ in range(2):
        withdraw(scene, proposal, "busy")
    said = scene.got("onlooker")
    notices = ["system.withdrawn"] if announces else []
    assert kinds_of(said) == ["mcp.withdraw", *notices, "mcp.withdraw"]
    for notice in said[1:-1]:
        assert notice["payload"] == {"proposal_id": proposal, "by": "worker", "reason": "busy"}
        assert notice["correlationId"] == proposal
    # The late one is silent: no notice, and no error.
    assert "system.error" not in kinds_of(scene.got("worker"))


DEADLINE = 100.0
REJECTED_BY = "dev.meup/rejected_by"


def propose(scene: Scene, *, to: list[str] | None = None, expires: bool = True) -> str:
    moment = datetime.fromtimestamp(DEADLINE, tz=UTC).isoformat()
    meta = {"_meta": {"dev.meup/expires_at": moment}} if expires else {}
    call = {"method": "tools/call", "params": {"name": "x", **meta}}
    header: dict[str, Any] = {"to": to} if to else {}
    return scene.say("worker", "mcp.proposal", call, **header)


def announcing(to: list[str] | None = None) -> tuple[Scene, str]:
    scene = Scene(CAPABILITIES | {"lead": [{"kind": "mcp/reject"}]}, announce_withdrawals=True)
    proposal = propose(scene, to=to)
    scene.forget()
    return scene, proposal


def withdraw(scene: Scene, proposal: str, reason: str, **meta: Any) -> None:
    payload = {"reason": reason, **({"_meta": meta} if meta else {})}
    scene.say("worker", "mcp.withdraw", payload, correlationId=proposal)


def notice(proposal: str, kind: str = "expired") -> list[tuple[str, dict[str, Any]]]:
    return [(f"system.{kind}", {"proposal_id": proposal, "by": "worker", "reason": "timeout"})]


def announced(scene: Scene) -> list[tuple[str, dict[str, Any]]]:
    said = scene.got("onlooker")
    return [(each["kind"], each["payload"]) for each in said if each["from"] == "system:gateway"]


def state_told(scene: Scene, proposal: str) -> str:
    """The state that the gateway tells who would carry a proposal out."""
    scene.got("admin")
    request = {"method": "tools/call", "params": {"name": "x"}}
    asked = f"asked about {proposal}"
    scene.say("admin", "mcp.request", request, id=asked, to=["lead"], correlationId=proposal)
    error = scene.error("admin")
    assert error["error"] == "not_pending"
    return str(error["state"])


@pytest.mark.rule("3.withdraw.announced")
@pytest.mark.parametrize(
    ("at", "kind"),
    [(at, "expired") for at in (DEADLINE - 0.5, DEADLINE, DEADLINE + 30)] + [(0, "withdrawn")],
)
def test_a_withdraw_for_its_deadline_is_announced_as_an_expiry(at: float, kind: str) -> None:
    scene, proposal = announcing()
    scene.at = at
    withdraw(scene, proposal, "timeout")
    assert announced(scene) == notice(proposal, kind)
    scene.at = at + 1_000
    scene.host.owner.expire()
    assert announced(scene) == [], "once"
    assert state_told(scene, proposal) == kind


@pytest.mark.rule("3.withdraw.announced")
def test_an_expiry_of_which_no_participant_tells_is_announced_once_and_over_a_restart() -> None:
    scene = Scene(announce_withdrawals=True)
    first, second = propose(scene), propose(scene)
    scene.forget()
    scene.at = DEADLINE + 59
    scene.host.owner.expire()
    assert announced(scene) == [], "a request may still be in time"
    renewed = datetime.fromtimestamp(DEADLINE + 500, tz=UTC).isoformat()
    scene.say("worker", "mcp.renew", {"expires_at": renewed}, correlationId=second)
    scene.at = DEADLINE + 61
    scene.host.owner.expire()
    assert announced(scene) == notice(first)
    withdraw(scene, first, "timeout")
    assert announced(scene) == [], "its proposer comes late"

    again = Scene(announce_withdrawals=True, journal=scene.journal)
    again.at = DEADLINE + 600
    again.host.owner.expire()
    assert announced(again) == notice(second)
    assert state_told(again, first) == "expired"


class EndsJournal(MemoryJournal):
    """Notes by which kind of entry which proposals end."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.ends: list[tuple[str, list[str]]] = []

    def append(self, *said: Any) -> None:
        _, _, envelope, _, _, changes = said
        if ended := [each.id for each in changes if each.ended]:
            self.ends.append((envelope.kind, ended))
        super().append(*said)


@pytest.mark.rule("9.decisions")
def test_an_expiry_is_kept_with_its_own_announcement() -> None:
    journal = EndsJournal()
    scene = Scene(announce_withdrawals=True, journal=journal)
    first, second = propose(scene), propose(scene)
    scene.at = DEADLINE + 61
    scene.host.owner.expire()
    assert journal.ends == [("system/expired", [first]), ("system/expired", [second])]


@pytest.mark.rule("3.withdraw.announced")
def test_a_proposal_in_progress_is_not_announced_as_expired_before_it_waits_again() -> None:
    scene, proposal = announcing()
    request = {"method": "tools/call", "params": {"name": "x"}}
    asked = scene.say("admin", "mcp.request", request, to=["lead"], correlationId=proposal)
    scene.forget()
    scene.at = DEADLINE + 1_000
    scene.host.owner.expire()
    assert announced(scene) == []
    cancel = {"method": "notifications/cancelled", "params": {"requestId": asked}}
    scene.say("admin", "mcp.request", cancel, to=["lead"])
    assert announced(scene) == notice(proposal)


@pytest.mark.rule("3.withdraw.announced")
@pytest.mark.parametrize("to", [None, ["lead"]])
def test_a_withdraw_behind_the_rejection_that_ended_the_wait_is_a_rejection(
    to: list[str] | None,
) -> None:
    scene, proposal = announcing(to)
    scene.say("lead", "mcp.reject", {"reason": "unsafe"}, correlationId=proposal)
    scene.say("admin", "mcp.reject", {"reason": "busy"}, correlationId=proposal)
    withdraw(scene, proposal, "no_longer_needed")
    assert announced(scene) == []
    assert state_told(scene, proposal) == "rejected"


@pytest.mark.parametrize(
    ("by", "meta"),
    [("lead", {REJECTED_BY: None}), ("admin", {}), ("", {REJECTED_BY: "lead"})],
    ids=["its proposer says so", "not asked", "by the word of its proposer alone"],
)
def test_a_withdraw_is_one_where_no_rejection_ended_the_wait(by: str, meta: dict[str, Any]) -> None:
    scene, proposal = announcing(["lead"])
    if by:
        scene.say(by, "mcp.reject", {"reason": "busy"}, correlationId=proposal)
    withdraw(scene, proposal, "no_longer_needed", **meta)
    assert state_told(scene, proposal) == "withdrawn"


@pytest.mark.thorough
def test_a_flood_of_ended_proposals_with_late_deadlines_is_sorted_out() -> None:
    scene = Scene(announce_withdrawals=True)
    for _ in range(2 * SPARE_DEADLINES):
        withdraw(scene, propose(scene), "other")
    # The space looks at no more than is open, and what may be sorted out.
    heap = scene.host.owner._state.open._deadlines
    assert heap is not None
    assert len(heap._heap) <= SPARE_DEADLINES + 1
