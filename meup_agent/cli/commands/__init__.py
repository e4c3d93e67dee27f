"""The commands of ``meup``; a module is loaded when a command of it is used.

Loading an agent takes most of the time: ``meup gateway`` and
``meup token`` start in a third of it. So this package knows the commands by name only; ``meup
--help`` lists them by their docstrings, which compiled code has without running. A command is a
function that typer reads: it checks its options, then runs its work itself, or in a space by a
:class:`~meup_agent.cli.session.CommandSession`. Most of what it prints is made in ``render``. It
never ends the process itself: it returns or raises, and ``program`` makes the exit code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from types import CodeType
from typing import Any, Final, cast, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from meup_agent.cli.loading_notice import LOADING
from meup_agent.cli.options import expand_groups

CommandLineError: Final = cast("type[Exception]", typer.BadParameter.__mro__[2])
"""A command line that is wrong. Typer keeps a copy of click, whose names are not public."""

PANELS: Final = {
    "Start here": {
        "up": "up",
        "guard": "guard",
        "console": "gateway",
        "inbox": "inbox",
    },
    "See what happens": {
        "audit": "journal",
        "tail": "tail",
        "who": "participants",
        "tools": "participants",
        "doctor": "doctor",
        "demo": ".demo",
        "cluster": ".demo",
    },
    "Take part from the shell": {
        "call": "call",
        "propose": "call",
        "withdraw": "inbox",
        "fulfill": "decisions",
        "reject": "inbox",
        "chat": "participants",
    },
    "Run programs that take part": {
        "mcp": "mcp",
        "bridge": "mcp",
        "acp": "run",
        "codex": "run",
        "reviewer": "run",
        "policy": "policy",
        "run": "run",
        "env": "credentials",
    },
    "Run a space of your own": {
        "init": "credentials",
        "gateway": "gateway",
        "token": "credentials",
        "invite": "participants",
        "kick": "participants",
        "grant": "participants",
        "revoke": "participants",
        "journal": "journal",
    },
}
"""The panels of the help: their commands and the modules of these, in the order of the help.

A module is named as seen from here. Each command is what has its name in its module. The help of a
group is the docstring of its callback, ``token_group`` of ``credentials``.
"""

COMMANDS: Final = dict(sorted(each for panel in PANELS.values() for each in panel.items()))
"""The commands and their modules, in the order of the alphabet."""


class _Coercion:
    """Makes values of what is given, by typer only where that takes more than a type's call.

    Typer coerces by pydantic, which takes longer to load than a fast command to run.
    """

    def __init__(self, typers: Callable[[], Any]) -> None:
        self._typers = typers

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of a parameter; typer's own takes the same arguments."""
        wanted = param.type_descriptor.annotation
        try:
            if get_origin(wanted) is not list:
                return _coerced(value, wanted)
            (kind,) = get_args(wanted)
            return [_coerced(each, kind) for each in value or ()]
        except (ValueError, TypeError):
            return self._typers().coerce(value, param=param, ctx=ctx)


def _coerced(value: Any, kind: Any) -> Any:
    if value is None or isinstance(value, kind):
        return value
    if kind is Path and (not os.path.exists(value) or os.access(value, os.R_OK)):
        return Path(value)
    if issubclass(kind, Enum):
        return kind(value)
    raise TypeError


class _CommandParser:
    """Common to :class:`Command` and :class:`Group`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, ``--help`` included; flags without ``<bool>``, as they take no value."""
        parameters = cast("list[Any]", cast("Any", super()).get_params(ctx))
        for each in parameters:
            if getattr(each, "is_flag", False) and each.metavar is None:
                each.metavar = ""
            typers = getattr(each, "get_runtime_param", None)  # not in each version of typer
            if typers is not None and "get_runtime_param" not in vars(each):
                each.get_runtime_param = partial(_Coercion, typers)
        return parameters

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; an error names the command, also one about an option without its value."""
        try:
            return cast("list[str]", cast("Any", super()).parse_args(ctx, args))
        except CommandLineError as error:
            cast("Any", error).ctx = getattr(error, "ctx", None) or ctx
            raise


class Command(_CommandParser, TyperCommand):
    """A command."""


class Group(_CommandParser, TyperGroup):
    """A command that has others."""


class CommandTyper(typer.Typer):
    """Commands of one module, each with its groups of options."""

    def __init__(self, name: str | None = None, *, alone: bool = False) -> None:
        super().__init__(name=name, cls=Group, invoke_without_command=alone, add_completion=False)

    def add(self, name: str, command: Callable[..., object]) -> None:
        """Add a function as a command."""
        self.command(name, cls=Command)(expand_groups(command))


class CommandGroup(Group):
    """The group of all commands, as typer makes it of a program that has no commands itself."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names in the order of the help, for which none is loaded."""
        return [name for panel in PANELS.values() for name in panel]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command as a list shows it: its name and help alone."""
        if cmd_name not in COMMANDS:
            return None
        panel = next(panel for panel, names in PANELS.items() if cmd_name in names)
        return Command(cmd_name, help=_read_help(cmd_name), rich_help_panel=panel)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the panels as sections, where the terminal is too narrow for frames."""
        for panel, names in PANELS.items():
            rows = [(each, self.get_command(ctx, each).get_short_help_str()) for each in names]
            with formatter.section(panel):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that arguments name, loaded, and the arguments that are left."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load_command(cast("str", name), self.rich_markup_mode), rest


def _read_help(name: str) -> str:
    """The docstring of a command, from its module's compiled code, which is not run."""
    spec = cast("Any", find_spec(f".{COMMANDS[name]}", __name__))
    code = spec.loader.get_code(spec.name)
    functions = (each for each in code.co_consts if isinstance(each, CodeType))
    found = next(each for each in functions if each.co_name in (name, f"{name}_group"))
    first = found.co_consts[0]  # not the docstring where Python runs without them
    return cleandoc(first) if isinstance(first, str) else ""


@cache
def load_command(name: str, markup: Any = None) -> Any:
    """A command with its module, as typer's parser takes it."""
    command = getattr(import_module(f".{COMMANDS[name]}", __name__), name)
    if not isinstance(command, typer.Typer):
        function, command = command, CommandTyper()
        command.add(name, function)
    command.rich_markup_mode = markup
    LOADING.end()
    return get_command(command)
