"""Checks of agents by their settings alone: where their programs are not tried.

The keys are those that the agents document; nothing is run, so nothing is proved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from meup_agent.cli.doctor import Check
from meup_agent.cli.guard.agents import OWN_SERVER, CodingAgent
from meup_agent.cli.guard.files import read_settings
from meup_agent.cli.guard.json_text import read_commented
from meup_agent.cli.guard.servers import is_own_server, server_lists
from meup_agent.errors import ConfigurationError
from meup_agent.escape import visible
from meup_agent.protocol.wire.payloads import as_object

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
        yield Check("settings", False, visible(str(error), 300), "mend the file")
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
                again = f"run `meup guard {agent.name}` again"
                yield Check("server", False, f"{shown} has no server {OWN_SERVER} of ours", again)
        others = [name for name in entries if name != OWN_SERVER]
        if others:
            more = "" if each.project is None else " --project"
            yield _beside(others, each.path, f"run `meup guard {agent.name}{more}`: it moves them")
    path = agent.settings().with_name("settings.json")
    document = _document(path)
    if any(document.get(key) is True for key in _AUTO_APPROVE):
        said = f"{path} approves every tool: its own tools run, and nobody is asked"
        key = next(key for key in _AUTO_APPROVE if document.get(key) is True)
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
