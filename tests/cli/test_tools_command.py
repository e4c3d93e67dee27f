"""`meup tools`: what there is to call."""

import json
from functools import partial

import anyio
import pytest

from meup_agent import Space
from tests.cli.commands import exit_codes
from tests.cli.conftest import Done, Here, assert_fails
from tests.cli.processes import meup
from tests.cli.stage import ESCAPED, HOSTILE, ON_ONE_LINE, Stage
from tests.patience import wait_until

WRITE_FILE = """\
  write_file
      Write a text file.
      path  string, required
            Where, below the workspace.
      text  string, required
      mode  "new" | "append", else "new"
      tags  array of string or null, else null
      size  integer, else 0
"""


@pytest.mark.rule("3.observe.takes_no_part")
def test_nothing_is_rejected_while_it_asks(stage: Stage) -> None:
    """It has no handlers, and what is proposed to its participant is not for it to decide."""

    async def propose(space: Space) -> None:
        async with space.propose("files", "fail", to="alice", wait="deadline") as proposal:
            ask = partial(meup, "tools", "files", variables=stage.variables())
            done = await anyio.to_thread.run_sync(ask)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith("files\n")
            # Whatever it said before it left has come, since its leaving has.
            await wait_until(lambda: "alice" not in {each.id for each in space.participants})
            [record] = [each for each in space.proposals if each.id == proposal.id]
            assert record.rejections == ()

    stage.as_somebody("paula", propose)


def test_the_tools_of_one(stage: Stage) -> None:
    done = meup("tools", "files", variables=stage.variables())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        f"files\n{WRITE_FILE}  read_hostile\n      Read it. {ON_ONE_LINE}\n"
    )
    assert all(line.isprintable() for line in done.stdout.splitlines())


def test_everybody_is_asked_and_who_does_not_answer_is_named(here: Here) -> None:
    done = here("tools")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("files\n")
    *_, none, silent = done.out.splitlines()
    assert none == "no tools: reviewer"
    assert silent == f"no answer from mute: not me {ESCAPED} (code -32601)"
    exact = json.loads(here("tools", "--json").out)["participants"]
    assert [each["participant"] for each in exact] == ["files", "mute", "reviewer"]
    [files, mute, reviewer] = exact
    assert files["tools"][1]["description"] == f"Read it. {HOSTILE}"
    assert mute["error"] == f"not me {HOSTILE} (code -32601)"
    assert reviewer["tools"] == []


def test_who_does_not_answer_alone_is_a_failure(here: Here) -> None:
    done = here("tools", "mute")
    assert (done.code, done.out) == (exit_codes.TOOL_FAILED, "")
    assert done.err == f"meup: not me {ON_ONE_LINE} (code -32601)\n"


@pytest.mark.parametrize("is_beside", [False, True])
def test_who_is_not_there_or_may_not_ask_is_told(here: Here, is_beside: bool) -> None:
    def tools(participant: str, *words: str) -> Done:
        beside = ("--as", participant) if is_beside else ()
        return here("tools", *words, *beside, participant=participant)

    said = "'fils' is not in the space 'demo'; here: "
    assert_fails(tools("alice", "fils"), exit_codes.ABSENT, said, "did you mean files?")
    said = "meup: 'nobody' may not ask for tools: that takes"
    assert_fails(tools("nobody"), exit_codes.REFUSED, said)
