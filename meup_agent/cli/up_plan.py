"""Plans of ``meup up``: the gateway's settings, and the programs and MCP servers beside it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from meup_agent.cli.failures import require_extra
from meup_agent.cli.render.console import warn
from meup_agent.errors import ConfigurationError
from meup_agent.escape import visible

if TYPE_CHECKING:
    from meup_agent.cli.children import ChildProgram
    from meup_agent.cli.commands.gateway import ListenOptions
    from meup_agent.gateway.config import Config, ParticipantConfig
    from meup_agent.gateway.server import RunningGateway
    from meup_agent.gateway.space_yaml import MakeTokens
    from meup_agent.mcp.server_config import Server

PLACEHOLDERS: Final[tuple[str, ...]] = ("PORT", "SPACE", "TOKEN")
"""Names that the reference's file may use, as ``${PORT}``, in a command line."""

log = logging.getLogger("meup_agent.up")


Place = tuple[str, str]
"""A space, and the name of a participant in it."""


class Launch(NamedTuple):
    """A participant that is started: its program, or the MCP server that is bridged."""

    space: str
    name: str
    token: str
    entry: ParticipantConfig
    server: Server | None
    pins: Path  # the file of its accepted tools, if it is a server that is pinned

    @property
    def place(self) -> Place:
        """Its space and its name, as no other participant's."""
        return self.space, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that one ``meup up`` runs; paths begin at the folder."""

    settings: Config
    folder: Path
    launches: tuple[Launch, ...]
    token_files: Mapping[str, Path]
    people: Path | None = None  # where the tokens of `agent` and `you` are, if it has these two
    policy: Path | None = None  # that decides before `you` do


def load_file(file: Path, listen: ListenOptions, make_tokens: MakeTokens = "never") -> Config:
    """The settings of a space's file.

    Raises:
        ConfigurationError: There is none, or it does not load.
    """
    from meup_agent.gateway.config_file import load_config

    if not file.exists():
        raise ConfigurationError(
            f"there is no file {file}; write one with `meup init`, or give its path"
        )
    return listen.over(load_config(file, needs_tokens=False, make_tokens=make_tokens))


def read_plan(file: Path, listen: ListenOptions, *, renew: bool = False) -> Plan:
    """The plan of a file; what is wrong with one participant is said, and the others stay.

    With ``renew`` tokens that are kept in files of their own are made anew.
    """
    from meup_agent.cli.servers_space import has_people
    from meup_agent.cli.up_state import pins_path, token_path
    from meup_agent.gateway.space_yaml import base_of

    settings = load_file(file, listen, "renewed" if renew else "existing")
    folder = base_of(file.resolve())
    launches: list[Launch] = []
    token_files: dict[str, Path] = {}
    spaces = list(settings.spaces)
    for at, space in enumerate(spaces):
        participants = dict(space.participants)
        for name, entry in space.participants.items():
            prefix = f"{space.id}." if len(spaces) > 1 else ""
            try:
                path = token_path(folder, prefix + name)
                token, participants[name] = _with_token(entry, path, prefix + name, renew=renew)
                if token is not None and not entry.starts and path.is_file():
                    token_files[name] = path
                if token is not None and entry.starts:
                    server, pins = _server(name, entry, folder), pins_path(folder, prefix)
                    launches.append(Launch(space.id, name, token, entry, server, pins))
            except ConfigurationError as error:
                warn(f"participants.{name}: {error}")
            if isinstance(entry.command, str) and entry.auto_start is None:
                log.info("%s is not started: its auto_start does not say so", visible(name, 64))
        spaces[at] = replace(space, participants=participants)
    settings = replace(settings, spaces=tuple(spaces))
    settings.tokens()  # each is one participant's alone
    is_for_people = len(spaces) == 1 and has_people(spaces[0].participants, folder)
    return Plan(
        settings=settings,
        folder=folder,
        launches=tuple(launches),
        token_files=token_files if len(spaces) == 1 else {},
        people=folder if is_for_people else None,
    )


def read_servers_plan(
    path: Path, policy: Path | None, listen: ListenOptions, *, renew: bool = False
) -> Plan:
    """The plan of a client's configuration, and of a policy for its servers."""
    from meup_agent.cli import servers_space
    from meup_agent.cli.up_state import pins_path, token_path
    from meup_agent.gateway.config import Config, HttpConfig, SpaceConfig
    from meup_agent.gateway.config_file import environment_over
    from meup_agent.mcp.server_config import read_servers

    servers = read_servers(path, os.environ, warn)
    deciding = {} if policy is None else {servers_space.REVIEWER: _reviewer(policy)}
    taken = {*servers_space.CAPABILITIES, *deciding}
    joining = servers_space.server_participants(servers, warn, taken)
    if not joining:
        raise ConfigurationError(f"{path}: none of its servers can be started")
    folder = servers_space.token_folder(path)
    people = servers_space.people(folder, renew=renew)
    space = SpaceConfig(servers_space.SPACE, {**people, **deciding, **joining})
    settings = listen.over(environment_over(Config((space,))))
    if settings.http is None:
        # The user decides over HTTP.
        settings = replace(settings, http=HttpConfig())
    launches = tuple(
        Launch(
            space.id,
            name,
            entry.tokens[0],
            entry,
            servers[name] if name in joining else None,
            pins_path(folder),
        )
        for name, entry in {**deciding, **joining}.items()
    )
    return Plan(
        settings=settings,
        folder=path.resolve().parent,
        launches=launches,
        token_files={name: token_path(folder, name) for name in servers_space.CAPABILITIES},
        people=folder,
        policy=policy,
    )


