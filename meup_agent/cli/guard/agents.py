"""Coding agents: where their settings are, and how a hook that fails closed stands in each.

Measured on the real programs: Claude Code runs a call whose hook fails unless ``onFailure`` says
otherwise, and before 2.1.295 it does not know that key; Codex runs it unless the hook ends with 2
and words on stderr; Cursor unless ``failClosed``; Gemini and Copilot wait a minute at the most.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from meup_agent.cli.guard.files import FileChange, read_json, read_settings, write_json
from meup_agent.errors import ConfigurationError
from meup_agent.protocol.wire.payloads import as_object, objects_in

HOOK_SECONDS: Final = 86_400
"""Time for which an agent waits for its hook. The gateway answers five seconds before; a proposal
that expires earlier is answered then."""

FIRST_CLAUDE: Final = (2, 1, 295)
"""The first version of Claude Code that can be told to stop a call whose hook fails."""

WATCH_SECONDS: Final = 60
"""Time for a hook that decides nothing, and for one that reports."""

VERSION_SECONDS: Final = 20.0
"""Wait for a program to say its version."""

BEGIN: Final = "# >>> meup guard >>>"
END: Final = "# <<< meup guard <<<"
# Programs that write the same file put what they add before its last comment: into our block.
_BLOCK: Final = re.compile(
    rf"\n?^{re.escape(BEGIN)}\n"
    r"(?P<own>(?:\[\[hooks\.\w+\]\]\nmatcher = .*\n\[\[hooks\.\w+\.hooks\]\]\ntype = .*\n"
    r"command = .*\ntimeout = .*\n)*)"
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
        watches: It decides nothing, and every call goes on.
    """

    program: Path
    url: str
    token_file: Path
    watches: bool = False

    def line(self, agent: str) -> str:
        """The command line, for a shell."""
        words = (str(self.program), agent, "--url", self.url, "--token-file", str(self.token_file))
        watch = ("--watch",) if self.watches else ()
        return shlex.join((*words, "--timeout", str(self.seconds), "--own", "meup", *watch))

    @classmethod
    def of_line(cls, line: str) -> HookProgram | None:
        """The program that a command line of ours starts; ``None``: it is another's."""
        try:
            words = shlex.split(line)
        except ValueError:
            return None
        given = dict(itertools.pairwise(words))
        if not ("--url" in given and "--token-file" in given):
            return None
        token_file = Path(given["--token-file"])
        return cls(Path(words[0]), given["--url"], token_file, "--watch" in words)

    @property
    def seconds(self) -> int:
        """Time for which the agent waits for it before a call."""
        return WATCH_SECONDS if self.watches else HOOK_SECONDS


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
        check: Raises ConfigurationError where its hook would not fail closed.
        open: What goes past the hook, as far as it is known.
        program: Its program, where a trial of it is known.
        first: What its person has to do before the hook is asked.
    """

    name: str
    title: str
    settings: Callable[[], Path]
    edit: Callable[[str | None, Path, HookProgram | None], str]
    check: Callable[[], None]
    open: tuple[HookGap, ...]
    program: str | None = None
    first: str = ""

    @property
    def is_here(self) -> bool:
        """True if the folder of its settings is there."""
        folder = self.settings().parent
        return (folder.parent if folder.name == "hooks" else folder).is_dir()

    @property
    def is_guarded(self) -> bool:
        """True if its settings have a hook of ours."""
        path = self.settings()
        text = read_settings(path)
        return text is not None and self.edit(text, path, None) != _plain(text, path)

    def installed_hook(self) -> HookProgram | None:
        """The program of ours that its settings start, of several the first.

        Raises:
            ConfigurationError: Its settings cannot be read.
        """
        path = self.settings()
        text = read_settings(path)
        if text is None:
            return None
        document = read_json(text, path) if path.suffix == ".json" else read_toml(text, path)
        lines = (line for line in _texts_in(document) if starts_hook(line, self.name))
        return next(filter(None, map(HookProgram.of_line, lines)), None)

    def change(self, hook: HookProgram | None) -> FileChange:
        """The change that adds its hook, or takes it out (``None``).

        Raises:
            ConfigurationError: Its settings cannot be read, or are not what it reads.
        """
        path = self.settings()
        before = read_settings(path)
        if before is None and hook is None:
            return FileChange(path, None, "")
        after = self.edit(before, path, hook)
        if before is not None and path.suffix == ".json" and after == _plain(before, path):
            after = before  # only its layout would change
        return FileChange(path, before, after)


def _plain(text: str, path: Path) -> str:
    """The text as it is written where nothing is added."""
    return write_json(read_json(text, path), text) if path.suffix == ".json" else text


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


def _home(variable: str, folder: str) -> Path:
    chosen = os.environ.get(variable) if variable else None
    return Path(chosen).absolute() if chosen else Path.home() / folder


# --- JSON ---


def _is_own(entry: object, agent: str) -> bool:
    """True for an entry of ours, or a group in which there is one."""
    if not isinstance(entry, dict):
        return False
    of = cast("JsonObject", entry)
    inner: object = of.get("hooks")
    if isinstance(inner, list):
        return any(_is_own(each, agent) for each in cast("list[object]", inner))
    return any(starts_hook(of.get(each), agent) for each in ("command", "bash"))


def _without_own(entry: object, agent: str) -> list[object]:
    """An entry without our hooks; those that others put into a group of ours stay."""
    if not _is_own(entry, agent):
        return [entry]
    of = cast("JsonObject", entry)
    inner = cast("list[object]", of.get("hooks", []))
    others = [each for each in inner if not _is_own(each, agent)]
    return [{**of, "hooks": others}] if others else []


def has_own_hook(settings: JsonObject, agent: str) -> bool:
    """True if settings have our hook of an agent before a call."""
    asked = as_object(settings.get("hooks")).get("PreToolUse")
    return any(_is_own(each, agent) for each in objects_in(asked))


def starts_hook(line: object, agent: str) -> bool:
    """True for a command line of the hook of an agent."""
    if not isinstance(line, str):
        return False
    try:
        words = shlex.split(line)
    except ValueError:
        return False
    return len(words) > 1 and Path(words[0]).name == "meup-hook" and words[1] == agent


def _edit_hooks(
    text: str | None, path: Path, agent: str, wanted: Mapping[str, JsonObject], first: JsonObject
) -> str:
    """A settings file with an entry of ours for each event, and none besides."""
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
    wanted: dict[str, JsonObject] = {}
    if hook is not None:
        if read_json(text, path).get("disableAllHooks"):
            raise ConfigurationError(
                f"{path} says disableAllHooks, so no hook would be asked; take that out first"
            )
        entry = {"type": "command", "command": hook.line("claude-code"), "timeout": WATCH_SECONDS}
        asks: JsonObject = {**entry, "timeout": hook.seconds}
        if not hook.watches:
            asks["onFailure"] = "block"
        wanted["PreToolUse"] = {"matcher": "*", "hooks": [asks]}
        for event in ("PostToolUse", "PostToolUseFailure"):
            wanted[event] = {"matcher": "*", "hooks": [entry]}
        for event in ("Stop", "SessionEnd"):
            wanted[event] = {"hooks": [entry]}
    return _edit_hooks(text, path, "claude-code", wanted, {})


def _check_claude() -> None:
    version = version_of("claude")
    if version is None:
        raise ConfigurationError(
            "the program claude does not say its version, and before"
            f" {'.'.join(map(str, FIRST_CLAUDE))} a call runs where its hook fails; put it on the"
            " PATH, so that the version is known"
        )
    if version < FIRST_CLAUDE:
        raise ConfigurationError(
            f"Claude Code is {'.'.join(map(str, version))}, and before"
            f" {'.'.join(map(str, FIRST_CLAUDE))} a call runs where its hook fails; update it"
            " (claude update)"
        )


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
    given = text or ""
    found = _BLOCK.search(given)
    if found is None and BEGIN in given:
        raise ConfigurationError(
            f"{path}: the block of meup guard was changed; take it out, from {BEGIN!r} to {END!r}"
        )
    own = "" if hook is None else _codex_block(hook)
    if found is not None:
        if own and own == found["own"]:
            return given
        given = given[: found.start()] + found["others"] + given[found.end() :]
    if any(starts_hook(each, "codex") for each in _texts_in(read_toml(given, path))):
        raise ConfigurationError(
            f"{path} starts meup-hook outside of the block of meup guard; take that out yourself"
        )
    if own:
        if given and not given.endswith("\n"):
            given += "\n"
        blank = "\n" if given else ""
        given += f"{blank}{BEGIN}\n{own}{END}\n"
        read_toml(given, path)
    return given


def _codex_block(hook: HookProgram) -> str:
    """The hooks of Codex, which runs a call whose hook ends otherwise than with 2 and words."""
    or_else = "true" if hook.watches else "{ echo 'meup did not answer' >&2; exit 2; }"
    line = _toml_text(f"{hook.line('codex')} || {or_else}")
    return "".join(
        f'[[hooks.{event}]]\nmatcher = "*"\n[[hooks.{event}.hooks]]\ntype = "command"\n'
        f"command = {line}\ntimeout = {seconds}\n"
        for event, seconds in (("PreToolUse", hook.seconds), ("PostToolUse", WATCH_SECONDS))
    )


def _toml_text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def read_toml(text: str, path: Path) -> JsonObject:
    """The document in a settings file.

    Raises:
        ConfigurationError: It is not TOML.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{path} is not TOML that can be added to ({error}), so it is left as it is"
        ) from None


