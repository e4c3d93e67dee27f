"""``meup gateway``: run one, and let it read its files again; ``meup console``: sign in to it."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import anyio
import msgspec
import typer
from anyio import CapacityLimiter, to_thread
from anyio.abc import SocketStream

from meup_agent.atomic_file import replace_file
from meup_agent.cli import exit_codes
from meup_agent.cli.commands import CommandTyper
from meup_agent.cli.failures import Failure, Misuse, require_extra
from meup_agent.cli.options import (
    Insecure,
    LogFormat,
    OptionGroup,
    RunningPort,
    TlsCertificate,
    TlsKey,
    argument,
    expand_groups,
    flag,
    option,
    tls_config,
)
from meup_agent.cli.render.logs import log_to_stderr
from meup_agent.cli.render.output import warn, write_note
from meup_agent.cli.signals import ENDING, HANGUP, watch_signals
from meup_agent.cli.up.state import (
    SOCKET_MODE,
    GatewayLock,
    Owner,
    bind_socket,
    dev_folder,
    dev_lock,
    find_gateway,
    find_reloadable,
    gateway_lock,
    keep_dev_tokens,
    notify_targets,
    running_gateways,
    token_path,
)
from meup_agent.errors import ConfigurationError, MeupError, explain_os_error, system_reason
from meup_agent.escape import visible
from meup_agent.gateway.config import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    PARTICIPANTS,
    Config,
    HttpConfig,
    dev_config,
)
from meup_agent.protocol.dialects import DEFAULT_DIALECT
from meup_agent.transport.base import background_tasks, loop_options
from meup_agent.transport.urls import short_path, socket_url

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from meup_agent.gateway.config_file import MakeTokens
    from meup_agent.gateway.console import Console
    from meup_agent.gateway.server import RunningGateway


ROLES: Final = {
    "proposer": "may not call tools, so it proposes",
    "fulfiller": "reviews proposals and carries them out",
    "tools": "has the tools",
    "observer": "sees everything and says nothing",
    "admin": "may do everything: grant, revoke, invite, kick",
    "guest1": "a free seat, as are guest2 and guest3: may do what the proposer may",
}
"""The participants of ``--dev`` that are shown, and what each is for."""


EVERY_ADDRESS: Final = "0.0.0.0"

DECIDES: Final = "fulfiller"
"""The participant of ``--dev`` that a person in a browser is."""

log = logging.getLogger("meup_agent.gateway")


class ListenOptions(OptionGroup, frozen=True):
    """The options that say where a gateway listens, over its file."""

    host: Annotated[
        str | None,
        option("HOST", f"Where to listen; else the file's, or {DEFAULT_HOST}."),
    ] = None
    lan: Annotated[
        bool,
        flag(
            "--lan",
            "Listen for all machines of this network, with the console, which they sign in to by"
            " `meup console --lan`; needs a certificate.",
        ),
    ] = False
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help=f"Where to listen; else the file's, or {DEFAULT_PORT}. 0: any free port.",
        ),
    ] = None
    tls_certificate: TlsCertificate = None
    tls_key: TlsKey = None
    insecure: Insecure = False
    accept_damage: Annotated[
        bool,
        flag(
            "--accept-damage",
            "Start although the journal's file was damaged, without what is lost of it; the"
            " damaged file is kept.",
        ),
    ] = False
    history: Annotated[
        Path | None,
        option(
            "DIR",
            "Also write every envelope, and every decision by capabilities, into files in this"
            " folder, as JSON Lines; anyone who reads them reads everything.",
        ),
    ] = None
    notify: Annotated[
        list[str] | None,
        option(
            "URL",
            "Tell a service when calls wait, beside those of the file: the https address of a"
            " webhook, one of Apprise such as `ntfys://ntfy.sh/TOPIC`, `push` for browsers that"
            " subscribe in the console, or a file with one a line; may be given several times.",
        ),
    ] = None
    notify_private: Annotated[
        bool,
        flag(
            "--notify-private",
            "Allow services of `--notify` at addresses of this machine and its networks.",
        ),
    ] = False
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format",
            help="The log's lines: `json` has an object in each, for what collects logs.",
        ),
    ] = LogFormat.TEXT
    check: Annotated[
        bool,
        flag(
            "--check",
            "Say what would be served, or what is wrong, without starting. It also warns of"
            " keys in capabilities that no payload has.",
        ),
    ] = False

    def over(self, settings: Config) -> Config:
        """The settings with these options over them."""
        if self.lan:
            http = replace(settings.http or HttpConfig(), enabled=True, console=True)
            settings = replace(settings, host=EVERY_ADDRESS, http=http)
        port = settings.port if self.port is None else self.port
        return replace(
            settings,
            host=settings.host if self.host is None else self.host,
            port=port,
            insecure=settings.insecure or self.insecure,
            history=self.history or settings.history,
            tls=tls_config(self.tls_certificate, self.tls_key, settings.tls),
            notify=(
                *settings.notify,
                *notify_targets(self.notify or (), port, allow_private=self.notify_private),
            ),
            journal=replace(
                settings.journal,
                accept_damage=settings.journal.accept_damage or self.accept_damage,
            ),
        )


gateway = CommandTyper("gateway", alone=True)


def gateway_group(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        option(
            "FILE", "The spaces and participants, as YAML; else `.mew/space.yaml` or `space.yaml`."
        ),
    ] = None,
    dev: Annotated[
        bool,
        flag(
            "--dev",
            "Without a file: a space to try things out, for this machine only. It tells how to"
            " set up a terminal as one of its participants, and keeps their tokens over a restart.",
        ),
    ] = False,
    new_tokens: Annotated[
        bool,
        flag("--new-tokens", "With `--dev`: make new tokens; the old ones are void."),
    ] = False,
    open_console: Annotated[
        bool,
        flag("--open", "With `--dev`: open the console in a browser, signed in as the fulfiller."),
    ] = False,
    make_tokens: Annotated[
        bool,
        flag(
            "--make-tokens",
            "Make a token in `.mew/tokens` for each participant of a `space.yaml` that has none.",
        ),
    ] = False,
    *,
    listen: ListenOptions,
) -> None:
    """Run a gateway until Ctrl-C or SIGTERM.

    Members are told to dial again (close code 1012), and it exits with 0.

    Where only this machine reaches it, it serves a console in which a person sees the space and
    decides; it prints the address.

    `meup gateway reload` lets it read its file again, and where no terminal controls it, so does
    SIGHUP.

    Example: `meup gateway --dev --open`

    Example: `meup gateway --config space.yaml --host 127.0.0.1 --port 8420`

    Example: `meup gateway --config space.yaml --check`
    """
    require_extra("a gateway")
    if ctx.invoked_subcommand is not None:
        if dev or config is not None or make_tokens or new_tokens or open_console:
            raise Misuse("options for starting a gateway go without a command behind them")
        return
    if dev and config is not None:
        raise ConfigurationError("give either --config FILE or --dev")
    if make_tokens and dev:
        raise ConfigurationError("--make-tokens is for a file; --dev has its own tokens")
    if new_tokens and not dev:
        raise ConfigurationError("--new-tokens is for --dev; a file has its own tokens")
    if open_console and not dev:
        raise ConfigurationError("--open is for --dev; sign in with a token of the file")
    log_gateway(listen)
    from meup_agent.cli.up.endpoints import HOOKS_PATH, HookEndpoint
    from meup_agent.gateway.config_file import environment_over, find_space_file, load_config
    from meup_agent.gateway.network import serves_http

    make: MakeTokens = "never"
    if dev:
        settings = listen.over(environment_over(dev_config()))
        _check_local(settings)
        file = Path()
    else:
        if make_tokens and not listen.check:  # which makes nothing
            make = "always"
        found = config or find_space_file()
        if found is None:
            raise ConfigurationError(
                "a gateway needs --config FILE or --dev: there is no space.yaml in this folder"
            )
        # Read again, it is the same file, wherever the process may be by then.
        file = found.absolute()
        settings = listen.over(load_config(found, make_tokens=make))
    if listen.check:
        sys.stdout.write(describe_checked(settings))
        sys.stdout.write(describe_started(settings, "`meup up` starts"))
        return
    if dev:
        tokens = keep_dev_tokens(PARTICIPANTS, renew=new_tokens)
        settings = replace(settings, spaces=dev_config(tokens).spaces)
    for space in settings.spaces:
        for name, entry in space.participants.items():
            if entry.starts:
                said = "space %s: %s is started by `meup up`, and not by a gateway alone"
                log.warning(said, space.id, name)
    console = make_console(settings)
    hooks = HookEndpoint() if serves_http(settings) else None

    def read_again() -> Config:
        return listen.over(load_config(file, make_tokens=make))

    @asynccontextmanager
    async def shown(running: RunningGateway, stop: GatewayStop) -> AsyncGenerator[None]:
        async with background_tasks() as tasks, AsyncExitStack() as stack:
            if hooks is not None:
                tasks.start_soon(hooks.run, running)
            if not dev:
                stack.enter_context(announce_to_terminals(settings, running.port))
                lock = _lock_for_reload(stack, file, running.url)
                await stack.enter_async_context(reloading(running, read_again, stop, lock))
                if lock is not None:
                    log.info("it reads its files again by `meup gateway reload`")
                yield
                return
            # Inside the block: nothing else listens at the port while `meup env` tells it.
            (space,) = settings.spaces
            link = sign_in_link(console, running, space.participants[DECIDES].tokens[0])
            folder = dev_folder()
            token_files = {name: token_path(folder, name) for name in space.participants}
            lock = stack.enter_context(dev_lock(running.url))
            await stack.enter_async_context(announced(lock, running, space.id, token_files))
            write_note(_banner(running.port, folder, link))
            if open_console:
                await open_link(link)
            yield

    routes: dict[str, ASGIApp] = {} if hooks is None else {HOOKS_PATH: hooks}
    run_gateway(settings, shown, ENDING, console, routes)


gateway.callback()(expand_groups(gateway_group))


def reload(
    port: RunningPort = None,
) -> None:
    """Let a gateway of `--config`, or `meup up`, read its configuration and token files again.

    Participants, their tokens, capabilities and dialects take effect, and TLS certificates for new
    connections. A participant that is not there any more, and connections by a token that is not,
    are closed; nobody else notices. It says what takes effect at the next start only. Where a file
    is wrong, everything stays as it is, and the sentence says what is wrong.

    The gateway must run on this machine, under the same user.

    Example: `meup gateway reload`
    """
    found = find_reloadable(port)
    answer = anyio.run(ask_reload, Path(found.control))
    said = f"{found.url}: {answer.said}"
    if not answer.done:
        raise Failure(said)
    sys.stdout.write(f"{visible(said, 10_000)}\n")


gateway.add("reload", reload)


def _lock_for_reload(stack: ExitStack | AsyncExitStack, file: Path, url: str) -> GatewayLock | None:
    """The lock by which ``meup gateway reload`` finds a gateway; ``None``: there can be none.

    A service may have no folder for its state, and its gateway runs all the same.
    """
    if sys.platform == "win32":
        return None
    try:
        return stack.enter_context(gateway_lock(file, url))
    except (ConfigurationError, Failure) as error:
        log.info("`meup gateway reload` does not reach this gateway: %s", error)
        return None


@asynccontextmanager
async def reloading(
    running: RunningGateway,
    read: Callable[[], Config],
    stop: GatewayStop,
    lock: GatewayLock | None,
) -> AsyncGenerator[None]:
    """The block in which a gateway reads its files again, by a command or by SIGHUP."""
    from meup_agent.gateway.network import fit_open_files

    reloader = ConfigReloader(running, lambda: fit_open_files(read()))

    async def follow_signals() -> None:
        while True:
            await stop.reload_asked.wait()
            stop.reload_asked = anyio.Event()  # those that come meanwhile are one
            await reloader.reload()

    async with background_tasks() as tasks, AsyncExitStack() as stack:
        tasks.start_soon(follow_signals)
        stop.takes_reload = True
        if lock is not None:
            try:
                await stack.enter_async_context(take_commands(lock.control, reloader))
                lock.take_commands(running.url)
            except ConfigurationError as error:
                log.warning("`meup gateway reload` does not reach this gateway: %s", error)
        try:
            yield
        finally:
            stop.takes_reload = False


def log_gateway(listen: ListenOptions) -> None:
    """Log a gateway to standard error."""
    as_json = listen.log_format is LogFormat.JSON and not listen.check
    log_to_stderr("warning" if listen.check else "info", as_json=as_json, ours_alone=True)


def _check_local(settings: Config) -> None:
    """Check that only this machine reaches a gateway with tokens for trying things out."""
    from meup_agent.gateway.network import is_loopback

    for server in ("nats", "postgres"):
        if getattr(settings.journal, server) is not None:
            raise ConfigurationError(
                f"--dev keeps its tokens on this machine, and journal.{server} is for several;"
                " write a file for --config"
            )
    own = settings.http_address
    for host in (settings.host, *(() if own is None else own[:1])):
        if not is_loopback(host):
            raise ConfigurationError(
                f"--dev listens on this machine only, and other machines could reach"
                f" {host or 'every address'}; leave the host out, or write a file for --config"
            )


def describe_checked(settings: Config) -> str:
    """The spaces and addresses that a gateway would serve, as lines."""
    from meup_agent.gateway.cluster.checks import check_several, check_streams
    from meup_agent.gateway.journal.engines import engine_of
    from meup_agent.gateway.network import (
        check_encrypted,
        host_and_port,
        server_context,
        shares_port,
    )

    check_encrypted(settings.host, settings.tls, insecure=settings.insecure)
    own = settings.http_address
    if own is not None:
        check_encrypted(own[0], settings.tls, insecure=settings.insecure)
        if own == (settings.host, settings.port) and settings.port:
            raise ConfigurationError(
                f"http.port: {settings.port} is also the port for WebSocket; leave the key out to"
                " serve both there, or give another one"
            )
    if settings.tls is not None:
        server_context(settings.tls)
    if settings.notify:
        from meup_agent.gateway.reach.notices import check_targets

        check_targets(settings)
    most = settings.limits.max_message_bytes
    check_several(settings)
    journal = engine_of(settings.journal).check(settings.journal, most)
    for sentence in filter(None, (check_streams(settings), *_unknown_keys(settings))):
        warn(sentence)
    secure = "" if settings.tls is None else "s"
    where = host_and_port(settings.host, settings.port)
    lines = [f"listens at ws{secure}://{where}"]
    if shares_port(settings, settings.host):
        lines[0] += f" and http{secure}://{where}"
    elif own is not None:
        lines.append(f"listens at http{secure}://{host_and_port(*own)} for HTTP")
    lines.append(f"keeps its journal in {journal}")
    if settings.notify:
        count = len(settings.notify)
        lines.append(f"tells {count} service{'' if count == 1 else 's'} when calls wait")
    for space in settings.spaces:
        names = ", ".join(space.participants) or "no participants"
        dialect = space.dialect or DEFAULT_DIALECT
        lines.append(f"space {space.id} ({dialect}): {names}")
    return "\n".join(lines) + "\n"


def describe_started(settings: Config, verb: str) -> str:
    """A line for each participant that ``meup up`` starts."""
    return "".join(
        f"{verb} {visible(name)} in space {space.id}\n"
        for space in settings.spaces
        for name, entry in space.participants.items()
        if entry.starts
    )


def _unknown_keys(settings: Config) -> list[str]:
    """A sentence for each key that no payload has, with the participants whose capability it is."""
    from meup_agent.protocol.capability.payload_keys import find_unknown_keys

    found: dict[tuple[str, str], list[str]] = {}
    for space in settings.spaces:
        for name, entry in space.participants.items():
            for index, capability in enumerate(entry.capabilities.patterns):
                for unknown in find_unknown_keys(capability):
                    said = f"capabilities[{index}].{unknown}"
                    found.setdefault((space.id, said), []).append(name)
    return [f"space {space}, {', '.join(names)}: {said}" for (space, said), names in found.items()]


class GatewayStop:
    """The signals that end a gateway: the first asks for it, each further one hurries.

    SIGHUP is one of them where it tells that the terminal is closed, and elsewhere asks a gateway
    that ``takes_reload`` to read its files again.
    """

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.hurry = anyio.Event()
        self.number = signal.SIGINT
        self.reload_asked = anyio.Event()
        self.takes_reload = False
        self._has_terminal = has_terminal()

    def on_signal(self, number: int) -> None:
        """Take a signal."""
        if number in HANGUP and self.takes_reload and not self._has_terminal:
            self.reload_asked.set()
        elif self.asked.is_set():
            self.hurry.set()
        else:
            self.number = signal.Signals(number)
            self.asked.set()


CompanionBlock = Callable[["RunningGateway", GatewayStop], AbstractAsyncContextManager[None]]
"""The block in which something runs beside a gateway that listens."""


def run_gateway(
    settings: Config,
    beside: CompanionBlock,
    signals: Iterable[signal.Signals],
    console: Console | None,
    routes: Mapping[str, ASGIApp] | None = None,
) -> None:
    """Run a gateway, and something beside it, until one of the signals."""
    from meup_agent.gateway.network import fit_open_files, is_loopback
    from meup_agent.gateway.server import serve

    async def cancel_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
        await event.wait()
        scope.cancel()

    async def run() -> None:
        stop = GatewayStop()
        # Around the gateway, so that a second Ctrl-C does not interrupt its stopping.
        async with background_tasks() as tasks:
            await tasks.start(watch_signals, signals, stop.on_signal)
            await serve_until(stop)

    async def serve_until(stop: GatewayStop) -> None:
        """Run the gateway until it ends; a journal may take its time before it begins."""
        began = anyio.Event()

        async def cancel_waiting(scope: anyio.CancelScope) -> None:
            await stop.asked.wait()
            if not began.is_set():
                scope.cancel()

        failure = ""
        async with background_tasks() as entering:
            entering.start_soon(cancel_waiting, entering.cancel_scope)
            async with serve(fit_open_files(settings), page=console, routes=routes) as running:
                began.set()
                if settings.tls is None and not is_loopback(settings.host):
                    warn(
                        f"listening at {settings.host} without TLS, so tokens and messages can be"
                        " read on the way"
                    )
                if running.console_url is not None:
                    log.info("the console is at %s", running.console_url)
                async with beside(running, stop), background_tasks() as waiting:
                    waiting.start_soon(cancel_when, running.failed, waiting.cancel_scope)
                    await stop.asked.wait()
            failure = running.failure
        if failure:
            raise Failure(failure)

    try:
        anyio.run(run, backend_options=loop_options())
    except ConfigurationError as error:
        if str(error).startswith("cannot listen at"):
            for owner in running_gateways():
                if owner.port == settings.port:
                    raise ConfigurationError(f"{error}: {owner}") from None
        raise


@asynccontextmanager
async def announced(
    lock: GatewayLock, running: RunningGateway, space: str, token_files: Mapping[str, Path]
) -> AsyncGenerator[None]:
    """Listen at a Unix socket, too, and let ``meup env`` find the gateway."""
    with bind_socket(lock.socket) as bound:
        await running.listen_at_socket(bound, socket_url(str(lock.socket)))
        lock.publish(running.url, running.http_url, space, token_files)
        yield


def _banner(port: int, folder: Path, link: str | None) -> str:
    """The way to be one of the participants, for each of them a command and its role."""
    which = "" if port == DEFAULT_PORT else f" --port {port}"
    commands = {name: f'eval "$(meup env {name}{which})"' for name in ROLES}
    width = max(map(len, commands.values()))
    return "\n".join(
        [
            "To be one of these participants, run its command in another terminal:",
            "",
            *(f"  {command:{width}}  # {ROLES[name]}" for name, command in commands.items()),
            "",
            f"Their tokens are kept in {folder}.",
            "",
            *link_lines(link, DECIDES),
        ]
    )


# --- terminals of the reference ---
# `mew space connect` reads `.mew/pids.json` for the port, and takes the space for running as long
# as the process that it names does. It holds no secret; the tokens are in files of their own.

PIDS_NAME: Final = "pids.json"

MAX_PIDS_BYTES: Final = 1024 * 1024
"""Bytes of the file that are read: it names a process for each participant."""


@contextmanager
def announce_to_terminals(settings: Config, port: int) -> Generator[None]:
    """Let terminals of the reference find a gateway for the length of a block.

    Nothing is written for a file in a form of ours, and nothing over another gateway that runs.
    """
    state = settings.spaces[0].state
    if state is None:
        yield
        return
    path, own = state / PIDS_NAME, os.getpid()
    other = _gateway_in(path)
    if other is not None and other != own and _is_running(other):
        warn(
            f"{path} says that another gateway runs this space (process {other}), so terminals of"
            " the reference dial that; stop it, and start this one again"
        )
        yield
        return
    space = settings.spaces[0]
    found: dict[str, object] = {
        "spaceId": space.id,
        "spaceName": space.name or space.id,
        "spaceDir": str(state.absolute().parent),
        "port": port,
        "gateway": own,
        "agents": {},
        "clients": {},
    }
    try:
        state.mkdir(exist_ok=True)
        replace_file(path, json.dumps(found, indent=2).encode(), 0o644)
    except OSError as error:
        why = system_reason(error)
        warn(f"{path} cannot be written ({why}), so terminals of the reference find no gateway")
    try:
        yield
    finally:
        if _gateway_in(path) == own:
            with suppress(OSError):
                path.unlink()


def _gateway_in(path: Path) -> int | None:
    """The process that the file names as the gateway; ``None``: it names none."""
    try:
        with path.open("rb") as file:
            read: Any = json.loads(file.read(MAX_PIDS_BYTES))
        found = read["gateway"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if type(found) is int and found > 0 else None


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (OSError, OverflowError) as error:
        return not isinstance(error, ProcessLookupError)
    return True


# --- meup console ---

DECIDERS: Final = ("you", "fulfiller")
"""The participants that a person is where no name is given, if the gateway has one of them."""

SOMEWHERE: Final = ("192.0.2.1", 9)
"""An address of documents (RFC 5737), to find by which of its own this machine reaches others;
nothing is sent there."""


def console(
    name: Annotated[
        str | None,
        argument("NAME", "The participant to be; else MEUP_PARTICIPANT, `you` or `fulfiller`."),
    ] = None,
    port: RunningPort = None,
    lan: Annotated[
        bool,
        flag("--lan", "A link for another machine of this network, also as a QR code for a phone."),
    ] = False,
    host: Annotated[
        str | None,
        option("HOST", "With `--lan`: this machine's name or address there; else it is looked up."),
    ] = None,
    no_open: Annotated[bool, flag("--no-open", "Print the link, and open no browser.")] = False,
) -> None:
    """Sign in to the console of `meup up` or `meup gateway --dev`: open it in your browser.

    Prints a link that signs in one browser, once, within ten minutes. Whoever has it acts as the
    participant, so give it to no one else. The gateway must run on this machine, under the same
    user.

    With `--lan` the link is for a phone, and is shown as a QR code, too. The gateway must be
    reachable from there, and speak TLS: `meup up --lan --tls-certificate FILE --tls-key FILE`.

    Example: `meup console`

    Example: `meup console ann --no-open`

    Example: `meup console --lan`
    """
    require_extra("a gateway")
    if host is not None and not lan:
        raise ConfigurationError("--host is for --lan")
    gateway = find_gateway(port)
    who = _participant(gateway, name)
    if gateway.http is None:
        raise Failure(f"the gateway at {gateway.url} serves no HTTP, and so no console")
    origin = gateway.http if not lan else _lan_origin(gateway.http, host)
    made = anyio.run(_make_link, gateway, who)
    if lan and made.get("local"):
        raise Failure(
            f"the gateway at {gateway.url} listens on this machine only; start it with --lan"
        )
    link = f"{origin}{made['path']}"
    sys.stdout.write("\n".join(link_lines(link, visible(who, 80))) + "\n")
    if lan:
        _draw(link)
    elif not no_open and not os.environ.get("SSH_CONNECTION"):
        sys.stdout.flush()
        anyio.run(open_link, link)


def _participant(gateway: Owner, name: str | None) -> str:
    known = gateway.token_files
    if name is None:
        usual = (os.environ.get("MEUP_PARTICIPANT", ""), *DECIDERS)
        name = next((each for each in usual if each in known), None)
        if name is None and len(known) == 1:
            return next(iter(known))
    return gateway.check_name(name)


def _lan_origin(http: str, host: str | None) -> str:
    """The address of the gateway for other machines."""
    parts = urlsplit(http)
    if parts.scheme != "https":
        raise Failure(
            "a link that passes a network needs TLS, since whoever reads it is signed in; start the"
            " gateway with --lan --tls-certificate FILE --tls-key FILE"
        )
    if host is None:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect(SOMEWHERE)
                host = str(probe.getsockname()[0])
        except OSError:
            raise Failure("this machine is in no network; give its address by --host") from None
    shown = f"[{host}]" if ":" in host else host
    return f"https://{shown}:{parts.port or 443}"


async def _make_link(gateway: Owner, who: str) -> dict[str, Any]:
    """Ask the gateway for a link, at its socket, where no other user can listen."""
    import httpx

    from meup_agent.transport.http import open_client

    try:
        async with open_client(gateway.socket, f"Bearer {gateway.token(who)}") as client:
            answer = await client.post("/console/links")
    except httpx.HTTPError as error:
        why = type(error).__name__
        raise Failure(f"the gateway at {gateway.url} gives no answer ({why})") from None
    if answer.status_code == 404:
        raise Failure(
            f"the gateway at {gateway.url} serves no console; http.console: true in its"
            " configuration turns it on, as --lan does"
        )
    try:
        document: dict[str, Any] = answer.json()
    except ValueError:
        document = {}
    if answer.status_code != 200 or "path" not in document:
        why = visible(str(document.get("message", f"status {answer.status_code}")), 200)
        raise Failure(f"the gateway at {gateway.url} gives no link: {why}")
    return document


def _draw(link: str) -> None:
    """Draw a QR code where a terminal can show it."""
    require_extra("a QR code")
    import segno

    try:
        "█▀▄".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return  # the link says the same
    segno.make(link, error="l").terminal(compact=True)
    sys.stdout.write("\n")


# --- the console of a gateway that a command runs ---
# Made where it is served, and the way into it.


def make_console(settings: Config) -> Console | None:
    """The console of a gateway; ``None``: it is to have none."""
    from meup_agent.gateway.network import serves_console

    if not serves_console(settings, settings.host):
        return None
    # Loaded only where it is wanted: templates take their time.
    from meup_agent.gateway.console import Console

    return Console()


def sign_in_link(console: Console | None, running: RunningGateway, token: str | None) -> str | None:
    """A one-time link into the console for a token's participant; ``None``: there is none."""
    url = running.console_url
    if console is None or url is None or token is None:
        return None
    return console.sign_in_link(url, token)


