"""MCP servers beside a gateway: each joins as a participant, for as long as ``meup up`` runs."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import socket
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
from anyio import to_thread

from meup_agent.cli.failures import require_extra
from meup_agent.cli.render.output import warn
from meup_agent.cli.up.autostart import SPACE
from meup_agent.cli.up.state import (
    digest_of,
    journal_path,
    keep_token,
    make_folder,
    older_folder,
    pins_path,
    sign_in_folder,
    token_path,
    up_folder,
)
from meup_agent.errors import ConfigurationError, MeupError
from meup_agent.gateway.auth import new_token
from meup_agent.gateway.config import (
    ROLES,
    Config,
    HttpConfig,
    ParticipantConfig,
    SpaceConfig,
    participant,
)
from meup_agent.mcp.bridge.config import (
    Server,
    StdioServer,
    fill_variables,
    missing_command,
    read_servers,
)
from meup_agent.protocol.wire.payloads import PREFIX, TOOL_CALL
from meup_agent.wording import shown_name

if TYPE_CHECKING:
    from meup_agent.approval.policy.rules import Pattern, QuorumRule
    from meup_agent.cli.commands.gateway import ListenOptions
    from meup_agent.cli.up.children import ChildProgram, Children
    from meup_agent.gateway.config_file import MakeTokens
    from meup_agent.gateway.server import RunningGateway
    from meup_agent.mcp.bridge.offered_tools import ToolLock
    from meup_agent.mcp.bridge.transports import ServerStarter
    from meup_agent.processes.guarded import FailedRun
    from meup_agent.transport.base import Connector


# --- servers space ---
# The space that `meup up --servers` makes of an MCP client's configuration.
#
# Each server is a participant; `agent` may list tools and propose their calls; `you` may decide, or
# the persons that are named in its place. `reviewer` uses the yeses that they give in advance. With
# a policy it decides by that, and leaves to them what it asks.

AGENT: Final = "agent"
YOU: Final = "you"
REVIEWER: Final = "reviewer"

SERVER: Final[tuple[dict[str, Any], ...]] = (
    *ROLES["tools"],
    {"kind": "mcp/request", "payload": {"method": "notifications/**"}},
    {"kind": "mcp/request", "payload": {"method": "elicitation/create"}},
    {"kind": "mcp/request", "payload": {"method": "sampling/createMessage"}},
    {"kind": "mcp/request", "payload": {"method": "roots/list"}},
    {"kind": "mcp/proposal", "payload": {"method": "elicitation/create"}},
)
"""Capabilities of a server: it answers, tells what changed, and asks during a call, or a person."""

CAPABILITIES: Final = {AGENT: ROLES["proposer"], YOU: ROLES["fulfiller"]}
"""Capabilities of the two who are not servers."""

DECIDER: Final[tuple[dict[str, Any], ...]] = (
    {"kind": "mcp/request"},
    {"kind": "mcp/reject"},
    {"kind": "chat"},
)
"""Capabilities of ``reviewer``: it fulfills, rejects and reminds."""


_NOTHING: Final = "no-tool-has-this-name-*"
"""Pattern beside others in braces, which are braces where there is a wildcard alone."""


def person_capabilities(quorums: Sequence[QuorumRule]) -> tuple[dict[str, Any], ...]:
    """Capabilities of a person: of what takes votes nobody carries out a call alone.

    A vote is a request to the reviewer, which carries the call out. What a rule asks beside the
    tool makes no difference here, since a call could be edited to be another one. Where the tools
    of a rule cannot be written as what a person may not call, no tool can be called.
    """
    if not quorums:
        return CAPABILITIES[YOU]
    methods, tools = [TOOL_CALL], list[str]()
    for rule in quorums:
        methods += _texts(rule.method)
        # A pattern of methods may be for calls of tools, too.
        named = rule.tool is not None or all(_is_exact(each) for each in _texts(rule.method))
        tools += _texts(rule.tool) if named else ["*"]
    may: list[dict[str, Any]] = [{"method": f"{PREFIX}*"}]  # votes, and other questions of faces
    if all(map(_is_plain, methods)):
        may.append({"method": _none_of(methods)})
    if all(map(_is_plain, tools)):
        may.append({"method": TOOL_CALL, "params": {"name": _none_of(tools)}})
    others = (each for each in CAPABILITIES[YOU] if each != {"kind": "mcp/request"})
    return (*({"kind": "mcp/request", "payload": each} for each in may), *others)


def _texts(pattern: Pattern | None) -> Sequence[str]:
    return (pattern,) if isinstance(pattern, str) else tuple(pattern or ())


def _is_plain(pattern: str) -> bool:
    """True for a pattern that means the same between braces."""
    return not pattern.startswith(("!", "/")) and frozenset("{},\\").isdisjoint(pattern)


def _is_exact(pattern: str) -> bool:
    return _is_plain(pattern) and frozenset("*?[").isdisjoint(pattern)


def _none_of(patterns: Iterable[str]) -> str:
    return f"!{{{','.join(dict.fromkeys((*patterns, _NOTHING)))}}}"


def people(
    folder: Path,
    *,
    clients: Iterable[str] = (),
    persons: Iterable[str] = (YOU,),
    quorums: Sequence[QuorumRule] = (),
    renew: bool = False,
) -> dict[str, ParticipantConfig]:
    """``agent``, further clients, and who may decide; their tokens are kept in a folder."""
    capabilities = {
        AGENT: CAPABILITIES[AGENT],
        **dict.fromkeys(persons, person_capabilities(quorums)),
        **dict.fromkeys(clients, CAPABILITIES[AGENT]),
    }
    return {
        name: participant(name, allowed, (keep_token(token_path(folder, name), renew=renew),))
        for name, allowed in capabilities.items()
    }


def server_participants(
    servers: Mapping[str, Server],
    on_problem: Callable[[str], None],
    taken: Collection[str],
) -> dict[str, ParticipantConfig]:
    """A participant for each server that can be one; it gets a new token at each start."""
    found: dict[str, ParticipantConfig] = {}
    for name, server in servers.items():
        try:
            if name in taken:
                raise ConfigurationError("this name is another participant's; rename the server")
            check_command(server)
            found[name] = participant(name, SERVER, (new_token(),))
        except ConfigurationError as error:
            on_problem(f"the server {name} is left out: {error}")
    return found


def check_command(server: Server) -> None:
    """Check that a server's program is there.

    Raises:
        ConfigurationError: It is not.
    """
    if isinstance(server, StdioServer) and os.sep not in server.command:
        path = server.env.get("PATH", os.environ.get("PATH"))
        if shutil.which(server.command, path=path) is None:
            raise ConfigurationError(missing_command(server.command))


def own_program() -> str:
    beside = Path(sys.executable).with_name("meup")
    return str(beside) if beside.is_file() else "meup"


# --- up plan ---
# Plans of `meup up`: the gateway's settings, and the programs and MCP servers beside it.

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
    made: bool = True  # its token is made at each start, and is nowhere but in two processes

    @property
    def place(self) -> Place:
        """Its space and its name, as no other participant's."""
        return self.space, self.name

    def entry_in(self, plan: Plan) -> ParticipantConfig:
        """The participant as the settings of a plan have it, with its token."""
        space = plan.settings.space(self.space)
        assert space is not None
        return space.participants[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that one ``meup up`` runs; paths begin at the folder."""

    settings: Config
    folder: Path
    launches: tuple[Launch, ...]
    token_files: Mapping[str, Path]
    people: Path | None = None  # where the tokens of `agent` and `you` are, if it has these two
    clients: tuple[str, ...] = (AGENT,)  # the participants that MCP clients are to be
    autostart: str = ""  # the arguments that start the same again, from any folder
    persons: tuple[str, ...] = (YOU,)  # who decide
    policy: Path | None = None  # that decides before `you` do
    roots: tuple[str, ...] = ()  # that the MCP servers are told

    @property
    def bridged(self) -> list[Launch]:
        """The MCP servers among what is started."""
        return [each for each in self.launches if each.server is not None]


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
    from meup_agent.gateway.config_file import base_of, token_folder

    settings = load_file(file, listen, "renewed" if renew else "existing")
    folder = base_of(file.resolve())
    launches: list[Launch] = []
    token_files: dict[str, Path] = {}
    spaces = list(settings.spaces)
    is_one, state = len(spaces) == 1, spaces[0].state
    # The reference's form has a folder for them, of which no repository gets a part.
    kept_in = folder if state is None else token_folder(state)
    for at, space in enumerate(spaces):
        participants = dict(space.participants)
        for name, entry in space.participants.items():
            prefix = "" if is_one else f"{space.id}."
            try:
                path = token_path(kept_in, prefix + name)
                token, participants[name] = _with_token(entry, path, prefix + name, renew=renew)
                if token is not None and entry.starts:
                    server, pins = _server(name, entry, folder), _pins_of(space, folder, prefix)
                    made = not entry.has_token
                    launches.append(Launch(space.id, name, token, entry, server, pins, made))
                elif token is not None and path.is_file():
                    token_files[name] = path
            except ConfigurationError as error:
                warn(f"participants.{name}: {error}")
            if isinstance(entry.command, str) and entry.auto_start is None:
                log.info("%s is not started: its auto_start does not say so", shown_name(name))
        spaces[at] = replace(space, participants=participants)
    settings = replace(settings, spaces=tuple(spaces))
    settings.tokens()  # each is one participant's alone
    is_for_people = is_one and all(
        each in spaces[0].participants and token_path(kept_in, each).is_file()
        for each in CAPABILITIES
    )
    return Plan(
        settings=settings,
        folder=folder,
        launches=tuple(launches),
        token_files=token_files if is_one else {},
        people=kept_in if is_for_people else None,
    )


def _pins_of(space: SpaceConfig, folder: Path, prefix: str) -> Path:
    """The file of the accepted tools of a space's servers: where it is, or is to be."""
    beside = pins_path(folder, prefix)
    if space.state is None or beside.exists():
        return beside
    return pins_path(space.state, prefix)


def read_servers_plan(
    path: Path,
    policy: Path | None,
    listen: ListenOptions,
    *,
    clients: tuple[str, ...] = (),
    persons: tuple[str, ...] = (),
    renew: bool = False,
) -> Plan:
    """The plan of a client's configuration, of a policy for its servers, and of its clients."""
    from meup_agent.gateway.config_file import environment_over

    # Clients may have a space without servers: agents whose own tools are decided.
    servers = read_servers(path, os.environ, warn, may_be_none=bool(clients))
    _check_names("--person", persons, {AGENT, REVIEWER, *servers})
    persons = tuple(dict.fromkeys(persons)) or (YOU,)
    reviewer, quorums = _reviewer(policy, persons)
    deciding = {REVIEWER: reviewer}
    _check_names("--client", clients, {YOU, *persons, REVIEWER, *servers})
    taken = {*CAPABILITIES, *persons, *deciding, *clients}
    joining = server_participants(servers, warn, taken)
    if not joining and (servers or not clients):
        raise ConfigurationError(f"{path}: none of its servers can be started")
    folder = up_folder() / digest_of(path)
    make_folder(folder.parent)
    make_folder(folder)
    known = people(folder, clients=clients, persons=persons, quorums=quorums, renew=renew)
    participants = {**known, **deciding, **joining}
    space = SpaceConfig(SPACE, participants)
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
        token_files={name: token_path(folder, name) for name in known},
        people=folder,
        persons=persons,
        clients=tuple(dict.fromkeys(clients)) or (AGENT,),
        policy=policy,
    )


