"""Command lines taken apart: the simple commands of a line, and the files that it redirects to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

if TYPE_CHECKING:
    from tree_sitter import Node, Parser


MAX_FORMS: Final = 64
"""Words that one word may become by its braces: of more, it is not known what they say."""

MAX_STEPS: Final = 256
"""Choices of one word that are gone through: each step takes its length."""

MAX_EXPANDED: Final = 2_000
"""Characters of a word in which something is put: each form of it may be as long."""

# What expansions leave in a text, before it is taken apart: noncharacters, which no line has.
_OPEN, _COMMA, _CLOSE, _BLANK = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_UNMARKED: Final = {ord(_OPEN): "{", ord(_COMMA): ",", ord(_CLOSE): "}"}
_MARKS: Final = re.compile(f"[{_OPEN}{_COMMA}{_CLOSE}]")
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*|[0-9?#@*!$_-])|\{([A-Za-z_]\w*)\})", re.ASCII)
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))",
    re.DOTALL,
)
_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b"}


class Word(NamedTuple):
    """A word of a command.

    Attributes:
        text: The text that it is; ``None``: the shell puts others in its place.
        forms: The words that it may become, as far as the line says it.
        is_open: It may become others than these, or none.
        is_glob: That is so for the names of files alone, which it takes as a pattern.
    """

    text: str | None
    forms: tuple[str, ...]
    is_open: bool = False
    is_glob: bool = False


UNKNOWN: Final = Word(None, (), is_open=True)


def literal(text: str) -> Word:
    """The word that is a text."""
    return Word(text, (text,))


def read_word(source: str, variables: Mapping[str, str]) -> Word:
    """The word that a piece of a line is.

    Args:
        source: The piece, with its quotes.
        variables: Texts that the line itself gives to variables.
    """
    reader = _Reader(source, variables)
    reader.read()
    said = "".join(reader.parts)
    has_choice = _OPEN in said and _CLOSE in said and (_COMMA in said or ".." in said)
    is_open = reader.is_open or reader.is_glob
    if not (is_open or reader.changes or has_choice):
        return literal(said.translate(_UNMARKED))
    if len(said) > MAX_EXPANDED:
        return UNKNOWN
    forms, is_whole = _expand(said)
    return Word(None, forms, is_open or not is_whole, is_whole and not reader.is_open)


def is_one_word(source: str) -> bool:
    """False for a piece of a line in which the shell ends a word."""
    reader = _Reader(source, {})
    reader.read()
    return not reader.is_broken


class _Reader:
    """Goes through a word once; ``parts`` are its letters, or marks of what becomes of them."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self.parts: list[str] = []
        self.is_open = False  # something in it is not known
        self.is_glob = False  # it takes names of files
        self.is_broken = False  # the shell ends a word within it
        self.changes = False  # the shell puts something in its place that the line itself tells
        self._source = source
        self._variables = variables

    def read(self) -> None:
        source, at, quoted = self._source, 0, False
        while at < len(source):
            letter, rest = source[at], source[at + 1 : at + 2]
            if letter == "\\":
                kept = quoted and rest not in ("$", "`", '"', "\\", "\n")
                self.parts.append(letter + rest if kept else rest.strip("\n"))
                at += 2
            elif letter == "'" and not quoted:
                end = source.find("'", at + 1)
                end = len(source) if end < 0 else end
                self.parts.append(source[at + 1 : end])
                at = end + 1
            elif letter == '"':
                quoted = not quoted
                at += 1
            elif letter == "$":
                at = self._dollar(at, quoted)
            elif letter == "`":
                self.is_open = True
                end = source.find("`", at + 1)
                at = len(source) if end < 0 else end + 1
            else:
                self.parts.append(letter if quoted else self._plain(letter, at))
                at += 1

    def _plain(self, letter: str, at: int) -> str:
        self.is_broken = self.is_broken or letter in " \t\n;|&"
        if letter in "{},":
            return {"{": _OPEN, "}": _CLOSE, ",": _COMMA}[letter]
        if letter in "*?[":
            self.is_glob = True
        if letter in "()<>" or (at == 0 and letter == "="):  # zsh: `=ls` is the path of ls
            self.is_open = True
        return letter

    def _dollar(self, at: int, quoted: bool) -> int:
        source = self._source
        rest = source[at + 1 : at + 2]
        if rest == "'" and not quoted:
            # Narrowly its escapes are not trusted to be read as the shell does.
            self.changes = True
            end = at + 2
            while end < len(source) and source[end] != "'":
                end += 2 if source[end] == "\\" else 1
            self.parts.append(_ESCAPE.sub(_unescape, source[at + 2 : end]))
            self.is_open = self.is_open or "\\c" in source[at:end]  # zsh has no control letters
            return end + 1
        if rest == '"' and not quoted:
            self.changes = True  # by a translation; to sh and zsh the sign is a letter
            return at + 1
        if found := _VARIABLE.match(source, at):
            name = found[1] or found[2]
            value = "~" if name == "HOME" else self._variables.get(name)
            self.changes = True
            if value is None:
                self.is_open = True
            else:
                self.parts.append(value if quoted else re.sub(r"\s+", _BLANK, value))
            return found.end()
        if rest in ("(", "{", "["):
            self.is_open = True
            return _closing(source, at + 1)
        self.parts.append("$")
        return at + 1


def _closing(source: str, at: int) -> int:
    """The place behind the bracket that closes one."""
    opening, closing = source[at], {"(": ")", "{": "}", "[": "]"}[source[at]]
    depth = 0
    while at < len(source):
        depth += (source[at] == opening) - (source[at] == closing)
        at += 1
        if not depth:
            break
    return at


def _unescape(found: re.Match[str]) -> str:
    byte, short, long, octal, control, letter = found.groups()
    if octal:
        return chr(int(octal, 8) & 0xFF)
    if code := byte or short or long:
        return chr(int(code, 16)) if int(code, 16) < 0x110000 else ""
    return chr(ord(control) & 0x1F) if control else _LETTERS.get(letter, letter)


def _expand(text: str) -> tuple[tuple[str, ...], bool]:
    """The words that a text with marks becomes, and whether these are all."""
    found: list[str] = []
    waiting, steps = [text], MAX_STEPS
    while waiting and steps and len(found) <= MAX_FORMS:
        each, steps = waiting.pop(), steps - 1
        marks = _find_choice(each)
        if marks is None:
            found.append(each)
            continue
        begun, ended = each[: marks[0]], each[marks[-1] + 1 :]
        parts = [each[begin + 1 : end] for begin, end in pairwise(marks)]
        waiting += [begun + one + ended for one in reversed(parts[: MAX_FORMS + 1])]
    words = [
        word.translate(_UNMARKED)
        for each in found[:MAX_FORMS]
        for word in each.split(_BLANK)
        if word or len(found) == 1
    ]
    is_whole = not waiting and len(found) <= MAX_FORMS
    # A range, `{a..c}`, is not gone through.
    is_whole = is_whole and not any("{" in word and ".." in word for word in words)
    return tuple(word for word in words if word), is_whole


def _find_choice(text: str) -> list[int] | None:
    """The places of the marks of the first choice that is in no other, ``{a,b}``."""
    first: list[int] | None = None
    opened: list[list[int]] = []
    for mark in _MARKS.finditer(text):
        if mark[0] == _OPEN:
            opened.append([mark.start()])
        elif opened:
            opened[-1].append(mark.start())
            if mark[0] == _CLOSE:
                found = opened.pop()
                if len(found) > 2 and (first is None or found[0] < first[0]):
                    first = found
                if first is not None and not opened:
                    break
    return first


