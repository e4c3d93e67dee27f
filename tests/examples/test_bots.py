"""Bots that somebody would keep, run as programs."""

from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from examples.nightly_reporter import seconds_until
from examples.shell_moderator import judge
from meup_agent import Agent, Progress, Space
from meup_agent.errors import ProposalRejected, RequestError, ToolError
from meup_agent.gateway import ThreadedGateway
from tests.cli.participants import act_as, variables_of
from tests.examples.test_examples import EXAMPLES, serving_example
from tests.patience import PATIENCE
from tests.programs import program

shell = Agent("tools")


@shell.tool(name="shell")
async def run_line(line: str) -> str:
    return f"ran {line}"


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("ls -l docs", True),
        ("pwd", True),
        ("date -s 12:00", None),
        ("rm -rf /", False),
        ("/bin/rm x", False),
        ("ls 'docs", False),
        (5, False),
        ("ls; make", None),
        ("ls $(make)", None),
        ("make", None),
        ("", None),
    ],
)
def test_a_moderator_lets_pass_what_it_understands(line: object, allowed: bool | None) -> None:
    assert judge(line) is allowed


async def follow_lines(space: Space) -> None:
    with anyio.fail_after(PATIENCE):
        assert await space.call("tools", "shell", {"line": "ls"}, to="fulfiller") == "ran ls"
        with pytest.raises(ProposalRejected, match="this line is not run here"):
            await space.call("tools", "shell", {"line": "rm x"}, to="fulfiller")
        asked, told = anyio.Event(), list[str]()

        def note(progress: Progress) -> None:
            told.append(progress.message)
            asked.set()

        call = {"line": "make"}
        async with space.propose("tools", "shell", call, to="fulfiller", on_progress=note) as left:
            await asked.wait()
            assert (told, left.has_outcome) == (["a person is asked"], False)


async def test_a_moderator_runs_rejects_or_leaves_to_people(gateway: ThreadedGateway) -> None:
    def moderated() -> None:
        with serving_example(gateway, "shell_moderator.py", "fulfiller"):
            anyio.run(propose)

    async def propose() -> None:
        token = gateway.token("proposer")
        async with Agent("proposer").join(gateway.url, space="demo", token=token) as space:
            await follow_lines(space)

    async with shell.join(gateway.url, space="demo", token=gateway.token("tools")):
        await anyio.to_thread.run_sync(moderated)


def test_a_librarian_reads_its_folder_and_nothing_else(
    gateway: ThreadedGateway, tmp_path: Path
) -> None:
    folder = tmp_path / "books"
    (folder / "old").mkdir(parents=True)
    (folder / "old" / "tides.md").write_text("High water at NINE")
    (folder / ".key").write_text("high")
    (tmp_path / "outside.md").write_text("high")
    (folder / "link.md").symlink_to(tmp_path / "outside.md")

    async def ask(space: Space) -> None:
        assert await space.call("tools", "list") == ["old/tides.md"]
        assert await space.call("tools", "search", {"words": "NINE"}) == ["old/tides.md"]
        assert "High" in await space.call("tools", "read", {"path": "old/tides.md"})
        for path in ("../outside.md", "link.md", ".key", str(tmp_path / "outside.md")):
            with pytest.raises((RequestError, ToolError), match="no such file"):
                await space.call("tools", "read", {"path": path})

    with serving_example(gateway, "librarian.py", "tools", cwd=folder):
        act_as(gateway, "fulfiller", ask)


def test_a_reporter_counts_what_became_of_proposals(gateway: ThreadedGateway) -> None:
    async def propose(space: Space) -> None:
        async with space.propose("tools", "ring", to="fulfiller") as first:
            # The answer comes behind the proposal: it has left by now.
            assert [each.id async for each in space.proposals.list(tool="ring")] == [first.id]
            await first.withdraw()
        async with space.propose("tools", "ring", to="fulfiller"):
            await anyio.to_thread.run_sync(report)

    def report() -> None:
        variables = variables_of(gateway, "observer")
        with program([EXAMPLES / "nightly_reporter.py", "--now"], variables) as reporter:
            assert reporter.wait() == 0
        said = [line for line in reporter.stdout if line.startswith("ring")]
        assert said == ["ring: 1 waiting", "ring: 1 withdrawn"]

    act_as(gateway, "proposer", propose)


def test_a_reporter_waits_for_its_hour() -> None:
    assert seconds_until(22, datetime(2025, 1, 1, 21, 30, tzinfo=UTC)) == 1800
    assert seconds_until(22, datetime(2025, 1, 1, 22, 0, tzinfo=UTC)) == 86400