def _check_names(option: str, names: Iterable[str], taken: Collection[str]) -> None:
    """Check that each name can be a participant, before a file is made for its token.

    Raises:
        ConfigurationError: It cannot.
    """
    for each in names:
        if each in taken:
            raise ConfigurationError(
                f"{option} {shown_name(each)}: this name is another participant's; choose another"
            )
        try:
            participant(each, (), ())
        except ConfigurationError as error:
            raise ConfigurationError(f"{option}: {error}") from None


KEPT_BYTES: Final = 1_000_000_000
"""Bytes beyond which the journal that nobody has configured forgets the oldest: years of decisions
of a person, and a size that no disk misses."""


def keep_decisions(settings: Config, file: Path) -> Config:
    """The settings with a journal in the user's state, if they name none."""
    journal = settings.journal
    if journal.has_place:
        return settings
    most = KEPT_BYTES if journal.max_bytes is None else journal.max_bytes
    kept = replace(journal, path=journal_path(file), max_bytes=most)
    return replace(settings, journal=kept)


def settings_beside(running: Plan, read: Plan) -> Config:
    """The settings of a plan that was read again, beside the programs of the one that runs.

    A program keeps the token that was made for it, and stays a participant as long as it runs. What
    is to be started otherwise, or stopped, waits for the next start, which the log says.
    """
    before = {each.place: each for each in running.launches}
    after = {each.place: each for each in read.launches}
    spaces: list[SpaceConfig] = []
    for space in read.settings.spaces:
        participants = dict(space.participants)
        for (where, name), launch in before.items():
            if where == space.id:
                entry = participants.get(name)
                if (where, name) not in after or entry is None:
                    participants[name] = launch.entry_in(running)
                elif launch.made and after[where, name].made:
                    participants[name] = replace(entry, tokens=(launch.token,))
        for where, name in after:
            if where == space.id and (where, name) not in before:
                del participants[name]
        spaces.append(replace(space, participants=participants))
    waiting = [
        shown_name(place[1])
        for place in dict.fromkeys((*before, *after))
        if _program_of(before.get(place)) != _program_of(after.get(place))
    ]
    if waiting:
        log.warning(
            "started, stopped or changed at the next start of `meup up` only: %s",
            ", ".join(waiting),
        )
    return replace(read.settings, spaces=tuple(spaces))