MAX_STARTS: Final = 64
"""Places of a command at which another one may begin, where its options are not understood."""

ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)


class Launched(NamedTuple):
    """The commands and scripts that a command starts.

    Attributes:
        commands: The words of other commands, assignments in front included.
        scripts: Lines that a shell reads.
        maybe: Words of commands that it may start: they are held back, and are not asked to be
            allowed.
        texts: Lines that it may hand to a shell, for which the same is true.
        unclear: The reason for which it cannot be told what it starts.
        is_blind: It runs code that no rule sees.
        is_plain: It is a shell that does nothing but read the script, and is no command itself.
        is_posix: The shell may lack what bash has beyond POSIX; ``None``: the same reads them.
    """

    commands: tuple[tuple[Word, ...], ...] = ()
    scripts: tuple[str, ...] = ()
    maybe: tuple[tuple[Word, ...], ...] = ()
    texts: tuple[str, ...] = ()
    unclear: str = ""
    is_blind: bool = False
    is_plain: bool = False
    is_posix: bool | None = None


NOTHING: Final = Launched()


class _Launcher(NamedTuple):
    """A program that starts the command behind its own options and operands."""

    valued: frozenset[str] = frozenset()  # options with a value as the next word
    operands: int = 0
    takes_assignments: bool = False
    asks: frozenset[str] = frozenset()  # options with which it starts nothing


def _launcher(
    valued: str = "", operands: int = 0, *, env: bool = False, asks: str = ""
) -> _Launcher:
    return _Launcher(frozenset(valued.split()), operands, env, frozenset(asks.split()))


_LAUNCHERS: Final[Mapping[str, _Launcher]] = {
    **dict.fromkeys(("nohup", "setsid", "builtin", "coproc", "noglob", "nocorrect"), _Launcher()),
    # As a word `-` is one of zsh, which gives the command a dash in front of its name.
    **dict.fromkeys(("!", "-", "catchsegv", "dbus-run-session"), _Launcher()),
    **dict.fromkeys(("busybox", "toybox", "jobs"), _Launcher()),
    "env": _launcher("-u --unset -C --chdir -a --argv0 -P", env=True),
    "sudo": _launcher(
        "-u -g -h -p -C -T -r -t -D -R -U --user --group --host --prompt --chdir --chroot"
        " --close-from --command-timeout --role --type --other-user",
        env=True,
    ),
    "doas": _launcher("-u -C", env=True),
    "pkexec": _launcher("--user"),
    "nice": _launcher("-n --adjustment"),
    "ionice": _launcher("-c -n -p --class --classdata"),
    "chrt": _launcher("-T -P -D", 1),
    "taskset": _launcher("", 1),
    "stdbuf": _launcher("-i -o -e --input --output --error"),
    "timeout": _launcher("-k -s --kill-after --signal", 1),
    "time": _launcher("-f -o --format --output"),
    "command": _launcher(asks="-v -V"),
    "exec": _launcher("-a"),
    "repeat": _launcher("", 1),
    "chroot": _launcher("", 1),
    "strace": _launcher("-e -o -p -s -u -a -E -I -O -S -X -b -P -U"),
    "ltrace": _launcher("-e -o -p -s -u -a -n -l -x"),
    "xvfb-run": _launcher("-e -f -n -p -s -w"),
    "xargs": _launcher(
        "-I -n -P -L -d -E -s -a --replace --max-args --max-procs --max-lines --delimiter"
        " --arg-file --max-chars --process-slot-var"
    ),
}

_FLAGS: Final = frozenset(
    [
        *("--ignore-environment", "--debug", "--foreground", "--preserve-status", "--verbose"),
        *("--null", "--no-run-if-empty", "--exit", "--wait", "--fork", "--non-interactive"),
        *("--login", "--shell", "--preserve-env", "--set-home", "--background", "--portability"),
    ]
)
"""Long options of launchers that take no value behind them."""

SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "rbash", "fish"})
_LIKE_BASH: Final = frozenset({"bash", "rbash", "zsh"})
_SHELL_OPTIONS: Final = re.compile(r"-[lceux]+")
_TEXT_OF_A_SHELL: Final = frozenset(
    ["eval", "watch", "su", "runuser", "script", "ssh", "flock", "emulate", "sched"]
)
# Programs that start others, and take options that are not gone into: rules hold back what they
# may start, and an allow has to say what it lets them start.
_MAY_START: Final = frozenset(
    [
        *("nsenter", "setpriv", "prlimit", "numactl", "systemd-run", "fakeroot", "unshare"),
        *("unbuffer", "caffeinate", "valgrind", "perf", "firejail", "bwrap", "tini", "dumb-init"),
        *("npx", "uvx", "pipx", "dotenv", "tmux", "screen", "nix-shell", "proxychains", "torsocks"),
    ]
)
# Programs of which a command starts others: `docker exec web ls`, but not `docker rm web`.
_HAVE_RUNNERS: Final = frozenset(
    [
        *("docker", "podman", "nerdctl", "docker-compose", "kubectl", "npm", "pnpm", "yarn", "uv"),
        *("poetry", "pipenv", "pdm", "hatch", "bundle", "direnv", "mise", "conda", "mamba", "nix"),
    ]
)
_RUNNERS: Final = frozenset({"exec", "run", "x", "dlx", "shell", "develop"})
_CALLS_BACK: Final = frozenset({"compgen", "complete", "mapfile", "readarray"})
_READS_A_FILE: Final = frozenset({".", "source"})
_INTERPRETER: Final = re.compile(
    r"(?:python|perl|ruby|node|nodejs|deno|bun|php|lua|luajit|tclsh|wish|expect|osascript|awk|gawk"
    r"|mawk|nawk|ed|ex|vi|vim|nvim|emacs|gdb|pwsh|powershell|parallel|make|entr|m4)[0-9.]*"
)
_RESERVED: Final = frozenset(
    [
        *("{", "}", "[[", "if", "then", "elif", "else", "fi", "for", "select", "while", "until"),
        *("do", "done", "case", "esac", "function"),
    ]
)
_FIND: Final = frozenset({"find", "gfind", "bfs"})
_FIND_RUNS: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FD_RUNS: Final = frozenset({"-x", "--exec", "-X", "--exec-batch"})


def name_of(word: Word) -> str:
    """The name of a program, without its folder; empty where it is not known."""
    return "" if word.text is None else word.text.rpartition("/")[2].casefold().removesuffix(".exe")


def runs_others(program: str) -> bool:
    """True for a program that runs what its words say, and of which no rule sees all."""
    name = program.rpartition("/")[2]
    texts = SHELLS | _TEXT_OF_A_SHELL | _READS_A_FILE
    return name in texts or _INTERPRETER.fullmatch(name) is not None


