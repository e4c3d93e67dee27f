"""Checks of the hooks that ``meup guard`` has set up: the settings, the gateway, a denied call."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, cast

from meup_agent.cli.address import SpaceOptions
from meup_agent.cli.doctor import Check, DoctorListener, Report, diagnose, failed_names
from meup_agent.cli.guard.agents import (
    AGENTS,
    OWN_SERVER,
    SWITCH,
    CodingAgent,
    HookProgram,
    claude_hooks,
    dotted,
    version_of,
)
from meup_agent.cli.guard.files import read_commented, read_json, read_settings
from meup_agent.cli.guard.plan import is_own_server, server_lists
from meup_agent.cli.up.autostart import SPACE
from meup_agent.errors import ConfigurationError, MeupError
from meup_agent.escape import visible
from meup_agent.protocol.wire.payloads import as_object

if TYPE_CHECKING:
    from meup_agent.cli.guard.trial import TrialResult


PROJECT_SETTINGS: Final = (".claude/settings.json", ".claude/settings.local.json")
"""The settings of Claude Code that a folder has."""


def _again(agent: CodingAgent) -> str:
    return f"run `meup guard {agent.name}` again"


def _broken(name: str, error: ConfigurationError) -> Check:
    """The check of a file that cannot be read."""
    return Check(name, False, visible(str(error), 300), "mend the file")


def managed_settings() -> Path:
    """The settings of Claude Code that an administrator writes."""
    if sys.platform == "darwin":
        return Path("/Library/Application Support/ClaudeCode/managed-settings.json")
    return Path("/etc/claude-code/managed-settings.json")


@dataclass(slots=True)
class DoorReport:
    """The checks of one agent's hook.

    Attributes:
        agent: The agent.
        checks: Its checks, in their order.
    """

    agent: CodingAgent
    checks: list[Check] = field(default_factory=list[Check])

    @property
    def ok(self) -> bool:
        """False if one check failed."""
        return not failed_names(self.checks)


def guarded_agents() -> list[CodingAgent]:
    """The agents whose settings have something of ours, or cannot be read."""
    return [each for each in AGENTS.values() if _may_be_guarded(each)]


def _may_be_guarded(agent: CodingAgent) -> bool:
    try:
        return agent.installed_hook() is not None if agent.has_hooks else is_set_up(agent)
    except ConfigurationError:
        return True


async def examine(
    agent: CodingAgent, listener: DoctorListener, *, timeout: float
) -> AsyncGenerator[Check]:
    """The checks of an agent's hook, as they are done.

    Args:
        agent: The agent.
        listener: Told what is waited for.
        timeout: Seconds for each step on the way to its gateway.
    """
    if not agent.has_hooks:
        for check in (*check_settings(agent), *_open(agent)):
            yield check
        return
    try:
        hook = agent.installed_hook()
    except ConfigurationError as error:
        yield _broken("hook", error)
        return
    if hook is None:
        advice = f"run `meup guard {agent.name}`"
        yield Check("hook", False, f"{agent.settings()} has none of ours", advice)
        return
    yield _check_settings(agent, hook)
    yield await _check_gateway(agent, hook, listener, timeout)
    program = shutil.which(agent.program) if agent.program else None
    if agent.program is None:
        for check in check_settings(agent):
            yield check
    elif program is None:
        yield Check("denied call", None, f"not tried: there is no {agent.program} on the PATH")
    else:
        async for check in _try(agent, program, hook, listener):
            yield check
    for check in _open(agent):
        yield check


def _check_settings(agent: CodingAgent, hook: HookProgram) -> Check:
    """Check that the settings are as guard writes them, and that their program exists."""
    path = agent.settings()
    again = _again(agent)
    if not os.access(hook.program, os.X_OK):
        said = f"{path} starts {hook.program}, which is not there"
        return Check("hook", False, f"{visible(said, 400)}: no call runs", again)
    try:
        agent.check()
        before = read_settings(path)
        is_ours = agent.edited(before, hook) == before
    except ConfigurationError as error:
        return Check("hook", False, visible(str(error), 400), again)
    shown = visible(str(path), 200)
    if not is_ours:
        return Check("hook", False, f"{shown} is not as meup guard writes it", again)
    if hook.watches:
        return Check("hook", True, f"{shown}; it watches: every call goes on", again)
    return Check("hook", True, shown)


class _Quiet:
    """A listener for checks that are summed up."""

    def __init__(self, listener: DoctorListener) -> None:
        self.begin_attempt = listener.begin_attempt

    async def report_check(self, check: Check) -> None:
        pass


async def _check_gateway(
    agent: CodingAgent, hook: HookProgram, listener: DoctorListener, timeout: float
) -> Check:
    """Check that the gateway which the hook asks is there, and takes proposals of the agent."""
    where = SpaceOptions(
        url=hook.url, space=SPACE, token_file=hook.token_file, participant=agent.name
    )
    report: Report = await diagnose(where, _Quiet(listener), timeout=timeout)
    failed = next((check for check in report.checks if check.ok is False), None)
    if failed is not None:
        so = "every call goes on unseen" if hook.watches else "no call runs"
        return Check("gateway", False, f"{failed.said}: {so}", _again(agent))
    may = {each.verb: each.allowed for each in report.permissions}
    if not may.get("propose"):
        return Check("gateway", False, "it takes no proposal of this agent: no call runs")
    return Check("gateway", True, f"{visible(hook.url, 200)} knows it as {report.me}")


async def _try(
    agent: CodingAgent, program: str, hook: HookProgram, listener: DoctorListener
) -> AsyncGenerator[Check]:
    """Let the agent itself ask: where the gateway denies, and where there is none."""
    from meup_agent.cli.guard.trial import DENIAL, TRIAL_SECONDS, denying_gateway, try_hook

    named = agent.title
    if (version := version_of(program)) is not None:
        named += f" {dotted(version)}"
    if_trusted = ""
    if agent.name == "codex":
        listener.begin_attempt(f"{agent.title} to list its hooks", TRIAL_SECONDS)
        with TemporaryDirectory(prefix="meup-doctor-") as folder:
            trust = await _check_trust(agent, program, Path(folder))
            yield trust
            # Its trial trusts our hook, which is another question.
            if_trusted = "" if trust.ok else "with a hook that it trusts, "
            if not hook.watches:
                yield await _check_terminals(agent, program, Path(folder))
    try:
        for name, what, words, gateway in (
            ("denied call", "to be denied a call", DENIAL, denying_gateway(agent.name)),
            ("gateway gone", "to find no gateway", "meup did not answer", nullcontext()),
        ):
            with TemporaryDirectory(prefix="meup-doctor-") as folder:
                listener.begin_attempt(f"{agent.title} {what}", TRIAL_SECONDS)
                async with gateway as at:
                    result = await try_hook(agent, program, hook, Path(folder), at)
            yield _judge(name, if_trusted + named, result, words, watches=hook.watches)
    except (MeupError, OSError) as error:
        yield Check("denied call", False, f"it could not be tried: {visible(str(error), 300)}")


def _judge(name: str, agent: str, result: TrialResult, words: str, *, watches: bool) -> Check:
    """Check that a command that was not to run did not, and the model was told why."""
    told = visible(result.told or "", 200)
    if result.has_run:
        if watches:
            return Check(name, True, f"{agent} ran the command, as it does while it is watched")
        advice = "look into its managed settings, which may turn hooks off; let it run no tools"
        return Check(name, False, f"{agent} RAN the command", advice)
    if result.told is None:
        why = "did not end" if not result.has_ended else "never asked for it"
        said = f"{agent} {why}, so nothing is proved: {visible(result.output, 300)}"
        return Check(name, False, said, "start it once by hand, and try again")
    if words not in result.told and not watches:
        return Check(name, False, f"{agent} did not run it, but not because of its hook: {told}")
    return Check(name, True, f"{agent} did not run the command, and told its model why")


async def _check_trust(agent: CodingAgent, program: str, folder: Path) -> Check:
    from meup_agent.cli.guard.trial import hook_trust

    try:
        trusts = await hook_trust(agent, program, folder)
    except MeupError as error:
        return Check("trust", False, f"it did not say: {visible(str(error), 300)}")
    if trusts is None:
        said = f"{agent.title} lists no hook of ours: it runs every call"
        return Check(
            "trust", False, said, "see whether `features` in its config.toml turn them off"
        )
    if not trusts:
        said = f"{agent.title} does not trust the hook, and skips it in silence: it RUNS every call"
        return Check("trust", False, said, "start codex, type /hooks, look at it and trust it")
    return Check("trust", True, f"{agent.title} trusts the hook")


async def _check_terminals(agent: CodingAgent, program: str, folder: Path) -> Check:
    from meup_agent.cli.guard.trial import opens_terminals

    try:
        opens = await opens_terminals(agent, program, folder)
    except (MeupError, OSError) as error:
        return Check("terminals", False, f"it did not say: {visible(str(error), 300)}")
    if opens is None:
        said = f"{agent.title} has no switch {SWITCH}: what it types into a terminal asks no hook"
        return Check("terminals", False, said, "update it (npm install -g @openai/codex)")
    if opens:
        said = f"{agent.title} opens terminals, and what it types into one asks no hook"
        return Check("terminals", False, said, _again(agent))
    return Check("terminals", True, f"{agent.title} opens none, whose input would ask no hook")


def _open(agent: CodingAgent) -> Iterator[Check]:
    """The ways past the hook, and how each is closed."""
    if agent.name == "claude-code":
        yield from _open_claude()
        return
    for each in agent.open:
        yield Check("open", True, each.said, each.closing)


def _open_claude() -> Iterator[Check]:
    path = managed_settings()
    try:
        managed = read_json(read_settings(path), path)
    except ConfigurationError as error:
        yield _broken("managed", error)
        return
    if any(claude_hooks(managed)):
        yield Check(
            "managed", True, f"{path} has the hook: `--bare`, `disableAllHooks` do not skip it"
        )
        return
    closing = f"as an administrator, copy the hooks of its settings into {path}"
    if managed.get("allowManagedHooksOnly"):
        said = f"{path} allows managed hooks alone, so ours is skipped: it RUNS every call"
        yield Check("managed", False, said, closing)
    skips = "`claude --bare`"
    if managed.get("disableAllHooks") is not False:
        skips += ", and `disableAllHooks` in a project's settings,"
        for name in PROJECT_SETTINGS:
            project = Path.cwd() / name
            try:
                found = read_json(read_settings(project), project)
            except ConfigurationError:
                continue
            if found.get("disableAllHooks"):
                said = f"{project} turns hooks off: Claude Code RUNS every call in this folder"
                yield Check(
                    "this folder", False, visible(said, 400), f"take that out, or {closing}"
                )
    closing += ": nothing skips them there, and calls of the machine's other users are denied"
    yield Check("open", True, f"{skips} skip the hook", closing)


# --- checks by settings alone ---
# The keys are those that the agents document; nothing is run, so nothing is proved.

READ_ONLY: Final = "not tried: its settings were read, and nothing was run"

_AUTO_APPROVE: Final = ("chat.tools.global.autoApprove", "chat.tools.autoApprove")
"""Keys by which VS Code asks about no tool, in newer and in older versions."""


def gemini_files() -> tuple[Path, ...]:
    """The settings of Gemini CLI beside the user's."""
    mac = sys.platform == "darwin"
    folder = Path("/Library/Application Support/GeminiCli" if mac else "/etc/gemini-cli")
    system = Path(os.environ.get("GEMINI_CLI_SYSTEM_SETTINGS_PATH") or folder / "settings.json")
    defaults = os.environ.get("GEMINI_CLI_SYSTEM_DEFAULTS_PATH")
    beside = Path(defaults) if defaults else system.with_name("system-defaults.json")
    return Path.cwd() / ".gemini/settings.json", system, beside


