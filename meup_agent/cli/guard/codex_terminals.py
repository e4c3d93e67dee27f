"""The switch that keeps Codex from opening terminals, in its settings.

What Codex types into a terminal that it has opened (``write_stdin``) asks no hook: after a yes to
``sh`` any command runs. Without terminals a command's input is closed as it starts. The switch goes
into the table ``features``, which is the user's where there is one, so it is a marked line of it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from meup_agent.cli.guard.toml_text import comments_in, lines_in_strings, read_toml
from meup_agent.errors import ConfigurationError
from meup_agent.protocol.wire.payloads import as_object

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
