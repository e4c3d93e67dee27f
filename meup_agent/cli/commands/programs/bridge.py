"""``meup bridge``: MCP servers as participants of a space."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from meup_agent.cli.address import Address, SpaceOptions
from meup_agent.cli.failures import require_extra, run_joined
from meup_agent.cli.options import LogLevel, Roots, argument, flag, option
from meup_agent.errors import ConfigurationError

if TYPE_CHECKING:
    from meup_agent.mcp.bridge.config import Server

TOKEN_VARIABLE: Final = "MEUP_TOKEN_"
"""Beginning of the variable that holds the token of a server's participant."""


class Target(NamedTuple):
    """A server, and the participant that it becomes."""

    name: str
    server: Server
    address: Address


def bridge(
    command: Annotated[
        list[str] | None,
        argument("-- COMMAND ARGUMENTS…", "A server that is a program: its command, behind `--`."),
    ] = None,
    http: Annotated[str | None, option("URL", "A server behind an address.")] = None,
    header: Annotated[
        list[str] | None,
        option(
            "NAME=VARIABLE",
            "A header for --http, whose value the environment variable holds; may be given"
            " several times.",
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        option(
            "NAME[=VALUE]",
            "A variable for the command, else with the value that it has here; may be given"
            " several times. Without it, the command gets PATH, HOME and a few more.",
        ),
    ] = None,
    servers: Annotated[
        Path | None,
        option(
            "FILE",
            "Several servers: a file with `mcpServers`, as MCP clients have it. The token of"
            " the server `x-y` is in MEUP_TOKEN_X_Y.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        option("NAME", "The server's name in the log and in --pin."),
    ] = None,
    pin: Annotated[
        Path | None,
        option(
            "FILE",
            "Ask about calls of tools that are not those in this file. The first start makes it.",
        ),
    ] = None,
    confirm: Annotated[
        bool, flag("--confirm", "With --pin: accept the tools that there are now.")
    ] = False,
    root: Roots = None,
    *,
    at: SpaceOptions,
    log_level: Annotated[
        LogLevel, typer.Option(help="What is logged, also of the servers' messages.")
    ] = LogLevel.INFO,
) -> None:
    """Let MCP servers be participants: their tools, resources and prompts, until Ctrl-C.

    A server that ends is started again. Of several, each has its own participant, and a token of
    its own; with a gateway of `meup gateway --dev` the tokens are found.

    Example: `MEUP_TOKEN=… meup bridge -- uvx mcp-server-git --repository .`

    Example: `MEUP_TOKEN=… meup bridge --http https://example.com/mcp`

    Example: `MEUP_TOKEN_GIT=… MEUP_TOKEN_TIME=… meup bridge --servers mcp.json --pin tools.lock`
    """
    given = [each for each in (command, http, servers) if each]
    if len(given) != 1:
        raise ConfigurationError(
            "give one of: a command behind `--`, --http URL, or --servers FILE"
            if not given
            else "give only one of: a command behind `--`, --http, --servers"
        )
    if confirm and pin is None:
        raise ConfigurationError("--confirm goes with --pin, which names the file")
    require_extra("MCP")
    if servers is not None:
        if header or env or name:
            raise ConfigurationError(
                "--header, --env and --name are for one server; write them into the file"
            )
        targets = _targets(servers, at)
    else:
        targets = [_target(command or [], http, header or [], env or [], name, at)]
    _run(targets, pin, root or [], confirm=confirm, log_level=log_level)


# --- which servers, as which participants ---


def _target(
    command: Sequence[str],
    http: str | None,
    headers: Sequence[str],
    variables: Sequence[str],
    name: str | None,
    at: SpaceOptions,
) -> Target:
    """The one server of the command line."""
    from meup_agent.mcp.bridge.config import StdioServer, check_name, http_server

    if http is not None:
        if variables:
            raise ConfigurationError("--env is for a command; a server behind --http has its own")
        found = {key: _variable(of) for key, of in map(_pair, headers)}
        server: Server = http_server(http, found)
        name = name or "mcp"
    else:
        if headers:
            raise ConfigurationError("--header goes with --http")
        env = {
            key: value if equals else _variable(key)
            for key, equals, value in (each.partition("=") for each in variables)
        }
        server = StdioServer(command[0], tuple(command[1:]), env)
        name = name or Path(command[0]).stem
    check_name(name)
    return Target(name, server, at.address())


def _pair(given: str) -> tuple[str, str]:
    key, equals, value = given.partition("=")
    if not equals or not key or not value:
        raise ConfigurationError("--header takes NAME=VARIABLE, for example Authorization=MY_AUTH")
    return key, value


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ConfigurationError(f"the environment variable {name} is not set")
    return value


def _targets(path: Path, at: SpaceOptions) -> list[Target]:
    """The servers of a file, each with the token of its participant."""
    from meup_agent.mcp.bridge.config import read_servers

    if at.token or at.token_file or at.participant:
        raise ConfigurationError(
            "--token, --token-file and --participant are for one server; with --servers each has"
            f" a token of its own, in {TOKEN_VARIABLE}NAME"
        )
    servers = read_servers(path, os.environ)
    variables = _token_variables(servers)
    known = _dev_tokens(at.url or os.environ.get("MEUP_URL"))
    tokens = {name: os.environ.get(variables[name]) or known.get(name) for name in servers}
    missing = [name for name, token in tokens.items() if not token]
    if missing:
        raise ConfigurationError(
            "; ".join(
                f"the token of the participant for the server {name!r} is missing, set"
                f" {variables[name]}"
                for name in missing
            )
        )
    where = {
        # MEUP_PARTICIPANT is the name of one token, that of MEUP_TOKEN.
        name: SpaceOptions(url=at.url, space=at.space, token=token)
        .address()
        ._replace(participant=None)
        for name, token in tokens.items()
    }
    return [Target(name, server, where[name]) for name, server in servers.items()]


def _token_variables(names: Mapping[str, object]) -> dict[str, str]:
    """The variable of each server's token.

    Raises:
        ConfigurationError: Two servers would have the same.
    """
    owners: dict[str, str] = {}
    for name in names:
        variable = TOKEN_VARIABLE + re.sub(r"[^A-Z0-9]", "_", name.upper())
        if (other := owners.setdefault(variable, name)) != name:
            raise ConfigurationError(
                f"the servers {other!r} and {name!r} would both have their token in {variable};"
                " rename one"
            )
    return {name: variable for variable, name in owners.items()}


def _dev_tokens(url: str | None) -> Mapping[str, str]:
    """The tokens that a gateway of ``meup gateway --dev`` knows, by either of its addresses."""
    if find_spec("platformdirs") is None:
        return {}
    from meup_agent.cli.up.state import dev_folder, list_running

    for gateway in list_running(dev_folder()):
        if url in (gateway.url, gateway.socket):
            return {name: gateway.token(name) for name in gateway.token_files}
    return {}


# --- running them ---


def _run(
    targets: Sequence[Target],
    pin: Path | None,
    roots: Sequence[str],
    *,
    confirm: bool,
    log_level: LogLevel,
) -> None:
    from meup_agent.cli.render.logs import log_to_stderr
    from meup_agent.cli.up.state import older_folder, sign_in_folder
    from meup_agent.mcp.bridge.bridge import Bridge, BridgeEntry, join_bridges
    from meup_agent.mcp.bridge.config import root_of
    from meup_agent.mcp.bridge.connection import ConnectionSettings
    from meup_agent.mcp.bridge.offered_tools import ToolLock
    from meup_agent.mcp.sdk.logs import pace_sdk_logs, silence_sdk_logs

    for each in roots:
        root_of(each)
    lock = None if pin is None else ToolLock(pin, confirm=confirm)
    log_to_stderr(log_level.value)
    if log_level is LogLevel.DEBUG:
        pace_sdk_logs()
    else:
        silence_sdk_logs()

    settings = ConnectionSettings(
        log_level=log_level.value, sign_in_folder=sign_in_folder(), older_folder=older_folder()
    )
    entries = [
        BridgeEntry(
            bridge=Bridge(
                name,
                server,
                pin=lock if server.pin else None,
                roots=roots,
                settings=settings,
            ),
            url=address.url,
            **address.identity,
        )
        for name, server, address in targets
    ]
    run_joined(lambda hurry: join_bridges(entries, hurry=hurry))
