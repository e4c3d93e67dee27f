"""``meup mcp``: a space, or one agent's tools, as an MCP server; ``bridge``: servers in a space."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple
from uuid import uuid4

import anyio
import typer

from meup_agent.cli.address import Address, SpaceOptions, token_from
from meup_agent.cli.failures import require_extra, run_joined
from meup_agent.cli.options import (
    DEFAULT_TTL,
    AnswerWithin,
    Insecure,
    LogLevel,
    Roots,
    TlsCertificate,
    TlsKey,
    To,
    answer_seconds,
    argument,
    flag,
    option,
    seconds,
    tls_config,
)
from meup_agent.cli.render.logs import log_to_stderr
from meup_agent.cli.signals import ENDING, until_signal, watch_signals
from meup_agent.cli.up.autostart import start_if_absent
from meup_agent.errors import ConfigurationError, TokenRefused
from meup_agent.transport.base import background_tasks, loop_options

if TYPE_CHECKING:
    from meup_agent.agent.agent import Agent
    from meup_agent.client.space import Space
    from meup_agent.gateway.config import TlsConfig
    from meup_agent.mcp.bridge.config import Server
    from meup_agent.mcp.server.client_member import ClientMembers
    from meup_agent.mcp.server.http import McpApp
    from meup_agent.mcp.server.tool_calls import CallSettings


STOP_SECONDS: Final = 3
"""For the answers that are on their way when the server is told to stop."""

HEAD_SECONDS: Final = 10.0
"""For the head of a client's request to arrive over HTTP."""

MAX_CONNECTIONS: Final = 4_096
"""Connections of clients over HTTP at once, of which a session has one or two; a request on one
more is answered 503. Fewer where the process may not have so many files open."""

MAX_PORT: Final = 65535
_AGENT: Final = "agent"
_CLIENT: Final = "client"
"""The two participants where one agent is served without a gateway."""


def mcp(
    target: Annotated[
        str | None,
        argument(
            "MODULE:AGENT", "Serve the tools of this agent, without a gateway; see `meup run`."
        ),
    ] = None,
    *,
    at: SpaceOptions,
    http: Annotated[
        str | None,
        option(
            "HOST:PORT",
            "Listen there for streamable HTTP, at /mcp; else standard input and output.",
        ),
    ] = None,
    anonymous: Annotated[
        bool,
        flag(
            "--anonymous",
            "Serve clients on this machine that send no token, as the participant of"
            " MEUP_TOKEN; behind a proxy, every client that it lets in is that participant.",
        ),
    ] = False,
    approve_tool: Annotated[
        bool,
        flag(
            "--approve-tool",
            "Offer the tool `approve` as well, by which Claude Code asks before it runs something"
            " itself: `claude -p --permission-prompt-tool mcp__NAME__approve`, where NAME is this"
            " server's.",
        ),
    ] = False,
    to: To = None,
    ttl: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help=f"How long a proposal waits for a decision. {DEFAULT_TTL}",
            show_default=False,
        ),
    ] = None,
    answer_within: AnswerWithin = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    insecure: Insecure = False,
) -> None:
    """Serve a space to MCP clients: the tools, resources and prompts of its participants.

    A call that the participant's capabilities do not allow becomes a proposal, and waits for a
    decision. Most clients give up after a minute: before that, they are answered that it still
    waits, and how to ask for the outcome. Without `--http` it serves the client that started it.
    With it one process serves many: each client sends the token of the participant that it is.

    Example: `meup mcp`

    Example: `meup mcp --http 127.0.0.1:8430`

    Example: `meup mcp --approve-tool`

    Example: `meup mcp bots/echo.py:agent`

    Example: `meup mcp bots/echo.py:agent --http 127.0.0.1:8430 --anonymous`
    """
    require_extra("an MCP server")
    log_to_stderr("info")
    if http is None and (tls_certificate or tls_key or insecure or anonymous):
        raise ConfigurationError("TLS, --insecure and --anonymous are for --http")
    if approve_tool and target is not None:
        raise ConfigurationError(
            "--approve-tool asks a space, and one agent's tools are served without; leave one out"
        )
    if approve_tool and http is not None:
        raise ConfigurationError(
            "--approve-tool is for the Claude Code that starts this command: over HTTP it gives a"
            " call up after some minutes; let it start meup mcp without --http"
        )
    from meup_agent.cli.render.logs import pace_sdk_logs
    from meup_agent.gateway.network import check_encrypted, is_loopback, server_context
    from meup_agent.mcp.server.tool_calls import CallSettings

    pace_sdk_logs()
    settings = CallSettings(
        ttl="space" if ttl is None else seconds(ttl, "--ttl"),
        to=tuple(to or ()),
        answer_within=answer_seconds(answer_within),
        proposes=target is None,
    )
    host, port = ("", 0) if http is None else _host_and_port(http)
    tls = tls_config(tls_certificate, tls_key)
    if http is not None:
        check_encrypted(host, tls, insecure=insecure)
        if tls is not None:
            server_context(tls)  # the server's own errors name no file
        if target is not None and not anonymous:
            raise ConfigurationError(
                "one agent's tools have no tokens over HTTP; let every program on this machine call"
                " them (--anonymous), or serve them from a gateway"
            )
        if anonymous and not is_loopback(host):
            raise ConfigurationError(
                f"--anonymous is for clients on this machine, and others could call at {host};"
                " listen at 127.0.0.1, or let each client send a token"
            )
    approving: Address | None = None
    if target is not None:
        pool, has_own = _pool_of_agent(target), True
    else:
        where, has_own = _space_of(at, http)
        pool = _pool_of_space(where, has_own=has_own, http=http)
        approving = where if approve_tool else None
    if anonymous and not has_own:
        raise ConfigurationError(
            "--anonymous needs the token of the participant that such clients are; set MEUP_TOKEN"
        )
    if http is None:
        serve = partial(_serve_stdio, pool, settings, approving)
    else:
        from meup_agent.mcp.server.http import LOOPBACK_HOSTS, McpApp

        hosts = LOOPBACK_HOSTS if is_loopback(host) else None
        app = McpApp(pool, settings=settings, anonymous=anonymous, hosts=hosts)
        serve = partial(_serve_http, app, pool, host, port, tls, has_own)
    # Over HTTP not on uvloop, which takes one connection in a turn of the loop: beside clients with
    # connections that call on and on, the last of 250 new ones was taken after 16 s.
    anyio.run(serve, backend_options=loop_options() if http is None else {})


