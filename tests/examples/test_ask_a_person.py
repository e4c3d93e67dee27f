"""A person is asked in a terminal: one question at a time, each answer only for its own."""

import os
import pty
import select
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress

import anyio
import pytest

from meup_agent import Agent, Fulfillment, ProposalHandle, Rejection, Space
from meup_agent.gateway import Gateway, ThreadedGateway
from tests.cli.participants import variables_of
from tests.cli.processes import environment
from tests.forkserver import Forked, start
from tests.gateways import ROLES
from tests.interaction.people import ended
from tests.patience import PATIENCE
from tests.programs import ROOT

EXAMPLE = str(ROOT / "examples" / "ask_a_person.py")
PROGRAMS = {
    "asyncio": (EXAMPLE,),
    "trio": (
        *("-m", "meup_agent.cli", "run", EXAMPLE),
        *("--backend", "trio", "--log-level", "warning"),
    ),
}
IN_TERMINAL = """
import fcntl, os, runpy, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
del sys.argv[0]
if sys.argv[0] == "-m":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Makes its standard input the terminal that Ctrl-C comes from, and becomes the program."""

CTRL_C = "\x03"

tools = Agent("tools")


@tools.tool
def print_pages(pages: int) -> str:
    """Print some pages."""
    return f"printed {pages} pages"


class Terminal:
    """A terminal in which the program runs, with a person at it."""

    def __init__(self, process: Forked, master: int) -> None:
        self._process = process
        self._master = master
        self._read_so_far = b""
        self.interrupted = False

    @property
    def screen(self) -> str:
        """All that was shown so far."""
        return self._read_so_far.decode(errors="replace").replace("\r\n", "\n")

    async def shows(self, wanted: str, count: int = 1) -> None:
        """Wait until the screen shows a text, so many times."""
        await anyio.to_thread.run_sync(self._until, wanted, count)

    def _until(self, wanted: str, count: int) -> None:
        while self.screen.count(wanted) < count:
            assert self._read(), f"{wanted!r} is not on the screen:\n{self.screen}"

    def type(self, text: str) -> None:
        """Press keys."""
        self.interrupted |= text == CTRL_C
        os.write(self._master, text.encode())

    def end(self) -> int:
        """The exit code, once the program has ended."""
        while self._read():
            pass
        return self._process.wait(PATIENCE)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], PATIENCE)
        assert ready, f"nothing came any more:\n{self.screen}"
        try:
            read = os.read(self._master, 65536)
        except OSError:  # Linux's way to say that the program has closed the terminal
            return False
        self._read_so_far += read
        return bool(read)


@contextmanager
def terminal(gateway: ThreadedGateway, backend: str) -> Generator[Terminal]:
    variables = variables_of(gateway, "fulfiller", PYTHONUNBUFFERED="1")
    master, slave = pty.openpty()
    process = start(
        ["-W", "error", "-c", IN_TERMINAL, *PROGRAMS[backend]],
        environment(variables),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        with suppress(OSError):
            os.close(master)


@pytest.fixture
def gateway() -> Generator[ThreadedGateway]:
    with Gateway("demo", ROLES).in_thread() as running:
        yield running


def conversation(
    gateway: ThreadedGateway, backend: str, converse: Callable[[Space, Terminal], Awaitable[None]]
) -> Terminal:
    """A proposer and a person speak with each other; then the person presses Ctrl-C."""

    async def main(screen: Terminal) -> None:
        async with (
            tools.join(gateway.url, space="demo", token=gateway.token("tools")),
            Agent("proposer").join(
                gateway.url, space="demo", token=gateway.token("proposer")
            ) as space,
        ):
            with anyio.fail_after(PATIENCE):
                await space.present("fulfiller")
                await converse(space, screen)

    with terminal(gateway, backend) as screen:
        anyio.run(main, screen)
        if not screen.interrupted:
            screen.type(CTRL_C)
        assert screen.end() == 0
    assert "Traceback" not in screen.screen
    return screen


def printing(space: Space, pages: int) -> AbstractAsyncContextManager[ProposalHandle]:
    return space.propose("tools", "print_pages", {"pages": pages}, to="fulfiller")


@pytest.mark.parametrize("backend", PROGRAMS)
def test_an_answer_that_names_the_question_counts(gateway: ThreadedGateway, backend: str) -> None:
    async def converse(space: Space, screen: Terminal) -> None:
        async with printing(space, 1) as first, printing(space, 2) as second:
            await screen.shows('proposal 1: ["proposer", "print_pages", {"pages": 1}]\n')
            for count, said in enumerate(("yes", "2 yes", "1 yes please", "1", "11 yes", ""), 2):
                screen.type(f"{said}\n")
                await screen.shows("type: 1 yes, or: 1 no", count)
            assert "proposal 2" not in screen.screen
            screen.type("1 yes\n")
            outcome = await ended(first, Fulfillment)
            assert (outcome.by, outcome.changes) == ("fulfiller", ())

            # What is typed would stand in the middle of a line that is still being written.
            await screen.shows("proposal 1: done\n")
            await screen.shows("type: 2 yes, or: 2 no, and why not\n")
            screen.type("2 no so much paper!\n")
            rejected = await ended(second, Rejection)
            assert rejected.reason == "disagree"
            await screen.shows("proposal 2: rejected\n")

    conversation(gateway, backend, converse)


@pytest.mark.parametrize("backend", PROGRAMS)
def test_a_withdrawn_question_takes_no_answer(gateway: ThreadedGateway, backend: str) -> None:
    async def converse(space: Space, screen: Terminal) -> None:
        async with printing(space, 1) as first, printing(space, 2) as second:
            await screen.shows("type: 1 yes")
            screen.type("1 y")
            await first.withdraw()
            await screen.shows("proposal 1: needs no answer any more")
            await screen.shows("type: 2 yes")
            # The rest of the answer to the first is not an answer to the second; the next line is.
            screen.type("es\n")
            await screen.shows("type: 2 yes", 2)
            screen.type("2 yes\n")
            assert isinstance(await second.outcome(), Fulfillment)
            await screen.shows("proposal 2: done\n")

    conversation(gateway, backend, converse)


def test_ctrl_c_leaves_nothing_undecided(gateway: ThreadedGateway) -> None:
    outcomes: list[object] = []

    async def ask_and_wait(space: Space, pages: int) -> None:
        async with printing(space, pages) as proposal:
            outcomes.append(await proposal.outcome())

    async def converse(space: Space, screen: Terminal) -> None:
        async with anyio.create_task_group() as proposals:
            for pages in (1, 2):
                proposals.start_soon(ask_and_wait, space, pages)
            await screen.shows("type: 1 yes")
            screen.type(CTRL_C)

    screen = conversation(gateway, "asyncio", converse)
    assert [type(each) for each in outcomes] == [Rejection, Rejection]
    assert "proposal 1: needs no answer any more" in screen.screen


def test_a_stranger_cannot_write_on_the_screen_nor_wait_when_nobody_is_there(
    gateway: ThreadedGateway,
) -> None:
    async def converse(space: Space, screen: Terminal) -> None:
        trick = {"pages": 1, "title": "\x1b[2J\n1 yes"}
        async with space.propose("tools", "print_pages", trick, to="fulfiller") as proposal:
            await screen.shows("type: 1 yes")
            screen.type("\x04")  # Ctrl-D, the end of input
            rejected = await ended(proposal, Rejection)
            assert rejected.reason == "busy"

    screen = conversation(gateway, "asyncio", converse)
    assert r'"title": "\u001b[2J\n1 yes"' in screen.screen
    assert "\x1b[2J" not in screen.screen