def _reviewer(policy: Path) -> ParticipantConfig:
    """The participant that decides by a policy, once the policy has been loaded.

    Raises:
        ConfigurationError: It does not load, since nothing is to run by a mistyped rule, or it
            counts votes that cannot come.
    """
    require_extra("a policy file")
    from meup_agent.approval.policy_file import findings_of, load_policy
    from meup_agent.approval.rules import QuorumRule
    from meup_agent.cli.servers_space import YOU, policy_reviewer

    loaded = load_policy(policy)
    for rule, name in zip(loaded.rules, loaded.names, strict=True):
        if isinstance(rule, QuorumRule) and (rule.of > 1 or YOU not in rule.among):
            raise ConfigurationError(
                f"{policy}: {name}: only {YOU} can vote in a space of --servers; for more people"
                " write a space's file with `meup init`, or write ask instead"
            )
    for each in findings_of(loaded):
        warn(f"{policy}: {each}")
    return policy_reviewer(policy.resolve())


def _with_token(
    entry: ParticipantConfig, path: Path, name: str, *, renew: bool
) -> tuple[str | None, ParticipantConfig]:
    """A participant's first token, and the participant with it if it had none that is known."""
    from meup_agent.cli.up_state import keep_token
    from meup_agent.gateway.auth import new_token

    for token in (*entry.tokens, *entry.token_files):
        return token, entry
    if entry.starts:
        # Only the program needs it, so it is nowhere but in two processes.
        token = new_token()
    elif entry.token_hashes:
        return None, entry
    else:
        token = keep_token(path, renew=renew)
        log.info("the token of %s is in %s", visible(name, 64), path)
    return token, replace(entry, tokens=(token,))


def _server(name: str, entry: ParticipantConfig, folder: Path) -> Server | None:
    """The MCP server that a participant bridges, if it does."""
    given = entry.mcp_server
    if given is None:
        return None
    if entry.command is not None:
        raise ConfigurationError("has a command and an mcp_server; remove one of them")
    from meup_agent.cli.servers_space import check_command
    from meup_agent.mcp.server_config import StdioServer, read_servers

    if given.file is not None:
        servers = read_servers(folder / given.file, os.environ, warn)
        if name not in servers:
            raise ConfigurationError(f"{given.file} has no server of this name that can be used")
        found = servers[name]
        check_command(found)
        return found if given.pin else replace(found, pin=False)
    if given.command is None:
        raise ConfigurationError("mcp_server: give a command, or a file with mcpServers")
    command = _words(given.command, given.args)
    env = _fill_env(given.env, {})
    server = StdioServer(command[0], command[1:], env, folder / (given.cwd or ""), given.pin)
    check_command(server)
    return server


def _words(command: str | tuple[str, ...], args: tuple[str, ...]) -> tuple[str, ...]:
    return (command, *args) if isinstance(command, str) else (*command, *args)


def _fill_env(env: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Variables of a file, with those filled in that their values name."""
    from meup_agent.mcp.server_config import fill_variables

    variables = {**os.environ, **known}
    return {key: fill_variables(value, f"env.{key}", variables) for key, value in env.items()}


def _fill_known(
    name: str, env: Mapping[str, str], known: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """As the reference fills a file's variables: what is not set stays as it is written."""
    for key, value in env.items():
        try:
            yield from _fill_env({key: value}, known).items()
        except ConfigurationError as error:
            warn(f"participants.{name}: {error}, so it is left as it is written")
            yield key, value


def programs_of(plan: Plan, running: RunningGateway) -> Iterator[ChildProgram]:
    """The programs of a plan, for a gateway that listens."""
    from meup_agent.cli.children import ChildProgram
    from meup_agent.gateway.space_yaml import token_variable

    for launch in plan.launches:
        entry = launch.entry
        if entry.command is None:
            continue
        values = (str(running.port), launch.space, launch.token)
        known: dict[str, str] = dict(zip(PLACEHOLDERS, values, strict=True))
        words = _words(entry.command, entry.args)
        if any("${TOKEN}" in word for word in words):
            warn(
                f"participants.{launch.name}: its command line shows its token to other users;"
                " let it read MEUP_TOKEN in place of ${TOKEN}"
            )
        try:
            env = _environment(launch, running)
            if isinstance(entry.command, str):
                env |= {**known, token_variable(launch.name): launch.token}
                env |= _fill_known(launch.name, entry.env, known)
            else:
                env |= _fill_env(entry.env, known)
        except ConfigurationError as error:
            warn(f"participants.{launch.name} is not started: {error}")
            continue
        for key, value in known.items():
            # No other names: what else looks so is for a shell that the command may be.
            words = tuple(word.replace(f"${{{key}}}", value) for word in words)
        yield ChildProgram(
            name=launch.name, command=words, env=env, cwd=plan.folder / (entry.cwd or "")
        )


def _environment(launch: Launch, running: RunningGateway) -> dict[str, str]:
    """Our environment without the secrets in it that are ours, and the participant's own."""
    from meup_agent.gateway.space_yaml import TOKEN_VARIABLE

    secret = ("MEUP_TOKEN", TOKEN_VARIABLE)
    ours = {key: value for key, value in os.environ.items() if not key.startswith(secret)}
    own = {
        "MEUP_URL": running.own_url,
        **({} if running.http_url is None else {"MEUP_HTTP": running.http_url}),
        "MEUP_SPACE": launch.space,
        "MEUP_PARTICIPANT": launch.name,
        "MEUP_TOKEN": launch.token,
    }
    return {**ours, **own}


def require_bridges(plan: Plan) -> None:
    """Require the extra for MCP where a plan has an MCP server."""
    if any(launch.server is not None for launch in plan.launches):
        require_extra("MCP")
        from meup_agent.mcp.sdk_logs import silence_sdk_logs

        silence_sdk_logs()