def _space_of(at: SpaceOptions, http: str | None) -> tuple[Address, bool]:
    """The space, and if there is a participant of this process in it."""
    own = token_from(at.token, at.token_file)  # once: a pipe has it no second time
    if own is None and http is None:
        return at.address(), True  # raises what is missing
    others = SpaceOptions(url=at.url, space=at.space, token="-", participant=at.participant)
    where = others.address()  # over HTTP each client may have its own token
    return (where, False) if own is None else (where._replace(token=own), True)


def _pool_of_space(where: Address, *, has_own: bool, http: str | None) -> ClientMembers:
    """The participants of a gateway's space."""
    from meup_agent.mcp.server.client_member import ClientMembers
    from meup_agent.session import Settings
    from meup_agent.transport.websocket import SpaceConnector

    if http is None:
        start_if_absent(where.url)

    def join(
        agent: Agent, theirs: str | None, /, *, observe: bool = False
    ) -> AbstractAsyncContextManager[Space]:
        # Beside, so that two clients with one token do not throw each other out.
        join = partial(agent.join, observe=observe, beside=not observe, take_over=not observe)
        if http is None:  # its client is served meanwhile
            join = partial(join, settings=Settings(first_welcome=None))
        if theirs is not None:
            return join(SpaceConnector(where.url, where.space), token=theirs)
        return join(where.url, **where.identity)

    return ClientMembers(join, own=where.token if has_own else None, many=http is not None)


def _pool_of_agent(target: str) -> ClientMembers:
    """One participant beside an agent, in a space of their own in memory."""
    from meup_agent.cli.commands.run import load_agent
    from meup_agent.mcp.server.client_member import ClientMembers
    from meup_agent.testing import MemorySpace

    served = load_agent(target)
    every = [{"kind": "*"}]
    space = MemorySpace(participants={_AGENT: every, _CLIENT: every})

    @asynccontextmanager
    async def join(
        agent: Agent, theirs: str | None, /, *, observe: bool = False
    ) -> AsyncGenerator[Space]:
        assert not observe, "its clients have no tokens"
        if theirs is not None:
            raise TokenRefused("one agent's tools are served without tokens")
        async with served.join(space.connector(_AGENT)), agent.join(space.connector(_CLIENT)) as me:
            yield me

    return ClientMembers(join, bare=_AGENT, many=False)