def is_set_up(agent: CodingAgent) -> bool:
    """True if an agent without hooks has something of ours.

    Raises:
        ConfigurationError: Its settings cannot be read.
    """
    if agent.name == "zed":
        return agent.is_guarded
    return any(is_own_server(_servers(each.path, each.key).get(OWN_SERVER)) for each in _of(agent))


def check_settings(agent: CodingAgent) -> Iterator[Check]:
    """Checks of the settings of an agent whose program is not run."""
    try:
        match agent.name:
            case "gemini":
                yield from _gemini(agent)
            case "vscode":
                yield from _vscode(agent)
            case "zed":
                yield from _zed(agent)
            case _:
                pass
    except ConfigurationError as error:
        yield _broken("settings", error)
    yield Check("denied call", None, READ_ONLY)


def _document(path: Path) -> dict[str, Any]:
    return read_commented(read_settings(path) or "{}", path)


def _servers(path: Path, key: str) -> dict[str, Any]:
    return as_object(_document(path).get(key))


def _of(agent: CodingAgent) -> Iterator[Any]:
    return server_lists(agent.name, Path.cwd())


def _beside(names: list[str], path: Path, closing: str) -> Check:
    said = f"MCP servers of {path} go past the space: {', '.join(sorted(names))}"
    return Check("MCP servers", False, visible(said, 400), closing)


