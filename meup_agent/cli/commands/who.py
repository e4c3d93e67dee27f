"""``meup who``: the participants that are present, and what each may do."""

from __future__ import annotations

import textwrap
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from meup_agent.cli.address import SpaceOptions
from meup_agent.cli.command_session import CommandSession
from meup_agent.cli.options import ResultOptions, TakeOver, Timeout, seconds
from meup_agent.cli.render.escape import as_json_line, visible
from meup_agent.cli.render.formatting import MAX_NAME, format_capability
from meup_agent.protocol.exchange import Mode

NARROWEST: Final = 24  # columns that the capabilities get, however narrow the terminal is


def who(
    *,
    where: SpaceOptions,
    timeout: Timeout = 10.0,
    take_over: TakeOver = False,
    result: ResultOptions,
) -> None:
    """Show who is in the space, and what each of them may send.

    What needs no capability is not listed; at this package's gateway: to answer requests, to tell
    their progress, and to cancel one's own.

    It only looks on: any participant's token will do, and an agent that runs with it is not
    disturbed.

    Example: `MEUP_TOKEN=… meup who --url ws://localhost:8420 --space demo`
    """
    session = CommandSession(
        where.address(),
        result,
        welcome_seconds=seconds(timeout, "--timeout"),
        mode=Mode.OBSERVING,
        take_over=take_over,
    )
    session.run(_print_json if result.as_json else _show)


async def _print_json(session: CommandSession) -> None:
    space = session.space
    participants = [
        {"id": each.id, "me": each.id == space.me, "capabilities": list(each.capabilities)}
        for each in space.participants
    ]
    document = {
        "space": session.space_name,
        "me": space.me,
        "capabilities": list(space.capabilities),
        "participants": participants,
    }
    await session.output.write(as_json_line(document))


async def _show(session: CommandSession) -> None:
    space, console = session.space, session.output.console
    capabilities = {each.id: each.capabilities for each in space.participants}
    present = set(capabilities)
    capabilities.setdefault(space.me, space.capabilities)
    names = {name: visible(name, MAX_NAME) for name in capabilities}
    width = max(map(cell_len, names.values()))
    room = console.width - width - 7 if session.output.is_terminal else None
    for each in sorted(capabilities, key=lambda each: (each != space.me, each)):
        line = Text(no_wrap=True)
        name = Text(names[each], style="bold")
        name.align("left", width)
        line.append_text(name)
        line.append("  you  " if each == space.me else " " * 7, style="green")
        said = ", ".join(map(format_capability, capabilities[each])) or "nothing but answers"
        if each not in present:
            said = f"only looking on; may: {said}"
        lines = [said] if room is None else _wrapped(said, max(room, NARROWEST))
        line.append(("\n" + " " * (width + 7)).join(lines))
        await session.output.show(line)


def _wrapped(capabilities: str, width: int) -> list[str]:
    """Lines that end between capabilities, as long as one fits into a line."""
    kept = capabilities.replace(" ", "\xa0").replace(",\xa0", ", ")
    return [line.replace("\xa0", " ") for line in textwrap.wrap(kept, width)]
