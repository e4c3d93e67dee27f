"""``meup env`` and ``token``: what makes a terminal or a program a participant."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import typer

from meup_agent.cli.commands import CommandTyper
from meup_agent.cli.failures import Misuse, require_extra
from meup_agent.cli.options import Json, RunningPort, argument
from meup_agent.cli.up.state import Owner, find_gateway
from meup_agent.escape import as_json_line
from meup_agent.gateway.auth import hash_token, new_token


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


# --- meup token ---

MAX_TOKEN_CHARS: Final = 4_096  # characters of a token that is read: longer ones fit into no header

token = CommandTyper("token")


@token.callback()
def token_group() -> None:
    """Make a participant's token, and the hash of it that a gateway's file can keep.

    Example: `meup token new` makes both.
    """


def new(json: Json = False) -> None:
    """Make a random token, and its hash.

    The token is for the participant, in MEUP_TOKEN or a file. The hash is for the gateway's file,
    under `token_hashes`, and is of no use for joining. The token is shown only once.

    Example: `meup token new`
    """
    made = new_token()
    if json:
        sys.stdout.write(as_json_line({"token": made, "hash": hash_token(made)}))
    else:
        sys.stdout.write(f"token: {made}\nhash:  {hash_token(made)}\n")


def hash_of_stdin(json: Json = False) -> None:
    """Tell the hash of a token that is read from standard input.

    It is not an argument, since other users of a machine can read those.

    Example: `meup token hash < token.txt`
    """
    if sys.stdin.isatty():
        sys.stderr.write("meup: type or paste the token, then Enter\n")
    read = sys.stdin.readline(MAX_TOKEN_CHARS + 2).strip()
    if not read or len(read) > MAX_TOKEN_CHARS or not read.isascii() or len(read.split()) != 1:
        raise Misuse("expected a token of ASCII characters, without blanks, on standard input")
    hashed = hash_token(read)
    sys.stdout.write(as_json_line({"hash": hashed}) if json else f"{hashed}\n")


token.add("new", new)
token.add("hash", hash_of_stdin)
