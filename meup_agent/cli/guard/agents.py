"""Coding agents: where their settings are, and how a hook that fails closed stands in each.

Measured on the real programs: Claude Code runs a call whose hook fails unless ``onFailure`` says
otherwise, and before 2.1.295 it does not know that key; Codex runs it unless the hook ends with 2
and words on stderr; Cursor unless ``failClosed``; Gemini as Codex does, Copilot unless it reads a
no; both wait a minute at the most.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

from meup_agent.cli.guard.files import (
    comments_in,
    lines_in_strings,
    read_commented,
    read_document,
    read_json,
    read_settings,
    read_toml,
    replace_value,
    write_json,
)
from meup_agent.cli.up.autostart import SPACE, client_entry
from meup_agent.errors import ConfigurationError
from meup_agent.protocol.wire.payloads import as_list, as_object, objects_in

TTL_SECONDS: Final = 86_400
"""Time for which a call waits for a decision: whoever decides may be away until tomorrow."""

MAX_TTL_SECONDS: Final = 14 * 86_400
"""The most of it: the agents' timers, in milliseconds, end at 24 days."""

SPARE_SECONDS: Final = 60
"""Time for which an agent waits for its hook beyond that, so that it hears of the end."""

FIRST_CLAUDE: Final = (2, 1, 295)
"""The first version of Claude Code that can be told to stop a call whose hook fails."""

WATCH_SECONDS: Final = 60
"""Time for a hook that decides nothing, and for one that reports."""

VERSION_SECONDS: Final = 20.0
"""Wait for a program to say its version."""

CLAUDE: Final = "claude-code"
"""The agent whose terminal can be asked as well, and that can be sent away while a call waits."""

OWN_SERVER: Final = "meup"
"""Name of the MCP server by which an agent is a participant."""

FOREIGN_SERVER: Final = (
    f"{{}} has an MCP server {OWN_SERVER} that meup guard has not written, and writes one of that"
    " name; rename yours, or take it out, and run it again"
)

BEGIN: Final = "# >>> meup guard >>>"
END: Final = "# <<< meup guard <<<"
# Programs that write the same file put what they add before its last comment: into our block.
_BLOCK: Final = re.compile(
    rf"\n?^{re.escape(BEGIN)}\n"
    r"(?P<own>(?:\[\[hooks\.\w+\]\]\nmatcher = .*\n\[\[hooks\.\w+\.hooks\]\]\ntype = .*\n"
    r"command = .*\ntimeout = .*\n)*"
    r"(?:\[mcp_servers\.meup\]\ncommand = .*\nargs = .*\nenv = .*\n)?)"
    rf"(?P<others>(?:(?!{re.escape(END)}).*\n)*){re.escape(END)}$\n?",
    re.MULTILINE,
)
_VERSION: Final = re.compile(r"\b(\d+)\.(\d+)\.(\d+)\b")

JsonObject = dict[str, Any]


class HookProgram(NamedTuple):
    """The program that an agent starts before a call.

    Attributes:
        program: Its path.
        url: The gateway's socket.
        token_file: The file of the agent's token.
        ttl: Seconds for which a call waits for a decision.
        watches: It decides nothing, and every call goes on.
        serves: The agent reaches MCP servers through the gateway as well.
        prefers_terminal: Claude Code's terminal is asked as well, and the first answer counts.
        defer_after: Seconds after which a Claude Code without a terminal is sent away to come back.
    """

    program: Path
    url: str
    token_file: Path
    ttl: int = TTL_SECONDS
    watches: bool = False
    serves: bool = False
    prefers_terminal: bool = False
    defer_after: int | None = None

    def server(self, agent: str) -> JsonObject:
        """The entry of the MCP server by which an agent is a participant."""
        entry = client_entry(
            str(self.program.with_name("meup")),
            self.token_file,
            url=self.url,
            space=SPACE,
            participant=agent,
        )
        return {**entry, "env": {**entry["env"], "MEUP_TTL": str(self.ttl)}}

    def line(self, agent: str) -> str:
        """The command line, for a shell."""
        words = [str(self.program), agent, "--url", self.url, "--token-file", str(self.token_file)]
        words += ["--timeout", str(self.seconds), "--ttl", str(self.ttl), "--own", OWN_SERVER]
        if self.watches:
            words.append("--watch")
        elif agent == CLAUDE:
            words += ["--prefer", "terminal"] if self.prefers_terminal else []
            words += [] if self.defer_after is None else ["--defer-after", str(self.defer_after)]
        return shlex.join(words)

    @classmethod
    def of_line(cls, line: str) -> HookProgram | None:
        """The program that a command line of ours starts; ``None``: it is another's."""
        words = _words_of(line)
        given = dict(itertools.pairwise(words))
        if not {"--url", "--token-file"} <= given.keys():
            return None
        ttl, after = given.get("--ttl", ""), given.get("--defer-after", "")
        return cls(
            Path(words[0]),
            given["--url"],
            Path(given["--token-file"]),
            int(ttl) if ttl.isdecimal() else TTL_SECONDS,
            "--watch" in words,
            prefers_terminal=given.get("--prefer") == "terminal",
            defer_after=int(after) if after.isdecimal() else None,
        )

    @property
    def seconds(self) -> int:
        """Time for which the agent waits for it before a call."""
        return WATCH_SECONDS if self.watches else self.ttl + SPARE_SECONDS


