"""``meup guard``: put what coding agents do with their own hands behind approval."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import typer

from meup_agent.cli.failures import Failure, require_extra
from meup_agent.cli.guard.agents import AGENTS, CodingAgent, HookProgram
from meup_agent.cli.guard.files import FileChange, write_change
from meup_agent.cli.options import argument, flag, option
from meup_agent.cli.up.autostart import start_up
from meup_agent.cli.up.state import (
    FILE_MODE,
    SOCKET_SUFFIX,
    Owner,
    digest_of,
    guard_folder,
    keep_token,
    list_running,
    make_folder,
    token_path,
    up_folder,
)
from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.escape import visible
from meup_agent.transport.urls import socket_url

START_SECONDS: Final = 30.0
"""Wait for the gateway to listen."""

QUIET_SECONDS: Final = 2.0
"""Time after which the wait is said."""

REMOVE: Final = "remove"


class _Setup(msgspec.Struct):
    """The choices that are kept, so that a further agent is added to the same gateway."""

    policy: str = ""
    port: int | None = None
    process: int | None = None  # of the gateway that was started here


class _Gateway(NamedTuple):
    """The gateway that guarded agents ask."""

    servers: Path  # the MCP servers beside it, as `meup up --servers` takes them
    setup: _Setup

    def words(self, clients: list[str]) -> list[str]:
        """The arguments of ``meup up`` for some agents."""
        words = ["--servers", str(self.servers)]
        for each in clients:
            words += ["--client", each]
        if self.setup.policy:
            words += ["--policy", self.setup.policy]
        if self.setup.port is not None:
            words += ["--port", str(self.setup.port)]
        return words

    @property
    def socket(self) -> Path:
        """Its Unix socket, the same at each start."""
        return up_folder() / f"{digest_of(self.servers)}{SOCKET_SUFFIX}"

    def hook(self, agent: str, *, watches: bool) -> HookProgram:
        """The program by which an agent asks it, with the file of its token."""
        token_file = token_path(up_folder() / digest_of(self.servers), agent)
        return HookProgram(_hook_program(), socket_url(str(self.socket)), token_file, watches)

    def owner(self) -> Owner | None:
        """The gateway that runs, or is starting."""
        found = (each for each in list_running(up_folder()) if each.file == str(self.servers))
        return next(found, None)


def guard(
    agents: Annotated[
        list[str] | None,
        argument(
            "[AGENT]…",
            "The agents: `claude-code`, `codex`, `cursor`, `gemini`, `copilot`; else those that"
            " are found, one question for each. With `remove` before them: take the hooks out.",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        option("FILE", "Let the rules of this file decide; see `meup reviewer`."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, metavar="PORT", help="The port of the gateway."),
    ] = None,
    watch: Annotated[
        bool,
        flag(
            "--watch",
            "For the first days: the space is told of each call, and every call goes on; without"
            " it again, they wait for a decision.",
        ),
    ] = False,
    yes: Annotated[bool, flag("--yes", "All agents that are found, without a question.")] = False,
    dry_run: Annotated[
        bool, flag("--dry-run", "Show what would be changed, and change nothing.")
    ] = False,
    no_start: Annotated[
        bool, flag("--no-start", "Do not start the gateway; say how it is started.")
    ] = False,
) -> None:
    """Put the shell, the editor and all other tools of coding agents behind approval.

    Finds the agents of this user, and adds a hook to the settings of each: before every call the
    agent asks a gateway of yours, and where that does not answer, nothing runs. The gateway is
    started if it does not run; each agent is a participant of it, with a token of its own. People
    decide in `meup console` or `meup inbox`, and rules of a policy before them. The settings are
    shown as a difference and written whole, with what they were beside them. `meup guard remove`
    takes the hooks out again.

    Example: `meup guard`

    Example: `meup guard claude-code --policy policy.yaml`

    Example: `meup guard claude-code --watch`

    Example: `meup guard remove codex`
    """
    require_extra("a gateway")
    if sys.platform == "win32":
        raise Failure("`meup guard` needs the process groups of POSIX, as `meup up` does")
    names = [*(agents or [])]
    removes = names[:1] == [REMOVE]
    names = names[1:] if removes else names
    for each in names:
        if each not in AGENTS:
            raise ConfigurationError(
                f"the agent {visible(each, 60)} is not known; give some of {', '.join(AGENTS)}"
            )
    if removes:
        if policy is not None or port is not None or watch:
            raise ConfigurationError(
                "--policy, --port and --watch are for guarding; leave them out"
            )
        _remove(_chosen(names, yes=yes or dry_run, removes=True), dry_run=dry_run)
        return
    chosen, gateway = _chosen(names, yes=yes or dry_run), _gateway(policy, port)
    _install(chosen, gateway, dry_run=dry_run, no_start=no_start, watches=watch)


def _chosen(names: list[str], *, yes: bool, removes: bool = False) -> list[CodingAgent]:
    """The agents that are meant: those named, else those found, as the user says."""
    if names:
        return [AGENTS[each] for each in dict.fromkeys(names)]
    found = [each for each in AGENTS.values() if each.is_here]
    if removes:
        found = [each for each in found if each.is_guarded]
        if not found:
            sys.stdout.write("no agent has a hook of meup guard\n")
        return found
    if not found:
        raise Failure(
            f"no coding agent was found in {Path.home()}; name the one that you will install:"
            f" {', '.join(AGENTS)}"
        )
    if yes:
        return found
    listed = ", ".join(each.name for each in found)
    if not sys.stdin.isatty():
        raise ConfigurationError(f"which agents? give their names, or --yes for {listed}")
    chosen: list[CodingAgent] = []
    for each in found:
        state = "change" if each.is_guarded else "guard"
        sys.stdout.write(f"{state} {each.title} ({each.settings()})? [y/N] ")
        sys.stdout.flush()
        if sys.stdin.readline().strip().casefold() in ("y", "yes"):
            chosen.append(each)
    return chosen


def _install(
    chosen: list[CodingAgent], gateway: _Gateway, *, dry_run: bool, no_start: bool, watches: bool
) -> None:
    for each in chosen:
        each.check()
    changes = [each.change(gateway.hook(each.name, watches=watches)) for each in chosen]
    _show(changes)
    if dry_run or not chosen:
        return
    clients = [each.name for each in AGENTS.values() if each in chosen or each.is_guarded]
    _keep(gateway)
    folder = up_folder() / digest_of(gateway.servers)
    make_folder(up_folder())
    make_folder(folder)
    for name in clients:
        keep_token(token_path(folder, name))
    if not no_start:
        _start(gateway, clients)  # before any agent asks it
    _write(changes)
    for each in chosen:
        does = "tells of each call, and waits for nobody" if watches else "asks before each call"
        sys.stdout.write(f"{each.title} {does}, as the participant {each.name}\n")
        for said in (*([each.first] if each.first else []), *each.open):
            sys.stdout.write(f"  ! {said}\n")
    words = shlex.join(["meup", "up", *gateway.words(clients)])
    if no_start:
        sys.stdout.write(f"start the gateway, or nothing runs: {words}\n")
    else:
        sys.stdout.write("decide in a browser with `meup console`, or here with `meup inbox`\n")
        sys.stdout.write("see that nothing denied runs: meup doctor\n")
        sys.stdout.write(f"to have the gateway after each login: {words} --install\n")


def _remove(chosen: list[CodingAgent], *, dry_run: bool) -> None:
    changes = [each.change(None) for each in chosen]
    _show(changes)
    if not dry_run:
        _write(changes)
        for each in chosen:
            sys.stdout.write(f"{each.title} asks no more\n")


def _show(changes: list[FileChange]) -> None:
    for each in changes:
        if each.is_needed:
            lines = [visible(line, 2_000) for line in each.lines()]
            sys.stdout.write("\n".join([*lines, ""]))
        else:
            sys.stdout.write(f"{each.path} stays as it is\n")


def _write(changes: list[FileChange]) -> None:
    for each in changes:
        if each.is_needed:
            backup = write_change(each)
            beside = f"; what it was is in {backup}" if backup is not None else ""
            real = each.path.resolve()
            led = f" at {real}, to which a link leads" if real != each.path else ""
            sys.stdout.write(f"{each.path} is written{led}{beside}\n")


def _hook_program() -> Path:
    """The program ``meup-hook`` of this installation.

    Raises:
        Failure: There is none.
    """
    beside = Path(sys.executable).with_name("meup-hook")
    found = str(beside) if beside.is_file() else shutil.which("meup-hook")
    if found is None:
        raise Failure(f"there is no program {beside}; install meup-agent again")
    return Path(found).absolute()


def _gateway(policy: Path | None, port: int | None) -> _Gateway:
    """The gateway of guarded agents, with what was chosen for it before, or now."""
    kept = guard_folder() / "gateway.json"
    setup = _Setup()
    if kept.is_file():
        try:
            setup = msgspec.json.decode(kept.read_bytes(), type=_Setup)
        except (OSError, msgspec.MsgspecError):
            raise ConfigurationError(f"{kept} cannot be read; remove it") from None
    if policy is not None:
        from meup_agent.approval import load_policy

        load_policy(policy)
        setup.policy = str(policy.absolute())
    if port is not None:
        setup.port = port
    return _Gateway(guard_folder() / "mcp.json", setup)


def _keep(gateway: _Gateway) -> None:
    folder = guard_folder()
    make_folder(folder)
    try:
        (folder / "gateway.json").write_bytes(msgspec.json.encode(gateway.setup))
        if not gateway.servers.exists():
            gateway.servers.write_text('{"mcpServers": {}}\n', encoding="utf-8")
            gateway.servers.chmod(FILE_MODE)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written ({system_reason(error)})") from None


def _start(gateway: _Gateway, clients: list[str]) -> None:
    """Start the gateway, if it does not run, and wait until it listens.

    Raises:
        Failure: It does not, or runs without one of the agents.
    """
    owner = gateway.owner()
    if owner is not None and owner.url:
        missing = [each for each in clients if each not in owner.token_files]
        if not missing:
            return
        named = ", ".join(missing)
        if owner.process != gateway.setup.process:
            words = shlex.join(["meup", "up", *gateway.words(clients)])
            raise Failure(
                f"the gateway at {owner.url} (process {owner.process}) runs without {named}; stop"
                f" it where it was started, and run: {words}"
            )
        sys.stdout.write(f"the gateway is started anew, with {named}\n")
        _stop(gateway, owner)
        owner = None
    process, output = start_up(gateway.words(clients)) if owner is None else (None, None)
    begun, is_said = time.monotonic(), False
    while (owner := gateway.owner()) is None or not owner.url:
        waited = time.monotonic() - begun
        has_ended = process is not None and process.poll() is not None
        if has_ended or waited > START_SECONDS:
            where = "" if output is None else f"; its output is in {output}:\n{_end_of(output)}"
            raise Failure(f"the gateway did not start{where}")
        if waited > QUIET_SECONDS and not is_said:
            is_said = True
            sys.stderr.write("meup: waiting for the gateway\n")
        time.sleep(0.1)
    gateway.setup.process = owner.process
    _keep(gateway)
    sys.stdout.write(f"the gateway runs at {owner.url}\n")


def _stop(gateway: _Gateway, owner: Owner) -> None:
    """Stop a gateway that was started here; agents that wait for it are told no."""
    with suppress(ProcessLookupError):
        os.kill(owner.process, signal.SIGTERM)
    begun = time.monotonic()
    while gateway.owner() is not None:
        if time.monotonic() - begun > START_SECONDS:
            raise Failure(f"the gateway of process {owner.process} does not end; stop it yourself")
        time.sleep(0.1)


def _end_of(path: Path) -> str:
    """The last lines of a file, for the person who has to know why."""
    with suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        return "\n".join(visible(each, 500) for each in lines)
    return ""
