"""``meup up``: a gateway, and the programs and MCP servers that its file lists."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from meup_agent.cli.commands.gateway import (
    GatewayStop,
    ListenOptions,
    describe_checked,
    log_gateway,
    run_gateway,
)
from meup_agent.cli.console_link import make_console, sign_in_link
from meup_agent.cli.failures import Failure, require_extra
from meup_agent.cli.loading_notice import LOADING
from meup_agent.cli.render.escape import visible
from meup_agent.cli.signals import ENDING, end_by_signals
from meup_agent.cli.up_bridges import (
    Place,
    can_listen,
    end_loading,
    loading,
    run_bridge,
    start_servers,
)
from meup_agent.errors import ConfigurationError

if TYPE_CHECKING:
    from meup_agent.cli.children import ChildProgram, Children
    from meup_agent.cli.up_state import UpLock
    from meup_agent.gateway.config import Config, ParticipantConfig
    from meup_agent.gateway.server import RunningGateway
    from meup_agent.gateway.space_yaml import MakeTokens
    from meup_agent.mcp.server_config import Server
    from meup_agent.mcp.server_process import ServerStarter

DEFAULT_FILE: Final = Path("space.yaml")

PLACEHOLDERS: Final[tuple[str, ...]] = ("PORT", "SPACE", "TOKEN")
"""Names that the reference's file may use, as ``${PORT}``, in a command line."""

