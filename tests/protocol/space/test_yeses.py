"""Scoped yeses at the gateway: given at a proposal, counted by their uses, without a loop."""

from random import Random
from typing import Any

import pytest

from tests.effort import scaled
from tests.protocol.space.scene import CutOff, Scene, facts
from tests.wire import payloads

MCP = [{"kind": "mcp/request"}, {"kind": "mcp/reject"}, {"kind": "yes/*"}]
PEOPLE: dict[str, list[dict[str, Any]]] = {
    "ann": MCP,
    "bob": MCP,
    "admin": [{"kind": "*"}],
    "reviewer": [{"kind": "mcp/request"}],
    "agent": [{"kind": "mcp/proposal"}],
    "other": [{"kind": "mcp/proposal"}],
    "reader": [{"kind": "mcp/request", "payload": {"params": {"name": "read_*"}}}],
    "files": [],
}


class Yeses(Scene):
    def __init__(self, **more: Any) -> None:
        super().__init__(PEOPLE, present=tuple(PEOPLE), **more)
        self.digests: dict[str, str | None] = {}

    def proposes(
        self, path: str = "/a/x", *, by: str = "agent", tool: str = "write_file", **more: Any
    ) -> str:
        wanted = call(path, tool, {"dev.meup/target": "files"})
        proposal = self.say(by, "mcp.proposal", wanted, **more)
        self.digests[proposal] = payloads.digest("tools/call", wanted["params"], "files")
        self.forget()
        return proposal

    def gives(self, proposal: str, by: str = "ann", *, id: str = "", **terms: Any) -> str:
        """The id of a yes that was given; else the error's code with its first words."""
        usual = {"proposer": "agent", "seconds": 3600, "most": 2, "form": "f" * 64}
        usual |= {"arguments": {"path": "/a/*"}, "digest": self.digests.get(proposal, "unknown")}
        given = {key: each for key, each in (usual | terms).items() if each is not None}
        sent = self.say(by, "yes.give", given, id=id, correlationId=proposal)
        return self.outcome(by) or sent

    def uses(
        self, yes: object, proposal: str, path: str = "/a/x", *, by: str = "reviewer", **more: Any
    ) -> str:
        """The state of a refused use; empty: it was accepted."""
        meta = {"dev.meup/yes": yes, "dev.meup/proposer": more.pop("proposer", "agent")}
        payload = call(path, more.pop("tool", "write_file"), meta)
        header: dict[str, Any] = {"to": ["files"], "correlationId": proposal, **more}
        self.forget()
        self.say(by, "mcp.request", payload, **header)
        return self.outcome(by)

    def outcome(self, who: str) -> str:
        (said,) = self.got(who)
        self.forget()
        if said["kind"] != "system.error":
            return ""
        payload = said["payload"]
        return str(payload.get("state") or payload["error"])

    def use_new(self, yes: object, path: str = "/a/x", **more: Any) -> str:
        by = more.get("proposer", "agent")
        return self.uses(yes, self.proposes(path, by=by), path, **more)

    def listed(self, asker: str = "ann") -> list[dict[str, Any]]:
        self.forget()
        self.say(asker, "yes.list", {})
        (said,) = self.got(asker)
        assert said["kind"] == "yes.listed"
        yeses: list[dict[str, Any]] = said["payload"]["yeses"]
        return yeses


def call(path: str, tool: str, meta: dict[str, Any]) -> dict[str, Any]:
    arguments = {"path": path}
    return {"method": "tools/call", "params": {"name": tool, "arguments": arguments, "_meta": meta}}


@pytest.fixture
def scene() -> Yeses:
    return Yeses()


@pytest.mark.rule("5.yes.count")
def test_use_is_the_request_that_names_it_and_one_too_many_is_refused(scene: Yeses) -> None:
    yes = scene.gives(scene.proposes())
    assert scene.use_new(yes, "/a/y") == ""
    assert [each["used"] for each in scene.listed()] == [1]
    assert scene.use_new(yes, "/a/z") == ""
    assert scene.use_new(yes, "/a/x") == "used_up"
    (said,) = scene.listed("agent")
    assert (said["state"], said["used"], said["most"], said["by"]) == ("used_up", 2, 2, "ann")