def _program_of(launch: Launch | None) -> tuple[object, ...] | None:
    """The program of a participant, to be compared; ``None``: it has none."""
    if launch is None:
        return None
    entry = launch.entry
    return entry.command, entry.args, entry.env, entry.cwd, launch.server


def _reviewer(
    policy: Path | None, persons: Collection[str]
) -> tuple[ParticipantConfig, list[QuorumRule]]:
    """The participant that decides by yeses, and by a policy once that has been loaded.

    With the policy's rules that take votes.

    It gets a new token at each start.

    Raises:
        ConfigurationError: It does not load, since nothing is to run by a mistyped rule, or it
            counts votes that cannot come.
    """
    require_extra("a policy file")
    from meup_agent.approval.policy.file import findings_of, load_policy
    from meup_agent.approval.policy.rules import QuorumRule

    command = (sys.executable, "-m", "meup_agent.cli", "reviewer")
    entry = replace(participant(REVIEWER, DECIDER, (new_token(),)), command=command)
    quorums: list[QuorumRule] = []
    if policy is None:
        return entry, quorums
    loaded = load_policy(policy)
    for rule, name in zip(loaded.rules, loaded.names, strict=True):
        if isinstance(rule, QuorumRule):
            quorums.append(rule)
            voters = sum(each in persons for each in rule.among)
            if voters < rule.of:
                raise ConfigurationError(
                    f"{policy}: {name}: it asks for {rule.of} votes, and of those who may vote"
                    f" {voters or 'none'} can be here; name each by --person, or write ask instead"
                )
            if rule.arguments or rule.target or rule.proposer:
                warn(
                    f"{policy}: {name}: no person may carry out other calls of its tools alone"
                    " either, since an edit could make them these; where a rule asks about them,"
                    " add a quorum with of: 1 for the same tools behind it"
                )
    for each in findings_of(loaded):
        if each.level != "hint":
            warn(f"{policy}: {each.text}")
    return replace(entry, command=(*command, "--policy", str(policy.resolve()))), quorums


