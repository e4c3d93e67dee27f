"""Text and names of strangers as a person may read them, with what deceives marked.

Pure, and the same for every medium: a terminal and a page show these segments, each in its own
markup. Nothing is escaped for that markup here, which is the medium's part.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from meup_agent.protocol.wire.kinds import GATEWAY_NAMES

# --- text of strangers as a person may read it ---

MAX_COMBINING: Final = 4
"""Characters without a width of their own in a row; more would paint over other lines."""


class Mark(StrEnum):
    """The reason for which a segment is marked."""

    CONTROL = "control"  # it would move the cursor, or end a line
    DIRECTION = "direction"  # it would make the text around it read in another order
    INVISIBLE = "invisible"
    LOOK_ALIKE = "look-alike"  # it reads as another character than it is


class Segment(NamedTuple):
    """A part of a text, printable; a marked one is one character, as itself or written out."""

    text: str
    mark: Mark | None = None
    why: str = ""  # of a marked one: which character it is, and which one it looks like


_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e"}

_DIRECTIONS: Final = frozenset(
    map(chr, (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)))
)

# Python calls these printable, and a reader sees nothing, or a space.
BLANK: Final = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800,
              0x3164, 0xFFA0, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))
)  # fmt: skip

_EMOJI_STYLE: Final = "\ufe0f"  # shows the symbol before it in colour, and hides nothing

# Each pair is a character, and the one of ASCII that it looks like. ``confusable-homoglyphs``
# (3.3.1, measured) lacks 51 of these 145, ``confusables`` (1.2.0) 22, and either takes 25 ms and
# 17 MB to load. ``PyICU`` must be compiled where it is installed.
_PAIRS: Final = """
    аa еe оo рp сc уy хx іi јj ѕs ԁd һh ӏl ԛq ԝw ѵv гr пn кk мm тt вb нh ьb ғf
    АA ВB ЕE ЅS КK МM НH ОO РP СC ТT УY ХX ІI ЈJ ҮY ԌG ԚQ ԜW ЬB
    αa γy ιi κk νv οo ρp τt υu χx ωw ϲc ϳj ηn
    ΑA ΒB ΕE ΖZ ΗH ΙI ΚK ΜM ΝN ΟO ΡP ΤT ΥY ΧX
    օo ոn սu հh ցg զq յj ıi ȷj ɑa ɡg ɩi ʋv ɪi ɴn ʀr ᴀa ᴄc ᴅd ᴇe ᴊj ᴋk ᴍm ᴏo ᴘp ᴛt ᴜu ᴠv ᴡw ᴢz
    ‐- ‑- ‒- –- —- ―- −- ⁃- ∕/ ⁄/ ⧸/ ․. 。. ‚, ː: ꞉: ‘' ’' ʼ' ʹ' ′' ″" ˮ" ∖\\ ⧵\\ ǃ! ∣| │| ǀ|
    ٠0 ۰0 ०0 ০0 ੦0 ૦0 ௦0 ౦0 ೦0 ൦0 ๐0 ໐0 ၀0
"""
_LOOKS_LIKE: Final = {pair[0]: pair[1] for pair in _PAIRS.split()}

_TYPOGRAPHY: Final = frozenset("‘’ʼ′″–—―")  # common in words for people


def segments(text: str, *, is_name: bool = False) -> list[Segment]:
    """The segments of a text, which read as the text does.

    A look-alike is marked where it can deceive: in a word that has letters of ASCII, too, in a word
    of look-alikes alone, and anywhere in a name.

    Args:
        text: Any text; a long one takes a microsecond a character, so cut it first.
        is_name: It is a name that programs compare, as a tool's, and not words for people.
    """
    if text.isascii() and text.isprintable():
        return [Segment(text)] if text else []
    return list(_joined(_characters(text, _find_deceiving(text, is_name))))


def printed(text: str) -> str:
    """The text as its segments read, without their marks."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each for each, _ in _printed(text))


def marks_of(text: str) -> Iterator[Mark | None]:
    """The mark of each character of a text, without those of look-alikes."""
    return (mark for _, mark in _printed(text))


def _printed(text: str) -> Iterator[tuple[str, Mark | None]]:
    """Each character as it prints, and the mark of one that is written out."""
    combining, before = 0, ""
    for each in text:
        mark = None
        if not each.isascii() or not each.isprintable():
            mark = _hides(each, before)
            is_combining = mark is None and unicodedata.category(each) in ("Mn", "Me")
            combining = combining + 1 if is_combining else 0
            if combining > MAX_COMBINING:
                mark = Mark.INVISIBLE
        else:
            combining = 0
        yield each if mark is None else written_out(each), mark
        before = each


def remarks(text: str, *, is_name: bool = False) -> list[str]:
    """Remarks about what is marked in a text, each kind of character once."""
    return list(dict.fromkeys(each.why for each in segments(text, is_name=is_name) if each.mark))


