"""Notifier: a bell, or a command that is told in its environment alone."""

import json
import os
import sys
from pathlib import Path
from typing import cast

import anyio
import pytest

from meup_agent.approval import InboxItem
from meup_agent.cli.render.card import MAX_COMMANDS, Notifier
from meup_agent.errors import ConfigurationError
from tests.patience import PATIENCE, wait_until
from tests.wire import Call


class Item:
    """The parts of a proposal that a notifier reads."""

    def __init__(self, proposer: str = "bot", path: str = "a.md") -> None:
        self.id, self.proposer = "4f2a", proposer
        self.call = Call("tools/call", {"name": "write", "arguments": {"path": path}})


def item(proposer: str = "bot", path: str = "a.md") -> InboxItem:
    return cast("InboxItem", Item(proposer, path))


@pytest.fixture
def bells() -> list[str]:
    return []


async def notify(command: str | None, bells: list[str], *items: InboxItem) -> None:
    """Notify of these, and wait for the commands."""
    with anyio.fail_after(PATIENCE):
        async with Notifier(command) as notifier:
            notifier.bell = lambda: bells.append("rang")
            notifier.report = bells.append
            for each in items:
                notifier.arrived(each)
            await wait_until(lambda: not notifier._running)


def telling(path: Path) -> str:
    """A command that writes down what it is told."""
    names = "('MEUP_PROPOSAL', 'MEUP_PROPOSER', 'MEUP_CALL')"
    line = "json.dumps([sys.argv[1:], [os.environ[n] for n in NAMES]])".replace("NAMES", names)
    program = f"import json, os, sys; open({str(path)!r}, 'a').write({line} + chr(10))"
    return f'{sys.executable} -IS -c "{program}" given'


async def test_bell_rings_for_each(bells: list[str]) -> None:
    await notify("bell", bells, item(), item())
    assert bells == ["rang", "rang"]


@pytest.mark.parametrize("command", [None, ""])
async def test_nothing_is_told_unless_it_is_wanted(command: str | None, bells: list[str]) -> None:
    await notify(command, bells, item())
    assert bells == []


async def test_a_command_is_told_in_its_environment(tmp_path: Path, bells: list[str]) -> None:
    """No text of a stranger is a word of it, and none has control characters."""
    path = tmp_path / "told"
    await notify(telling(path), bells, item("bot\x1b[2J", '"; rm -rf / #\u202e'))
    [words, told] = json.loads(path.read_text())
    assert words == ["given"]
    assert told[:2] == ["4f2a", "bot\\e[2J"]
    assert "rm -rf" in told[2]
    assert all(each.isprintable() for each in told)
    assert bells == []
    assert "MEUP_CALL" not in os.environ


async def test_a_command_that_cannot_be_started_rings_the_bell(bells: list[str]) -> None:
    await notify("no-such-command-anywhere", bells, item())
    said = "--notify: no-such-command-anywhere failed (no such file or directory)"
    assert bells == ["rang", f"{said}; the bell rings instead"]


async def test_a_command_that_fails_is_told_of_once(bells: list[str]) -> None:
    command = f'{sys.executable} -IS -c "raise SystemExit(3)"'
    await notify(command, bells, item(), item())
    [sentence] = [each for each in bells if each != "rang"]
    assert sentence.endswith("failed (exit status 3); the bell rings instead")
    assert len(bells) == 3


async def test_a_flood_starts_a_few_commands(tmp_path: Path, bells: list[str]) -> None:
    path = tmp_path / "told"
    await notify(telling(path), bells, *(item() for _ in range(3 * MAX_COMMANDS)))
    assert len(path.read_text().splitlines()) == MAX_COMMANDS


async def test_leaving_ends_the_commands(bells: list[str]) -> None:
    with anyio.fail_after(PATIENCE):
        async with Notifier(f'{sys.executable} -IS -c "input()"') as notifier:
            notifier.bell = lambda: bells.append("rang")
            notifier.arrived(item())
    assert bells == []


def test_a_command_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--notify"):
        Notifier('notify-send "unfinished')