def _cursor(text: str | None, path: Path, hook: HookProgram | None) -> str:
    wanted: dict[str, JsonObject] = {}
    if hook is not None:
        entry: JsonObject = {"command": hook.line("cursor"), "timeout": hook.seconds}
        if not hook.watches:
            entry["failClosed"] = True
        wanted = {each: {**entry} for each in ("preToolUse", "beforeReadFile")}
        wanted["postToolUse"] = {"command": hook.line("cursor"), "timeout": WATCH_SECONDS}
        wanted["postToolUseFailure"] = {"command": hook.line("cursor"), "timeout": WATCH_SECONDS}
    return _edit_hooks(text, path, "cursor", wanted, {"version": 1})


def _gemini(text: str | None, path: Path, hook: HookProgram | None) -> str:
    wanted: dict[str, JsonObject] = {}
    if hook is not None:
        # It counts milliseconds.
        entry = {"name": "meup", "type": "command", "command": hook.line("gemini")}
        for event, seconds in (("BeforeTool", hook.seconds), ("AfterTool", WATCH_SECONDS)):
            wanted[event] = {"matcher": "*", "hooks": [{**entry, "timeout": seconds * 1000}]}
    return _edit_hooks(text, path, "gemini", wanted, {})


def _copilot(text: str | None, path: Path, hook: HookProgram | None) -> str:
    wanted: dict[str, JsonObject] = {}
    if hook is not None:
        entry = {"type": "command", "bash": hook.line("copilot")}
        wanted["preToolUse"] = {**entry, "timeoutSec": hook.seconds}
        wanted["postToolUse"] = {**entry, "timeoutSec": WATCH_SECONDS}
    return _edit_hooks(text, path, "copilot", wanted, {"version": 1})