def launched_by(words: Sequence[Word]) -> Launched:
    """The commands and scripts that a command starts."""
    name = name_of(words[0])
    if name in SHELLS:
        return _by_shell(words)
    if name in _FIND or name in ("fd", "fdfind"):
        return _by_find(words, _FIND_RUNS if name in _FIND else _FD_RUNS)
    if name == "git":
        return _by_git(words)
    if name == "trap":
        return _by_trap(words)
    if name in _CALLS_BACK and any(_has_letter(each, "C") for each in words[1:]):
        found = _starts(words, f"it is not clear what {name} runs")
        return found._replace(scripts=tuple(each.text for each in words[1:] if each.text))
    if name == "alias":
        values = [each.text.partition("=")[2] for each in words if each.text and "=" in each.text]
        unclear = "an alias changes what a name means" if len(words) > 1 else ""
        return Launched(scripts=tuple(values), unclear=unclear)
    if name in _MAY_START:
        return _may_start(words)
    if name in _HAVE_RUNNERS:
        at = next((at for at, each in enumerate(words) if each.text in _RUNNERS), len(words))
        return _may_start(words[at:])
    if name in _READS_A_FILE:
        return Launched(is_blind=True)
    if name in _TEXT_OF_A_SHELL:
        return _by_text(name, words)
    if _INTERPRETER.fullmatch(name):
        return Launched(is_blind=True)
    launcher = _LAUNCHERS.get(name)
    return NOTHING if launcher is None else _by_launcher(name, launcher, words)


def _starts(words: Sequence[Word], unclear: str) -> Launched:
    """Each command that may begin among some words."""
    starts = [
        at
        for at, each in enumerate(words[: MAX_STARTS + 1])
        if at and not any(form.startswith("-") for form in each.forms)
    ]
    texts = tuple(form for each in words[1:] for form in each.forms if " " in form)
    return Launched(scripts=texts, maybe=tuple(tuple(words[at:]) for at in starts), unclear=unclear)


def _may_start(words: Sequence[Word]) -> Launched:
    """The commands that words may hold, of a program that is allowed by itself."""
    found = _starts(words, "")
    return found._replace(scripts=(), texts=found.scripts)


def _by_launcher(name: str, launcher: _Launcher, words: Sequence[Word]) -> Launched:
    unclear = f"it is not clear what {name} starts"
    at, operands, marks = 1, launcher.operands, "{}"
    while at < len(words):
        text = words[at].text
        if text is None:
            forms = words[at].forms
            if launcher.takes_assignments and forms and ASSIGNMENT.match(forms[0]):
                break
            return _starts(words, unclear)
        if text in launcher.asks:
            return NOTHING
        if name == "env" and (text.startswith(("-S", "--split-string"))):
            said = text.removeprefix("--split-string=").removeprefix("-S")
            script = [said] if said and said != "--split-string" else []
            rest = [each.text or "" for each in words[at + 1 :]]
            return Launched(
                scripts=(" ".join(script + rest),), unclear="env takes its words apart by itself"
            )
        if text == "--":
            at += 1
            break
        # A dash alone is an operand, but for env, to which it is `-i`.
        if name in ("!", "-") or not text.startswith("-") or (text == "-" and name != "env"):
            if launcher.takes_assignments and ASSIGNMENT.match(text):
                break
            if not operands:
                break
            operands -= 1
        elif text in launcher.valued:
            at += 1
            if name == "xargs" and text in ("-I", "--replace") and at < len(words):
                marks = words[at].text or ""
        elif name == "xargs" and text.startswith(("-I", "-i", "--replace=")):
            marks = text.removeprefix("--replace=").removeprefix("-I").removeprefix("-i") or marks
        elif text.startswith("-") and not text.startswith("--") and len(text) > 2:
            # Letters of several options together, or one with its value.
            if text[:2] not in launcher.valued and f"-{text[-1]}" in launcher.valued:
                at += 1
        elif text.startswith("--") and "=" not in text and text not in _FLAGS:
            return _starts(words, unclear)  # its value may be the next word
        at += 1
    inner = tuple(words[at:])
    if operands or any(each.text is None for each in words[1:at]):
        return _starts(words, unclear)
    if launcher.takes_assignments and _sets_odd_name(inner):
        return _starts(words, unclear)  # a function for bash, `BASH_FUNC_ls%%=`, is one
    if not inner:
        return NOTHING
    if name == "xargs":
        if not marks:
            return _starts(words, unclear)
        inner = (*(_unknown_if_marked(each, marks) for each in inner), UNKNOWN)
    if inner[0].text is not None and inner[0].text.startswith("-"):
        return _starts(words, unclear)
    if any(each.text in _RESERVED for each in inner[:2]):  # `coproc NAME { …`
        return _starts(words, unclear)
    return Launched(commands=(inner,))


def _sets_odd_name(words: Sequence[Word]) -> bool:
    """True where words begin with assignments, one of which is to no variable of a shell."""
    said = takewhile(lambda form: "=" in form, ("".join(each.forms) for each in words))
    return any(not ASSIGNMENT.match(form) for form in said)


def _unknown_if_marked(word: Word, marks: str) -> Word:
    is_marked = word.text is None or marks in word.text
    return Word(None, word.forms, is_open=True) if is_marked else word


def _by_shell(words: Sequence[Word]) -> Launched:
    at, is_plain, has_script = 1, True, False
    while at < len(words):
        text = words[at].text
        if text is None:
            return _starts(words, "it is not clear what the shell runs")
        if not text.startswith(("-", "+")) or text == "-":
            break
        if text.startswith("--"):
            is_plain = False
        else:
            has_script = has_script or "c" in text
            is_plain = is_plain and _SHELL_OPTIONS.fullmatch(text) is not None
            at += text.count("o") + text.count("O")  # each takes a word
        at += 1
    rest = words[at:]
    if has_script:
        if not rest or rest[0].text is None:
            return _starts(words, "it is not clear what the shell runs")
        # More words are `$0` and its arguments.
        is_plain = is_plain and len(rest) == 1
        is_posix = name_of(words[0]) not in _LIKE_BASH
        return Launched(scripts=(rest[0].text,), is_plain=is_plain, is_posix=is_posix)
    if rest:
        return Launched(is_blind=True)
    return Launched(unclear="a shell reads its commands from elsewhere")


def _by_find(words: Sequence[Word], runs: frozenset[str]) -> Launched:
    commands: list[tuple[Word, ...]] = []
    inner: list[Word] | None = None
    for each in words[1:]:
        if inner is not None and each.text not in (";", "+"):
            inner.append(_unknown_if_marked(each, "{}"))
        elif inner is not None:
            commands.append((*inner, UNKNOWN))
            inner = None
        elif each.text in runs:
            inner = []
        elif each.text is None and each.forms and runs.intersection(each.forms):
            return _starts(words, "it is not clear what find runs")
    if inner is not None:
        commands.append((*inner, UNKNOWN))
    return Launched(commands=tuple(each for each in commands if len(each) > 1))


def _by_git(words: Sequence[Word]) -> Launched:
    """Git itself runs what some of its settings say; an allow takes none (`patterns`)."""
    values = [each.text for each in words[1:] if each.text and "=" in each.text]
    texts = [each.partition("=")[2].removeprefix("!") for each in values]
    maybe = tuple((literal(text),) for text in texts if text and not text.isspace())
    split = tuple(tuple(map(literal, text.split())) for text in texts if " " in text.strip())
    return Launched(maybe=maybe + split)


def _texts(words: Sequence[Word], *, joined: bool) -> Launched:
    texts = [each.text for each in words]
    if None in texts:
        return _starts([UNKNOWN, *words], "it is not clear what is evaluated")
    said = [each for each in texts if each is not None]
    return Launched(scripts=(" ".join(said),) if joined else tuple(said))


def _by_trap(words: Sequence[Word]) -> Launched:
    if any(each.text is None for each in words[1:]):
        return _starts(words, "it is not clear what is trapped")
    rest = words[2:] if len(words) > 1 and words[1].text == "--" else words[1:]
    return _texts(rest[:1], joined=False) if len(rest) > 1 else NOTHING


