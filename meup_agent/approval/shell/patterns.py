"""Patterns of commands and of files, in the two readings of the pattern language (PROTOCOL 7).

A pattern of a command has words as a command has, each a pattern of one word: ``git status *``,
``npm run test``, ``CI=* make check``. A star at its end takes further words too, unless it is part
of a path. Words in front with ``=`` are for the environment that the command is given.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from meup_agent.approval.shell.line import (
    KEYS,
    CommandLine,
    Redirection,
    SimpleCommand,
    Word,
    is_steering,
    line_of,
    lines_of,
    literal,
    name_of,
    runs_others,
)
from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability.patterns import (
    ANY,
    NODE_WORK,
    Reading,
    StringMatch,
    Strings,
    WorkBudget,
    descendants,
    is_regex,
)

MAX_WORDS: Final = 64
"""Words of one pattern."""

SHELL_TOOLS: Final = frozenset(
    [
        "Bash",
        "bash",
        "shell",
        "shell_command",
        "exec_command",
        "local_shell",
        "run_shell_command",
        "run_terminal_cmd",
        "run_in_terminal",
        "run_command",
        "execute_command",
        "runCommands",
        "runInTerminal",
        "terminal",
        "Terminal",
        "Shell",
    ]
)
"""Tools of coding agents that run a command line: an allow without ``tool`` is for these."""

EDIT_TOOLS: Final = frozenset(
    [
        "Edit",
        "MultiEdit",
        "Write",
        "NotebookEdit",
        "Read",
        "write_file",
        "replace",
        "read_file",
        "edit_file",
        "create_file",
        "str_replace_editor",
        "fs/write_text_file",
    ]
)
"""Tools of coding agents that read or write one file."""

PATH_KEYS: Final = ("file_path", "path", "notebook_path", "filePath", "absolute_path", "filename")
"""Arguments in which tools of coding agents take the file that they read or write."""

FREE_KEYS: Final = frozenset(
    [
        "description",
        "timeout",
        "timeout_ms",
        "yield_time_ms",
        "max_output_tokens",
        "content",
        "contents",
        "old_string",
        "new_string",
        "replace_all",
        "old_str",
        "new_str",
        "file_text",
        "new_source",
        "cell_id",
        "cell_type",
        "edit_mode",
        "insert_line",
        "limit",
        "offset",
        "pages",
    ]
)
"""Arguments beside a command or a file that do not change which one it is."""

MAX_PATH_CHARS: Final = 4_096
"""Characters of a text that may be a path: systems take no longer one."""

# Options by which programs that people take for readers run others, or write files.
_MORE: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "git": (
        (
            *("output", "ext-diff", "textconv", "exec", "upload-pack", "receive-pack", "extcmd"),
            *("open-files-in-pager", "exec-path", "config-env", "template", "separate-git-dir"),
        ),
        ("-O",),
    ),
    "sort": (("output", "compress-program", "temporary-directory"), ("-o", "-T")),
    "rg": (("pre", "hostname-bin", "search-zip"), ("-z",)),
    "tree": (("output",), ("-o",)),
    "shuf": (("output",), ("-o",)),
    "bat": (("pager",), ()),
    "ag": (("pager",), ()),
    "find": ((), ("-exec", "-ok", "-delete", "-fprint", "-fls")),
    "fd": (("exec", "exec-batch"), ("-x", "-X")),
    "tar": (
        ("to-command", "checkpoint-action", "use-compress-program", "info-script", "rsh-command"),
        ("-I", "-F"),
    ),
    "sed": (("in-place", "file", "expression"), ("-i", "-I", "-f", "-e")),
    "uniq": ((), ()),
    "history": ((), ("-w", "-a", "-r", "-s", "-p")),
    "complete": ((), ("-C", "-F")),
    "compgen": ((), ("-C", "-F")),
    "enable": ((), ("-f", "-n")),
    "less": (("log-file", "LOG-FILE"), ("-o", "-O")),
    "man": (("pager", "html", "preprocessor"), ("-P", "-H", "-p")),
    "file": (("compile",), ("-C",)),
    "date": (("set", "file"), ("-s", "-f")),
    "diff": (("output", "to-file", "from-file"), ()),
    "yq": (("inplace",), ("-i",)),
    "iconv": (("output",), ("-o",)),
    "journalctl": (("vacuum-size", "vacuum-time", "vacuum-files", "rotate", "flush"), ()),
    "dmesg": (("clear", "read-clear"), ("-c", "-C")),
    "xxd": ((), ("-r",)),
}


# Commands of git that run any program: `git diff*` and `git merge*` would take them, too.
_RUN_BY_GIT: Final = ("difftool", "mergetool")

# Lines that are chosen, and what of them is shown, replaced or kept; each sed ends these alike.
_ESCAPED: Final = r"\\[^\n]"
_LISTED: Final = r"\[\^?\]?(?:\[:[a-z]+:\]|[^]\[\\\n/|,#@%])*+\]"
_CHOSEN: Final = rf"(?:[0-9]++|\$|/(?:[^/\[\\\n]|{_ESCAPED}|{_LISTED})*+/[IM]*+)"
_REPLACED: Final = (
    rf"s([/|,#@%])(?:(?!\1)[^\[\\\n]|{_ESCAPED}|{_LISTED})*+\1"
    rf"(?:(?!\1)[^\\\n]|{_ESCAPED})*+\1[gpiIM0-9]*+"
)
_READS_IN_SED: Final = re.compile(
    rf"(?:[\s;]*+(?:{_CHOSEN}(?:[,~+]{{1,2}}{_CHOSEN})?)?[ !]*+"
    rf"(?:[pdDPhHgGxnNl=qQ{{}}]|{_REPLACED}))++[\s;]*+"
)


class Sight(IntEnum):
    """The answer of a pattern about a line."""

    NO = 0
    DOUBT = 1
    YES = 2


class _CommandPattern:
    """A pattern of one command, in one reading."""

    def __init__(self, pattern: str, place: str, strings: Strings, reading: Reading) -> None:
        self._regex = self._name = None
        self.environment: list[tuple[str, StringMatch, StringMatch]] = []
        self._words: list[tuple[str, StringMatch]] = []
        self._has_rest = False
        if is_regex(pattern):
            self._regex = strings.compile(pattern, place, reading)
            return
        words = pattern.split()
        if not words or len(words) > MAX_WORDS or pattern.startswith("!"):
            raise InvalidPattern(
                f"expected the words of a command, at most {MAX_WORDS}, and no ! before them",
                place=place,
            )
        while words and (found := _ASSIGNED.match(words[0])):
            value = words.pop(0)[found.end() :]
            name = found[1]
            takes_name = strings.compile(name, place, reading)
            self.environment.append((name, takes_name, _word(value, place, strings, reading)))
        if words:
            last = words[-1]
            is_open = last.endswith("*") and "/" not in last and not last.endswith("\\*")
            self._has_rest = last in ANY or is_open
            if last in ANY:
                words = words[:-1] or [last]
        self._words = [(each, _word(each, place, strings, reading)) for each in words]
        if words and reading is Reading.WIDE and "/" not in words[0]:
            self._name = self._words[0][1]

    def allows(self, command: SimpleCommand, work: WorkBudget) -> bool:
        """True if it takes a command, in the narrow reading."""
        work.spend(NODE_WORK * (1 + len(command.words)))
        texts = [each.text for each in command.words]
        if self._regex is not None:
            if command.assignments or None in texts:
                return False
            known = [each for each in texts if each is not None]
            return not any(set(" \n\t") & set(each) for each in known) and self._regex(
                " ".join(known), work
            )
        for name, value in command.assignments:
            if value.text is None or not any(
                takes_name(name, work)
                and takes(value.text, work)
                and (said == name or not is_steering(name))
                for said, takes_name, takes in self.environment
            ):
                return False
        if not self._words:
            return bool(self.environment) and not texts
        if not texts or len(texts) < len(self._words):
            return False
        if len(texts) > len(self._words) and not self._has_rest:
            return False
        for (_, takes), text in zip(self._words, texts, strict=False):
            if text is None or not takes(text, work):
                return False
        return not self._does_more(command.words)

    def _does_more(self, words: Sequence[Word]) -> bool:
        """True if a program that is taken for a reader runs others, or writes, unlike we say."""
        program = (words[0].text or "").rpartition("/")[2]
        if program not in _MORE:
            return False
        said, fixed = [word for word, _ in self._words], len(self._words)
        for at, word in enumerate(words[1:], 1):
            is_meant = at < fixed and _runs_or_writes(program, literal(said[at]), fixed)
            if word.text not in said and not is_meant and _runs_or_writes(program, word, fixed):
                return True
        if program != "sed":
            return False
        operands = (each.text for each in words[1:] if each.text and each.text[0] != "-")
        script = next(operands, "")
        return script not in said and _READS_IN_SED.fullmatch(script) is None

    def find(self, command: SimpleCommand, work: WorkBudget) -> Sight:
        """The answer about a command, in the wide reading."""
        work.spend(NODE_WORK * (1 + len(command.words)) * (1 + len(self._words)))
        if self._regex is not None:
            said = " ".join(form for each in command.words for form in each.forms)
            if self._regex(said, work):
                return Sight.YES
            return Sight.DOUBT if any(each.is_open for each in command.words) else Sight.NO
        if self.environment:
            found = self._find_assigned(command, work)
            if found is Sight.NO or not self._words:
                return found
        if not command.words:
            return Sight.NO
        states = {0: Sight.YES}  # words of the pattern that were met, and how surely
        skips = False
        for number, word in enumerate(_spread(command.words)):
            after: dict[int, Sight] = {}
            if len(self._words) in states:
                return Sight.YES
            if word is None:  # it may be any word that the pattern still has
                return Sight.DOUBT
            is_option = number > 0 and word.startswith("-")
            for at, sight in states.items():
                if self._takes(at, number, word, work):
                    after[at + 1] = max(sight, after.get(at + 1, Sight.NO))
                if number and (is_option or skips):
                    after[at] = max(sight, after.get(at, Sight.NO))
            states, skips = after, is_option
            if not states:
                break
        return Sight.YES if len(self._words) in states else Sight.NO

    def _takes(self, at: int, number: int, word: str, work: WorkBudget) -> bool:
        _, takes = self._words[at]
        if number == 0 and self._name is not None:
            return takes(name_of(literal(word)), work) or takes(word, work)
        return takes(word, work)

    def _find_assigned(self, command: SimpleCommand, work: WorkBudget) -> Sight:
        found = Sight.NO
        for name, value in command.assignments:
            for _, takes_name, takes in self.environment:
                if not takes_name(name, work):
                    continue
                if any(takes(each, work) for each in value.forms or ("",)):
                    return Sight.YES
                found = Sight.DOUBT if value.is_open else found
        return found

    def find_in_text(self, text: str, work: WorkBudget) -> bool:
        """True if its words stand in a text that could not be taken apart."""
        work.spend(len(text))
        if self._regex is not None:
            return self._regex(text, work)
        if not self._words:
            return any(f"{name}=" in text for name, _, _ in self.environment)
        for piece in _SEPARATORS.split(_QUOTES.sub("", text)):
            words = tuple(map(literal, piece.split()))
            for start in range(len(words)):
                rest = words[start : start + MAX_WORDS]
                if self._takes(0, 0, rest[0].forms[0], work) and (
                    self.find(SimpleCommand(rest), work) is Sight.YES
                ):
                    return True
        return False


_ASSIGNED: Final = re.compile(r"([A-Za-z_*?\[\]{},0-9-]+)\+?=", re.ASCII)
_PATH_ENDS: Final = re.compile(r"[\s;|&(){}<>`\"'=]+")
_QUOTES: Final = re.compile(r"\\\n|[\\\"']")
_SEPARATORS: Final = re.compile(r"[;|&(){}<>`\n$,\[\]]")


def _word(pattern: str, place: str, strings: Strings, reading: Reading) -> StringMatch:
    if pattern in ANY:
        return lambda text, work: True
    return strings.compile(pattern, place, reading)


def _spread(words: Sequence[Word]) -> list[str | None]:
    """The words that some may become, ``None`` where others may stand."""
    found: list[str | None] = []
    for each in words:
        if each.is_open:
            # A part of it that is known says nothing of the rest.
            found.append(None)
        found += each.forms
    return found


def _runs_or_writes(program: str, word: Word, fixed: int) -> bool:
    """True for a word by which a program that is taken for a reader may do more than that."""
    long, short = _MORE[program]
    text = word.text
    if text is None:  # an option as well, unless it is the name of a file that begins otherwise
        return not word.is_glob or any(form[0] in "-*?[" for form in word.forms)
    steers = ("-c", "--c", "--exec", "-C", "--git-dir")
    if program == "git" and text.startswith(_RUN_BY_GIT + (steers if fixed == 1 else ())):
        return True
    if text.startswith("--"):
        option = text[2:].partition("=")[0]
        return bool(option) and any(each.startswith(option) for each in long)
    if not text.startswith("-"):
        # What less does at a start, and the file that uniq and xxd write, are no options.
        return program in ("uniq", "xxd") or (program == "less" and text.startswith("+"))
    # Of letters that stand together, each may be one.
    return any(each in text if len(each) > 2 else each[1] in text for each in short)


def starts_anything(pattern: str) -> bool:
    """True for a pattern that takes any command, or any code of a program that runs code."""
    words = [each for each in pattern.split() if not _ASSIGNED.match(each)]
    if not words or is_regex(pattern):
        return False
    if not any(letter.isalnum() for letter in words[0]) and words[0] != ".":
        return "*" in words[0]
    return runs_others(words[0]) and len(words) > 1 and words[-1] in ANY and len(words) < 3


class CommandPatterns:
    """Patterns of commands, of which one is enough for a command.

    Args:
        patterns: The patterns.
        place: Their place, for an error.

    Raises:
        InvalidPattern: One does not compile.
    """

    def __init__(self, patterns: Sequence[str], place: str) -> None:
        strings = Strings()
        self._narrow = [_CommandPattern(each, place, strings, Reading.NARROW) for each in patterns]
        self._wide = [_CommandPattern(each, place, strings, Reading.WIDE) for each in patterns]

    def allows(self, command: SimpleCommand, work: WorkBudget) -> bool:
        """True if one of them takes a command narrowly."""
        return any(each.allows(command, work) for each in self._narrow)

    def find(
        self, line: CommandLine, settled: Collection[SimpleCommand], work: WorkBudget
    ) -> Sight:
        """The answer about a line of the one that holds most back."""
        found = Sight.DOUBT if line.unclear or line.is_blind else Sight.NO
        for pattern in self._wide:
            if line.text and pattern.find_in_text(line.text, work):
                return Sight.YES
            if line.odd and pattern.find_in_text(line.source, work):
                found = Sight.DOUBT
            for command in (*line.commands, *line.maybe):
                if command in settled:
                    continue
                found = max(found, pattern.find(command, work))
                if found is Sight.YES:
                    return found
        return found


class PathPatterns:
    """Patterns of files, of which one is enough for a file.

    Args:
        patterns: The patterns.
        place: Their place, for an error.

    Raises:
        InvalidPattern: One does not compile.
    """

    def __init__(self, patterns: Sequence[str], place: str) -> None:
        strings = Strings()
        for each in patterns:
            if not each.strip() or each.startswith("!"):
                raise InvalidPattern("expected a path, and no ! before it", place=place)
        self._patterns = tuple(patterns)
        # A regular expression begins with a slash, and so never with a dot.
        plain = [each.removeprefix("./") for each in patterns]
        self._narrow = [strings.compile(each, place, Reading.NARROW) for each in plain]
        self._wide = [
            strings.compile(form, place, Reading.WIDE)
            for each in plain
            for form in _wide_forms(each)
        ]

    def allows(self, path: str, work: WorkBudget) -> bool:
        """True if one of them takes a path narrowly; it is normalised by its letters alone."""
        plain = normal_path(path)
        return any(each(plain, work) for each in self._narrow)

    def may_meet(self, glob: str) -> bool:
        """True if a shell may find a file for a glob that one of them takes."""
        steps = glob.split("/")
        if ".." in steps or any(each[:1] == "." and _WILD.search(each) for each in steps):
            return True
        return any(_may_meet(each, glob, steps) for each in self._patterns)

    def find(self, path: str, work: WorkBudget) -> bool:
        """True if one of them takes a path widely."""
        if not path or len(path) > MAX_PATH_CHARS:
            return False
        plain = normal_path(path)
        forms = {path, plain, *map(normal_path, _in_homes(path))}
        forms.add(_system_path(plain))
        climbed = plain.lstrip("./")
        if plain.startswith("../"):
            forms.add(f"/{climbed}")  # where it leads to depends on where it begins
        return any(each(form, work) for each in self._wide for form in forms)


def normal_path(path: str) -> str:
    """A path without ``.``, ``//``, and ``..`` behind a name."""
    if path.startswith("~"):  # `~/..` is not the folder of the line
        home, slash, rest = path.partition("/")
        return home + slash + posixpath.normpath(rest) if rest.strip("/") else path
    plain = posixpath.normpath(path)
    return plain[1:] if plain.startswith("//") else plain