class HookGap(NamedTuple):
    """A call that goes past a hook, and how that is closed."""

    said: str
    closing: str

    def __str__(self) -> str:
        return f"{self.said}: {self.closing}"


class CodingAgent(NamedTuple):
    """A coding agent that has hooks.

    Attributes:
        name: Its name, as ``meup-hook`` takes it, and of its participant.
        title: Its name for people.
        settings: Gives the path of its settings.
        edit: The text of the settings with the hook, or without (``None``).
        open: What goes past the hook, as far as it is known.
        program: Its program, where a trial of it is known.
        first: What its person has to do before the hook is asked.
        has_hooks: It asks a hook; else its MCP servers, or the agents that it starts, are decided.
        check: Raises ConfigurationError where its hook would not fail closed; else its settings
            say so themselves.
    """

    name: str
    title: str
    settings: Callable[[], Path]
    edit: Callable[[str | None, Path, HookProgram | None], str]
    open: tuple[HookGap, ...]
    program: str | None = None
    first: str = ""
    has_hooks: bool = True
    check: Callable[[], None] = lambda: None

    @property
    def is_here(self) -> bool:
        """True if the folder of its settings is there."""
        folder = self.settings().parent
        return (folder.parent if folder.name == "hooks" else folder).is_dir()

    @property
    def is_guarded(self) -> bool:
        """True if its settings have a hook of ours."""
        # Also behind a link, where its user has put the hook.
        text = read_settings(self.settings().resolve())
        return text is not None and self.edited(text, None) != text

    def installed_hook(self) -> HookProgram | None:
        """The program of ours that its settings start, of several the first.

        Raises:
            ConfigurationError: Its settings cannot be read.
        """
        path = self.settings()
        text = read_settings(path)
        if text is None:
            return None
        document = read_document(text, path)
        lines = (line for line in _texts_in(document) if starts_hook(line, self.name))
        found = next(filter(None, map(HookProgram.of_line, lines)), None)
        served = OWN_SERVER in as_object(document.get("mcp_servers"))
        return None if found is None else found._replace(serves=served)

    def edited(
        self, text: str | None, hook: HookProgram | None, path: Path | None = None
    ) -> str | None:
        """The text of its settings with its hook, or without (``None``), of what it is now.

        A path is that of settings in another folder than the variables name now.

        Raises:
            ConfigurationError: It cannot be read, or is not what it reads.
        """
        path = path or self.settings()
        if text is None and hook is None:
            return None
        after = self.edit(text, path, hook)
        if text is None or path.suffix != ".json" or not self.has_hooks:
            return after
        # Where nothing else would change its layout stays.
        return text if after == write_json(read_json(text, path), text) else after


def _texts_in(value: object) -> Iterator[str]:
    """All texts in a document, however deep."""
    match value:
        case str():
            yield value
        case dict():
            for each in cast("JsonObject", value).values():
                yield from _texts_in(each)
        case list():
            for each in cast("list[object]", value):
                yield from _texts_in(each)
        case _:
            pass


def user_folder(variable: str, folder: str) -> Path:
    """A folder of the user's settings, where a variable does not name another one."""
    chosen = os.environ.get(variable) if variable else None
    return Path(chosen).absolute() if chosen else Path.home() / folder


