"""Programs that start others: the commands that stand in the words of a command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from meup_agent.approval.shell.words import UNKNOWN, Word, literal

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
        unclear: The reason for which it cannot be told what it starts.
        is_blind: It runs code that no rule sees.
        is_plain: It is a shell that does nothing but read the script, and is no command itself.
    """

    commands: tuple[tuple[Word, ...], ...] = ()
    scripts: tuple[str, ...] = ()
    maybe: tuple[tuple[Word, ...], ...] = ()
    unclear: str = ""
    is_blind: bool = False
    is_plain: bool = False


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
    "env": _launcher("-u --unset -C --chdir -a --argv0 -P", env=True),
    "sudo": _launcher(
        "-u -g -h -p -C -T -r -t -D -R -U --user --group --host --prompt --chdir --chroot",
        env=True,
    ),
    "doas": _launcher("-u -C", env=True),
    "pkexec": _launcher("--user"),
    "nice": _launcher("-n --adjustment"),
    "ionice": _launcher("-c -n -p --class --classdata"),
    "chrt": _launcher("-T -P -D", 1),
    "taskset": _launcher("", 1),
    "nohup": _launcher(),
    "setsid": _launcher(),
    "stdbuf": _launcher("-i -o -e --input --output --error"),
    "timeout": _launcher("-k -s --kill-after --signal", 1),
    "time": _launcher("-f -o --format --output"),
    "command": _launcher(asks="-v -V"),
    "builtin": _launcher(),
    "exec": _launcher("-a"),
    "coproc": _launcher(),
    "noglob": _launcher(),
    "nocorrect": _launcher(),
    "repeat": _launcher("", 1),
    "!": _launcher(),
    "-": _launcher(),
    "chroot": _launcher("", 1),
    "unshare": _launcher(),
    "strace": _launcher("-e -o -p -s -u -a -E -I -O -S -X -b"),
    "ltrace": _launcher("-e -o -p -s -u -a -n -l -x"),
    "catchsegv": _launcher(),
    "dbus-run-session": _launcher(),
    "xvfb-run": _launcher("-e -f -n -p -s -w"),
    "busybox": _launcher(),
    "toybox": _launcher(),
    "then": _launcher(),
    "xargs": _launcher(
        "-I -n -P -L -d -E -s -a --replace --max-args --max-procs --max-lines --delimiter"
        " --arg-file --max-chars --process-slot-var"
    ),
}

SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "rbash", "fish"})
_SHELL_OPTIONS: Final = re.compile(r"-[lceux]+")
_TEXT_OF_A_SHELL: Final = frozenset({"eval", "watch", "su", "runuser", "script", "ssh", "flock"})
_READS_A_FILE: Final = frozenset({".", "source"})
_INTERPRETER: Final = re.compile(
    r"(?:python|perl|ruby|node|nodejs|deno|bun|php|lua|luajit|tclsh|wish|expect|osascript|awk|gawk"
    r"|mawk|nawk|ed|ex|vi|vim|nvim|emacs|gdb|pwsh|powershell|parallel|make|entr|m4)[0-9.]*"
)
_KEYWORDS: Final = frozenset({"{", "}", "then", "do", "if", "while", "for", "case", "until"})
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
        return _texts(words[1:2], joined=False) if len(words) > 2 else NOTHING
    if name == "alias":
        values = [each.text.partition("=")[2] for each in words if each.text and "=" in each.text]
        unclear = "an alias changes what a name means" if len(words) > 1 else ""
        return Launched(scripts=tuple(values), unclear=unclear)
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
        elif text.startswith("--") and "=" not in text and _is_cut(text, launcher.valued):
            return _starts(words, unclear)
        at += 1
    inner = tuple(words[at:])
    if operands or any(each.text is None for each in words[1:at]):
        return _starts(words, unclear)
    if not inner:
        return NOTHING
    if name == "xargs":
        if not marks:
            return _starts(words, unclear)
        inner = (*(_unknown_if_marked(each, marks) for each in inner), UNKNOWN)
    if inner[0].text is not None and inner[0].text.startswith("-"):
        return _starts(words, unclear)
    if any(each.text in _KEYWORDS for each in inner[:2]):  # `coproc NAME { …`
        return _starts(words, unclear)
    return Launched(commands=(inner,))


def _is_cut(text: str, valued: frozenset[str]) -> bool:
    """True for the beginning of a long option that takes a value."""
    return any(each.startswith(text) for each in valued)


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
            if text[-1] in "oO":
                at += 1
        at += 1
    rest = words[at:]
    if has_script:
        if not rest or rest[0].text is None:
            return _starts(words, "it is not clear what the shell runs")
        # More words are `$0` and its arguments.
        return Launched(scripts=(rest[0].text,), is_plain=is_plain and len(rest) == 1)
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


def _by_text(name: str, words: Sequence[Word]) -> Launched:
    """Programs that hand their words, or one of them, to a shell."""
    if name == "eval":
        rest = words[2:] if len(words) > 1 and words[1].text == "--" else words[1:]
        return _texts(rest, joined=True)
    # What of it is options, users and hosts is not gone into: each of its words may begin it.
    found = _starts(words, f"it is not clear what {name} runs")
    texts = tuple(each.text for each in words[1:] if each.text is not None)
    return found._replace(scripts=texts, unclear="" if name == "ssh" else found.unclear)