def _with_token(
    entry: ParticipantConfig, path: Path, name: str, *, renew: bool
) -> tuple[str | None, ParticipantConfig]:
    """A participant's first token, and the participant with it if it had none that is known."""
    for token in entry.known_tokens:
        return token, entry
    if entry.starts:
        # Only the program needs it, so it is nowhere but in two processes.
        token = new_token()
    elif entry.token_hashes:
        return None, entry
    else:
        token = keep_token(path, renew=renew)
        log.info("the token of %s is in %s", shown_name(name), path)
    return token, replace(entry, tokens=(token,))


def _server(name: str, entry: ParticipantConfig, folder: Path) -> Server | None:
    """The MCP server that a participant bridges, if it does."""
    given = entry.mcp_server
    if given is None:
        return None
    if entry.command is not None:
        raise ConfigurationError("has a command and an mcp_server; remove one of them")
    server: Server
    if given.file is not None:
        servers = read_servers(folder / given.file, os.environ, warn)
        if name not in servers:
            raise ConfigurationError(f"{given.file} has no server of this name that can be used")
        server = servers[name] if given.pin else replace(servers[name], pin=False)
    elif given.command is not None:
        command = _words(given.command, given.args)
        env = _fill_env(given.env, {})
        server = StdioServer(command[0], command[1:], env, folder / (given.cwd or ""), given.pin)
    else:
        raise ConfigurationError("mcp_server: give a command, or a file with mcpServers")
    check_command(server)
    return server


def _words(command: str | tuple[str, ...], args: tuple[str, ...]) -> tuple[str, ...]:
    return (command, *args) if isinstance(command, str) else (*command, *args)