def _gemini(agent: CodingAgent) -> Iterator[Check]:
    for path in (agent.settings(), *gemini_files()):
        document = _document(path)
        # Versions before `hooksConfig` have the same switches in `hooks`, and one in `tools`.
        switches = [as_object(document.get(each)) for each in ("hooksConfig", "hooks")]
        disabled = [each.get("disabled") for each in switches]
        is_off = as_object(document.get("tools")).get("enableHooks") is False
        is_off = is_off or any(each.get("enabled") is False for each in switches)
        if is_off or any(isinstance(each, list) and "meup" in each for each in disabled):
            said = f"{path} turns the hook off: {agent.title} RUNS every call"
            advice = "take `enabled`, `disabled` and `enableHooks` of hooks out of it"
            yield Check("hooks", False, visible(said, 400), advice)


def _vscode(agent: CodingAgent) -> Iterator[Check]:
    for each in _of(agent):
        entries = _servers(each.path, each.key)
        shown = visible(str(each.path), 200)
        if each.project is None:
            if is_own_server(entries.get(OWN_SERVER)):
                yield Check("server", True, f"{shown} has the server {OWN_SERVER}")
            else:
                said = f"{shown} has no server {OWN_SERVER} of ours"
                yield Check("server", False, said, _again(agent))
        others = [name for name in entries if name != OWN_SERVER]
        if others:
            more = "" if each.project is None else " --project"
            yield _beside(others, each.path, f"run `meup guard {agent.name}{more}`: it moves them")
    path = agent.settings().with_name("settings.json")
    document = _document(path)
    key = next((key for key in _AUTO_APPROVE if document.get(key) is True), None)
    if key is not None:
        said = f"{path} approves every tool: its own tools run, and nobody is asked"
        yield Check("own tools", False, visible(said, 400), f"take `{key}` out of it")


