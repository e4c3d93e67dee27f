"""Grants, invitations, removals and revocations outlive a restart of the gateway."""

import pytest

from tests.protocol.space.scene import (
    CALL,
    CAPABILITIES,
    GRANTING,
    READ,
    CutOff,
    Scene,
    facts,
    invite,
)
from tests.spaces import Journal


@pytest.mark.rule("3.manage.restart")
def test_everything_outlives_a_restart(scene: Scene) -> None:
    grant = scene.grant("lead", "worker", CALL, GRANTING)
    onward = scene.grant("worker", "onlooker", READ)
    invite(scene, "lead", "guest", {"kind": "chat"})
    scene.revoke("admin", {"recipient": "worker", "capabilities": [{"kind": "mcp/proposal"}]})
    proposal = scene.propose("admin")
    scene.say("lead", "space.kick", {"participant_id": "lead"})
    again = Scene(journal=scene.journal, present=("admin", "worker"))
    assert again.may("worker")
    assert not again.may("worker", {"kind": "mcp/proposal"})
    assert again.may("onlooker", READ)
    assert again.may("guest", {"kind": "chat"})
    assert again.invites.admitted == scene.invites.admitted
    assert again.host.owner.is_kicked("lead")
    # Who was granted something may still say so, and nobody else takes back what was proposed.
    again.say("worker", "capability.grant-ack", {"status": "accepted"}, correlationId=grant)
    again.say("worker", "mcp.withdraw", {"reason": "busy"}, correlationId=proposal)
    assert [each["payload"].get("error") for each in again.got("worker")] == [None, "not_proposer"]
    again.revoke("admin", {"grant_id": grant})
    assert not again.may("onlooker", READ)
    assert f"grant/{onward}" not in facts(scene.journal)


@pytest.mark.rule("3.manage.restart")
def test_grant_that_its_granter_could_not_give_now_holds_no_more(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    grant = scene.grant("lead", "worker", CALL)
    stays = scene.grant("lead", "worker", {"kind": "chat"})
    less = {**CAPABILITIES, "lead": [{"kind": "chat"}]}
    again = Scene(less, journal=scene.journal)
    assert not again.may("worker")
    assert again.may("worker", {"kind": "chat"})
    assert grant in caplog.text
    assert stays not in caplog.text


def ended(journal: Journal) -> list[str]:
    """The exchanges that the gateway has ended in the name of others, by kind."""
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
    scene.request()
    scene.propose()
    journal.left = 1
    scene.revoke("admin", {"recipient": "worker", "capabilities": [{"kind": "mcp/*"}]})
    assert ended(journal) == []
    journal.left = None
    for _ in range(2):
        Scene(journal=journal)
        assert ended(journal) == ["mcp/request", "mcp/withdraw"]


@pytest.mark.rule("3.manage.restart")
def test_what_the_configuration_allows_no_more_is_ended(scene: Scene) -> None:
    scene.request("lead")
    scene.propose()
    less = {name: each for name, each in CAPABILITIES.items() if name != "lead"}
    Scene(less, journal=scene.journal)
    assert ended(scene.journal) == ["mcp/request"]
