"""The demands of two specifications on a gateway, line by line: those of ``lines.toml``."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

Level = Literal["MUST", "MUST NOT", "SHOULD", "MAY", "rule"]
"""As the specification writes it; `rule`: stated as a plain fact, without such a word."""


@dataclass(frozen=True, slots=True)
class ConformanceLine:
    """One thing that is required.

    Attributes:
        id: `A.G1`: part and number.
        level: How strongly.
        section: Where the specification says it; empty where neither does.
        requires: What, in short.
        note: What there is to know of how ours keeps it.
        differs: What ours does instead, and why; empty where it keeps the line.
        shown_by: Rules whose tests show it, where it is none itself.
    """

    id: str
    level: Level
    section: str
    requires: str
    note: str
    differs: str
    shown_by: tuple[str, ...]


def _line(name: str, said: dict[str, Any]) -> ConformanceLine:
    section, requires, note, differs = (
        str(said.get(field, "")) for field in ("section", "requires", "note", "differs")
    )
    shown_by = tuple(map(str, said.get("shown_by", ())))
    return ConformanceLine(name, said["level"], section, requires, note, differs, shown_by)


_SAID: Final = tomllib.loads(Path(__file__).with_name("lines.toml").read_text(encoding="utf-8"))

LINES: Final = tuple(_line(name, said) for name, said in _SAID.items())
A, C, E = (tuple(line for line in LINES if line.id[0] == part) for part in "ACE")

NOT_HERE: Final[dict[str, str]] = {}
"""Demands of the specifications that this gateway does not meet."""

REQUIRED: Final = {line.id: line.requires for line in LINES if not line.shown_by}
"""Those that have tests of their own."""