async def open_link(link: str | None) -> None:
    """Open a link in the user's browser.

    Raises:
        ConfigurationError: There is no console to open.
    """
    if link is None:
        raise ConfigurationError("--open needs the console, which http.console turns off")
    import webbrowser

    if not await to_thread.run_sync(webbrowser.open, link):
        warn("no browser could be opened; open the link yourself")


def link_lines(link: str | None, participant: str) -> list[str]:
    """The lines of a banner that say where to decide in a browser."""
    if link is None:
        return []
    said = f"Decide in a browser, as {participant} (once, within ten minutes):"
    return [said, "", f"  {link}", ""]


# --- reading a running gateway's files again ---
# By SIGHUP, and by `meup gateway reload`, which dials a Unix socket of its own beside the gateway's
# lock, in its user's folder: so it reaches the process that holds the lock, in a container, too,
# where a number of a process would be another's. Nothing is asked there but to read the files.

RELOAD: Final = b"reload\n"
"""All that may be asked."""

ASK_SECONDS: Final = 5.0
"""Seconds for a command to say what it wants, and to take its answer."""

READ_SECONDS: Final = 45.0
"""Seconds for reading the files: one that never answers must hold up no later attempt."""

ANSWER_SECONDS: Final = 60.0
"""Seconds that a command waits for its answer: the files may be on a slow network."""