def _nothing_to_check() -> None:
    """The settings say themselves that it fails closed."""


_TRY_IT: Final = HookGap(
    "it was set up by its documentation, and not run",
    "have it run `ls` once, and see the call in `meup tail`",
)
_KEEP_IT: Final = HookGap(
    "it runs a call whose hook cannot be started, or runs into its time-out of a day",
    "keep meup-hook where it is",
)

AGENTS: Final[Mapping[str, CodingAgent]] = {
    each.name: each
    for each in (
        CodingAgent(
            "claude-code",
            "Claude Code",
            lambda: _home("CLAUDE_CONFIG_DIR", ".claude") / "settings.json",
            _claude,
            _check_claude,
            (
                HookGap(
                    "`claude --bare`, and `disableAllHooks` in a project's settings, skip it",
                    "the same hooks in managed settings close that; `meup doctor` says where",
                ),
            ),
            "claude",
        ),
        CodingAgent(
            "codex",
            "Codex",
            lambda: _home("CODEX_HOME", ".codex") / "config.toml",
            _codex,
            _nothing_to_check,
            (
                HookGap(
                    "a call runs whose hook runs into its time-out of a day",
                    "its proposal expires before, unless the computer sleeps",
                ),
            ),
            "codex",
            "Codex skips the hook in silence until you trust it: start codex, type /hooks, look at"
            " it and trust it; or an administrator puts it into /etc/codex/requirements.toml",
        ),
        CodingAgent(
            "cursor",
            "Cursor",
            lambda: _home("", ".cursor") / "hooks.json",
            _cursor,
            _nothing_to_check,
            (_TRY_IT,),
        ),
        CodingAgent(
            "gemini",
            "Gemini CLI",
            lambda: _home("", ".gemini") / "settings.json",
            _gemini,
            _nothing_to_check,
            (_TRY_IT, _KEEP_IT),
        ),
        CodingAgent(
            "copilot",
            "Copilot CLI",
            lambda: _home("COPILOT_HOME", ".copilot") / "hooks" / "meup.json",
            _copilot,
            _nothing_to_check,
            (_TRY_IT, _KEEP_IT),
        ),
    )
}
"""The coding agents whose hooks are known, by name."""
