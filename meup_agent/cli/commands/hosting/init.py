"""``meup init``: write a space's file that runs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from meup_agent.cli.failures import Failure, require_extra
from meup_agent.cli.options import option
from meup_agent.cli.render.output import warn
from meup_agent.cli.up.plan import (
    AGENT,
    CAPABILITIES,
    DECIDER,
    REVIEWER,
    SERVER,
    YOU,
    own_program,
    people,
    server_participants,
)
from meup_agent.cli.up.state import token_path
from meup_agent.errors import ConfigurationError, explain_os_error
from meup_agent.escape import visible

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

    for each in [] if is_new else findings_of(load_policy(path)):
        if each.level != "hint":
            warn(f"{path}: {each.text}")
    return os.path.relpath(path.resolve(), folder)


def _servers(path: Path, folder: Path, *, reviewed: bool) -> dict[str, str]:
    """The servers of a configuration, each with the configuration's path as seen from a folder."""
    from meup_agent.mcp.bridge.config import read_servers

    taken = [*CAPABILITIES, *([REVIEWER] if reviewed else [])]
    servers = server_participants(read_servers(path, os.environ, warn), warn, taken)
    return dict.fromkeys(servers, os.path.relpath(path.resolve(), folder))


def _text(name: str, command: list[str], servers: Mapping[str, str], rules: str | None) -> str:
    """The file. Texts stand in it as in JSON, which is YAML too."""
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
