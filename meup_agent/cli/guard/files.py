"""Settings files of other programs, in JSON and TOML: read, compared, and replaced whole."""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from meup_agent.atomic_file import replace_file
from meup_agent.errors import ConfigurationError, explain_os_error, system_reason
from meup_agent.mcp.bridge.config import strict_json

MAX_SETTINGS_BYTES: Final = 4 << 20
"""Bytes of a settings file: some keep a history in it."""

NEW_MODE: Final = 0o600
BACKUP_SUFFIX: Final = ".before-meup"
"""Ending of the name of what a file was before the first change, which is never replaced."""
LAST_SUFFIX: Final = ".before-meup-last"
"""Ending of the name of what it was before the last change, where that was not the first."""

_INDENT: Final = re.compile(r"\A\s*\{\s*\n([ \t]+)")


class FileChange(NamedTuple):
    """A change of one file.

    Attributes:
        path: The file.
        before: What it is; ``None``: it is not there.
        after: What it is to be; empty: it is taken away.
    """

    path: Path
    before: str | None
    after: str

    @property
    def is_needed(self) -> bool:
        """False where it is so already."""
        return self.after != (self.before or "")

    def lines(self) -> Sequence[str]:
        """The difference, as ``diff -u`` has it."""
        before, after = (self.before or "").splitlines(), self.after.splitlines()
        name = str(self.path)
        return [*difflib.unified_diff(before, after, name, name, lineterm="", n=2)]


def read_settings(path: Path) -> str | None:
    """The text of a settings file; ``None``: it is not there.

    Raises:
        ConfigurationError: It is a link or no file, cannot be read, or is not text.
    """
    try:
        # Non-blocking: a named pipe in place of the file would be waited for.
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP or path.is_symlink():
            raise ConfigurationError(
                f"{path} is a symbolic link, and what it leads to is not ours to change; put a file"
                " there, or add the hook to the other file yourself (--dry-run shows it)"
            ) from None
        if isinstance(error, FileNotFoundError):
            return None
        raise ConfigurationError(f"{path} cannot be read ({system_reason(error)})") from None
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise ConfigurationError(f"{path} is not a file, so it is left as it is")
    with os.fdopen(opened, "rb") as file:
        content = file.read(MAX_SETTINGS_BYTES + 1)
    if len(content) > MAX_SETTINGS_BYTES:
        raise ConfigurationError(f"{path} is larger than {MAX_SETTINGS_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not UTF-8, so it is left as it is") from None


def write_change(change: FileChange, *, keeps: bool = True) -> Path | None:
    """Write a file, with what it was beside it (``keeps``); the path of that.

    Beside a file that is taken away is nothing new: all of it was ours.

    A folder on the way may be a link, as managers of dotfiles have it: its program reads it there.

    Raises:
        ConfigurationError: It cannot be written, or is not as it was read.
    """
    path, backup = change.path, None
    with explain_os_error(f"{path} cannot be written"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = NEW_MODE if change.before is None else stat.S_IMODE(os.lstat(path).st_mode)
        if keeps and change.before is not None and change.after:
            backup = path.with_name(path.name + BACKUP_SUFFIX)
            if os.path.lexists(backup):
                backup = path.with_name(path.name + LAST_SUFFIX)
            _replace(backup, change.before, NEW_MODE, None)
        if change.after:
            _replace(path, change.after, mode, change)
        elif change.before is not None:
            _check_unchanged(change)
            path.unlink()
    return backup


def remove_copies(path: Path) -> list[Path]:
    """Remove the copies beside a file that have what it has; those that stay.

    Raises:
        ConfigurationError: The file or a copy cannot be read, or a copy cannot be removed.
    """
    stay = list[Path]()
    for suffix in (BACKUP_SUFFIX, LAST_SUFFIX):
        copy = path.with_name(path.name + suffix)
        if not os.path.lexists(copy):
            continue
        if copy.is_file() and read_settings(copy) == read_settings(path):
            with explain_os_error(f"{copy} cannot be removed"):
                copy.unlink()
        else:
            stay.append(copy)
    return stay


def _check_unchanged(change: FileChange) -> None:
    if read_settings(change.path) != change.before:
        raise ConfigurationError(
            f"{change.path} was changed by another program meanwhile, so it is left; run it again"
        )


def _replace(path: Path, text: str, mode: int, change: FileChange | None) -> None:
    def check(fresh: Path) -> None:
        fresh.chmod(mode)
        if change is not None:
            _check_unchanged(change)

    replace_file(path, text.encode(), check=check)


def read_json(text: str | None, path: Path) -> dict[str, Any]:
    """The object in a settings file; empty where there is none.

    Raises:
        ConfigurationError: It is not one, or has a key twice.
    """
    if text is None or not text.strip():
        return {}
    try:
        found: object = json.loads(text, object_pairs_hook=_object_of)
    except (ValueError, RecursionError) as error:
        why = str(error).partition("\n")[0]
        raise ConfigurationError(f"{path} is not JSON ({why}), so it is left as it is") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path} is not a JSON object, so it is left as it is")
    return cast("dict[str, Any]", found)


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands in it twice")
    return found


def write_json(document: dict[str, Any], like: str | None) -> str:
    """The text of a settings file, indented as another one."""
    found = _INDENT.match(like or "")
    indent = found[1] if found else "  "
    return json.dumps(document, indent=indent, ensure_ascii=False) + "\n"


def read_document(text: str, path: Path) -> dict[str, Any]:
    """The document in a settings file, which is TOML or JSON by its name; empty: there is none."""
    return read_toml(text, path) if path.suffix == ".toml" else read_json(text, path)


# --- JSON with comments ---
# As editors have it: read, and one value of it replaced where it stands.

_SPACE: Final = re.compile(r"\s*")


def read_commented(text: str, path: Path) -> dict[str, Any]:
    """The object in a file that may have comments and commas at the end of its lists.

    Raises:
        ConfigurationError: It is none, or has a key twice.
    """
    return read_json(strict_json(text), path)


def replace_value(text: str, keys: Sequence[str], value: object) -> str:
    """A text with another value at some keys, each of an object within the one before.

    All else stays as it is, comments included.

    Raises:
        KeyError: There is no such key.
    """
    plain = strict_json(text)
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


# --- TOML as text ---
# Where its comments stand, and not what only looks like one within a string.

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
