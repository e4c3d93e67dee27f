"""``meup who``: the participants that are present, and what each may do."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated, Any, Final

from rich.cells import cell_len
from rich.text import Text

from meup_agent.cli import exit_codes
from meup_agent.cli.address import TimedOptions
from meup_agent.cli.failures import Failure, Misuse
from meup_agent.cli.options import TakeOver, option
from meup_agent.cli.render.formatting import format_capability
from meup_agent.cli.session import CommandSession
from meup_agent.escape import as_json_line, visible
from meup_agent.protocol.exchange import Mode
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.outcomes import (
    Allowed,
    MissingCaller,
    allowed_arguments,
    find_missing,
)
from meup_agent.wording import role_of, shown_name

if TYPE_CHECKING:
    from meup_agent.client.space import Space

MAX_SENTENCE: Final = 1_000
NARROWEST: Final = 24  # columns that the capabilities get, however narrow the terminal is


def who(
    *,
    can: Annotated[
        str | None,
        option("TOOL", "Only those that may call this tool: its name, or participant.name."),
    ] = None,
    join: TimedOptions,
    take_over: TakeOver = False,
) -> None:
    """Show who is in the space, and what each of them may send.

    Each is called by what it may: a person or reviewer rejects, an agent proposes or calls, and a
    server answers. Whose capabilities are the same as those of one above is said so.

    What needs no capability is not listed; at this package's gateway: to answer requests, to tell
    their progress, and to cancel one's own.

    With `--can` only those that may call a tool, some of them with certain arguments only. Where
    none may, the exit code is 7, and a sentence says which participant could, and what to grant.

    It only looks on: any participant's token will do, and an agent that runs with it is not
    disturbed.

    Example: `MEUP_TOKEN=… meup who --url ws://localhost:8420 --space demo`
    """
    session = CommandSession(
        join,
        welcome_seconds=join.seconds,
        mode=Mode.OBSERVING,
        take_over=take_over,
    )
    if can is not None and not can.strip():
        raise Misuse("--can names no tool; see meup who --help")
    show = _print_json if join.as_json else _show

    async def act(session: CommandSession) -> None:
        asked = None if can is None else _ToolAccess(session.space, can)
        await show(session, asked)
        if asked is not None and not asked.allowed:
            raise Failure(visible(str(asked.describe_missing()), MAX_SENTENCE), exit_codes.ABSENT)

    session.run(act)


class _ToolAccess:
    """A tool, and who may call it: those present, and the participant that looks on."""

    def __init__(self, space: Space, said: str) -> None:
        self._space = space
        self._listed = {each.id: each.capabilities for each in space.participants}
        owner, _, rest = said.partition(".")
        is_owned = bool(rest) and owner in self._listed
        self.owner: str | None = owner if is_owned else None
        self.tool = rest if is_owned else said
        found = {
            name: allowed_arguments(each, self.tool, self.owner)
            for name, each in {space.me: space.capabilities, **self._listed}.items()
        }
        self.allowed = {name: each for name, each in found.items() if each is not Allowed.NONE}

    def describe_missing(self) -> MissingCaller:
        """Describe what is missing, where none may call it."""
        meta = {} if self.owner is None else {payloads.TARGET: self.owner}
        call = payloads.Call(payloads.TOOL_CALL, {"name": self.tool, payloads.META: meta})
        return find_missing(call, self._listed.items(), me=self._space.me)


async def _print_json(session: CommandSession, asked: _ToolAccess | None) -> None:
    space = session.space
    participants: list[dict[str, Any]] = [
        {
            "id": each.id,
            "me": each.id == space.me,
            "role": role_of(each.capabilities),
            "capabilities": list(each.capabilities),
        }
        for each in space.participants
        if asked is None or each.id in asked.allowed
    ]
    document: dict[str, Any] = {
        "space": session.where.space,
        "me": space.me,
        "capabilities": list(space.capabilities),
        "participants": participants,
    }
    if asked is not None:
        for each in participants:
            each["arguments"] = str(asked.allowed[each["id"]])
        missing = None if asked.allowed else asked.describe_missing()
        document["can"] = {
            "participant": asked.owner,
            "tool": asked.tool,
            "could": None if missing is None else list(missing.could),
            "capability": None if missing is None else missing.capability,
        }
    await session.output.write(as_json_line(document))


async def _show(session: CommandSession, asked: _ToolAccess | None) -> None:
    space, console = session.space, session.output.console
    capabilities = {each.id: each.capabilities for each in space.participants}
    present = set(capabilities)
    capabilities.setdefault(space.me, space.capabilities)
    if asked is not None:
        capabilities = {name: capabilities[name] for name in asked.allowed}
        if not capabilities:
            return
    names = {name: shown_name(name) for name in capabilities}
    width = max(map(cell_len, names.values()))
    room = console.width - width - 7 if session.output.is_terminal else None
    first: dict[str, str] = {}  # who has these capabilities, of those that are shown
    for each in sorted(capabilities, key=lambda each: (each != space.me, each)):
        line = Text(no_wrap=True)
        name = Text(names[each], style="bold")
        name.align("left", width)
        line.append_text(name)
        line.append("  you  " if each == space.me else " " * 7, style="green")
        said = ", ".join(map(format_capability, capabilities[each])) or "nothing but answers"
        same = first.setdefault(as_json_line(list(capabilities[each])), each)
        if same != each:
            said = f"the same as {names[same]}"
        looks_on = "only looking on; " if each not in present else ""
        said = f"{looks_on}{role_of(capabilities[each])}: {said}"
        lines = [said] if room is None else _wrapped(said, max(room, NARROWEST))
        line.append(("\n" + " " * (width + 7)).join(lines))
        await session.output.show(line)


def _wrapped(capabilities: str, width: int) -> list[str]:
    """Lines that end between capabilities, as long as one fits into a line."""
    kept = capabilities.replace(" ", "\xa0").replace(",\xa0", ", ").replace(":\xa0", ": ")
    return [line.replace("\xa0", " ") for line in textwrap.wrap(kept, width)]
