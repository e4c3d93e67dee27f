"""A restart after a month: what may still be decided is decided as if nothing had happened."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.journal.conftest import Clock, MakeJournal, opened, settled
from tests.protocol.space.scene import Scene
from tests.spaces import (
    Entry,
    Journal,
    MemoryJournal,
    Recovered,
    Refusal,
    SpaceCounters,
    SpaceFold,
    SpaceParameters,
)
from tests.wire import draft

DAY = 86_400
CAPABILITIES: dict[str, list[dict[str, Any]]] = {
    name: [{"kind": "mcp/*"}, {"kind": "chat"}] for name in ("alice", "bob", "carol")
}
CALL: dict[str, Any] = {"method": "tools/call", "params": {"name": "write"}}


def started(journal: Journal, at: float) -> Scene:
    return Scene(CAPABILITIES, journal=journal, present=(), at=at)


def propose(scene: Scene, id: str, days: int | None) -> None:
    ttl = {} if days is None else {"ttl": days * DAY * 1_000}
    scene.say("alice", "mcp/proposal", {**CALL, **ttl}, id=id)


def request(scene: Scene, id: str, proposal: str) -> None:
    scene.say(
        "bob", "mcp/request", {**CALL, "id": id}, id=id, to=["carol"], correlation_id=proposal
    )


def refusals(scene: Scene) -> list[str]:
    """The codes of what was refused since the last time."""
    said, scene.refused = scene.refused, []
    return [each.code for each in said if isinstance(each, Refusal)]


@pytest.mark.thorough
@pytest.mark.rule("9.open")
@pytest.mark.parametrize("bound", ["", "MAX_ROUNDS", "MAX_CHAINED", "MAX_CHAINED_BYTES"])
async def test_what_is_open_is_known_after_a_month(
    make_durable: MakeJournal, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bound:  # more was said than is read by its names
        monkeypatch.setattr(f"meup_agent.gateway.journal.decisions.{bound}", 1)
    async with make_durable() as journal:
        before = started(journal, 0.0)
        for id, days in {"waits": 60, "short": 20, "asked": 60, "taken-back": 60}.items():
            propose(before, id, days)
        propose(before, "endless", None)
        before.at = DAY
        propose(before, "renewed", 2)
        until = {"expires_at": "1970-01-08T00:00:00Z"}
        before.say("alice", "mcp/renew", until, correlation_id="renewed")
        request(before, "r-asked", "asked")
        before.say("alice", "mcp/withdraw", {"reason": "other"}, correlation_id="taken-back")
        assert refusals(before) == []
        await settled(journal)
    async with make_durable() as journal:
        within = started(journal, 6.5 * DAY)
        assert "renewed" in {each.envelope.id for each in within.host.owner.in_flight}
    async with make_durable() as journal:
        after = started(journal, 30 * DAY)
        at = round(after.at * 1e6)
        pending = (each for each in after.host.owner.in_flight if each.state_at(at).is_pending)
        open_now = {each.envelope.id for each in pending}
        assert {"waits", "asked", "r-asked"} <= open_now
        assert not {"short", "taken-back", "renewed"} & open_now
        after.say(
            "carol", "mcp/response", {"result": {}, "id": "r-asked"}, correlation_id="r-asked"
        )
        request(after, "r-waits", "waits")
        await settled(journal)
        assert refusals(after) == []
        # It was decided a moment ago, by an answer to a request of a month ago.
        request(after, "r-again", "asked")
        await settled(journal)
        assert refusals(after) == ["not_pending"]


@pytest.mark.thorough
@pytest.mark.rule("9.open")
@pytest.mark.parametrize("kind", ["mcp/reject", "chat"])
async def test_what_is_said_about_a_proposal_is_not_held_at_once(
    path: Path, clock: Clock, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, size = 50, 1_000_000
    monkeypatch.setattr("meup_agent.gateway.journal.decisions.MAX_CHAINED_BYTES", 2 * size)
    async with opened(path, clock) as journal:
        before = started(journal, 0.0)
        propose(before, "waits", 60)
        for number in range(count):
            said = {"reason": "other", "message": f"{number}{'x' * size}"}
            before.say("bob", kind, said, correlation_id="waits")
        await settled(journal)
        assert refusals(before) == []
    async with opened(path, clock) as journal:
        tracemalloc.start()
        try:
            after = started(journal, 30 * DAY)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert [each.envelope.id for each in after.host.owner.in_flight] == ["waits"]
        assert most < count * size / 2


@pytest.mark.thorough
@pytest.mark.rule("9.open")
def test_a_start_keeps_nothing_of_proposals_that_have_ended() -> None:
    count, most = 5_000, 500_000

    class Ended(MemoryJournal):
        def recover(self, space: str, **_: Any) -> Recovered:
            proposals = (draft("mcp/proposal", CALL, id="p", sender="alice") for _ in range(count))
            return Recovered({}, (), (Entry(n, space, n, p) for n, p in enumerate(proposals, 1)))

    def now() -> int:
        return 2 * count

    fold = SpaceFold(SpaceParameters("demo", {}, Ended(now), str, now, SpaceCounters()))
    tracemalloc.start()
    try:
        state = fold.recover(Ended(now), "demo")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [each.envelope.id for each in state.open.open_in_order()] == ["p"]
    assert kept < most
