"""``meup env``: the variables that make a terminal a participant of a gateway of this user."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import typer

from meup_agent.cli.failures import require_extra
from meup_agent.cli.options import RunningPort, argument
from meup_agent.cli.up.state import Owner, find_gateway


class Shell(StrEnum):
    """Shells for which variables can be printed."""

    POSIX = "posix"
    FISH = "fish"
    POWERSHELL = "powershell"


def env(
    name: Annotated[str | None, argument("NAME", "The participant.")] = None,
    port: RunningPort = None,
    shell: Annotated[
        Shell,
        typer.Option(
            "--shell", help="The shell that reads it: `posix` is for sh, bash, zsh and ksh."
        ),
    ] = Shell.POSIX,
) -> None:
    """Print the commands that make a terminal a participant of `meup up` or `meup gateway --dev`.

    They set MEUP_URL, MEUP_HTTP, MEUP_SPACE, MEUP_PARTICIPANT and MEUP_TOKEN. The gateway must run
    on this machine, under the same user. MEUP_URL is its Unix socket, at which no other user can
    listen; MEUP_HTTP is its port, for programs such as curl.

    Example: `eval "$(meup env proposer)"`

    Example: `meup env proposer --shell fish | source`

    Example: `meup env proposer --shell powershell | Out-String | Invoke-Expression`
    """
    require_extra("a gateway")
    gateway = find_gateway(port)
    name = gateway.check_name(name)
    sys.stdout.write(_commands(gateway, name, shell))
    if sys.stdout.isatty():
        again = f"meup env {name}" + ("" if port is None else f" --port {port}")
        sys.stderr.write(f"meup: nothing is set yet; run this: {FORMS[shell].run.format(again)}\n")


class ShellForm(NamedTuple):
    """The forms in which a shell sets a variable, and runs what a command prints."""

    variable: str
    quote: Callable[[str], str]
    run: str


def _quote_for_fish(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")


def _quote_for_powershell(value: str) -> str:
    return value.replace("'", "''")


FORMS: Final = {
    Shell.POSIX: ShellForm("export {}={}", shlex.quote, 'eval "$({})"'),
    Shell.FISH: ShellForm("set -gx {} '{}'", _quote_for_fish, "{} --shell fish | source"),
    Shell.POWERSHELL: ShellForm(
        "$env:{} = '{}'",
        _quote_for_powershell,
        "{} --shell powershell | Out-String | Invoke-Expression",
    ),
}


def _commands(gateway: Owner, name: str, shell: Shell) -> str:
    values = {
        "MEUP_URL": gateway.socket,
        "MEUP_HTTP": gateway.http,
        "MEUP_SPACE": gateway.space,
        "MEUP_PARTICIPANT": name,
        "MEUP_TOKEN": gateway.token(name),
    }
    form = FORMS[shell]
    return "".join(
        f"{form.variable.format(key, form.quote(value))}\n"
        for key, value in values.items()
        if value
    )