def _has_letter(word: Word, letter: str) -> bool:
    """True for a word that may be an option with a letter."""
    return any(form[:1] == "-" and letter in form for form in word.forms)


def _by_text(name: str, words: Sequence[Word]) -> Launched:
    """Programs that hand their words, or one of them, to a shell."""
    if name == "eval":
        rest = words[2:] if len(words) > 1 and words[1].text == "--" else words[1:]
        return _texts(rest, joined=True)
    # What of it is options, users and hosts is not gone into: each of its words may begin it.
    found = _starts(words, f"it is not clear what {name} runs")
    texts = tuple(each.text for each in words[1:] if each.text is not None)
    return found._replace(scripts=texts, unclear="" if name == "ssh" else found.unclear)


MAX_BYTES: Final = 50_000
"""Bytes of a line that is taken apart: a person reads no longer one, and a parse takes 100 ms."""

MAX_SCRIPTS: Final = 8
"""Lines within one another, as in ``sh -c``: more than anybody needs who hides nothing."""

MAX_COMMANDS: Final = 1_000
"""Commands of one line, those that others start included; each is held against each pattern."""

MAX_NODES: Final = 20_000
"""Parts of the syntax of one line, with the lines within it; a quarter of a second of work."""

MAX_TOKENS: Final = 2_000
"""Words and signs of a line: where it is wrong the parser takes the square of their
number, and nothing stops it; so many take it a third of a second at the most."""

MAX_DEPTH: Final = 200
"""Levels of the syntax of one line."""

_REMEMBERED: Final = 64


class Assignment(NamedTuple):
    """A variable of the environment that a line sets.

    Attributes:
        name: Its name.
        value: Its value.
    """

    name: str
    value: Word


class SimpleCommand(NamedTuple):
    """A simple command.

    Attributes:
        words: Its words, of which the first one names it; none where it only assigns.
        assignments: What it sets.
        span: The part of the line in which it stands.
    """

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...] = ()
    span: tuple[int, int] = (0, 0)


class Redirection(NamedTuple):
    """A file that is read or written by a redirection.

    Attributes:
        target: The file.
        span: The part of the line that it is for.
    """

    target: Word
    span: tuple[int, int] = (0, 0)


class CommandLine(NamedTuple):
    """A line, as far as it is understood.

    Attributes:
        commands: Commands that it runs, with those that others start.
        redirections: Files that it redirects to.
        maybe: Commands that it may run.
        folders: Folders into which it changes; with one, a relative path is not known.
        unclear: The reason for which it is never allowed, and rules that hold back are in doubt.
        odd: The reason for which it is never allowed; of the commands all are known.
        is_blind: It runs code that no rule sees, so rules that hold back are in doubt.
        text: The text, where it could not be taken apart.
        source: The whole line.
    """

    commands: tuple[SimpleCommand, ...] = ()
    redirections: tuple[Redirection, ...] = ()
    maybe: tuple[SimpleCommand, ...] = ()
    folders: tuple[Word, ...] = ()
    unclear: str = ""
    odd: str = ""
    is_blind: bool = False
    text: str = ""
    source: str = ""


@cache
def load_parser() -> Parser | None:
    """The parser of bash; ``None`` where the extra ``doors`` is not installed."""
    try:
        import tree_sitter_bash
        from tree_sitter import Language, Parser

        return Parser(Language(tree_sitter_bash.language()))
    except (ImportError, ValueError):  # not there, or of versions that do not fit
        return None


@lru_cache(maxsize=_REMEMBERED)
def read_line(text: str) -> CommandLine:
    """Take a command line apart."""
    reading = _LineReading()
    reading.read_script(text, 0, None)
    return reading.result()._replace(source=text[:MAX_BYTES])


@lru_cache(maxsize=_REMEMBERED)
def read_argv(argv: tuple[str, ...]) -> CommandLine:
    """Take a command apart that is given as a list of its words, which no shell reads."""
    if sum(map(len, argv)) > MAX_BYTES:
        return CommandLine(unclear="it is too long", text=" ".join(argv)[:MAX_BYTES])
    reading = _LineReading()
    reading.add_command(tuple(map(literal, argv)), (), (0, 0), 0)
    return reading.result()


# Named nodes that are words, or parts of one, and of which the commands among their own say all.
_KNOWN_WORDS: Final = frozenset(
    [
        "command_name",
        "word",
        "string",
        "raw_string",
        "concatenation",
        "number",
        "simple_expansion",
        "expansion",
        "command_substitution",
        "process_substitution",
        "ansi_c_string",
        "translated_string",
        "brace_expression",
        "variable_name",
        "test_operator",
        "special_variable_name",
    ]
)
_WORDS: Final = _KNOWN_WORDS | {"arithmetic_expansion", "$", "==", "=~"}
# Named nodes of which the same is true.
_KNOWN: Final = _KNOWN_WORDS | {
    "program",
    "list",
    "pipeline",
    "command",
    "string_content",
    "subshell",
    "compound_statement",
    "redirected_statement",
    "file_redirect",
    "file_descriptor",
    "heredoc_redirect",
    "heredoc_start",
    "heredoc_body",
    "heredoc_content",
    "heredoc_end",
    "herestring_redirect",
    "variable_assignment",
    "variable_assignments",
    "negated_command",
    "if_statement",
    "elif_clause",
    "else_clause",
    "for_statement",
    "while_statement",
    "do_group",
    "case_statement",
    "case_item",
    "test_command",
    "binary_expression",
    "unary_expression",
    "parenthesized_expression",
    "extglob_pattern",
    "regex",
    "comment",
    "declaration_command",
    "unset_command",
}
_ARITHMETIC: Final = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v"})
# An expansion in which nothing runs, is set or is reckoned, and whose end is clear.
_PLAIN_EXPANSION: Final = re.compile(
    r"\$\{#?(?:\w+|[@*?!$#-])(?:: ?-?[0-9]+(?::-?[0-9]+)?"
    r"|(?::?[-+?]|##?|%%?|/[/#%]?|\^\^?|,,?)(?:[^`'<>(){}\\$]|\$\w+)*)?\}",
    re.ASCII,
)
# The last one is of zsh, and no array: `ls =(rm x)`.
_SUBSTITUTION: Final = re.compile(rb"`|\$\(|\$\{|\$\[|<\(|>\(|\$\\\n|(?<![\w+\]=])=\(")
_SUBSTITUTES: Final = frozenset(
    ["command_substitution", "process_substitution", "arithmetic_expansion", "expansion"]
)
_TEXTS: Final = frozenset({"string", "heredoc_body"})
_TEST: Final = re.compile(r"\[\[?\s(?:.*\s)?\]\]?", re.DOTALL)
_TEST_SIGNS: Final = frozenset({"[", "]", "!", "=", "==", "!="})
_HELD: Final = frozenset({"raw_string", "ansi_c_string", "comment"})
_COMMANDS: Final = frozenset({"command", "declaration_command", "unset_command"})
_ENDED_BY_COMMAND: Final = frozenset({"negated_command", "list", "pipeline"})
_BOTH: Final = frozenset({"&>", "&>>"})
_COPIES: Final = frozenset({">&", "<&"})
_PLAIN_FILE: Final = re.compile(r"[\w./][\w./-]*", re.ASCII)
_REDIRECTIONS: Final = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
# What in front of a sign of redirection is the descriptor that it is for, or its variable.
_DESCRIPTOR: Final = re.compile(r"[0-9]+|\{.+\}", re.DOTALL)
_REDIRECTS: Final = re.compile(rb"(?:\\\n)*[<>]")
_GAP: Final = re.compile(rb"(?:[ \t]|\\\n)*")
_FOLDERS: Final = frozenset({"cd", "pushd", "popd", "chdir"})
_QUIET: Final = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr"})
_DELIMITERS: Final = frozenset({b"", *(bytes([each]) for each in b" \t\n;&|<>)")})
_HEREDOC: Final = re.compile(r"\w+|'\w+'|\"\w+\"")
_SIGNS: Final = re.compile(r"[^\w\s./,:@%+~^-]")
_TELLS: Final = frozenset({"echo", "printf", "print"})
_FD: Final = re.compile(r"[0-9]+|-")
_SMALL: Final = re.compile(r"[a-z_][a-z0-9_]*")


