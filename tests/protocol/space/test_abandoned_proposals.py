"""Proposals that no participant waits for any more keep no room (PROTOCOL 3)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meup_agent.protocol.space.state.rules import ABANDONED_CHECK_SECONDS
from meup_agent.protocol.space.state.streams import GONE_SECONDS, JoinState
from tests.spaces import OPEN_SECONDS, Acceptance, Allowance, SpaceState, member_capabilities
from tests.wire import draft, encode

NEW = JoinState()
BACK = JoinState(0)
EVERYTHING = member_capabilities([{"kind": "*"}])
SECOND = 1_000_000


class Scene:
    """A space in which alice may keep two proposals open, and a clock."""

    def __init__(self) -> None:
        self.at = 1_700_000_000 * SECOND
        self.space = SpaceState(
            {"alice": EVERYTHING, "bob": EVERYTHING},
            allowance=Allowance(max_open_proposals=2, withdrawals_burst=5),
            now=lambda: self.at,
        )
        self._number = 0

    def later(self, seconds: float) -> None:
        self.at += round(seconds * SECOND)

    def say(self, kind: str, sender: str, payload: dict[str, Any], **header: Any) -> bool:
        self._number += 1
        envelope_id = f"x{self._number:x}y"
        envelope = draft(kind, payload, id=envelope_id, sender=sender, **header)
        decision = self.space.decide(sender, encode(envelope, "meup/v0.1"), "meup/v0.1")
        return isinstance(decision, Acceptance)

    def propose(self, ttl: float | None = None) -> bool:
        """True where alice may propose now."""
        params: dict[str, Any] = {"name": "write"}
        if ttl is not None:
            ends = datetime.fromtimestamp(self.at / SECOND, UTC) + timedelta(seconds=ttl)
            params["_meta"] = {"dev.meup/expires_at": ends.isoformat()}
        return self.say("mcp/proposal", "alice", {"method": "tools/call", "params": params})

    def fill(self, ttl: float | None = None) -> None:
        assert [self.propose(ttl) for _ in range(3)] == [True, True, False]
        self.later(ABANDONED_CHECK_SECONDS)


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.rule("3.open.ghosts")
def test_what_has_certainly_expired_makes_room(scene: Scene) -> None:
    scene.fill(ttl=10)
    scene.later(60)
    assert not scene.propose()
    scene.later(11)
    assert [scene.propose() for _ in range(3)] == [True, True, False]


@pytest.mark.rule("3.open.ghosts")
def test_what_a_process_left_behind_makes_room_when_another_has_begun(scene: Scene) -> None:
    scene.space.join("alice", NEW)
    scene.fill()
    scene.space.leave("alice")
    scene.space.join("alice", NEW)
    assert [scene.propose() for _ in range(3)] == [True, True, False]


@pytest.mark.rule("3.open.ghosts")
def test_what_was_left_for_long_makes_room_whoever_comes_back(scene: Scene) -> None:
    scene.space.join("alice", NEW)
    scene.fill()
    scene.space.leave("alice")
    scene.later(GONE_SECONDS)
    scene.space.join("alice")
    assert scene.propose()
    # The proposer alone can still withdraw what made room.
    assert scene.say("mcp/withdraw", "alice", {"reason": "other"}, correlation=("x1y",))
    assert not scene.say("mcp/withdraw", "bob", {"reason": "other"}, correlation=("x1y",))


@pytest.mark.rule("3.open.ghosts")
@pytest.mark.parametrize("join_state", [BACK, JoinState(can_resume=False)])
def test_who_comes_back_soon_has_them_open_still(scene: Scene, join_state: JoinState) -> None:
    scene.space.join("alice", NEW)
    scene.later(GONE_SECONDS)
    scene.fill()
    scene.space.leave("alice")
    scene.later(GONE_SECONDS - 1)
    scene.space.join("alice", join_state)
    scene.later(10 * GONE_SECONDS)
    assert not scene.propose()
    scene.later(OPEN_SECONDS)
    assert scene.propose()


@pytest.mark.rule("3.open.ghosts", "4.2.new_process")
def test_what_ends_with_a_process_counts_in_the_pace_of_its_participant(scene: Scene) -> None:
    for _ in range(3):
        scene.space.join("alice", NEW)
        assert [scene.propose() for _ in range(2)] == [True, True]
        assert scene.space.limiter.consume("alice", scene.at, 1) is None
    scene.space.join("alice", NEW)
    over = scene.space.limiter.consume("alice", scene.at, 1)
    assert over is not None
    assert over.limit == "withdrawals_per_second"


def test_what_somebody_carries_out_is_no_ghost(scene: Scene) -> None:
    scene.space.join("alice")
    scene.fill()
    call = {"method": "tools/call", "params": {"name": "write"}, "id": 1}
    assert scene.say("mcp/request", "bob", call, to=("alice",), correlation=("x1y",))
    scene.space.leave("alice")
    scene.later(GONE_SECONDS)
    scene.space.join("alice")
    assert [scene.propose() for _ in range(3)] == [True, False, False]


def test_after_a_restart_who_does_not_come_back_has_left(scene: Scene) -> None:
    scene.fill()
    scene.space.restart(scene.at)
    assert not scene.propose()
    scene.later(GONE_SECONDS)
    assert scene.propose()
