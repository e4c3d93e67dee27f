"""``meup guard``: put what coding agents do with their own hands behind approval."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Container
from contextlib import nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer

from meup_agent.atomic_file import replace_file
from meup_agent.cli.failures import Failure, require_extra
from meup_agent.cli.guard.agents import (
    AGENTS,
    CLAUDE,
    MAX_TTL_SECONDS,
    TTL_SECONDS,
    CodingAgent,
    HookProgram,
    claude_hooks,
)
from meup_agent.cli.guard.files import (
    FileChange,
    read_json,
    read_settings,
    remove_copies,
    write_change,
)
from meup_agent.cli.guard.plan import (
    GuardPlan,
    GuardRecord,
    gateway_servers,
    plan_install,
    plan_removal,
    secrets_in,
    server_lists,
)
from meup_agent.cli.options import argument, flag, option
from meup_agent.cli.up.autostart import start_up
from meup_agent.cli.up.state import (
    SOCKET_SUFFIX,
    Owner,
    digest_of,
    guard_folder,
    guard_lock,
    journal_path,
    keep_token,
    list_running,
    make_folder,
    running_gateways,
    token_path,
    up_folder,
)
from meup_agent.errors import ConfigurationError, explain_os_error
from meup_agent.escape import visible
from meup_agent.protocol.wire.payloads import as_object
from meup_agent.transport.urls import socket_url

START_SECONDS: Final = 30.0
"""Wait for the gateway to listen."""

QUIET_SECONDS: Final = 2.0
"""Time after which the wait is said."""

REMOVE: Final = "remove"


class Preferred(StrEnum):
    """The place that decides for a person at the terminal of the agent."""

    SPACE = "space"
    TERMINAL = "terminal"


class _Setup(msgspec.Struct):
    """The choices that are kept, so that a further agent is added to the same gateway."""

    policy: str = ""
    port: int | None = None
    ttl: int = TTL_SECONDS
    process: int | None = None  # of the gateway that was started here
    servers: str = ""  # the digest of the MCP servers that it was started with
    choices: list[str] = msgspec.field(default_factory=list[str])  # and its policy and port


class _Gateway(NamedTuple):
    """The gateway that guarded agents ask."""

    servers: Path  # the MCP servers beside it, as `meup up --servers` takes them
    setup: _Setup
    is_changed: bool = False  # another policy or port was chosen than the time before

    @property
    def choices(self) -> list[str]:
        """The arguments of ``meup up`` that the user has chosen."""
        policy = ["--policy", self.setup.policy] if self.setup.policy else []
        port = [] if self.setup.port is None else ["--port", str(self.setup.port)]
        return [*policy, *port]

    def words(self, clients: list[str]) -> list[str]:
        """The arguments of ``meup up`` for some agents."""
        words = ["--servers", str(self.servers)]
        for each in clients:
            words += ["--client", each]
        return [*words, *self.choices]

    def command(self, clients: list[str]) -> str:
        """The command line that starts it for some agents."""
        return shlex.join(["meup", "up", *self.words(clients)])

    @property
    def folder(self) -> Path:
        """The folder of the tokens; its Unix socket is beside it, the same at each start."""
        return up_folder() / digest_of(self.servers)

    def hook(self, agent: str, **how: Any) -> HookProgram:
        """The program by which an agent asks it, with the file of its token."""
        url = socket_url(f"{self.folder}{SOCKET_SUFFIX}")
        return HookProgram(
            _hook_program(), url, token_path(self.folder, agent), self.setup.ttl, **how
        )

    def owner(self) -> Owner | None:
        """The gateway that runs, or is starting."""
        found = (each for each in list_running(up_folder()) if each.file == str(self.servers))
        return next(found, None)


def guard(
    agents: Annotated[
        list[str] | None,
        argument(
            "[AGENT]…",
            "The agents: `claude-code`, `codex`, `cursor`, `gemini`, `copilot`, `vscode`, `zed`;"
            " else those that are found, one question for each. With `remove` before them: take"
            " all of it out.",
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
    ttl: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_TTL_SECONDS,
            metavar="SECONDS",
            help="How long a call waits for a decision; then it does not run. Default: a day.",
        ),
    ] = None,
    prefer: Annotated[
        Preferred,
        option(
            "WHO",
            "Who decides where a person is at Claude Code's terminal, too: the `space` alone, or"
            " whoever answers first (`terminal`).",
        ),
    ] = Preferred.SPACE,
    defer_after: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_TTL_SECONDS,
            metavar="SECONDS",
            help="Send `claude -p` away after that time; the call waits on, and"
            " `claude -p --resume` comes back for the answer. Default: it waits.",
        ),
    ] = None,
    watch: Annotated[
        bool,
        flag(
            "--watch",
            "For the first days: the space is told of each call, and every call goes on; without"
            " it again, they wait for a decision.",
        ),
    ] = False,
    no_servers: Annotated[
        bool, flag("--no-servers", "Leave the agents' MCP servers where they are.")
    ] = False,
    project: Annotated[
        bool,
        flag(
            "--project",
            "Move the MCP servers of this folder, too (`.mcp.json`, `.cursor/mcp.json`,"
            " `.vscode/mcp.json`): they are started as you from then on, so look at them first.",
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
    decide in `meup console` or `meup inbox`, and rules of a policy before them. The MCP servers of
    the agents are moved behind the same gateway, which starts them, and each agent gets one in
    their place, `meup`. An editor that speaks ACP starts its agents by `meup acp`. Changes of
    settings are shown as a difference, and a copy of the old settings stays beside the new ones.
    `meup guard remove` puts everything back.

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
        given = (policy, port, ttl, defer_after)
        flags = (watch, no_servers, project, prefer is not Preferred.SPACE)
        if any(each is not None for each in given) or any(flags):
            raise ConfigurationError(
                "--policy, --port, --ttl, --prefer, --defer-after, --watch, --no-servers and"
                " --project are for guarding; leave them out"
            )
    elif not no_servers:
        require_extra("MCP")
    # What one has recorded another one would write over, and with it the servers that were moved.
    with nullcontext() if dry_run else guard_lock():
        record = _read_record()
        chosen = _chosen(names, record, yes=yes or dry_run, removes=removes)
        if removes:
            _remove(chosen, plan_removal(chosen, record), record, dry_run=dry_run)
            return
        how: dict[str, Any] = {
            "watches": watch,
            "prefers_terminal": prefer is Preferred.TERMINAL,
            "defer_after": defer_after,
        }
        _check_how(chosen, how)
        gateway = _gateway(policy, port, ttl)
        for agent in chosen:
            agent.check()
        plan = plan_install(
            chosen,
            lambda agent: gateway.hook(agent.name, **how),
            record,
            moves=not no_servers,
            project=Path.cwd() if project else None,
        )
        if not project and not no_servers:
            _tell_project(chosen)
        _install(chosen, gateway, plan, dry_run=dry_run, no_start=no_start, watches=watch)


def _check_how(chosen: list[CodingAgent], how: dict[str, Any]) -> None:
    """Refuse what no agent that was chosen has, and what decides beside what does not.

    Raises:
        ConfigurationError: It is so.
    """
    if not (how["prefers_terminal"] or how["defer_after"] is not None) or not chosen:
        return
    if how["watches"]:
        raise ConfigurationError("--watch decides nothing, so leave --prefer and --defer-after out")
    if all(each.name != CLAUDE for each in chosen):
        raise ConfigurationError(
            "--prefer terminal and --defer-after are for Claude Code alone; name claude-code, too,"
            " or leave them out"
        )


def _tell_project(chosen: list[CodingAgent]) -> None:
    """Say which servers of this folder stay where they are."""
    for agent in chosen:
        for listed in server_lists(agent.name, Path.cwd()):
            if listed.project is not None and listed.path.is_file():
                sys.stdout.write(
                    f"the MCP servers of {listed.path} stay there; --project moves them\n"
                )


def _chosen(
    names: list[str], record: GuardRecord, *, yes: bool, removes: bool = False
) -> list[CodingAgent]:
    """The agents that are meant: those named, else those found, as the user says."""
    if names:
        return [AGENTS[each] for each in dict.fromkeys(names)]
    if removes:
        found = [each for each in AGENTS.values() if _is_guarded(each, record)]
        if not found:
            sys.stdout.write("no agent has a hook of meup guard\n")
        return found
    found = [each for each in AGENTS.values() if each.is_here]
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
        state = "change" if _is_guarded(each, record) else "guard"
        sys.stdout.write(f"{state} {each.title} ({each.settings()})? [y/N] ")
        sys.stdout.flush()
        if sys.stdin.readline().strip().casefold() in ("y", "yes"):
            chosen.append(each)
    return chosen


def _is_guarded(agent: CodingAgent, record: GuardRecord) -> bool:
    if any(file.agent == agent.name for file in record.values()):
        return True
    try:
        return agent.is_guarded
    except ConfigurationError:
        return False  # guard writes no file that it cannot read, and it is another agent's


def _install(
    chosen: list[CodingAgent],
    gateway: _Gateway,
    plan: GuardPlan,
    *,
    dry_run: bool,
    no_start: bool,
    watches: bool,
) -> None:
    _show(plan)
    if dry_run or not chosen:
        sys.stdout.write("nothing was changed\n")
        return
    clients = [
        each.name for each in AGENTS.values() if each in chosen or _is_guarded(each, plan.record)
    ]
    _keep(gateway, plan.record)
    make_folder(up_folder())
    make_folder(gateway.folder)
    for name in clients:
        keep_token(token_path(gateway.folder, name))
    if not no_start:
        _start(gateway, clients)  # before any agent asks it
    _write_own(
        _record_path(), plan.record
    )  # before any settings change, so that they can be put back
    _write(plan.changes)
    for each in chosen:
        does = "tells of each call, and waits for nobody" if watches else "asks before each call"
        does = does if each.has_hooks else "is behind the gateway"
        sys.stdout.write(f"{each.title} {does}, as the participant {each.name}\n")
        for said in (*([each.first] if each.first else []), *each.open, *_others(each)):
            sys.stdout.write(f"  ! {said}\n")
    words = gateway.command(clients)
    if no_start:
        sys.stdout.write(f"start the gateway, or nothing runs: {words}\n")
    else:
        owner = gateway.owner()
        is_one = owner is None or len(running_gateways()) == 1
        named = "" if is_one or owner is None else f" --port {owner.port}"
        sys.stdout.write(
            "decide in a browser with `meup console`, or in a terminal:\n"
            f'  eval "$(meup env you{named})"\n'
            "  meup inbox\n"
        )
        sys.stdout.write("see that nothing denied runs: meup doctor\n")
        sys.stdout.write(f"to have the gateway after each login: {words} --install\n")


def _others(agent: CodingAgent) -> list[str]:
    """The warning that other hooks ask as well."""
    path = agent.settings()
    if agent.name != CLAUDE or all(claude_hooks(read_json(read_settings(path), path))):
        return []
    return [
        f"{path} has other hooks before a call: a no of theirs holds beside ours, but where one of"
        " them changes a call (updatedInput), the hook that answers last counts, and what runs may"
        " not be what was permitted"
    ]


def _remove(
    chosen: list[CodingAgent], plan: GuardPlan, record: GuardRecord, *, dry_run: bool
) -> None:
    _show(plan)
    if dry_run or not chosen:
        return
    # Of a file that nobody else has changed nothing would be lost.
    _write(plan.changes, {each.path for each in plan.changes if _is_ours(each, record)})
    gateway = _gateway()
    if gateway.servers.exists():
        _keep(gateway, plan.record)
    _write_own(_record_path(), plan.record)
    for each in chosen:
        sys.stdout.write(f"{each.title} asks no more\n")
    copies = [str(copy) for each in plan.changes for copy in remove_copies(each.path)]
    if copies:
        sys.stdout.write(
            f"copies of what was there before stay, for you to delete: {', '.join(copies)}\n"
        )
    _leave_gateway(gateway, plan.record)


def _is_ours(change: FileChange, record: GuardRecord) -> bool:
    """True for a file that nobody has changed since we wrote it."""
    known = record.get(str(change.path))
    return known is not None and known.before is not None and change.before == known.after


def _leave_gateway(gateway: _Gateway, record: GuardRecord) -> None:
    """Stop the gateway that was started here once no agent asks it; say what stays of it."""
    owner, is_asked = gateway.owner(), any(_is_guarded(each, record) for each in AGENTS.values())
    is_used = is_asked or bool(_servers_of(gateway))
    if owner is not None and (is_used or owner.process != gateway.setup.process):
        sys.stdout.write(
            f"the gateway at {owner.url} still runs, as before until its next start; kill"
            f" {owner.process} ends it\n"
        )
    elif owner is not None:
        _stop(gateway, owner)
        sys.stdout.write(f"the gateway at {owner.url} is stopped\n")
    kept = (journal_path(gateway.servers), gateway.folder, guard_folder())
    if not is_asked and any(each.exists() for each in kept[:2]):
        named = ", ".join(str(each) for each in kept if each.exists())
        sys.stdout.write(
            f"who decided what stays, with tokens and choices, for you to delete: {named}\n"
        )


def _show(plan: GuardPlan) -> None:
    for each in plan.changes:
        if each.is_needed:
            said = "\n".join(each.lines())
            for secret in secrets_in(each):  # people show their terminals
                said = said.replace(secret, "…")
            lines = [visible(line, 2_000) for line in said.splitlines()]
            sys.stdout.write("\n".join([*lines, ""]))
        elif each.before is not None:
            sys.stdout.write(f"{each.path} stays as it is\n")
    for said in plan.stays:
        sys.stdout.write(f"{visible(said, 400)}\n")


def _write(changes: list[FileChange], ours: Container[Path] = ()) -> None:
    for each in changes:
        if each.is_needed:
            backup = write_change(each, keeps=each.path not in ours)
            beside = f"; what it was is in {backup}" if backup is not None else ""
            real = each.path.resolve()
            led = f" at {real}, to which a link leads" if real != each.path else ""
            done = "is written" if each.after else "is taken away"
            sys.stdout.write(f"{each.path} {done}{led}{beside}\n")


def _read_record() -> GuardRecord:
    """The changes of earlier runs."""
    path = _record_path()
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=GuardRecord)
    except (OSError, msgspec.MsgspecError):
        raise ConfigurationError(
            f"{path} cannot be read; it has the MCP servers that were moved: keep a copy of it, and"
            " remove it"
        ) from None


def _record_path() -> Path:
    return guard_folder() / "changed.json"


def _write_own(path: Path, document: object) -> None:
    """Write a file of the guard's folder whole, for its user alone: it has secrets of servers."""
    make_folder(path.parent)
    with explain_os_error(f"{path} cannot be written"):
        replace_file(path, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


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


def _gateway(
    policy: Path | None = None, port: int | None = None, ttl: int | None = None
) -> _Gateway:
    """The gateway of guarded agents, with what was chosen for it before, or now."""
    kept = guard_folder() / "gateway.json"
    setup = _Setup()
    if kept.is_file():
        try:
            setup = msgspec.json.decode(kept.read_bytes(), type=_Setup)
        except (OSError, msgspec.MsgspecError):
            raise ConfigurationError(f"{kept} cannot be read; remove it") from None
    before = (setup.policy, setup.port)
    if policy is not None:
        from meup_agent.approval import load_policy

        load_policy(policy)
        setup.policy = str(policy.absolute())
    if port is not None:
        setup.port = port
    if ttl is not None:
        setup.ttl = ttl
    is_changed = (setup.policy, setup.port) != before
    return _Gateway(guard_folder() / "mcp.json", setup, is_changed)


def _keep(gateway: _Gateway, record: GuardRecord | None = None) -> None:
    """Keep what was chosen for the gateway, and the servers that it is to start."""
    _write_own(guard_folder() / "gateway.json", gateway.setup)
    if record is not None:
        moved = gateway_servers(_read_record()).keys()
        # The user may have written some of them.
        there = _servers_of(gateway)
        others = {name: entry for name, entry in there.items() if name not in moved}
        _write_own(gateway.servers, {"mcpServers": {**others, **gateway_servers(record)}})


def _servers_of(gateway: _Gateway) -> dict[str, Any]:
    """The MCP servers that the gateway is to start, as they are kept."""
    kept = read_json(read_settings(gateway.servers), gateway.servers)
    return as_object(kept.get("mcpServers"))


def _start(gateway: _Gateway, clients: list[str]) -> None:
    """Start the gateway, if it does not run, and wait until it listens.

    Raises:
        Failure: It does not, or runs without one of the agents.
    """
    owner = gateway.owner()
    digest = hashlib.sha256(gateway.servers.read_bytes()).hexdigest()
    if owner is not None and owner.url:
        missing = [each for each in clients if each not in owner.token_files]
        is_ours = owner.process == gateway.setup.process
        if is_ours and digest != gateway.setup.servers:
            missing.append("its MCP servers")
        # What a gateway has that was started elsewhere is not known here.
        if gateway.choices != gateway.setup.choices if is_ours else gateway.is_changed:
            missing.append(shlex.join(gateway.choices) or "another policy")
        if not missing:
            return
        named = ", ".join(missing)
        if not is_ours:
            raise Failure(
                f"the gateway at {owner.url} (process {owner.process}) runs without {named}; stop"
                f" it where it was started, and run: {gateway.command(clients)}"
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
    gateway.setup.process, gateway.setup.servers = owner.process, digest
    gateway.setup.choices = gateway.choices
    _keep(gateway)
    sys.stdout.write(f"the gateway runs at {owner.url}, as process {owner.process}\n")


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