_NO_VARIABLES: Final[Mapping[str, str]] = {"IFS": " ", "PWD": "."}


class _LineReading:
    """Collects what a line, and the lines within it, run."""

    def __init__(self, level: int = 0) -> None:
        self._level = level  # readings around this one, of values that may be lines
        self.commands: list[SimpleCommand] = []
        self.redirections: list[Redirection] = []
        self.maybe: list[SimpleCommand] = []
        self.folders: list[Word] = []
        self.unclear = self.odd = self.text = ""
        self.is_blind = False
        self._inputs: list[str] = []  # texts that a shell may read as commands
        self._variables: dict[str, str] = {**_NO_VARIABLES}
        self._scripts = self._bytes = self._nodes = 0
        self._is_posix = False  # the line is for a shell that may be less than bash

    def result(self) -> CommandLine:
        return CommandLine(
            tuple(self.commands),
            tuple(self.redirections),
            tuple(self.maybe),
            tuple(self.folders),
            self.unclear,
            self.odd,
            self.is_blind,
            self.text,
        )

    def give_up(self, why: str, text: str) -> None:
        """Say that some text could not be taken apart."""
        self.unclear = self.unclear or why
        self.text = f"{self.text}\n{text[:MAX_BYTES]}" if self.text else text[:MAX_BYTES]

    def _word(self, source: str) -> Word:
        return read_word(source, self._variables)

    def _unset_word(self, source: str) -> Word:
        """A word before its variables are set, or after they are set anew."""
        return read_word(source, _NO_VARIABLES)

    def _doubt(self, why: str) -> None:
        self.odd = self.odd or why

    def _lose(self, why: str) -> None:
        """Say that it may run commands that are not among those that were found."""
        self.unclear = self.unclear or why

    def read_script(self, text: str, depth: int, span: tuple[int, int] | None) -> None:
        """Take a text apart, ``depth`` lines below the first; ``span``: where that one has it."""
        self._scripts += 1
        parser = load_parser()
        source = text.encode(errors="replace")
        self._bytes += len(source)
        if not all(each.isprintable() or each in "\n\t" for each in text):
            self.give_up("it has characters that are not seen", text)
        elif parser is None:
            self.give_up("its parser is missing (pip install 'meup-agent[doors]')", text)
        elif len(source) > MAX_BYTES or self._bytes > 2 * MAX_BYTES:
            self.give_up(f"it is longer than {MAX_BYTES} bytes", text)
        elif len(_SIGNS.findall(text)) + len(text.split()) > MAX_TOKENS:
            self.give_up(f"it has more than {MAX_TOKENS} words and signs", text)
        elif depth > MAX_SCRIPTS or self._scripts > MAX_COMMANDS:
            self.give_up("too many lines are within one another", text)
        else:
            root = parser.parse(source).root_node
            if root.has_error or source[root.end_byte :].strip():
                self.give_up("it is not understood", text)
            else:
                self._read_tree(root, source, depth, span)

    def _read_tree(
        self, root: Node, source: bytes, depth: int, span: tuple[int, int] | None
    ) -> None:
        nodes: list[Node] = []
        pending: list[tuple[Node, int]] = [(root, 0)]
        while pending:
            node, level = pending.pop()
            nodes.append(node)
            self._nodes += 1
            if level > MAX_DEPTH or self._nodes > MAX_NODES:
                self.give_up("it has too many parts", source.decode(errors="replace"))
                return
            pending += [(child, level + 1) for child in reversed(node.children)]
        before = len(self.commands)
        inputs = len(self._inputs)
        for node in nodes:  # before any word is read
            if node.type == "variable_assignment":
                self._remember(node)
        for node in nodes:
            self._read_node(node, source, depth, span)
        if not _is_covered(nodes, source):
            self.give_up("it has a part that its parser does not see", source.decode())
        if not _sees_all(nodes, source):
            self._lose("it has a substitution that its parser does not see")
        if b"\\\n" in source and any(each.type == "heredoc_start" for each in nodes):
            # Between quotes the lines of a text are not joined, but its start may be.
            lose = self._doubt if _has_quoted_texts(nodes) else self._lose
            lose("it is not clear where a text within it ends")
        if any(each.words and launched_by(each.words).unclear for each in self.commands[before:]):
            # A shell, or what starts one, may read what the line writes to it.
            told = [
                " ".join(form for word in each.words[1:] for form in word.forms)
                for each in self.commands[before:]
                if each.words and name_of(each.words[0]) in _TELLS
            ]
            for each in [*self._inputs[inputs:], *told][:MAX_SCRIPTS]:
                found = _LineReading()
                found.read_script(each, depth + 1, None)
                self._hold(found)

    def _read_node(
        self, node: Node, source: bytes, depth: int, span: tuple[int, int] | None
    ) -> None:
        match node.type:
            case kind if kind in _COMMANDS:
                self._read_command(node, source, depth, span)
            case "variable_assignment":
                self._read_bare(node, span)
            case "for_statement":
                for each in node.children:
                    if each.type == "variable_name" and not is_local(name := _text(each)):
                        made = (Assignment(name, UNKNOWN),)
                        self._put(SimpleCommand((), made, span or _span(node)))
            case "file_redirect":
                self._read_redirect(node, source, span)
            case "file_descriptor" if not re.fullmatch("[0-9]", _text(node)):
                # The parser takes a whole option for it, as in `sort -oy1>&2`; sh takes one digit.
                self.give_up("it is not clear where a redirection begins", _text(node))
            case "heredoc_start" if (
                not _HEREDOC.fullmatch(_text(node))
                or source[node.end_byte : node.end_byte + 1] not in _DELIMITERS
            ):
                self._lose("it is not clear where a text within it ends")
            case "heredoc_redirect" if not _has_its_end(node, source):
                self._lose("it is not clear where a text within it ends")
            case "heredoc_body":
                self._inputs.append(_text(node))
            case "herestring_redirect":
                if source[node.end_byte : node.end_byte + 1] not in _DELIMITERS:
                    self._lose("it is not clear where a text within it ends")
                self._inputs += self._word(_text(node).removeprefix("<<<").strip()).forms
            case "comment":
                before = source[: node.start_byte][-1:]
                is_joined = source[: node.start_byte].endswith(b"\\\n")
                if is_joined or (before and before not in b" \t\n;&|()`"):
                    self._lose("it is not clear where a comment begins")
            case "ansi_c_string" if self._is_posix or "\\'" in _text(node):
                self._doubt("sh ends a text of it elsewhere than bash")
            case "test_operator" if _text(node) in _ARITHMETIC:
                self._doubt("it reckons with names, which may run commands")
            case "compound_statement" | "subshell" if _text(node).startswith("(("):
                self._doubt("it reckons with names, which may run commands")
            case "expansion" if not _PLAIN_EXPANSION.fullmatch(_text(node)):
                self._doubt("it is not clear what an expansion does")
            case "command_substitution" if (text := _text(node)).startswith("`") and "\\" in text:
                self._doubt("it has a backslash within backquotes")
            case "test_command" if _text(node).startswith("["):
                text = _text(node).removeprefix("[")
                if text.startswith("[") and self._is_posix:
                    self._doubt("sh takes a test of it for commands")
                is_program = not text.startswith("[") and ("\n" in text or not _is_plain_test(node))
                after = source[node.end_byte : node.end_byte + 1]
                if is_program or not _TEST.fullmatch(_text(node)) or after not in _DELIMITERS:
                    # To a shell `[` is a program, which `&&`, `>` or the end of a line ends, and
                    # neither it nor `[[` is part of a longer word.
                    self.give_up("it is not clear where a test ends", _text(node))
                values = [*self._variables.values(), text]
                may_name = any("[" in each or each in _BY_NAME for each in values)
                if not text.startswith("[") and (may_name or tests_unknown(text.removesuffix("]"))):
                    self._doubt("it may reckon with a name, which may run commands")
            case kind if node.is_named and kind not in _KNOWN:
                self._doubt(f"it has a part ({kind}) that is not looked into")
            case _:
                pass

    def _remember(self, node: Node) -> None:
        name, _, value = _text(node).partition("=")
        word = self._word(value)
        if word.text is not None and ASSIGNMENT.fullmatch(f"{name}="):
            self._variables[name.removesuffix("+")] = word.text

    def _read_bare(self, node: Node, span: tuple[int, int] | None) -> None:
        """An assignment that is its own command: it may change the environment of later ones."""
        parent = "" if node.parent is None else node.parent.type
        if parent == "command":
            return
        found = self._assignment(_text(node))
        if found is not None and not (is_local(found.name) and parent != "declaration_command"):
            self._put(SimpleCommand((), (found,), span or _span(node)))

    def _assignment(self, text: str) -> Assignment | None:
        found = ASSIGNMENT.match(text)
        if found is None:
            self._doubt("it sets a part of a variable")
            return None
        return Assignment(found[1], self._word(text[found.end() :]))

    def _read_command(
        self, node: Node, source: bytes, depth: int, span: tuple[int, int] | None
    ) -> None:
        assignments: list[Assignment] = []
        pieces: list[str] = []
        before: int | None = None  # the end of what is in front
        ended: int | None = None  # the end of a word, of which one that touches it is more
        was_set = False
        for child in _parts(node):
            gap = b"" if before is None else source[before : child.start_byte]
            is_cut = was_set and not gap.replace(b"\\\n", b"")
            if is_cut or not _GAP.fullmatch(gap):
                # The parser reads on over the end of a line in front of a backslash, and ends the
                # value of a variable too early: `x=[a]\b ls`.
                self.give_up("it is not clear what its words are", source.decode(errors="replace"))
            before, was_set = _head_end(child), child.type == "variable_assignment"
            if child.type in _REDIRECTIONS:
                ended = None
                continue
            if child.type == "variable_assignment":
                if node.type == "command":
                    if found := self._assignment(_text(child)):
                        assignments.append(found)
                    ended = None
                    continue
            elif child.type not in _WORDS and child.is_named:
                self.unclear = self.unclear or "it is not clear what its words are"
                continue
            text = _text(child)
            if ended is not None and not gap.replace(b"\\\n", b""):
                pieces[-1] += text
            else:
                pieces.append(text)
            ended = child.end_byte
            if _DESCRIPTOR.fullmatch(pieces[-1]) and _REDIRECTS.match(source, ended):
                # `0<&1 ls` and `{x}>y ls`: the parser takes for a word what the shell does not.
                self.give_up("it is not clear where a redirection begins", _text(node))
        if not all(map(is_one_word, pieces)) or (pieces and pieces[0] in _RESERVED):
            # Behind `!` and `time` the parser takes `{`, `if` and the like for names of commands.
            self.give_up("it is not clear what its words are", source.decode(errors="replace"))
        words = tuple(map(self._word, pieces))
        unset = tuple(map(self._unset_word, pieces)) if self._variables != _NO_VARIABLES else words
        if unset != words and len(self.maybe) < MAX_COMMANDS:
            self.maybe.append(SimpleCommand(unset))
        for at, each in enumerate(words):
            is_built_in = at == 0 or words[0].text in _BUILT_IN
            if is_built_in and each.text == "test" and tests_unknown(" ".join(pieces[at + 1 :])):
                self._doubt("it may reckon with a name, which may run commands")
        self.add_command(words, tuple(assignments), span or _span(node), depth)

    def _read_redirect(self, node: Node, source: bytes, span: tuple[int, int] | None) -> None:
        last = next((each for each in node.children if each.type in _WORDS), node)
        last = next((each for each in node.children if _closes(node) and not each.is_named), last)
        if source[last.end_byte : last.end_byte + 1] not in _DELIMITERS or _text(last)[:1] == "!":
            # The shell joins what is behind it, as by a backslash at the end of a line; to zsh
            # `>!` and `>&--` are other redirections.
            self._lose("it is not clear where the file of a redirection ends")
        behind = _behind_target(node)
        if behind and not _owner(node):
            self.give_up("it is not clear what a word behind a redirection is", _text(node))
        if (behind or self._is_posix) and any(each.type in _BOTH for each in node.children):
            self._doubt("sh ends a command at a sign that is a redirection to bash")
        if not all(
            _GAP.fullmatch(source[one.end_byte : other.start_byte])
            for one, other in pairwise(node.children)
        ):
            self.give_up("it is not clear where the file of a redirection is", _text(node))
        target = _target(node)
        if target is None:
            return
        word = self._word(_text(target))
        is_copy = any(each.type in _COPIES for each in node.children)
        if not is_one_word(_text(target)) or (
            is_copy and not _PLAIN_FILE.fullmatch(word.text or "")
        ):
            # Of `>&'$(ls)'` bash reads the text a second time, and `>&-x` closes before a word.
            self.give_up("it is not clear which file a redirection is to", " ".join(word.forms))
        if word.text in _QUIET:
            return
        parent = node.parent
        while parent is not None and parent.type == "heredoc_redirect":
            parent = parent.parent
        if len(self.redirections) >= MAX_COMMANDS:
            self.give_up(f"it has more than {MAX_COMMANDS} redirections", "")
            return
        for each in dict.fromkeys((word, self._unset_word(_text(target)))):
            self.redirections.append(Redirection(each, span or _span(parent or node)))

    def add_command(
        self,
        words: tuple[Word, ...],
        assignments: tuple[Assignment, ...],
        span: tuple[int, int],
        depth: int,
    ) -> None:
        """Take in a command, and what it starts."""
        while words and words[0].forms and (found := ASSIGNMENT.match(words[0].forms[0])):
            # As `env` and `sudo` have it, and never where a shell has read the line.
            first = words[0]
            end = first.forms[0][found.end() :]
            value = literal(end) if first.text is not None else Word(None, (end,), is_open=True)
            assignments += (Assignment(found[1], value),)
            words = words[1:]
        if not words:
            if assignments:
                self._put(SimpleCommand((), assignments, span))
            return
        if sets_by_name(words):
            self._doubt("it is not clear which variable it sets")
        if words[0].text is None and depth <= MAX_SCRIPTS:
            self._read_forms(words, depth)
        launched = launched_by(words)
        self.is_blind = self.is_blind or launched.is_blind
        self.unclear = self.unclear or launched.unclear
        if name_of(words[0]) in _FOLDERS:
            self.folders += words[1:] or [literal("~")]
        if not launched.is_plain or assignments:
            self._put(SimpleCommand(words, assignments, span))
        if depth > MAX_SCRIPTS:
            self.give_up("too many commands are within one another", "")
            return
        for each in launched.commands:
            self.add_command(each, (), span, depth + 1)
        was_posix = self._is_posix
        self._is_posix = was_posix if launched.is_posix is None else launched.is_posix
        for script in launched.scripts:
            self.read_script(script, depth + 1, span)
        self._is_posix = was_posix
        for text in launched.texts:
            self._hold_text(text)
        room = MAX_COMMANDS - len(self.maybe)
        self.maybe += [SimpleCommand(each, (), span) for each in launched.maybe[:room]]

    def _read_forms(self, words: Sequence[Word], depth: int) -> None:
        """Hold back what a command starts whose name is put in: ``{sudo,ls}``, ``$x ls``."""
        spread = [literal(form) for each in words for form in each.forms]
        if words[0].forms:
            found = _LineReading()
            found.add_command(tuple(spread), (), (0, 0), depth + 1)
            self._hold(found)
            self.unclear = self.unclear or found.unclear
            self.odd = self.odd or found.odd
            self.is_blind = self.is_blind or found.is_blind

    def _hold(self, found: _LineReading) -> None:
        """Take what another reading found for what may run."""
        room = MAX_COMMANDS - len(self.maybe)
        # No allow asks for these files, so they are words, of which rules about paths see each.
        files = [SimpleCommand((literal(">"), each.target)) for each in found.redirections]
        self.maybe += [*found.commands, *found.maybe, *files][:room]
        self.text += found.text

    def _hold_text(self, text: str) -> None:
        """Hold back what a text runs that a program, or the shell, may take for a line."""
        if self._level < MAX_SCRIPTS:
            found = _LineReading(self._level + 1)
            found.read_script(text, MAX_SCRIPTS, None)
            self._hold(found)

    def _put(self, command: SimpleCommand) -> None:
        for name, value in command.assignments:
            if is_steering(name) and value.forms:
                self._hold_text(value.forms[0])  # as of PAGER, or of PS4
        if len(self.commands) < MAX_COMMANDS:
            self.commands.append(command)
        else:
            self.give_up(f"it runs more than {MAX_COMMANDS} commands", "")


