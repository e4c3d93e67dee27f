"""Bots that somebody would keep, run as programs."""

import anyio
import pytest

from examples.shell_moderator import judge
from meup_agent import Agent, Progress, Space
from meup_agent.errors import ProposalRejected
from meup_agent.gateway import ThreadedGateway
from tests.examples.test_examples import run_example
from tests.patience import PATIENCE

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


@pytest.mark.anyio
async def test_a_moderator_runs_rejects_or_leaves_to_people(gateway: ThreadedGateway) -> None:
    def moderated() -> None:
        with run_example(gateway, "shell_moderator.py", "fulfiller") as moderator:
            moderator.wait_for("connected to")
            anyio.run(propose)
            assert moderator.stop() == 0

    async def propose() -> None:
        token = gateway.token("proposer")
        async with Agent("proposer").join(gateway.url, space="demo", token=token) as space:
            await follow_lines(space)

    async with shell.join(gateway.url, space="demo", token=gateway.token("tools")):
        await anyio.to_thread.run_sync(moderated)