log = logging.getLogger("meup_agent.up")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A participant that is started: its program, or the MCP server that is bridged."""

    space: str
    name: str
    token: str
    entry: ParticipantConfig
    server: Server | None = None

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
    banner: Callable[[RunningGateway, str | None], str] | None = None
    person: str | None = None  # the token of the one who decides in a browser


def up(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="The space and what belongs to it, as YAML; else `.mew/space.yaml` or"
            " `space.yaml`.",
            show_default=False,
        ),
    ] = None,
    servers: Annotated[
        Path | None,
        typer.Option(
            "--servers",
            metavar="FILE",
            help="Without a space's file: put the MCP servers of a client's configuration, with"
            " `mcpServers`, behind approval.",
        ),
    ] = None,
    *,
    listen: ListenOptions,
) -> None:
    """Run a gateway, and beside it the programs that its file lists, until Ctrl-C or SIGTERM.

    A participant with a `command` is started with its address and its token in the environment
    (MEUP_URL, MEUP_SPACE, MEUP_TOKEN), and again after a pause whenever it fails. The first Ctrl-C
    ends the programs, then the gateway; a second one hurries.

    With `--servers` each server of the configuration is a participant, `agent` may list their tools
    and propose calls, and `you` may decide. It prints what to paste into an MCP client.

    Example: `meup up --servers mcp.json`

    Example: `meup up`

    Example: `meup up space.yaml --port 8420`
    """
    require_extra("a gateway")
    if sys.platform == "win32":
        raise Failure("`meup up` needs the process groups of POSIX; run `meup gateway` here")
    log_gateway(check=listen.check)
    if file is not None and servers is not None:
        raise ConfigurationError("give either a space's file or --servers")
    if servers is not None:
        require_extra("MCP")
    else:
        from meup_agent.gateway.space_yaml import find_space_file

        file = file or find_space_file() or DEFAULT_FILE
        if listen.check:
            _check(file, listen)
            return
    from meup_agent.cli.up_state import up_lock

    if servers is not None and listen.check:
        sys.stdout.write(describe_checked(_read_servers(servers, listen).settings))
        return
    LOADING.begin()  # of the gateway, in whose place the servers take the processor
    with loading(), up_lock(servers or file or DEFAULT_FILE) as lock:
        _tell_neighbours(servers or file or DEFAULT_FILE)
        plan = _read_servers(servers, listen) if servers else _read(file or DEFAULT_FILE, listen)
        _require_bridges(plan)
        bridged = [(each.place, each.server) for each in plan.launches if each.server is not None]
        if not can_listen(plan.settings.host, plan.settings.port):
            bridged = []  # the gateway says why it cannot
        if bridged:
            log.info("starting %s", visible(", ".join(name for (_, name), _ in bridged), 500))
        with end_by_signals(), start_servers(bridged) as starters:
            _run(plan, lock, starters)


def _tell_neighbours(file: Path) -> None:
    """Say which other files of the same folder are run already."""
    from meup_agent.cli.up_state import running_owners

    folder = str(file.resolve().parent)
    for owner in running_owners():
        if owner.process != os.getpid() and owner.folder == folder:
            _warn(str(owner))


def _check(file: Path, listen: ListenOptions) -> None:
    """Say what would be served and started."""
    settings = _load(file, listen)
    sys.stdout.write(describe_checked(settings))
    for space in settings.spaces:
        for name, entry in space.participants.items():
            if entry.starts:
                sys.stdout.write(f"starts {visible(name)} in space {space.id}\n")


def _load(file: Path, listen: ListenOptions, make_tokens: MakeTokens = "never") -> Config:
    from meup_agent.gateway.config_file import load_config

    if not file.exists():
        raise ConfigurationError(
            f"there is no file {file}; write one with `meup init`, or give its path"
        )
    return listen.over(load_config(file, needs_tokens=False, make_tokens=make_tokens))


# --- the plan ---


def _read(file: Path, listen: ListenOptions) -> Plan:
    """The plan of a file; what is wrong with one participant is said, and the others stay."""
    from meup_agent.cli.servers_space import YOU, has_people
    from meup_agent.cli.up_state import token_path
    from meup_agent.gateway.space_yaml import base_of

    settings = _load(file, listen, "existing")
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
                token, participants[name] = _with_token(entry, path, prefix + name)
                if token is not None and not entry.starts and path.is_file():
                    token_files[name] = path
                if token is not None and entry.starts:
                    server = _server(name, entry, folder)
                    launches.append(
                        Launch(space=space.id, name=name, token=token, entry=entry, server=server)
                    )
            except ConfigurationError as error:
                _warn(f"participants.{name}: {error}")
            if isinstance(entry.command, str) and entry.auto_start is None:
                log.info("%s is not started: its auto_start does not say so", visible(name, 64))
        spaces[at] = replace(space, participants=participants)
    settings = replace(settings, spaces=tuple(spaces))
    settings.tokens()  # each is one participant's alone
    banner = person = None
    if len(spaces) == 1 and has_people(spaces[0].participants, folder):
        bridged = [launch.name for launch in launches if launch.server is not None]
        banner = partial(_banner, spaces[0].id, bridged, folder)
        you = spaces[0].participants[YOU]
        person = next(iter((*you.tokens, *you.token_files)), None)
    return Plan(
        settings=settings,
        folder=folder,
        launches=tuple(launches),
        token_files=token_files if len(spaces) == 1 else {},
        banner=banner,
        person=person,
    )


def _banner(
    space: str, names: list[str], folder: Path, running: RunningGateway, link: str | None
) -> str:
    from meup_agent.cli.servers_space import banner

    return banner(running.url, space, names, folder, link)


def _read_servers(path: Path, listen: ListenOptions) -> Plan:
    """The plan of a client's configuration."""
    from meup_agent.cli import servers_space
    from meup_agent.cli.up_state import token_path
    from meup_agent.gateway.config import Config, HttpConfig, SpaceConfig
    from meup_agent.gateway.config_file import environment_over
    from meup_agent.mcp.server_config import read_servers

    servers = read_servers(path, os.environ, _warn)
    joining = servers_space.server_participants(servers, _warn)
    if not joining:
        raise ConfigurationError(f"{path}: none of its servers can be started")
    folder = servers_space.token_folder(path)
    space = SpaceConfig(servers_space.SPACE, {**servers_space.people(folder), **joining})
    settings = listen.over(environment_over(Config((space,))))
    if settings.http is None:
        # The user decides over HTTP.
        settings = replace(settings, http=HttpConfig())
    launches = tuple(
        Launch(space=space.id, name=name, token=entry.tokens[0], entry=entry, server=servers[name])
        for name, entry in joining.items()
    )

    banner = partial(_banner, space.id, list(joining), folder)
    return Plan(
        settings=settings,
        folder=path.resolve().parent,
        launches=launches,
        token_files={name: token_path(folder, name) for name in servers_space.CAPABILITIES},
        banner=banner,
        person=space.participants[servers_space.YOU].tokens[0],
    )


