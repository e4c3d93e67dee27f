"""JSON with comments, as editors have it: read, and one value of it replaced where it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from meup_agent.cli.guard.files import read_json

_TEXT: Final = r'"(?:\\.|[^"\\])*"'
_COMMENT: Final = re.compile(_TEXT + r"|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA: Final = re.compile(_TEXT + r"|,(?=\s*[}\]])")
_SPACE: Final = re.compile(r"\s*")


def _plain(text: str) -> str:
    """The same text in strict JSON: spaces stand where comments and last commas do."""

    def blank(found: re.Match[str]) -> str:
        said = found[0]
        return said if said.startswith('"') else re.sub(r"[^\n]", " ", said)

    return _LAST_COMMA.sub(blank, _COMMENT.sub(blank, text))


def read_commented(text: str, path: Path) -> dict[str, Any]:
    """The object in a file that may have comments and commas at the end of its lists.

    Raises:
        ConfigurationError: It is none, or has a key twice.
    """
    return read_json(_plain(text), path)


def replace_value(text: str, keys: Sequence[str], value: object) -> str:
    """A text with another value at some keys, each of an object within the one before.

    All else stays as it is, comments included.

    Raises:
        KeyError: There is no such key.
    """
    plain = _plain(text)
    at, end = _after_space(plain, 0), len(plain)
    for key in keys:
        at, end = _value_span(plain, at, key)
    line = text[text.rfind("\n", 0, at) + 1 : at]
    margin = line[: len(line) - len(line.lstrip())]
    shown = json.dumps(value, indent=2, ensure_ascii=False).replace("\n", f"\n{margin}")
    return f"{text[:at]}{shown}{text[end:]}"


def _value_span(plain: str, at: int, wanted: str) -> tuple[int, int]:
    """Begin and end of the value of a key, in the object that begins somewhere."""
    decoder = json.JSONDecoder()
    at = _after_space(plain, at + 1)
    while plain[at] == '"':
        key, at = decoder.raw_decode(plain, at)
        begin = _after_space(plain, _after_space(plain, at) + 1)
        _, end = decoder.raw_decode(plain, begin)
        if key == wanted:
            return begin, end
        at = _after_space(plain, end)
        if plain[at] == ",":
            at = _after_space(plain, at + 1)
    raise KeyError(wanted)


def _after_space(plain: str, at: int) -> int:
    found = _SPACE.match(plain, at)
    return at if found is None else found.end()
