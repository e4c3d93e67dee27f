"""``meup up``: a gateway, and the programs and MCP servers that its file lists."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import anyio

from meup_agent.cli.commands.gateway import (
    GatewayStop,
    ListenOptions,
    announce_to_terminals,
    announced,
    describe_checked,
    describe_started,
    link_lines,
    log_gateway,
    make_console,
    reloading,
    run_gateway,
    sign_in_link,
)
from meup_agent.cli.failures import Failure, require_extra
from meup_agent.cli.loading_notice import LOADING
from meup_agent.cli.options import (
    AnswerWithin,
    Roots,
    answer_seconds,
    argument,
    flag,
    option,
)
from meup_agent.cli.render.formatting import name_some
from meup_agent.cli.render.output import open_prefixed, warn
from meup_agent.cli.signals import ENDING, end_by_signals
from meup_agent.cli.up.autostart import (
    AUTOSTART_VARIABLE,
    ServiceUnit,
    autostart_words,
    client_entry,
    install_unit,
    is_installed,
    remove_unit,
)
from meup_agent.cli.up.endpoints import (
    HOOKS_PATH,
    MCP_PATH,
    HookEndpoint,
    McpEndpoint,
    serves_mcp,
)
from meup_agent.cli.up.plan import (
    AGENT,
    YOU,
    FirstStart,
    Place,
    Plan,
    can_listen,
    end_loading,
    keep_decisions,
    load_file,
    loading,
    own_program,
    programs_of,
    read_plan,
    read_servers_plan,
    run_bridge,
    settings_beside,
    start_servers,
)
from meup_agent.cli.up.state import (
    GatewayLock,
    list_running,
    make_folder,
    token_path,
    up_folder,
    up_lock,
)
from meup_agent.errors import ConfigurationError
from meup_agent.escape import visible
from meup_agent.gateway.config import DEFAULT_PORT
from meup_agent.gateway.network import is_loopback, serves_http
from meup_agent.mcp.bridge.config import root_of
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from meup_agent.gateway.config import Config
    from meup_agent.gateway.console import Console
    from meup_agent.gateway.server import RunningGateway
    from meup_agent.mcp.bridge.transports import ServerStarter


DEFAULT_FILE: Final = Path("space.yaml")

MAX_NAMED: Final = 8
"""Servers that are named in a line."""

BANNER_SECONDS: Final = 12.0
"""Seconds that the configuration for clients waits for the servers, so that it stands below what
their start says: an old server is asked again after ten; one that is downloaded takes longer."""

LATE_SECONDS: Final = 5.0
"""Seconds after which the servers are named whose start is still waited for."""

log = logging.getLogger("meup_agent.up")


def up(
    file: Annotated[
        Path | None,
        argument(
            "[FILE]",
            "The space and what belongs to it, as YAML; else `.mew/space.yaml` or `space.yaml`.",
        ),
    ] = None,
    servers: Annotated[
        Path | None,
        option(
            "FILE",
            "Without a space's file: put the MCP servers of a client's configuration, with"
            " `mcpServers`, behind approval.",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        option(
            "FILE",
            "With `--servers`: let the rules of this file decide, and leave to you what they"
            " ask; see `meup reviewer`.",
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        option(
            "NAME",
            "With `--servers`: a participant of its own for an MCP client, with `agent`'s"
            " capabilities; may be repeated, once for each client.",
        ),
    ] = None,
    person: Annotated[
        list[str] | None,
        option(
            "NAME",
            "With `--servers`: who may decide in place of `you`, with a sign-in link of their own;"
            " may be repeated, once for each person.",
        ),
    ] = None,
    answer_within: AnswerWithin = None,
    new_tokens: Annotated[
        bool,
        flag(
            "--new-tokens",
            "Make new tokens in place of those that are kept in files; the old ones are void.",
        ),
    ] = False,
    no_journal: Annotated[
        bool,
        flag(
            "--no-journal",
            "Keep what was said and decided in memory alone, also where the file names a journal.",
        ),
    ] = False,
    watch_hooks: Annotated[
        bool,
        flag(
            "--watch-hooks",
            "Let every call of a coding agent's hook go on, and only record it: for the first"
            " days.",
        ),
    ] = False,
    root: Roots = None,
    install: Annotated[
        bool,
        flag(
            "--install",
            "Run it from now on and after each login, with the other options given: as a unit of"
            " the user's systemd or launchd.",
        ),
    ] = False,
    uninstall: Annotated[
        bool, flag("--uninstall", "Stop what `--install` has set up for this file, and remove it.")
    ] = False,
    *,
    listen: ListenOptions,
) -> None:
    """Put MCP servers behind approval, or run a space and its programs, until Ctrl-C or SIGTERM.

    Of a space's file, a participant with a `command` is started with its address and its token in
    the environment (MEUP_URL, MEUP_SPACE, MEUP_TOKEN), and again after a pause whenever it fails.
    The first Ctrl-C ends the programs, then the gateway; a second one hurries.

    With `--servers` each server of the configuration is a participant, `agent` may list their tools
    and propose calls, and `you` may decide. It prints what to paste into an MCP client: a command
    that the client starts, or the address of `/mcp` on the gateway's own port. With `--client`
    once for each client, each is a participant of its own; so is each `--person`, who may decide in
    place of `you`, and of whom a rule with `quorum` may ask for votes: the tools of such a rule no
    person can call alone. With `--policy`, `reviewer` decides by rules, and leaves to `you` what
    they ask.

    The tools of a server are accepted as they are when it is first seen. Of one that changes later
    each call is asked about, and its model reads the accepted texts, until you accept the change:
    `meup inbox accept-tools SERVER`. `"pin": "off"` in the server's entry turns that off.

    What was said and decided is kept in the folder of this user's state, unless the file names a
    journal: `meup audit` shows it, and a restart goes on where it stopped.

    Example: `meup up --servers mcp.json`

    Example: `meup up --servers mcp.json --install`

    Example: `meup up --servers mcp.json --policy policy.yaml`

    Example: `meup up --servers mcp.json --client desktop --client cursor`

    Example: `meup up --servers mcp.json --person ann --person bob --policy policy.yaml`

    Example: `meup up`

    Example: `meup up space.yaml --port 8420`
    """
    require_extra("a gateway")
    if sys.platform == "win32":
        raise Failure("`meup up` needs the process groups of POSIX; run `meup gateway` here")
    log_gateway(listen)
    # That a server joins the gateway here is logged by both ends.
    logging.getLogger("meup_agent.session").setLevel(logging.WARNING)
    if file is not None and servers is not None:
        raise ConfigurationError("give either a space's file or --servers")
    in_file = "in a space's file each {} is a participant with capabilities of its own"
    for given, option_, advice in (
        (policy, "--policy", "let a participant of the file run `meup reviewer --policy FILE`"),
        (client, "--client", in_file.format("client")),
        (person, "--person", in_file.format("person")),
    ):
        if given and servers is None:
            raise ConfigurationError(f"{option_} is for --servers; {advice}")
    if servers is not None:
        require_extra("MCP")
        place = servers
        plan_of = partial(
            read_servers_plan,
            servers,
            policy,
            listen,
            clients=tuple(client or ()),
            persons=tuple(person or ()),
        )
    else:
        from meup_agent.gateway.config_file import find_space_file

        place = file or find_space_file() or DEFAULT_FILE
        plan_of = partial(read_plan, place, listen)

    def keep(settings: Config) -> Config:
        if no_journal:
            return replace(settings, journal=replace(settings.journal, path=None))
        return keep_decisions(settings, place)

    def read(*, renew: bool = False) -> Plan:
        plan = plan_of(renew=renew)
        return replace(plan, settings=keep(plan.settings))

    if install or uninstall:
        if install and uninstall:
            raise ConfigurationError("give either --install or --uninstall")
        if new_tokens or listen.check:
            raise ConfigurationError(
                "--install is for every start; leave --new-tokens and --check out"
            )
        _change_unit(place, read, install=install)
        return
    if listen.check:
        make_folder(up_folder())
        settings = keep(load_file(place, listen)) if servers is None else read().settings
        sys.stdout.write(describe_checked(settings))
        if servers is None:
            sys.stdout.write(describe_started(settings, "starts"))
        return
    for each in root or ():
        root_of(each)
    LOADING.begin()  # of the gateway, in whose place the servers take the processor
    with loading(), up_lock(place) as lock:
        _tell_neighbours(place)
        paths = (
            *(file, servers, policy, listen.history, listen.tls_certificate, listen.tls_key),
            *(Path(each).expanduser() for each in root or ()),
        )
        autostart = autostart_words(sys.argv[2:], paths, place)
        plan = replace(read(renew=new_tokens), roots=tuple(root or ()), autostart=autostart)
        bridged = plan.bridged
        if bridged:
            require_extra("MCP")
            from meup_agent.cli.render.logs import silence_sdk_logs

            silence_sdk_logs()
        if not can_listen(plan.settings.host, plan.settings.port):
            bridged = []  # the gateway says why it cannot
        if bridged:
            log.info("starting %s", visible(", ".join(each.name for each in bridged), 500))
        with end_by_signals(), start_servers(bridged) as starters:
            answers = serves_mcp(plan.settings)
            endpoint = McpEndpoint(answer_seconds(answer_within)) if answers else None
            mode = "watch" if watch_hooks else "enforce"
            hooks = HookEndpoint(mode) if serves_http(plan.settings) else None
            _run(plan, lock, starters, lambda: settings_beside(plan, read()), endpoint, hooks)


def _change_unit(place: Path, read: Callable[[], Plan], *, install: bool) -> None:
    """Set up a unit of the user's service manager, or remove it."""
    unit = ServiceUnit.of_command_line(place.resolve(), sys.argv[1:])
    if not install:
        sys.stdout.write(f"{visible(remove_unit(unit), 2_000)}\n")
        return
    if not is_installed(unit):
        with up_lock(place):  # one that runs in a terminal would keep the unit from starting
            pass
    read()  # what is wrong is said here, and not in a log
    for line in install_unit(unit).splitlines():
        sys.stdout.write(f"{visible(line, 2_000)}\n")