async def _serve_stdio(
    pool: ClientMembers, settings: CallSettings, approving: Address | None
) -> None:
    from meup_agent.mcp.server.space_server import serve_stdio

    serve = serve_stdio if approving is None else partial(_serve_approving, where=approving)
    await until_signal(lambda _: serve(pool, settings), ENDING)


async def _serve_approving(pool: ClientMembers, settings: CallSettings, where: Address) -> None:
    """Serve a client that asks about its own calls, too, by a door beside its participant."""
    from meup_agent.doors.approve_tool import ApproveTool
    from meup_agent.doors.joining import JoiningDoor
    from meup_agent.mcp.server.space_server import serve_stdio

    door = JoiningDoor("meup-approve", ttl=settings.ttl, to=settings.to)
    # Claude Code says its session to the programs that it starts, and in no call.
    session = os.environ.get("CLAUDE_CODE_SESSION_ID") or uuid4().hex
    tool = ApproveTool(door.ask, session=session, cwd=str(Path.cwd()))
    async with background_tasks() as joining:
        joining.start_soon(partial(door.stay, where.url, **where.identity))
        await serve_stdio(pool, settings, [tool])


async def _serve_http(
    app: McpApp, pool: ClientMembers, host: str, port: int, tls: TlsConfig | None, has_own: bool
) -> None:
    from meup_agent.gateway.edge.http.server import AsgiServer
    from meup_agent.gateway.network import (
        OTHER_FILES,
        allow_open_files,
        host_and_port,
        listen_error,
        server_context,
    )
    from meup_agent.mcp.server.client_member import MAX_CLIENT_MEMBERS

    others = OTHER_FILES + MAX_CLIENT_MEMBERS
    server = AsgiServer(
        app,
        max_connections=min(
            MAX_CONNECTIONS, max(allow_open_files(MAX_CONNECTIONS + others) - others, 1)
        ),
        head_seconds=HEAD_SECONDS,
        stop_seconds=STOP_SECONDS,
        tls=None if tls is None else server_context(tls),
    )
    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        raise listen_error(host, port, error, " for MCP") from error
    stop = anyio.Event()

    def end(_: int) -> None:
        stop.set()

    with listening:
        async with background_tasks() as tasks:
            await tasks.start(watch_signals, ENDING, end)
            try:
                async with app.lifespan(), background_tasks() as watching:
                    if has_own:
                        own = await pool.get(None)
                        assert own is not None  # else it has raised
                        watching.start_soon(own.member.raise_at_end)
                    await server.start(listening)
                    where = host_and_port(host, listening.getsockname()[1])
                    scheme = "http" if tls is None else "https"
                    sys.stdout.write(f"listens at {scheme}://{where}/mcp\n")
                    sys.stdout.flush()
                    await stop.wait()
            finally:
                # By now every stream has ended, so the server has little to wait for.
                with anyio.move_on_after(2 * STOP_SECONDS, shield=True):
                    await server.stop()


def _host_and_port(given: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``.

    Raises:
        ConfigurationError: It is not such a text.
    """
    host, colon, port = given.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > MAX_PORT or not host:
        raise ConfigurationError(f"--http takes HOST:PORT, for example 127.0.0.1:8430, not {given}")
    return host.removeprefix("[").removesuffix("]"), int(port)


# --- meup bridge ---

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
    from meup_agent.cli.render.logs import pace_sdk_logs, silence_sdk_logs
    from meup_agent.cli.up.state import older_folder, sign_in_folder
    from meup_agent.mcp.bridge.bridge import Bridge, BridgeEntry, join_bridges
    from meup_agent.mcp.bridge.config import root_of
    from meup_agent.mcp.bridge.connection import ConnectionSettings
    from meup_agent.mcp.bridge.offered_tools import ToolLock
    from meup_agent.transport.websocket import SpaceConnector

    roots = root or []
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
                each.name,
                each.server,
                pin=lock if each.server.pin else None,
                roots=roots,
                settings=settings,
            ),
            connector=SpaceConnector(each.address.url, each.address.space),
            **each.address.identity,
        )
        for each in targets
    ]
    run_joined(lambda hurry: join_bridges(entries, hurry=hurry))


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
