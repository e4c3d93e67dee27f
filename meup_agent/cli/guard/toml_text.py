"""TOML as text: where its comments stand, and not what only looks like one within a string."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from meup_agent.errors import ConfigurationError

_TOKEN: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*",
    re.DOTALL,
)


def comments_in(text: str) -> Iterator[tuple[int, str]]:
    """Each comment of a document that can be read, with the place at which it begins."""
    for found in _TOKEN.finditer(text):
        if found[0].startswith("#"):
            yield found.start(), found[0]


def lines_in_strings(text: str) -> set[int]:
    """The places at which those lines begin whose begin is within a string."""
    return {
        found.start() + place + 1
        for found in _TOKEN.finditer(text)
        for place, each in enumerate(found[0])
        if each == "\n"
    }


def read_toml(text: str, path: Path) -> dict[str, Any]:
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