def _zed(agent: CodingAgent) -> Iterator[Check]:
    path = agent.settings()
    document = _document(path)
    wrapped, bare = list[str](), list[str]()
    for name, entry in as_object(document.get("agent_servers")).items():
        of = as_object(entry)
        args = of.get("args")
        words = cast("list[object]", args) if isinstance(args, list) else []
        is_ours = Path(str(of.get("command"))).name == "meup" and words[:1] == ["acp"]
        (wrapped if is_ours else bare).append(name)
    if wrapped:
        said = f"{path} starts by `meup acp`: {', '.join(sorted(wrapped))}"
        yield Check("agents", True, visible(said, 400))
    if bare:
        said = f"{path} starts without `meup acp`: {', '.join(sorted(bare))}"
        advice = f"run `meup guard {agent.name}`; one without a `command` is Zed's to start: guard"
        yield Check("agents", False, visible(said, 400), f"{advice} the agent itself")
    servers = [*as_object(document.get("context_servers"))]
    if servers:
        yield _beside(servers, path, "move them into the servers of `meup up --servers`")
    own = as_object(document.get("agent"))
    permissions = as_object(own.get("tool_permissions"))
    if permissions.get("default") == "allow" or own.get("always_allow_tool_actions") is True:
        said = f"{path} lets Zed's own agent run every tool, and nobody is asked"
        yield Check("own tools", False, visible(said, 400), "take that out, or use a wrapped agent")