def _tell_neighbours(file: Path) -> None:
    """Say which other files of the same folder are run already."""
    folder = str(file.resolve().parent)
    for owner in list_running(up_folder()):
        if owner.process != os.getpid() and owner.folder == folder:
            warn(str(owner))


def _run(
    plan: Plan,
    lock: GatewayLock,
    starters: Mapping[Place, ServerStarter],
    read_again: Callable[[], Config],
    endpoint: McpEndpoint | None,
    hooks: HookEndpoint | None,
) -> None:
    """Run a plan until a signal."""
    from meup_agent.cli.up.children import adopt_orphans, run_children
    from meup_agent.gateway.history import log_programs

    console = make_console(plan.settings)

    @asynccontextmanager
    async def beside(running: RunningGateway, stop: GatewayStop) -> AsyncGenerator[None]:
        LOADING.end()
        names = [launch.name for launch in plan.launches]
        async with (
            open_prefixed(names, partial(stop.on_signal, signal.SIGTERM)) as output,
            adopt_orphans(),
            AsyncExitStack() as files,
            run_children(
                files.enter_context(log_programs(plan.settings, output.show)), hurry=stop.hurry
            ) as children,
            background_tasks() as tasks,
        ):
            space = plan.settings.spaces[0].id
            files.enter_context(announce_to_terminals(plan.settings, running.port))
            await files.enter_async_context(announced(lock, running, space, plan.token_files))
            if endpoint is not None:
                tasks.start_soon(endpoint.run, running, plan.settings.host)
            if hooks is not None:
                tasks.start_soon(hooks.run, running)
            starts = {launch.place: FirstStart() for launch in plan.bridged}

            async def name_late() -> None:
                await anyio.sleep(LATE_SECONDS)
                late = [
                    launch.name
                    for launch in plan.bridged
                    if not starts[launch.place].settled.is_set()
                ]
                if late and not stop.asked.is_set():
                    shown = name_some(late, MAX_NAMED)
                    log.info("waiting for %s: a server that is downloaded first takes long", shown)

            async def show_banner(folder: Path) -> None:
                # Last, so that it need not be looked for among the lines of the start.
                with anyio.move_on_after(BANNER_SECONDS):
                    for each in starts.values():
                        await each.settled.wait()
                failed = [launch.name for launch in plan.bridged if starts[launch.place].has_failed]
                has_mcp = endpoint is not None
                output.write(_banner(plan, folder, running, console, failed, has_mcp=has_mcp))

            if plan.people is not None:
                tasks.start_soon(show_banner, plan.people)
            if not stop.asked.is_set():
                for program in programs_of(plan, running):
                    children.start(program)
                for launch in plan.bridged:
                    starter = starters.get(launch.place)
                    connector = running.connector(launch.space)
                    first = starts[launch.place]
                    children.keep(
                        launch.name,
                        partial(
                            run_bridge, launch, connector, starter, children, first, plan.roots
                        ),
                    )
                if plan.bridged:
                    tasks.start_soon(name_late)
                else:
                    end_loading()
            log.info("up and running: %d of its participants are started", len(plan.launches))
            try:
                async with reloading(running, read_again, stop, lock):
                    yield
            finally:
                children.end(stop.number)

    routes: dict[str, ASGIApp] = {} if endpoint is None else {MCP_PATH: endpoint}
    if hooks is not None:
        routes[HOOKS_PATH] = hooks
    run_gateway(plan.settings, beside, ENDING, console, routes)