def _characters(text: str, deceiving: frozenset[int]) -> Iterator[Segment]:
    for position, (shown, mark) in enumerate(_printed(text)):
        each = text[position]
        if mark is not None:
            yield Segment(shown, mark, _named(each))
        elif position in deceiving:
            yield Segment(
                shown, Mark.LOOK_ALIKE, f"{_named(each)} looks like {look_alike_of(each)!r}"
            )
        else:
            yield Segment(shown)


def _hides(character: str, before: str) -> Mark | None:
    """The mark of a character that does not print as itself; ``None`` if it does."""
    if character in _DIRECTIONS:
        return Mark.DIRECTION
    if character == _EMOJI_STYLE and before and unicodedata.category(before) == "So":
        return None
    if character in BLANK:
        return Mark.INVISIBLE
    if character.isprintable():
        return None
    return Mark.CONTROL if unicodedata.category(character) == "Cc" else Mark.INVISIBLE


def written_out(character: str) -> str:
    r"""A character as its escape: ``\n``, ``\x07``, ``\u202e``."""
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _named(character: str) -> str:
    name = unicodedata.name(character, "").lower() or "character without a name"
    return f"U+{ord(character):04X} ({name})"


def look_alike_of(character: str) -> str:
    """The ASCII character that another one looks like; empty if it looks like none."""
    found = _LOOKS_LIKE.get(character)
    if found is None and ord(character) > 0x2000:
        # Wide, mathematical and other styles of the same letter, digit or sign.
        found = unicodedata.normalize("NFKC", character)
        found = found if len(found) == 1 and found.isascii() else None
    return found or ""


def _find_deceiving(text: str, is_name: bool) -> frozenset[int]:
    """Positions of the look-alikes that are marked."""
    looks = {position: each for position, each in enumerate(text) if look_alike_of(each)}
    if not looks or is_name:
        return frozenset(looks)
    # A text that has a script's other letters is written in it: its short words deceive none.
    written_in = {_script(each) for each in text if each.isalpha() and not look_alike_of(each)}
    found: set[int] = set()
    for word in _words(text):
        inside = [position for position in word if position in looks]
        letters = [position for position in inside if text[position].isalnum()]
        has_ascii = any(text[position].isascii() and text[position].isalnum() for position in word)
        is_alone = len(letters) == sum(text[position].isalnum() for position in word)
        if has_ascii or (is_alone and _script(text[word[0]]) not in written_in):
            found.update(letters)
        if has_ascii:
            found.update(each for each in inside if text[each] not in _TYPOGRAPHY)
    return frozenset(found)


def _words(text: str) -> Iterable[list[int]]:
    word: list[int] = []
    for position, each in enumerate(text):
        if each.isspace():
            if word:
                yield word
            word = []
        else:
            word.append(position)
    if word:
        yield word


def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]


def _joined(found: Iterable[Segment]) -> Iterator[Segment]:
    plain: list[str] = []
    for each in found:
        if each.mark is None:
            plain.append(each.text)
            continue
        if plain:
            yield Segment("".join(plain))
            plain = []
        yield each
    if plain:
        yield Segment("".join(plain))


# --- names ---
# Names of participants that people would take for each other (PROTOCOL 3).
#
# A part of Unicode's UTS 39, by the look-alikes that `shown_text` marks: that module says why no
# library has the rest. What that table lacks cannot stand among other letters, since the letters
# of a name are of one script.

_ONE_LOOK: Final = str.maketrans({"I": "l", "1": "l", "|": "l", "0": "o"})

_EAST_ASIAN: Final = frozenset(
    {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "BOPOMOFO"}
)
"""Scripts that are written together, and with Latin letters."""


class NameSet:
    """The names of a space, the gateway's among them."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._by_look: dict[tuple[str, ...], str] = {}
        for name in (*GATEWAY_NAMES, *names):
            self.add(name)

    def add(self, name: str) -> None:
        """Add a name, whatever it looks like."""
        for look in _looks(name):
            self._by_look.setdefault(look, name)

    def problem(self, name: str) -> str:
        """The reason why a new name would deceive; empty: it does not."""
        if _mixes_scripts(name):
            return f"{name!r} has letters of several scripts, which look alike; use those of one"
        found = (self._by_look.get(look) for look in _looks(name))
        other = next((each for each in found if each not in (None, name)), None)
        return "" if other is None else f"{name!r} looks like {other!r}; use another name"


def _looks(name: str) -> tuple[tuple[str, ...], ...]:
    """A name as it is read: with any case, and as it is seen."""
    shown = name
    if not name.isascii():
        marks = zip(name, marks_of(name), strict=True)
        shown = "".join(each for each, mark in marks if mark is None)
        # Before and after: some of the table have a compatible form that looks otherwise.
        shown = _plain(unicodedata.normalize("NFKC", _plain(shown)))
    return ("read", shown.casefold()), ("seen", shown.translate(_ONE_LOOK).casefold())


def _plain(text: str) -> str:
    return "".join(look_alike_of(each) or each for each in text)


def _mixes_scripts(name: str) -> bool:
    if name.isascii():
        return False
    letters = filter(str.isalpha, unicodedata.normalize("NFKC", name))
    scripts = set(map(_script, letters))
    return len(scripts) > 1 and not scripts <= {"LATIN", *_EAST_ASIAN}
