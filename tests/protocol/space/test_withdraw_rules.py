"""Withdraws and rejects at a gateway: which are refused, and which are announced."""

import pytest

from tests.protocol.space.scene import Scene, kinds_of


@pytest.mark.rule("3.withdraw.named")
@pytest.mark.parametrize("kind", ["mcp.withdraw", "mcp.reject"])
def test_withdraw_or_reject_that_names_no_proposal_is_refused(kind: str) -> None:
    scene = Scene()
    scene.say("admin", kind, {"reason": "busy"})
    assert scene.error("admin")["error"] == "invalid_envelope"


@pytest.mark.rule("3.withdraw.announced")
def test_withdrawal_that_takes_effect_is_announced_where_the_space_asks_for_it() -> None:
    scene = Scene(announce_withdrawals=True)
    proposal = scene.say(
        "worker", "mcp.proposal", {"method": "tools/call", "params": {"name": "x"}}
    )
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
    proposal = scene.say(
        "worker", "mcp.proposal", {"method": "tools/call", "params": {"name": "x"}}
    )
    scene.forget()
    scene.say("worker", "mcp.withdraw", {"reason": "busy"}, correlationId=proposal)
    assert kinds_of(scene.got("onlooker")) == ["mcp.withdraw"]