def _with_token(
    entry: ParticipantConfig, path: Path, name: str
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
        token = keep_token(path)
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
        servers = read_servers(folder / given.file, os.environ, _warn)
        if name not in servers:
            raise ConfigurationError(f"{given.file} has no server of this name that can be used")
        check_command(servers[name])
        return servers[name]
    if given.command is None:
        raise ConfigurationError("mcp_server: give a command, or a file with mcpServers")
    command = _words(given.command, given.args)
    env = _fill_env(given.env, {})
    server = StdioServer(command[0], command[1:], env, folder / (given.cwd or ""))
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
            _warn(f"participants.{name}: {error}, so it is left as it is written")
            yield key, value


def _programs(plan: Plan, running: RunningGateway) -> Iterator[ChildProgram]:
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
            _warn(
                f"participants.{launch.name}: its command line shows its token to other users;"
                " let it read MEUP_TOKEN in place of ${TOKEN}"
            )
        try:
            env = _environment(plan, launch, running)
            if isinstance(entry.command, str):
                env |= {**known, token_variable(launch.name): launch.token}
                env |= _fill_known(launch.name, entry.env, known)
            else:
                env |= _fill_env(entry.env, known)
        except ConfigurationError as error:
            _warn(f"participants.{launch.name} is not started: {error}")
            continue
        for key, value in known.items():
            # No other names: what else looks so is for a shell that the command may be.
            words = tuple(word.replace(f"${{{key}}}", value) for word in words)
        yield ChildProgram(
            name=launch.name, command=words, env=env, cwd=plan.folder / (entry.cwd or "")
        )


def _environment(plan: Plan, launch: Launch, running: RunningGateway) -> dict[str, str]:
    """Our environment without the secrets in it that are ours, and the participant's own."""
    from meup_agent.gateway.space_yaml import TOKEN_VARIABLE

    secret = ("MEUP_TOKEN", TOKEN_VARIABLE)
    ours = {key: value for key, value in os.environ.items() if not key.startswith(secret)}
    own = {
        "MEUP_URL": running.url,
        **({} if running.http_url is None else {"MEUP_HTTP": running.http_url}),
        "MEUP_SPACE": launch.space,
        "MEUP_PARTICIPANT": launch.name,
        "MEUP_TOKEN": launch.token,
    }
    return {**ours, **own}


def _require_bridges(plan: Plan) -> None:
    if any(launch.server is not None for launch in plan.launches):
        require_extra("MCP")
        from meup_agent.mcp.sdk_logs import silence_sdk_logs

        silence_sdk_logs()


def _warn(sentence: str) -> None:
    sys.stderr.write(f"meup: warning: {visible(sentence, 1000)}\n")


# --- running it ---


def _run(plan: Plan, lock: UpLock, starters: Mapping[Place, ServerStarter]) -> None:
    """Run a plan until a signal."""
    from meup_agent.cli.children import adopt_orphans, run_children
    from meup_agent.cli.render.output import open_prefixed
    from meup_agent.cli.up_state import owner_of
    from meup_agent.gateway.output_log import log_programs

    console = make_console(plan.settings)

    @asynccontextmanager
    async def beside(running: RunningGateway, stop: GatewayStop) -> AsyncGenerator[None]:
        LOADING.end()
        lock.tell(running.url, running.http_url, plan.settings.spaces[0].id, plan.token_files)
        names = [launch.name for launch in plan.launches]
        async with (
            open_prefixed(names, partial(stop.take, signal.SIGTERM)) as output,
            adopt_orphans(),
            AsyncExitStack() as files,
            run_children(
                files.enter_context(log_programs(plan.settings, output.show)), hurry=stop.hurry
            ) as children,
        ):
            if plan.banner is not None:
                output.write(plan.banner(running, sign_in_link(console, running, plan.person)))
            if not stop.asked.is_set():
                for program in _programs(plan, running):
                    children.start(program)
                _start_bridges(plan, running, children, starters)
            log.info("up and running: %d of its participants are started", len(plan.launches))
            try:
                yield
            finally:
                children.end(stop.number)

    try:
        run_gateway(plan.settings, beside, ENDING, console)
    except ConfigurationError as error:
        owner = owner_of(plan.settings.port)
        if owner is not None and str(error).startswith("cannot listen at"):
            raise ConfigurationError(f"{error}: {owner}") from None
        raise


def _start_bridges(
    plan: Plan,
    running: RunningGateway,
    children: Children,
    starters: Mapping[Place, ServerStarter],
) -> None:
    """Let the MCP servers of a plan join, each as its participant."""
    bridged = False
    for launch in plan.launches:
        if launch.server is not None:
            bridged = True
            starter = starters.get(launch.place)
            bridge = partial(run_bridge, launch.name, launch.server, starter, children)
            place = {"url": running.url, "space": launch.space, "token": launch.token}
            children.keep(launch.name, partial(bridge, **place))
    if not bridged:
        end_loading()