def _fill_env(env: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
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
    from meup_agent.cli.up.children import ChildProgram
    from meup_agent.gateway.config_file import token_variable

    for launch in plan.launches:
        entry = launch.entry
        if entry.command is None:
            continue
        # The names that the reference's file may use, as ``${PORT}``, in a command line.
        known = {"PORT": str(running.port), "SPACE": launch.space, "TOKEN": launch.token}
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
    from meup_agent.gateway.config_file import TOKEN_VARIABLE

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


# --- MCP servers beside a gateway ---


@cache
def open_pins(path: Path) -> ToolLock:
    """The accepted tools of a file, opened once: bridges of one process share it.

    Raises:
        ConfigurationError: The file cannot be used.
    """
    from meup_agent.mcp.bridge.offered_tools import ToolLock  # loaded with the bridge

    return ToolLock(path)


BRIDGE_GRACES: Final = 3
"""Graces for a bridge to leave: its running calls get one, its server's end the rest."""


@dataclass(eq=False)
class FirstStart:
    """The first start of an MCP server.

    Attributes:
        settled: Set once it has joined or failed.
        has_joined: It has joined.
    """

    settled: anyio.Event = field(default_factory=anyio.Event)
    has_joined: bool = False

    @property
    def has_failed(self) -> bool:
        """True if it ended before it joined; it is tried again."""
        return self.settled.is_set() and not self.has_joined


async def run_bridge(
    launch: Launch,
    connector: Connector,
    starter: ServerStarter | None,
    children: Children,
    first: FirstStart,
    roots: Sequence[str] = (),
) -> FailedRun | None:
    """Let an MCP server be a participant until everything ends; why it failed, if it did."""
    server = launch.server
    assert server is not None
    # In a thread, as it takes a second or two, in which the gateway serves and servers start.
    await to_thread.run_sync(import_module, "meup_agent.mcp.bridge.bridge")
    end_loading()
    from meup_agent.agent.agent import GRACE
    from meup_agent.mcp.bridge.bridge import Bridge, BridgeEntry, join_bridges
    from meup_agent.mcp.bridge.connection import ConnectionSettings, ServerGone
    from meup_agent.processes.guarded import FailedRun
    from meup_agent.transport.base import background_tasks

    joined = False

    async def leave(scope: anyio.CancelScope) -> None:
        await children.leaving.wait()
        if joined:
            scope.deadline = anyio.current_time() + BRIDGE_GRACES * GRACE
        else:
            scope.cancel()

    try:
        pin = open_pins(launch.pins) if server.pin else None
        settings = ConnectionSettings(sign_in_folder=sign_in_folder(), older_folder=older_folder())
        bridge = Bridge(
            launch.name, server, starter=starter, pin=pin, roots=roots, settings=settings
        )
        entry = BridgeEntry(
            bridge=bridge, connector=connector, space=launch.space, token=launch.token
        )
        with anyio.CancelScope() as scope:
            async with background_tasks() as tasks:
                tasks.start_soon(leave, scope)
                async with join_bridges([entry], hurry=children.hurry):
                    joined = first.has_joined = True
                    first.settled.set()
                    await children.leaving.wait()
    except ServerGone as error:
        return FailedRun(error.why, error.stderr)
    except MeupError as error:
        return FailedRun(f"failed: {error}")
    finally:
        first.settled.set()
        if starter is not None:
            starter.discard()
    return None


@contextmanager
def start_servers(launches: Iterable[Launch]) -> Generator[dict[Place, ServerStarter]]:
    """Start the programs of servers before anything else is loaded.

    At the end of the block those are ended that no bridge has taken.
    """
    # Here, so that what only reads lists of servers needs nothing of MCP.
    from meup_agent.mcp.bridge.transports import ServerStarter

    starters = {
        launch.place: ServerStarter(launch.server)
        for launch in launches
        if isinstance(launch.server, StdioServer)
    }
    with ExitStack() as at_end:
        for starter in starters.values():
            at_end.callback(starter.discard)
            starter.begin()
        yield starters


def can_listen(host: str, port: int) -> bool:
    """True if an address is free; servers are not to be started for a gateway that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with suppress(OSError), socket.create_server((host, port), family=family):
        return True
    return False


@contextmanager
def loading() -> Generator[None]:
    """Collect no garbage until :func:`end_loading`, or to the end of the block at the latest.

    What is imported stays; looking through it again and again was a tenth of the time to the first
    tool.
    """
    gc.disable()
    try:
        yield
    finally:
        end_loading()


def end_loading() -> None:
    """Collect garbage again, though not of what has been loaded."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