def _system_path(path: str) -> str:
    """A path as some systems take it: without other names of the root, and ends of names.

    Windows leaves out dots and blanks at the end of a name, and reads one of several streams.
    """
    return _NAME_ENDS.sub(r"\1", _ROOTS.sub("", path))


def _in_homes(path: str) -> Iterator[str]:
    """A path in the folder of a person, or in the one of a line, as a shell writes it out."""
    user, _, rest = path[1:].partition("/")
    if not path.startswith("~"):
        return
    if user in ("+", "-"):
        yield rest
    else:
        yield from (
            f"{home}/{rest}" for home in (f"/home/{user or '~'}", f"/Users/{user or '~'}", "/root")
        )


def _may_meet(pattern: str, glob: str, steps: Sequence[str]) -> bool:
    if is_regex(pattern):
        return True
    if pattern.startswith(("/", "~")) and not glob.startswith(("/", "~")):
        return False  # the folder in which a line runs is not looked at
    # No wildcard of a shell takes the dot with which a name begins.
    hidden = {each for each in pattern.split("/") if each[:1] == "." and not _WILD.search(each)}
    return hidden <= {*steps}


_ROOTS: Final = re.compile(
    r"^(?:/System/Volumes/Data|/proc/\w+/(?:task/\d+/)?(?:root|cwd))*"
    r"(?:/private(?=/(?:etc|tmp|var)))?(?=/)"
)
_NAME_ENDS: Final = re.compile(r"([^/\s.:])(?:[ .]+|:[^/\\]+)(?=/|$)")
_WILD: Final = re.compile(r"[*?\[{]")
_HOMES: Final = ("/home/*", "/Users/*", "/root", "/var/root")