def _banner(
    plan: Plan,
    folder: Path,
    running: RunningGateway,
    console: Console | None,
    failed: Sequence[str],
    *,
    has_mcp: bool,
) -> str:
    """The lines to paste into MCP clients, and the ways to decide.

    ``failed``: the names of MCP servers that have ended instead of joining.
    """
    (space,) = plan.settings.spaces
    names = [launch.name for launch in plan.bridged if launch.name not in failed]
    whom = "you" if plan.persons == (YOU,) else visible(", ".join(plan.persons), 200)
    waiting = f"Calls of these MCP servers now wait for {whom}:"
    if plan.policy is not None:
        waiting = (
            f"{visible(plan.policy.name, 100)} decides calls of these MCP servers, and what it asks"
            f" waits for {whom}:"
        )
    named = "" if running.port == DEFAULT_PORT else f" --port {running.port}"
    who = " or ".join(plan.clients)
    return "\n".join(
        [
            f"{waiting} {name_some(names, MAX_NAMED) or 'none so far'}"
            if plan.bridged
            else f"Calls that {who} proposes now wait for {whom}.",
            *([f"Failed, and tried again: {name_some(failed, MAX_NAMED)}"] if failed else []),
            "",
            *_client_lines(plan, folder, running, has_mcp=has_mcp),
            *(
                line
                for each in plan.persons
                for token in (*space.participants[each].known_tokens, None)[:1]
                for line in link_lines(sign_in_link(console, running, token), visible(each, 80))
            ),
            *_console_lines(plan, running, named),
            "Decide in another terminal:"
            if len(plan.persons) == 1
            else "Decide in another terminal, by the first line that is yours:",
            "",
            *(f'  eval "$(meup env {shlex.quote(each)}{named})"' for each in plan.persons),
            "  meup inbox                    # shows what waits, and a key decides it",
            "  meup inbox list               # without a screen; meup inbox --help has the rest",
            "",
            "",
        ]
    )


