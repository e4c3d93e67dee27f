"""Words of a command line, unquoted as bash does it, as far as the line itself says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

MAX_FORMS: Final = 64
"""Words that one word may become by its braces: of more, it is not known what they say."""

MAX_EXPANDED: Final = 2_000
"""Characters of a word in which something is put: each form of it may be as long."""

# What expansions leave in a text, before it is taken apart: noncharacters, which no line has.
_OPEN, _COMMA, _CLOSE, _BLANK = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_UNMARKED: Final = {ord(_OPEN): "{", ord(_COMMA): ",", ord(_CLOSE): "}"}
_CHOICE: Final = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")
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
            return end + 1
        if rest == '"' and not quoted:
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
    found = [*islice(_choices(text), MAX_FORMS + 1)]
    words = [
        word.translate(_UNMARKED)
        for each in found[:MAX_FORMS]
        for word in each.split(_BLANK)
        if word or len(found) == 1
    ]
    # A range, `{a..c}`, is not gone through.
    is_whole = len(found) <= MAX_FORMS and not any("{" in word and ".." in word for word in words)
    return tuple(word for word in words if word), is_whole


def _choices(text: str) -> Iterator[str]:
    waiting = [text]
    while waiting:
        each = waiting.pop()
        found = next((one for one in _CHOICE.finditer(each) if _COMMA in one[1]), None)
        if found is None:
            yield each
            continue
        begun, ended = each[: found.start()], each[found.end() :]
        if len(waiting) < MAX_FORMS:
            waiting += [begun + one + ended for one in reversed(found[1].split(_COMMA))]