@pytest.mark.rule("5.yes.count")
def test_one_proposal_uses_it_once(scene: Yeses) -> None:
    yes, proposal = scene.gives(scene.proposes()), scene.proposes()
    assert scene.uses(yes, proposal) == ""
    assert scene.uses(yes, proposal, by="bob") == "not_covered"
    assert [each["used"] for each in scene.listed()] == [1]


@pytest.mark.rule("5.yes.scope")
def test_it_covers_calls_of_its_tool_arguments_and_proposer_alone(scene: Yeses) -> None:
    at = scene.proposes()
    yes = scene.gives(at)
    for path in ("/b/x", "/a/b/x", "/a/../b", "/a/.x"):
        assert scene.use_new(yes, path) == "not_covered", path
    assert scene.use_new(yes, proposer="other") == "not_covered"
    assert scene.uses(yes, scene.proposes(tool="move_file"), tool="move_file") == "not_covered"
    # The giver decides the one at which it was given.
    assert scene.uses(yes, at) == "not_covered"
    # The request is the call that was proposed, at its target.
    assert scene.uses(yes, scene.proposes("/a/y"), "/a/x") == "not_covered"
    assert scene.uses(yes, scene.proposes(), to=["bob"]) == "not_covered"
    assert scene.uses(yes, "unknown") == "not_covered"
    assert [each["used"] for each in scene.listed()] == [0]
    assert scene.use_new(yes) == ""


@pytest.mark.rule("5.yes.end")
def test_it_ends_with_its_time_and_by_a_revocation(scene: Yeses) -> None:
    yes = scene.gives(scene.proposes())
    scene.at = 3600.0
    assert scene.use_new(yes) == "expired"
    other = scene.gives(scene.proposes())
    assert [each["id"] for each in scene.listed()] == [other]  # what is over is dropped
    scene.say("agent", "yes.revoke", {"yes_id": other})
    assert scene.outcome("agent") == "invalid_yes"
    scene.say("bob", "yes.revoke", {"yes_id": other})
    assert scene.outcome("bob") == ""
    assert scene.use_new(other) == "unknown"
    scene.say("bob", "yes.revoke", {"yes_id": other})
    assert scene.outcome("bob") == "unknown_yes"
    assert not facts(scene.journal, "yes/")


@pytest.mark.rule("5.yes.giver")
def test_it_is_given_by_one_that_may_carry_the_call_out(scene: Yeses) -> None:
    proposal = scene.proposes()
    for by in ("agent", "other", "reader", "files"):
        assert scene.gives(proposal, by) == "invalid_yes"
    assert scene.gives("unknown") == "invalid_yes"
    assert scene.gives(proposal, proposer="other") == "invalid_yes"
    scene.say("agent", "mcp.withdraw", {"reason": "busy"}, correlationId=proposal)
    scene.forget()
    assert scene.gives(proposal) == "invalid_yes"


@pytest.mark.rule("5.yes.giver")
def test_what_its_giver_may_no_longer_it_does_not_either(scene: Yeses) -> None:
    yes, kicked = scene.gives(scene.proposes()), scene.gives(scene.proposes(), "bob")
    what = {"recipient": "ann", "capabilities": [{"kind": "mcp/request"}]}
    scene.say("admin", "capability.revoke", what)
    assert scene.use_new(yes) == "not_covered"
    scene.say("admin", "space.kick", {"participant_id": "bob"})
    scene.say("admin", "space.invite", {"participant_id": "bob"})
    assert scene.use_new(kicked) == "unknown"


@pytest.mark.rule("5.yes.giver")
def test_while_its_giver_is_paused_it_lets_nothing_through(scene: Yeses) -> None:
    yes = scene.gives(scene.proposes())
    scene.say("admin", "participant.pause", {}, to=["ann"])
    assert scene.use_new(yes) == "not_covered"
    scene.say("admin", "participant.resume", {}, to=["ann"])
    assert scene.use_new(yes) == ""


@pytest.mark.rule("5.yes.giver")
@pytest.mark.parametrize("removed", ["ann", "agent", "files"])
def test_it_ends_as_one_whom_it_is_about_is_removed(scene: Yeses, removed: str) -> None:
    scene.gives(scene.proposes())
    scene.say("admin", "space.kick", {"participant_id": removed})
    assert scene.listed("bob") == []
    assert not facts(scene.journal, "yes/")