def _console_lines(plan: Plan, running: RunningGateway, named: str) -> Iterator[str]:
    """The lines that say how to sign in again."""
    if running.console_url is None:
        return
    name = "" if plan.persons == (YOU,) else " NAME"
    yield f"Sign in again, later: meup console{name}{named}"
    if not is_loopback(plan.settings.host):
        yield f"On a phone: meup console{name} --lan{named}"
    yield ""


def _client_lines(
    plan: Plan, folder: Path, running: RunningGateway, *, has_mcp: bool
) -> Iterator[str]:
    """The configuration of each MCP client, in the two forms that clients read."""
    url = f"{running.http_url}{MCP_PATH}" if has_mcp else None
    # A service's output is a log, which others may read, and keeps what was in it.
    shows_token = sys.stdout.isatty()
    for client in plan.clients:
        path = token_path(folder, client).absolute()
        if len(plan.clients) > 1 or client != AGENT:
            yield f"Give the MCP client that is to be {client} this in their place:"
        elif plan.bridged:
            yield "Give your MCP client this in their place:"
        else:
            yield "An MCP client can be the agent:"
        started = client_entry(
            own_program(),
            path,
            url=running.own_url,
            space=plan.settings.spaces[0].id,
            participant=client,
        )
        yield from ("", _pasted(started), "")
        if url is not None:
            token = path.read_text(encoding="ascii").strip() if shows_token else "…"
            served = {
                "type": "http",
                "url": url,
                "headers": {"Authorization": f"Bearer {token}"},
            }
            yield "Or, without a process of its own, in a client that takes an address:"
            yield from ("", _pasted(served), "")
            if not shows_token:
                yield from (f"The token that belongs there is in {path}", "")
    if plan.autostart:
        setting = json.dumps({AUTOSTART_VARIABLE: plan.autostart}, ensure_ascii=False)[1:-1]
        yield 'A client\'s command starts this where it does not run, with one more line in "env":'
        yield from ("", f"  {setting}", "")


def _pasted(client: Mapping[str, object]) -> str:
    """The lines of a client's configuration file."""
    return json.dumps({"mcpServers": {"meup": client}}, indent=2, ensure_ascii=False)
