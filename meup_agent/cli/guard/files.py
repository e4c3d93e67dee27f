"""Settings files of other programs: read, compared, and replaced whole."""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from meup_agent.errors import ConfigurationError, system_reason

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
    except FileNotFoundError:
        if path.is_symlink():
            raise _is_link(path) from None
        return None
    except OSError as error:
        if error.errno == errno.ELOOP or path.is_symlink():
            raise _is_link(path) from None
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


def _is_link(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is a symbolic link, and what it leads to is not ours to change; put a file there,"
        " or add the hook to the other file yourself (--dry-run shows it)"
    )


def write_change(change: FileChange) -> Path | None:
    """Write a file, with what it was beside it; the path of that.

    Beside a file that is taken away is nothing new: all of it was ours.

    A folder on the way may be a link, as managers of dotfiles have it: its program reads it there.

    Raises:
        ConfigurationError: It cannot be written, or is not as it was read.
    """
    path, backup = change.path, None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = NEW_MODE if change.before is None else stat.S_IMODE(os.lstat(path).st_mode)
        if change.before is not None and change.after:
            backup = path.with_name(path.name + BACKUP_SUFFIX)
            if os.path.lexists(backup):
                backup = path.with_name(path.name + LAST_SUFFIX)
            _replace(backup, change.before, NEW_MODE, None)
        if change.after:
            _replace(path, change.after, mode, change)
        elif change.before is not None:
            _check_unchanged(change)
            path.unlink()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written ({system_reason(error)})") from None
    return backup


def _check_unchanged(change: FileChange) -> None:
    if read_settings(change.path) != change.before:
        raise ConfigurationError(
            f"{change.path} was changed by another program meanwhile, so it is left; run it again"
        )


def _replace(path: Path, text: str, mode: int, change: FileChange | None) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(temporary, flags, NEW_MODE), "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        if change is not None:
            _check_unchanged(change)
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


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