def _sees_all(nodes: Sequence[Node], source: bytes) -> bool:
    """False where the shell finds a substitution in which the parser sees mere text."""
    is_quoted = _has_quoted_texts(nodes)
    rest, known = bytearray(source), set[int]()
    for each in nodes:
        if each.type in _HELD or (each.type == "heredoc_body" and is_quoted):
            rest[each.start_byte : each.end_byte] = b" " * (each.end_byte - each.start_byte)
        elif each.type in _SUBSTITUTES:
            known |= {each.start_byte, each.end_byte - 1}
    for found in _SUBSTITUTION.finditer(rest):
        at = found.start()
        before = bytes(rest[:at])
        is_escaped = (at - len(before.rstrip(b"\\"))) % 2 == 1
        if not is_escaped and at not in known:
            return False
    return True


def _has_its_end(redirect: Node, source: bytes) -> bool:
    """True for a here-document that ends at the first line that is its delimiter, and no other.

    The parser also ends it at a line with blanks in front.
    """
    found = {each.type: each for each in redirect.children}
    start, body, end = (found.get(f"heredoc_{part}") for part in ("start", "body", "end"))
    if start is None or body is None or end is None:
        return False
    tabs = b"\t" if "<<-" in found else b""
    begin = source.rfind(b"\n", 0, body.start_byte) + 1
    *lines, last = [each.lstrip(tabs) for each in source[begin : end.end_byte].split(b"\n")]
    delimiter = _text(start).strip("'\"").encode()
    is_alone = source[end.end_byte : end.end_byte + 1] in (b"", b"\n")
    return is_alone and last == delimiter and delimiter not in lines


