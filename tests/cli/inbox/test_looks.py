"""The inbox's screen as it looks: its text, line by line, and no more than that.

One that is meant to change is taken anew: remove its file in `looks`, run the tests, and read it.
"""

from pathlib import Path

import pytest

from meup_agent import ProposalState
from meup_agent.approval import DecidedItem
from tests.cli.inbox.people import Desk, desk
from tests.cli.inbox.people import anyio_backend as anyio_backend
from tests.wire import TARGET, Call

LOOKS = Path(__file__).parent / "looks"


def compare(desk: Desk, name: str) -> None:
    path, looks = LOOKS / f"{name}.txt", desk.looks()
    if not path.exists():
        path.write_text(looks, encoding="utf-8")
        pytest.fail(f"{path.name} was not there; look at what was written")
    assert looks == path.read_text(encoding="utf-8")


def past(tool: str, number: int, state: ProposalState, **arguments: object) -> DecidedItem:
    params = {"name": tool, "arguments": arguments, "_meta": {TARGET: "tools"}}
    call = Call("tools/call", params)
    return DecidedItem(f"p{number}", "proposer", call, state, "deep", "unsafe")


PAST = [
    *(past("wipe", number, ProposalState.FULFILLED, disk="sda1") for number in range(8)),
    *(past("wipe", number, ProposalState.EXPIRED, disk="sda2") for number in range(8, 11)),
    past("wipe", 11, ProposalState.REJECTED, disk="sda9", force=True),
]
WIPE = {"disk": "sda1", "note": "first\n  second\x1b[2J\n", "wr\u0456te": [1, {"a": None}]}


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(120, 30), (80, 24), (40, 10)], ids=lambda size: str(size[0]))
async def test_one_decision_with_all_that_it_is_made_by(size: tuple[int, int]) -> None:
    """The call, the last similar one, the proposer's last ten, the tool's words, the dangers."""
    async with (
        desk(size=size, past=PAST) as d,
        d.proposer.propose("tools", "wipe", WIPE, ttl=None),
        d.proposer.propose("tools", "read", {"path": "b.md"}, ttl=None),
    ):
        await d.arrived(2)
        compare(d, f"decision-{size[0]}")
        await d.press("r")
        compare(d, f"reasons-{size[0]}")
        await d.press("escape", "?")
        compare(d, f"help-{size[0]}")


async def test_nothing_waits() -> None:
    async with desk() as d:
        compare(d, "nothing")


async def test_what_is_gone_stays_with_why() -> None:
    async with desk() as d:
        async with d.proposer.propose("tools", "read", {"path": "a"}, ttl=None) as proposal:
            await d.arrived()
            await proposal.withdraw("no_longer_needed")
            await d.until(lambda: not len(d.inbox))
        compare(d, "gone")


async def test_an_edit_before_it_is_sent() -> None:
    async def edit(text: str) -> str:
        return text.replace("a.md", "b.md")

    async with (
        desk(edit=edit) as d,
        d.proposer.propose("tools", "read", {"path": "a.md"}, ttl=None),
    ):
        await d.arrived()
        await d.press("e")
        await d.until(lambda: "carry out what you made of it" in d.text("#ask"))
        compare(d, "edited")
