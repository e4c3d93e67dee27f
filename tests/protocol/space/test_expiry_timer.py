"""The gateway looks for what has expired when the next deadline is over (PROTOCOL 4.2)."""

from meup_agent.protocol.wire.envelope import rfc3339
from tests.protocol.space.stream_scene import SECOND, StreamScene
from tests.wire import StreamFrame

CLOCKS = 60
"""Seconds by which two clocks may differ."""


def propose(scene: StreamScene, seconds: float) -> str:
    ends = rfc3339(scene.at + round(seconds * SECOND))
    params = {"name": "write", "_meta": {"dev.meup/expires_at": ends}}
    return scene.say("ann", "mcp/proposal", {"method": "tools/call", "params": params})


def expired(scene: StreamScene) -> list[str]:
    heard = [said for said in scene.readers["bob"].heard() if not isinstance(said, StreamFrame)]
    return [payload["proposal_id"] for kind, payload in heard if kind == "system/expired"]


def test_a_nearer_deadline_does_not_wait_for_the_timer_of_a_later_one() -> None:
    scene = StreamScene(announces=True)
    scene.join("ann", "bob")
    propose(scene, 3_600)
    later = len(scene.later)
    soon = propose(scene, 10 - CLOCKS)
    (timer,) = scene.later[later:]
    assert 10 <= timer.seconds < 11
    scene.at += 11 * SECOND
    timer.then()
    assert expired(scene) == [soon]
