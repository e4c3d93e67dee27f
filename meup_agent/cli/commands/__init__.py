"""The commands of ``meup``, each loaded when it is used.

Most of what loading takes is what agents need: ``meup gateway`` and ``meup token`` start in a third
of the time without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final, cast

import typer
from typer.main import get_command

from meup_agent.cli.flags import Command, Group

COMMANDS: Final = {
    "audit": "meup_agent.cli.commands.audit",
    "call": "meup_agent.cli.commands.call",
    "chat": "meup_agent.cli.commands.chat",
    "demo": "meup_agent.cli.commands.demo",
    "doctor": "meup_agent.cli.commands.doctor",
    "env": "meup_agent.cli.commands.env",
    "fulfill": "meup_agent.cli.commands.fulfill",
    "gateway": "meup_agent.cli.commands.gateway",
    "grant": "meup_agent.cli.commands.grant",
    "invite": "meup_agent.cli.commands.invite",
    "kick": "meup_agent.cli.commands.kick",
    "propose": "meup_agent.cli.commands.propose",
    "reject": "meup_agent.cli.commands.reject",
    "revoke": "meup_agent.cli.commands.revoke",
    "run": "meup_agent.cli.commands.run",
    "tail": "meup_agent.cli.commands.tail",
    "tools": "meup_agent.cli.commands.tools",
    "who": "meup_agent.cli.commands.who",
    "withdraw": "meup_agent.cli.commands.withdraw",
    "token": "meup_agent.cli.commands.token",
}
"""The modules by command, as a help lists them; in each, the command is what has its name."""


class Commands(Group):
    """The group of all of them, as typer makes it of a program that has no commands itself."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast("Any", _Loaded(self.rich_markup_mode))

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, for which none is loaded."""
        return list(COMMANDS)


class _Loaded(Mapping[str, Any]):
    """Loads a command when it is looked at."""

    def __init__(self, markup: Any) -> None:
        self._markup = markup
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = self._load(name, COMMANDS[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)

    def _load(self, name: str, module: str) -> Any:
        command = getattr(import_module(module), name)
        if not isinstance(command, typer.Typer):
            function, command = command, typer.Typer(add_completion=False)
            command.command(name, cls=Command)(function)
        command.rich_markup_mode = self._markup
        return get_command(command)