def _has_quoted_texts(nodes: Sequence[Node]) -> bool:
    starts = [_text(each) for each in nodes if each.type == "heredoc_start"]
    return all(each[:1] in ("'", '"') for each in starts)


def _is_covered(nodes: Sequence[Node], source: bytes) -> bool:
    """False where the parser passed over a part of a line in silence, as over `-` in `ls - 2>x`."""
    rest = bytearray(source)
    for each in nodes:
        if not each.children or each.type in _TEXTS:
            rest[each.start_byte : each.end_byte] = b" " * (each.end_byte - each.start_byte)
    return not rest.replace(b"\\\n", b"").strip(b" \t\n")


def _is_plain_test(test: Node) -> bool:
    pending = [*test.children]
    while pending:
        node = pending.pop()
        if node.type in ("binary_expression", "unary_expression"):
            pending += node.children
        elif not (node.type in _TEST_SIGNS or (node.is_named and node.type in _WORDS)):
            return False
    return True


def _text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def _span(node: Node) -> tuple[int, int]:
    return node.start_byte, node.end_byte


def _parts(command: Node) -> Iterator[Node]:
    """The parts of a command in their order, with the words behind its redirections."""
    pending = [*reversed(command.children)]
    statement = command
    while True:
        while pending:
            part = pending.pop()
            yield part
            pending += reversed(_behind_target(part))
        outer = statement.parent
        if outer is None:
            return
        if outer.type == "redirected_statement" and outer.children[0] == statement:
            pending = [*reversed(outer.children[1:])]
        elif outer.type not in _ENDED_BY_COMMAND or outer.children[-1] != statement:
            return
        statement = outer


def _behind_target(part: Node) -> list[Node]:
    """The parts within a redirection that belong to the command that it is for."""
    if part.type == "heredoc_redirect":
        return [each for each in part.children if each.type in _REDIRECTIONS | _WORDS]
    if part.type != "file_redirect":
        return []
    words = [each for each in part.children if each.type in _WORDS]
    return words if _closes(part) else words[1:]


def _head_end(part: Node) -> int:
    """The end of a part of a command without what is yielded behind it."""
    if part.type == "heredoc_redirect":
        return next((each.end_byte for each in part.children if each.type == "heredoc_start"), 0)
    behind = _behind_target(part)
    return next(
        (one.end_byte for one, other in pairwise(part.children) if behind and other == behind[0]),
        part.end_byte,
    )


def _closes(redirect: Node) -> bool:
    """True for `>&-`, which has no target."""
    return any(not each.is_named and each.type.endswith("-") for each in redirect.children)


def _owner(redirect: Node) -> Node | None:
    """The command of which a redirection's further words are; ``None``: no simple one."""
    outer = redirect.parent
    while outer is not None and outer.type == "heredoc_redirect":
        outer = outer.parent
    if outer is None or outer.type in _COMMANDS:
        return outer
    owner = outer.children[0] if outer.type == "redirected_statement" else None
    while owner is not None and owner.type in _ENDED_BY_COMMAND:
        owner = owner.children[-1]
    return owner if owner is not None and owner.type in _COMMANDS else None


