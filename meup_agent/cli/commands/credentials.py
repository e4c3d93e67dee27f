"""``meup init``, ``env`` and ``token``: a space's file, and what makes a program a participant."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from meup_agent.cli.commands import CommandTyper
from meup_agent.cli.failures import Failure, Misuse, require_extra
from meup_agent.cli.options import Json, RunningPort, argument, option
from meup_agent.cli.up.state import Owner, find_gateway, token_path
from meup_agent.errors import ConfigurationError, explain_os_error
from meup_agent.escape import as_json_line, visible
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


# --- meup init ---

DEFAULT_FILE: Final = Path("space.yaml")

DEFAULT_SERVERS: Final = Path("mcp.json")
"""The MCP servers that are taken where nothing else is said."""

NONE: Final = "-"
"""The answer to a question for nothing, where there is a default."""


RULES: Final = """\
# Decides proposals, the first rule that matches; what no rule matches is asked.
# After a change: meup policy check FILE
rules:
  - ask: {tool: "*"}
  # - allow: {tool: "read_*", arguments: {path: "docs/**"}}
  # - deny:  {tool: "shell*", explain: "no shells here"}
end: true # the last key: a file of which a part is missing is not used
"""
"""The policy that is written where there is none."""


def init(
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="Where to write it.")
    ] = DEFAULT_FILE,
    name: Annotated[
        str | None,
        option("NAME", "The space; else the folder's name."),
    ] = None,
    servers: Annotated[
        str | None,
        option(
            "FILE",
            "An MCP client's configuration whose servers belong to the space; else `mcp.json`"
            " if it is there. `-`: none.",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        option(
            "COMMAND",
            "The program that is `agent`; else none is started, and an MCP client can be it.",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        option(
            "FILE",
            "Let `reviewer` decide by the rules of this file, and leave to `you` what they"
            " ask; see `meup reviewer`. A file that is not there is written, and asks about all.",
        ),
    ] = None,
) -> None:
    """Ask three questions, and write a space's file for `meup up`, with tokens beside it.

    A question that an option answers is not asked. Without a terminal none is asked, and what is
    not given is what each question offers. In the space, `agent` may list tools and propose calls,
    and `you` may decide. Their tokens are in files that only you can read.

    Example: `meup init`

    Example: `meup init --name harbour --servers mcp.json --agent "python robot.py"`

    Example: `meup init --policy policy.yaml`
    """
    require_extra("a gateway")
    if file.exists():
        raise Failure(f"{file} is there already; remove it, or give another path")
    folder = file.resolve().parent
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder}")
    is_new = policy is not None and not policy.exists()
    rules = None if policy is None else _rules(policy, folder, is_new=is_new)
    offered = str(DEFAULT_SERVERS) if DEFAULT_SERVERS.is_file() else NONE
    if name is None:
        name = _answer(None, "The name of the space", folder.name or "space")
    from meup_agent.protocol.space.state.rules import MAX_ID_CHARS, is_name

    if not is_name(name):
        raise ConfigurationError(
            f"the name of a space is 1 to {MAX_ID_CHARS} printable characters; give another"
        )
    given = _answer(servers, "A file with the MCP servers to put behind approval", offered)
    found = {} if given == NONE else _servers(Path(given), folder, reviewed=rules is not None)
    answer = _answer(agent, "The command of your agent", NONE)
    try:
        command = [] if answer == NONE else shlex.split(answer)
    except ValueError as error:
        raise ConfigurationError(f"the agent's command cannot be split: {error}") from None

    from meup_agent.cli.up.plan import people  # loads what `meup up` needs, as do those below

    people(folder)
    if policy is not None and is_new:
        _write(policy, RULES)
        sys.stdout.write(f"{visible(str(policy))} is written: its rule asks about every call.\n")
    _write(file, _text(name, command, found, rules))
    where = "" if file == DEFAULT_FILE else f" {shlex.quote(str(file))}"
    sys.stdout.write(
        f"{visible(str(file))} is written, with the tokens of agent and you beside it;"
        f" keep the tokens out of version control.\nStart it: meup up{where}\n"
    )


def _write(file: Path, text: str) -> None:
    with explain_os_error(f"{file} cannot be written"), file.open("x", encoding="utf-8") as target:
        target.write(text)


def _answer(given: str | None, question: str, offered: str) -> str:
    """The answer of an option, or of the user, or the one that is offered."""
    if given is not None or not sys.stdin.isatty():
        return (offered if given is None else given) or NONE
    sys.stderr.write(f"{question} [{visible(offered)}]: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() or offered


def _rules(path: Path, folder: Path, *, is_new: bool) -> str:
    """The path of a policy, which loads if it is there, as seen from a folder."""
    require_extra("a policy file")
    from meup_agent.approval.policy.file import findings_of, load_policy
    from meup_agent.cli.render.output import warn

    for each in [] if is_new else findings_of(load_policy(path)):
        if each.level != "hint":
            warn(f"{path}: {each.text}")
    return os.path.relpath(path.resolve(), folder)


def _servers(path: Path, folder: Path, *, reviewed: bool) -> dict[str, str]:
    """The servers of a configuration, each with the configuration's path as seen from a folder."""
    from meup_agent.cli.render.output import warn
    from meup_agent.cli.up.plan import CAPABILITIES, REVIEWER, server_participants
    from meup_agent.mcp.bridge.config import read_servers

    taken = [*CAPABILITIES, *([REVIEWER] if reviewed else [])]
    servers = server_participants(read_servers(path, os.environ, warn), warn, taken)
    return dict.fromkeys(servers, os.path.relpath(path.resolve(), folder))


def _text(name: str, command: list[str], servers: Mapping[str, str], rules: str | None) -> str:
    """The file. Texts stand in it as in JSON, which is YAML too."""
    from meup_agent.cli.up.plan import (
        AGENT,
        CAPABILITIES,
        DECIDER,
        REVIEWER,
        SERVER,
        YOU,
        own_program,
    )

    text: Callable[[Any], str] = json.dumps
    lines = [
        "# A space, and what belongs to it. Start all of it:  meup up",
        "",
        "# Decisions go over HTTP.",
        "http: {}",
        "",
        "spaces:",
        f"  {text(name)}:",
        "    participants:",
    ]
    about = {YOU: "decides about proposals, and carries them out", AGENT: "lists tools, proposes"}
    for each in (YOU, AGENT):
        token = token_path(Path(), each).name
        lines += ["", f"      {each}:  # {about[each]}", f"        token_files: [{text(token)}]"]
        if each == AGENT and command:
            lines.append(f"        command: {text(command)}")
        lines += _capabilities(CAPABILITIES[each])
    if rules is not None:
        decides = [own_program(), "reviewer", "--policy", rules]
        lines += ["", f"      {REVIEWER}:  # decides by rules", f"        command: {text(decides)}"]
        lines += _capabilities(DECIDER)
    for server, path in servers.items():
        lines += ["", f"      {text(server)}:", f"        mcp_server: {{file: {text(path)}}}"]
        lines += _capabilities(SERVER)
    return "\n".join(lines) + "\n"


def _capabilities(listed: tuple[dict[str, Any], ...]) -> list[str]:
    return ["        capabilities:", *(f"          - {json.dumps(each)}" for each in listed)]
