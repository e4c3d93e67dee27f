"""`meup reviewer`: decides by a file until a signal, also by the file as it was changed."""

from pathlib import Path

from meup_agent import Rejection, Space
from tests.cli.commands import exit_codes
from tests.cli.conftest import assert_fails
from tests.cli.processes import TERMINATE, meup, running
from tests.cli.stage import Stage

ALLOW = "rules: [{allow: {tool: nothing, name: harmless}}]\nend: true\n"
DENY = "rules: [{deny: {tool: nothing, reason: unsafe}}]\nend: true\n"
WRONG = "rules: [{alow: {tool: nothing}}]\nend: true\n"


def test_it_decides_by_the_file_of_the_moment(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(ALLOW)
    found: list[object] = []

    async def propose(space: Space) -> None:
        await space.present("alice")
        async with space.propose("files", "nothing", to="alice", ttl=20) as proposal:
            found.append(await proposal.outcome())

    with running("reviewer", "--policy", str(path), variables=stage.variables()) as reviewer:
        reviewer.until("as 'alice'", stream="err")
        stage.as_somebody("paula", propose)
        reviewer.until("allow by harmless", stream="err")
        path.write_text(WRONG)
        reviewer.until("the policy before it stays: rules[0].alow: unknown key", stream="err")
        path.write_text(DENY)
        reviewer.until("policy.yaml is read again", stream="err")
        stage.as_somebody("paula", propose)
        reviewer.until("deny by rules[0]", stream="err")
        assert reviewer.end(TERMINATE) == exit_codes.OK
    assert not isinstance(found[0], Rejection)
    assert isinstance(found[1], Rejection)
    assert found[1].reason == "unsafe"
    assert "Traceback" not in reviewer.err


def test_a_file_that_is_not_good_starts_nothing(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("rules: [{quorum: {tool: deploy, of: 2, among: [lead]}}]\nend: true\n")
    done = meup("reviewer", "--policy", str(path), variables=stage.variables())
    assert_fails(done, exit_codes.USAGE, "2 votes cannot come of 1")