@pytest.mark.rule("5.yes.terms")
def test_tool_with_a_long_name_gets_none(scene: Yeses) -> None:
    """Else a few of them would make a list that no frame has room for."""
    assert scene.gives(scene.proposes(tool="n" * 257)) == "invalid_yes"
    assert scene.gives(scene.proposes(tool="n" * 256)) != "invalid_yes"


@pytest.mark.rule("5.yes.terms")
@pytest.mark.parametrize(
    "terms",
    [
        {"arguments": {"path": "/b/*"}},  # not the call at which it is given
        {"arguments": {"path": []}},
        {"arguments": {}},
        {"arguments": {"path": "x" * 10_000}},
        {"arguments": {"path": "/(/"}},
        {"arguments": {"name": "*"}},
        {"others": ["n"] * 65},
        {"seconds": 0},
        {"seconds": 8 * 86_400},
        {"seconds": None},
        {"most": 0},
        {"most": 1_001},
        {"most": True},
        {"form": ""},
        {"digest": "0" * 64},
        {"more": 1},
    ],
)
def test_terms_that_cannot_be_meant_are_refused(scene: Yeses, terms: dict[str, Any]) -> None:
    assert scene.gives(scene.proposes(), **terms) in ("invalid_yes", "invalid_envelope")
    assert scene.listed() == []


@pytest.mark.rule("5.yes.terms")
def test_call_that_took_the_place_of_the_one_seen_gets_none(scene: Yeses) -> None:
    proposal = scene.proposes()
    seen = scene.digests[proposal]
    scene.say("agent", "mcp.withdraw", {"reason": "no_longer_needed"}, correlationId=proposal)
    # Its tool has the same form, and the patterns take its arguments.
    assert scene.proposes(tool="delete_file", id=proposal) == proposal
    scene.forget()
    assert scene.gives(proposal, digest=seen) == "invalid_yes"
    assert scene.gives(proposal) not in ("invalid_yes", "invalid_envelope")


@pytest.mark.rule("5.yes.terms")
def test_no_proposal_names_one(scene: Yeses) -> None:
    scene.say("agent", "mcp.proposal", call("/a/x", "write_file", {"dev.meup/yes": "y"}))
    assert scene.outcome("agent") == "reserved_key"


@pytest.mark.rule("5.yes.terms")
def test_number_that_hold_is_bounded_and_old_ones_make_room(scene: Yeses) -> None:
    proposal = scene.proposes()
    given = [scene.gives(proposal) for _ in range(101)]
    assert given[-1] == "limit_exceeded"
    others = [scene.gives(proposal, "bob") for _ in range(100)]
    assert "limit_exceeded" not in others
    assert scene.gives(proposal, "admin") == "limit_exceeded"
    assert scene.gives(proposal, id=given[0]) == "id_in_use"
    scene.at = 4_000.0
    assert scene.gives(scene.proposes()) not in ("limit_exceeded", "invalid_yes")
    assert len(scene.listed()) == 1


@pytest.mark.rule("5.yes.count")
def test_gateway_that_dies_at_any_moment_lets_none_too_many_through() -> None:
    """Each restart reads the journal as it was when the gateway died."""
    for seed in range(scaled(40)):
        random, journal = Random(seed), CutOff(lambda: 0)
        scene = Yeses(journal=journal)
        ids = scene.ids
        yes = scene.gives(scene.proposes(), most=3)
        carried_out = 0
        for _ in range(12):
            journal.left = random.choice((None, None, 0, 1, 2))
            proposal = scene.proposes()
            scene.say(
                "reviewer",
                "mcp.request",
                call("/a/x", "write_file", {"dev.meup/yes": yes, "dev.meup/proposer": "agent"}),
                to=["files"],
                correlationId=proposal,
            )
            # What the executor hears it carries out.
            carried_out += sum(each["kind"] == "mcp.request" for each in scene.got("files"))
            if journal.left is not None:
                journal.left = None
                scene = Yeses(journal=journal)
                scene.ids = ids
        assert carried_out == 3, seed
        assert [each["used"] for each in scene.listed()] == [3]