MAX_ANSWER_BYTES: Final = 1024 * 1024
"""Bytes of an answer, which names the participants that have changed."""

MAX_COMMANDS: Final = 8
"""Commands that are answered at a time; the others wait."""


class ReloadAnswer(msgspec.Struct):
    """The outcome of reading the files again, as the socket tells it."""

    said: str
    done: bool


@dataclass
class ConfigReloader:
    """Reads the files of a gateway again, one time after another.

    Args:
        running: The gateway.
        read: Reads its configuration as at the start; raises :exc:`MeupError`.
    """

    _running: RunningGateway
    _read: Callable[[], Config]
    _turn: anyio.Lock = field(default_factory=anyio.Lock)

    async def reload(self) -> ReloadAnswer:
        """Read the files again; what is wrong with them leaves everything as it is."""
        async with self._turn:
            try:
                with anyio.fail_after(READ_SECONDS):
                    read = await to_thread.run_sync(self._read, abandon_on_cancel=True)
                said, done = str(self._running.reload(read)), True
            except Exception as error:
                done, why = False, str(error)
                if isinstance(error, TimeoutError):
                    why = "the files cannot be read, one gives no answer"
                elif not isinstance(error, MeupError):
                    log.exception("the configuration could not be read again")
                    why = f"{type(error).__name__}; the log says more"
                said = f"nothing is changed: {why}"
        log.log(logging.INFO if done else logging.ERROR, "configuration read again: %s", said)
        return ReloadAnswer(said, done)