def _wide_forms(pattern: str) -> list[str]:
    """A pattern, and it from other folders where its own is that of a person, or none."""
    if pattern.startswith("~/"):
        return [pattern, *(home + pattern[1:] for home in _HOMES)]
    return [pattern] if pattern.startswith(("/", "*", "~")) else [pattern, f"**/{pattern}"]


class LinePatterns(NamedTuple):
    """The patterns of one rule about the command line and the files of a call.

    Attributes:
        commands: Those of commands; ``None``: any.
        paths: Those of files; ``None``: an allow takes none, and any other rule all.
        any_tool: The rule names no tool.
        free: Names of arguments that a call may have beside these; ``None``: any.
    """

    commands: CommandPatterns | None
    paths: PathPatterns | None
    any_tool: bool
    free: frozenset[str] | None

    def find(
        self,
        arguments: Mapping[str, Any],
        settled: Collection[SimpleCommand],
        work: WorkBudget,
        folder: str = "",
    ) -> Sight:
        """The answer of a rule that holds back, about a call; ``settled`` is allowed before it.

        It may run in a ``folder``, as its program says: no allow rests on that.
        """
        lines = [*lines_of(arguments)]
        found = Sight.YES
        if self.commands is not None:
            answers = [self.commands.find(line, settled, work) for line in lines]
            found = max(answers, default=Sight.NO)
        if found and self.paths is not None:
            found = min(found, _find_paths(self.paths, lines, arguments, settled, work, folder))
        return found

    def uncovered(
        self, tool: str, arguments: Mapping[str, Any], left: CallParts, work: WorkBudget
    ) -> CallParts:
        """The parts of a call that an allow with these patterns leaves to others."""
        named = {key for key in arguments if key not in (left.keys | FREE_KEYS)}
        if self.free is not None and not named <= self.free:
            return left
        if self.any_tool and tool not in (SHELL_TOOLS if left.line is not None else EDIT_TOOLS):
            return left
        if left.line is None:
            if self.commands is not None or self.paths is None or not left.files:
                return left
            paths = self.paths
            return left._replace(
                files=[each for each in left.files if not paths.allows(each, work)]
            )
        taken = {
            each
            for each in left.line.commands
            if self.commands is not None and self.commands.allows(each, work)
        }
        redirections = left.redirections
        if self.paths is not None:
            redirections = [
                each
                for each in redirections
                if not self._takes_redirection(each, left.line, taken, work)
            ]
        return left._replace(
            commands=[each for each in left.commands if each not in taken],
            redirections=redirections,
        )

    def _takes_redirection(
        self, each: Redirection, line: CommandLine, taken: set[SimpleCommand], work: WorkBudget
    ) -> bool:
        path = each.target.text
        if path is None or self.paths is None or not self.paths.allows(path, work):
            return False
        if line.folders and not path.startswith(("/", "~/")):
            return False
        first, last = each.span
        work.spend(NODE_WORK * len(line.commands))
        owners = [one for one in line.commands if first <= one.span[0] and one.span[1] <= last]
        return self.commands is None or all(one in taken for one in owners)