def _target(redirect: Node) -> Node | None:
    """The file of a redirection; ``None`` where it is another descriptor."""
    signs = [each.type for each in redirect.children if not each.is_named]
    named = [each for each in redirect.children if each.type in _WORDS and each.type != "$"]
    if not named or _closes(redirect):
        return None
    is_copy = not _COPIES.isdisjoint(signs)
    return None if is_copy and _FD.fullmatch(_text(named[0])) else named[0]


# --- the environment ---

# Variables by which others than their author decide what a program runs, or where it writes.
_STEERING: Final = re.compile(
    r"(?:LD|DYLD|GIT|SSH|PYTHON|PERL|PERL5|RUBY|NODE|NPM|npm|JAVA|JDK|MAVEN|GRADLE|RUST|RUSTC|CARGO"
    r"|GO|PIP|UV|CONDA|XDG|LESS|MAN|DOCKER|KUBE|AWS|CURL|SSL|BASH|ZSH|MAKE|CMAKE|CC|CXX|LUA|PHP"
    r"|DEBUGINFOD|GCONV|LOCPATH|MALLOC|ASAN|TERMINFO|RIPGREP|FZF|BAT|GREP|TAR|GZIP|EDITOR|MEUP)"
    r"\w*|\w*(?:PATH|PAGER|EDITOR|OPTIONS|OPTS|SHELL|_PROXY|_proxy|HOME|_RC|RCFILE|_COMMAND|ENV"
    r"|path|FLAGS|WRAPPER|BROWSER|PRELOAD)"
    r"|IFS|ENV|PS[0-9]|VISUAL|TMPDIR|TMP|TEMP|HOSTALIASES|RES_OPTIONS|NLSPATH|CDPATH|USER|DISPLAY"
    r"|prompt|psvar|argv|aliases|functions|commands|options|status|_",
    re.ASCII,
)


def is_steering(name: str) -> bool:
    """True for a variable that no wildcard of an allow takes."""
    return _STEERING.fullmatch(name) is not None


def is_local(name: str) -> bool:
    """True for a variable that is not part of an environment by any custom."""
    return _SMALL.fullmatch(name) is not None and not is_steering(name)


# A quoted operand, or one that no shell replaces or splits; and what of a test takes one operand.
_OPERAND: Final = re.compile(r"""(?:"[^"`]*"|'[^']*'|[^\s"'`$\\*?])+""")
_BUILT_IN: Final = frozenset({"command", "builtin", "time", "!"})
_OF_ONE: Final = frozenset(["-n", "-z", *(f"-{each}" for each in "bcdefghknprsuwxGLNOSt")])
_OF_TWO: Final = frozenset(["=", "==", "!=", "<", ">", "\\<", "\\>", "-nt", "-ot", "-ef"])


def tests_unknown(text: str) -> bool:
    """True for a test of ``[`` in which a value may stand as an operator, as ``-v`` does.

    That evaluates the index of a name: ``-v a[$(ls)]``. A value is an operand alone in quotes, and
    beside an operator that is written in the line, or by itself.
    """
    words = _OPERAND.findall(text)
    if _OPERAND.sub("", text).strip():
        return True
    for at, word in enumerate(words):
        if "$" not in word:
            continue
        before, after = words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else ""
        if before not in _OF_ONE | _OF_TWO and after not in _OF_TWO and words != [word]:
            return True
    return False


_DECLARES: Final = frozenset({"declare", "typeset", "local", "export", "readonly"})
_SETTERS: Final = _DECLARES | {"read", "mapfile", "readarray", "getopts", "unset", "wait"}
_BY_NAME: Final = frozenset({"-v", "-R"})
_RECKONS: Final = re.compile(r"[-+]\w*[inC]")


def sets_by_name(words: Sequence[Word]) -> bool:
    """True for a built-in of the shell that may set a variable which no rule sees.

    Where the name of one has an index, as in ``a[$(ls)]``, it also runs what stands there.
    """
    name, rest = words[0].text, words[1:]
    if name == "let":
        return True
    if name == "set":  # by `-k` the words of a command are assignments, too
        texts = [each.text for each in rest]
        return any(t is None or t == "keyword" or (t[:1] == "-" and "k" in t) for t in texts)
    if name == "printf" and rest:
        form = "".join(rest[0].forms)
        if rest[0].is_open or not form.startswith("-v"):
            return rest[0].is_open
        said = form[2:] or (rest[1].text if len(rest) > 1 else None)
        return said is None or not is_local(said)
    if name == "test":
        said_forms = {form for each in rest for form in each.forms}
        return bool(said_forms & _BY_NAME) or any("[" in each for each in said_forms)
    if name == "hash":
        return any(each.text is None or each.text.startswith("-") for each in rest)
    if name not in _SETTERS:
        return False
    is_declared = name in _DECLARES
    for each in rest:
        text = each.text
        if text is None or "[" in text:
            return True
        if is_declared and ("=" in text or _RECKONS.match(text)):
            return True
        if not is_declared and name != "unset" and is_steering(text):
            return True
        if name in ("mapfile", "readarray") and _RECKONS.match(text):
            return True
    return False


# --- the line of a call ---

KEYS: Final = ("command", "cmd", "script", "shell_command", "command_line")
"""Arguments in which tools take a command line, as text, or as the list of a command's words."""

_MORE_KEYS: Final = frozenset(
    {*KEYS, "commands", "commandline", "shellcommand", "chars", "stdin", "argv"}
)
_CODE: Final = frozenset({"code", "input"})
"""Arguments that are a command line for some tools, and any other text for most."""

_BESIDE: Final = ("args", "arguments", "parameters", "params")
"""Arguments in which some tools take the words behind the program of a command."""


def line_of(arguments: Mapping[str, Any]) -> CommandLine | None:
    """The command line of a call as its tool reads it; ``None``: none, or not one alone."""
    # Of two it is not known which one the tool runs.
    given = [arguments[key] for key in KEYS if key in arguments]
    return _read_given(given[0]) if len(given) == 1 else None


def lines_of(arguments: Mapping[str, Any]) -> Iterator[CommandLine]:
    """All that could be a command line of a call."""
    for key, value in arguments.items():
        plain = key.casefold().replace("-", "_")
        if plain not in _MORE_KEYS | _CODE:
            continue
        found = _read_given(value)
        if plain in _CODE:
            # Only what it says is held against rules: of most it cannot be told what it runs.
            if found is not None:
                yield found._replace(unclear="", odd="", is_blind=False)
            continue
        if found is None:
            if value and isinstance(value, dict | list):
                yield CommandLine(unclear=f"its {key[:64]} is not a command line")
            continue
        yield found
        listed = cast("list[str]", value) if isinstance(value, list) else []
        if listed and len(listed[0].split()) > 1:  # no program has such a name: these are lines
            yield from map(read_line, listed)
        for each in _BESIDE:
            more = arguments.get(each)
            words = cast("list[object]", more) if isinstance(more, list) else [more or ""]
            if isinstance(value, str) and words != [""]:
                yield read_line(" ".join([value, *map(str, words)])[: MAX_BYTES + 1])


def _read_given(value: object) -> CommandLine | None:
    if isinstance(value, str):
        return read_line(value)
    if isinstance(value, list | tuple) and value:
        words = cast("Sequence[object]", value)
        texts = tuple(each for each in words if isinstance(each, str))
        if len(texts) == len(words):
            return read_argv(texts)
    return None