# --- JSON ---


def _is_own(entry: object, agent: str) -> bool:
    """True for an entry of ours, or a group in which there is one."""
    of = as_object(entry)
    is_ours = any(starts_hook(of.get(each), agent) for each in ("command", "bash"))
    return is_ours or any(_is_own(each, agent) for each in as_list(of.get("hooks")))


def _without_own(entry: object, agent: str) -> list[object]:
    """An entry without our hooks; those that others put into a group of ours stay."""
    if not _is_own(entry, agent):
        return [entry]
    of = as_object(entry)
    others = [each for each in as_list(of.get("hooks")) if not _is_own(each, agent)]
    return [{**of, "hooks": others}] if others else []


def claude_hooks(settings: JsonObject) -> list[bool]:
    """The hooks that Claude Code asks before a call: true for ours, false for another's."""
    groups = objects_in(as_object(settings.get("hooks")).get("PreToolUse"))
    hooks = (each for group in groups for each in objects_in(group.get("hooks")))
    return [_is_own(each, CLAUDE) for each in hooks]


def starts_hook(line: object, agent: str) -> bool:
    """True for a command line of the hook of an agent."""
    words = _words_of(line) if isinstance(line, str) else []
    return len(words) > 1 and Path(words[0]).name == "meup-hook" and words[1] == agent


def _words_of(line: str) -> list[str]:
    try:
        return shlex.split(line.removeprefix(_OUTLIVES))
    except ValueError:
        return []


def _edit_hooks(
    text: str | None,
    path: Path,
    agent: str,
    wanted: Mapping[str, JsonObject] | None,
    first: Mapping[str, object] = MappingProxyType({}),
) -> str:
    """A settings file with an entry of ours for each event, and none besides."""
    wanted = wanted or {}
    document = read_json(text, path)
    had = dict(document)
    given = document.get("hooks", {})
    if not isinstance(given, dict):
        raise ConfigurationError(f"{path}: its hooks are not an object, so it is left as it is")
    hooks: JsonObject = dict(cast("JsonObject", given))
    for event in dict.fromkeys((*hooks, *wanted)):
        listed: object = hooks.get(event, [])
        if not isinstance(listed, list):
            if event in wanted:
                raise ConfigurationError(f"{path}: hooks.{event} is not a list; it is left")
            continue
        entries = cast("list[object]", listed)
        own = [each for each in entries if _is_own(each, agent)]
        if own == [wanted[event]] if event in wanted else not own:
            continue
        kept = [left for each in entries for left in _without_own(each, agent)]
        if event in wanted:
            kept.append(wanted[event])
        if kept:
            hooks[event] = kept
        else:
            del hooks[event]
    if wanted:
        document = {**first, **document}
    document["hooks"] = hooks
    if not hooks and not wanted and (given or "hooks" not in had):
        del document["hooks"]
    return write_json(document if document != had else had, text)


# --- each agent ---


def _claude(text: str | None, path: Path, hook: HookProgram | None) -> str:
    if hook is not None and read_json(text, path).get("disableAllHooks"):
        raise ConfigurationError(
            f"{path} says disableAllHooks, so no hook would be asked; take that out first"
        )
    return _edit_hooks(text, path, CLAUDE, hook and _claude_hooks(hook))


def _claude_hooks(hook: HookProgram) -> dict[str, JsonObject]:
    entry = {"type": "command", "command": hook.line(CLAUDE), "timeout": WATCH_SECONDS}
    asks: JsonObject = {**entry, "timeout": hook.seconds}
    if not hook.watches:
        asks["onFailure"] = "block"
    wanted: dict[str, JsonObject] = {"PreToolUse": {"matcher": "*", "hooks": [asks]}}
    if hook.prefers_terminal and not hook.watches:
        wanted["PermissionRequest"] = wanted["PreToolUse"]
    for event in ("PostToolUse", "PostToolUseFailure"):
        wanted[event] = {"matcher": "*", "hooks": [entry]}
    for event in ("Stop", "SessionEnd"):
        wanted[event] = {"hooks": [entry]}
    return wanted