class CallParts(NamedTuple):
    """The parts of a call that rules have to allow, and have not yet."""

    line: CommandLine | None
    keys: frozenset[str]
    commands: list[SimpleCommand]
    redirections: list[Redirection]
    files: list[str]

    @property
    def are_none(self) -> bool:
        """True if none is left."""
        return not (self.commands or self.redirections or self.files)

    @property
    def settled(self) -> frozenset[SimpleCommand]:
        """The commands that rules have allowed."""
        line = self.line
        return frozenset(() if line is None else line.commands).difference(self.commands)


def parts_of(arguments: Mapping[str, Any]) -> CallParts | None:
    """The parts of a call that rules have to allow; ``None``: nothing allows it."""
    line = line_of(arguments)
    if line is not None:
        if line.unclear or line.odd or not (line.commands or line.redirections):
            return None
        keys = frozenset(key for key in arguments if key in _COMMAND_KEYS)
        return CallParts(line, keys, [*line.commands], [*line.redirections], [])
    files = {key: arguments[key] for key in PATH_KEYS if key in arguments}
    paths = [each for each in files.values() if isinstance(each, str) and each]
    if not files or len(paths) != len(files) or any(key in arguments for key in _COMMAND_KEYS):
        return None
    return CallParts(None, frozenset(files), [], [], paths)