@asynccontextmanager
async def take_commands(path: Path, reloader: ConfigReloader) -> AsyncGenerator[None]:
    """Answer ``meup gateway reload`` at a socket for the length of a block.

    Raises:
        ConfigurationError: There can be no socket.
    """
    limiter = CapacityLimiter(MAX_COMMANDS)

    async def answer(stream: SocketStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            async with stream, limiter:
                asked = b""
                with anyio.move_on_after(ASK_SECONDS):
                    asked = await stream.receive(len(RELOAD))
                if asked == RELOAD:
                    said = msgspec.json.encode(await reloader.reload())
                    with anyio.move_on_after(ASK_SECONDS):
                        await stream.send(said)

    with short_path(str(path)) as short:
        with explain_os_error(f"the socket {path} cannot be made"):
            listener = await anyio.create_unix_listener(short, mode=SOCKET_MODE)
    try:
        async with background_tasks() as tasks:
            tasks.start_soon(listener.serve, answer)
            yield
    finally:
        with anyio.CancelScope(shield=True):
            await listener.aclose()
        with suppress(OSError):
            os.unlink(path)


async def ask_reload(path: Path) -> ReloadAnswer:
    """Let a gateway read its files again.

    Raises:
        Failure: It does not answer.
    """
    answer = bytearray()
    try:
        with anyio.fail_after(ANSWER_SECONDS), short_path(str(path)) as short:
            async with await anyio.connect_unix(short) as stream:
                await stream.send(RELOAD)
                with suppress(anyio.EndOfStream):
                    while len(answer) < MAX_ANSWER_BYTES:
                        answer += await stream.receive()
        return msgspec.json.decode(bytes(answer), type=ReloadAnswer)
    except (OSError, TimeoutError, anyio.BrokenResourceError, msgspec.MsgspecError):
        raise Failure(
            "the gateway does not answer, and whether it has read its files again is not known;"
            " its log says so",
            exit_codes.NO_CONNECTION,
        ) from None


def has_terminal() -> bool:
    """True if this process has a controlling terminal, whose end is told by SIGHUP."""
    if sys.platform == "win32":
        return True
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