def _check_claude() -> None:
    version = version_of("claude")
    if version is None:
        said = "the program claude does not say its version"
        todo = "put it on the PATH, so that the version is known"
    elif version < FIRST_CLAUDE:
        said, todo = f"Claude Code is {dotted(version)}", "update it (claude update)"
    else:
        return
    raise ConfigurationError(
        f"{said}, and before {dotted(FIRST_CLAUDE)} a call runs where its hook fails; {todo}"
    )


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def version_of(program: str) -> tuple[int, int, int] | None:
    """The version that a program on the PATH says; ``None``: it says none."""
    found = shutil.which(program)
    if found is None:
        return None
    try:
        done = subprocess.run(
            (found, "--version"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = _VERSION.search(done.stdout[:1_000].decode(errors="replace"))
    return None if said is None else (int(said[1]), int(said[2]), int(said[3]))


def _codex(text: str | None, path: Path, hook: HookProgram | None) -> str:
    given = leave_terminals(text or "")  # while our block still ends its table
    begins = [at for at, said in comments_in(given) if said == BEGIN]
    # Not one that is quoted in a string.
    blocks = (_BLOCK.match(given, max(at - back, 0)) for at in begins for back in (1, 0))
    found = next(filter(None, blocks), None)
    if found is None and begins:
        raise ConfigurationError(
            f"{path}: the block of meup guard was changed; take it out, from {BEGIN!r} to {END!r}"
        )
    own = "" if hook is None else _codex_block(hook)
    if found is not None:
        if hook is not None and own == found["own"]:
            before = text or ""
            return before if hook.watches else close_terminals(before, path)
        given = given[: found.start()] + found["others"] + given[found.end() :]
    document = read_toml(given, path)
    if any(starts_hook(each, "codex") for each in _texts_in(document)):
        raise ConfigurationError(
            f"{path} starts meup-hook outside of the block of meup guard; take that out yourself"
        )
    if hook is not None and hook.serves and OWN_SERVER in as_object(document.get("mcp_servers")):
        raise ConfigurationError(FOREIGN_SERVER.format(path))
    if own:
        if hook is not None and not hook.watches:
            given = close_terminals(given, path)
        if given and not given.endswith("\n"):
            given += "\n"
        blank = "\n" if given else ""
        given += f"{blank}{BEGIN}\n{own}{END}\n"
        read_toml(given, path)
    return given


def _codex_block(hook: HookProgram) -> str:
    """The hooks of Codex, which runs a call whose hook ends otherwise than with 2 and words."""
    line = _toml_text(_or_else(hook, "codex", _SAY_NO))
    served = ""
    if hook.serves:
        entry = hook.server("codex")
        args = ", ".join(map(_toml_text, entry["args"]))
        env = ", ".join(f"{name} = {_toml_text(each)}" for name, each in entry["env"].items())
        served = (
            f"[mcp_servers.{OWN_SERVER}]\ncommand = {_toml_text(entry['command'])}\n"
            f"args = [{args}]\nenv = {{ {env} }}\n"
        )
    hooks = (
        f'[[hooks.{event}]]\nmatcher = "*"\n[[hooks.{event}.hooks]]\ntype = "command"\n'
        f"command = {line}\ntimeout = {seconds}\n"
        for event, seconds in (("PreToolUse", hook.seconds), ("PostToolUse", WATCH_SECONDS))
    )
    return "".join((*hooks, served))


_SAY_NO: Final = "echo 'meup did not answer' >&2; exit 2"

_OUTLIVES: Final = "trap : HUP INT TERM; "
"""Has a shell end after its program, where a signal goes to both: else nothing would deny."""


def _or_else(hook: HookProgram, agent: str, denies: str) -> str:
    """A line that denies also where its program cannot begin, or is ended by a signal."""
    return f"{_OUTLIVES}{hook.line(agent)} || {'true' if hook.watches else f'{{ {denies}; }}'}"


def _toml_text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _cursor_hooks(hook: HookProgram) -> dict[str, JsonObject]:
    tells: JsonObject = {"command": hook.line("cursor"), "timeout": WATCH_SECONDS}
    asks = {**tells, "timeout": hook.seconds}
    if not hook.watches:
        asks["failClosed"] = True
    # It is asked before a file is read, too: with `beforeReadFile` a read would ask twice.
    return {"preToolUse": asks, "postToolUse": tells, "postToolUseFailure": tells}


def _gemini_hooks(hook: HookProgram) -> dict[str, JsonObject]:
    entry = {"name": "meup", "type": "command", "command": _or_else(hook, "gemini", _SAY_NO)}
    # It counts milliseconds.
    return {
        event: {"matcher": "*", "hooks": [{**entry, "timeout": seconds * 1000}]}
        for event, seconds in (("BeforeTool", hook.seconds), ("AfterTool", WATCH_SECONDS))
    }


def _copilot_hooks(hook: HookProgram) -> dict[str, JsonObject]:
    # Any exit code but 0 is a hook that failed, and the call runs.
    said = '{"permissionDecision": "deny", "permissionDecisionReason": "meup did not answer"}'
    entry = {"type": "command", "bash": _or_else(hook, "copilot", f"echo '{said}'")}
    return {
        event: {**entry, "timeoutSec": seconds}
        for event, seconds in (("preToolUse", hook.seconds), ("postToolUse", WATCH_SECONDS))
    }


def _hook_editor(
    agent: str, hooks_of: Callable[[HookProgram], dict[str, JsonObject]], **first: object
) -> Callable[[str | None, Path, HookProgram | None], str]:
    def edit(text: str | None, path: Path, hook: HookProgram | None) -> str:
        return _edit_hooks(text, path, agent, hook and hooks_of(hook), first)

    return edit


def wrap_agents(text: str | None, path: Path, hook: HookProgram | None) -> str:
    """Zed's settings with ``meup acp`` before the command of each agent, or without it."""
    given = text or "{}\n"
    for name, entry in as_object(read_commented(given, path).get("agent_servers")).items():
        of = as_object(entry)
        args = [*cast("list[Any]", of.get("args") or [])]
        command = of.get("command")
        if not isinstance(command, str):
            continue
        if Path(command).name == "meup" and args[:1] == ["acp"] and "--" in args:
            command, *args = args[args.index("--") + 1 :]
        if hook is not None:
            where = ("--url", hook.url, "--space", SPACE, "--token-file", str(hook.token_file))
            waits = ("--participant", "zed", "--ttl", str(hook.ttl))
            wrapped = ["acp", *where, *waits, "--", command, *args]
            command, args = str(hook.program.with_name("meup")), wrapped
        if (command, args) != (of["command"], of.get("args") or []):
            changed = {**of, "command": command, "args": args}
            if not args and "args" not in of:
                del changed["args"]
            given = replace_value(given, ("agent_servers", name), changed)
    return given if text or hook is not None else ""


def _leave(text: str | None, path: Path, hook: HookProgram | None) -> str:
    """The settings of an agent that has no hooks."""
    return text or ""


def vscode_folder() -> Path:
    """The folder of VS Code's user settings."""
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/Code/User"
    return user_folder("XDG_CONFIG_HOME", ".config") / "Code" / "User"


_TRY_IT: Final = HookGap(
    "it was set up by its documentation, and not run",
    "have it run `ls` once, and see the call in `meup tail`",
)
_TIMES_OUT: Final = HookGap(
    "a call runs whose hook runs into its time-out",
    "its proposal expires before, unless the computer sleeps",
)

AGENTS: Final[Mapping[str, CodingAgent]] = {
    each.name: each
    for each in (
        CodingAgent(
            "claude-code",
            "Claude Code",
            lambda: user_folder("CLAUDE_CONFIG_DIR", ".claude") / "settings.json",
            _claude,
            (
                HookGap(
                    "`claude --bare`, and `disableAllHooks` in a project's settings, skip it",
                    "the same hooks in managed settings close that; `meup doctor` says where",
                ),
            ),
            "claude",
            check=_check_claude,
        ),
        CodingAgent(
            "codex",
            "Codex",
            lambda: user_folder("CODEX_HOME", ".codex") / "config.toml",
            _codex,
            (_TIMES_OUT,),
            "codex",
            "Codex skips the hook in silence until you trust it: start codex, type /hooks, look at"
            " it and trust it; or an administrator puts it into /etc/codex/requirements.toml",
        ),
        CodingAgent(
            "cursor",
            "Cursor",
            lambda: user_folder("", ".cursor") / "hooks.json",
            _hook_editor("cursor", _cursor_hooks, version=1),
            (_TRY_IT,),
        ),
        CodingAgent(
            "gemini",
            "Gemini CLI",
            lambda: user_folder("GEMINI_CLI_HOME", "") / ".gemini" / "settings.json",
            _hook_editor("gemini", _gemini_hooks),
            (
                HookGap(
                    "in a folder that Gemini CLI does not trust it skips all hooks, its user's too,"
                    " and asks at its terminal alone; `hooksConfig` of a project's settings turns"
                    " them off in one that it trusts",
                    "trust no project before you have looked at its .gemini/settings.json; `meup"
                    " doctor` reads that of its folder",
                ),
                _TRY_IT,
                _TIMES_OUT,
            ),
        ),
        CodingAgent(
            "copilot",
            "Copilot CLI",
            lambda: user_folder("COPILOT_HOME", ".copilot") / "hooks" / "meup.json",
            _hook_editor("copilot", _copilot_hooks, version=1),
            (_TRY_IT, _TIMES_OUT),
        ),
        CodingAgent(
            "vscode",
            "VS Code",
            lambda: vscode_folder() / "mcp.json",
            _leave,
            (
                HookGap(
                    "its own tools are not asked about, but its MCP servers alone",
                    "guard the agent that you use in it",
                ),
            ),
            has_hooks=False,
        ),
        CodingAgent(
            "zed",
            "Zed",
            lambda: user_folder("XDG_CONFIG_HOME", ".config") / "zed" / "settings.json",
            wrap_agents,
            (
                HookGap(
                    "what an agent does without asking its editor goes past",
                    "guard the agent itself, too, if it is one of these",
                ),
            ),
            has_hooks=False,
        ),
    )
}
"""The coding agents whose hooks are known, by name."""


# --- terminals of Codex ---
# What Codex types into a terminal that it has opened (`write_stdin`) asks no hook: after a yes to
# `sh` any command runs. Without terminals a command's input is closed as it starts. The switch goes
# into the table `features`, which is the user's where there is one, so it is a marked line of it.

SWITCH: Final = "unified_exec_tty"
_LINE_MARK: Final = "# meup guard: what is typed into a terminal asks no hook"
_LINE: Final = f"{SWITCH} = false  {_LINE_MARK}\n"
_HEADER_MARK: Final = "# meup guard: its own table"
_HEADER: Final = f"\n[features]  {_HEADER_MARK}\n"
_GIVEN_HEADER: Final = re.compile(r"^[ \t]*\[[ \t]*features[ \t]*\][ \t]*(?:#.*)?\n", re.MULTILINE)


def close_terminals(text: str, path: Path) -> str:
    """The settings with terminals switched off.

    Raises:
        ConfigurationError: They are switched on by name, or the table cannot be added to.
    """
    document = read_toml(text, path)
    given = as_object(document.get("features")).get(SWITCH)
    if given is False:
        return text
    if given is not None:
        raise ConfigurationError(
            f"{path} sets features.{SWITCH}, and what Codex types into a terminal asks no hook;"
            " take that out first"
        )
    if text and not text.endswith("\n"):
        text += "\n"
    if "features" not in document:
        return text + (_HEADER if text else _HEADER.lstrip()) + _LINE
    quoted = lines_in_strings(text)
    headers = (each for each in _GIVEN_HEADER.finditer(text) if each.start() not in quoted)
    header = next(headers, None)
    if header is None:
        raise ConfigurationError(
            f"{path} has no line `[features]` to write below; write {SWITCH} = false into its"
            " features yourself, since what Codex types into a terminal asks no hook"
        )
    return text[: header.end()] + _LINE + text[header.end() :]


def leave_terminals(text: str) -> str:
    """The settings without what is ours of the switch."""
    text = _without(text, _LINE, _LINE_MARK)
    ours = _HEADER if _HEADER in text else _HEADER.lstrip()
    place = text.find(ours)
    rest = text[place + len(ours) :].lstrip()
    if place >= 0 and rest and not rest.startswith(("[", "#")):
        # Others have put switches of theirs below it.
        return text.replace(f"  {_HEADER_MARK}", "", 1)
    return _without(text, ours, _HEADER_MARK)


def _without(text: str, ours: str, mark: str) -> str:
    """The text without lines of ours, which end with a comment: not one that only looks so."""
    for place, said in comments_in(text):
        end = place + len(mark) + 1
        begin = end - len(ours)
        if said == mark and text[max(begin, 0) : end] == ours:
            return text[:begin] + text[end:]
    return text