_COMMAND_KEYS: Final = frozenset(KEYS)


def keys_beside() -> frozenset[str]:
    """Names of the arguments that commands and files are read from, or that are free beside."""
    return _COMMAND_KEYS | FREE_KEYS | frozenset(PATH_KEYS)


def _find_paths(
    paths: PathPatterns,
    lines: Sequence[CommandLine],
    arguments: Mapping[str, Any],
    settled: Collection[SimpleCommand],
    work: WorkBudget,
    folder: str,
) -> Sight:
    found = Sight.NO
    outer = [folder] if folder else []
    for text in descendants(dict(arguments)):
        if isinstance(text, str) and "\n" not in (said := text.strip()) and paths.find(said, work):
            return Sight.YES
    for key in PATH_KEYS:
        text = arguments.get(key)
        if isinstance(text, str) and any(paths.find(each, work) for each in _within(outer, text)):
            return Sight.YES
    for line in lines:
        if line.unclear or line.is_blind:
            found = Sight.DOUBT
        if any(paths.find(each, work) for each in _path_texts(line.text)):
            return Sight.YES
        if line.odd and any(paths.find(each, work) for each in _path_texts(line.source)):
            found = Sight.DOUBT
        words = [each.target for each in line.redirections]
        words += [
            word
            for each in (*line.commands, *line.maybe)
            if each not in settled
            for word in each.words[1:]
        ]
        changed = [form for each in line.folders for form in each.forms]
        folders = [*outer, *(form for each in changed for form in _within(outer, each))]
        for word in words:
            work.spend(NODE_WORK)
            for form in word.forms:
                # As `of=/etc/x` and `--output=/etc/x` have it, and `-o/etc/x`.
                ends = {form, form.partition("=")[2], form[2:] if form.startswith("-") else ""}
                if any(paths.find(each, work) for end in ends for each in _within(folders, end)):
                    return Sight.YES
            if word.is_open and (not word.is_glob or any(map(paths.may_meet, word.forms))):
                found = Sight.DOUBT
    return found


def _path_texts(text: str) -> list[str]:
    """The pieces of a text that could not be taken apart, with quotes as ends and without."""
    return _PATH_ENDS.split(text) + _PATH_ENDS.split(_QUOTES.sub("", text))


def _within(folders: Sequence[str], path: str) -> Iterator[str]:
    """A path, and what it is from each folder, where it is not an absolute one."""
    yield path
    if path and not path.startswith("/"):
        yield from (f"{folder}/{path}" for folder in folders)
