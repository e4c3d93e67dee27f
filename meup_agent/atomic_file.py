"""Files that are written whole: a reader finds the old content or the new, never a part."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path


def write_new_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file that is not there yet, by default for its user alone.

    Raises:
        OSError: It cannot be written, or is there; where it was not there, it is not there after.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    number = os.open(path, flags, mode)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            # Else a file that is renamed over an older one may be empty after a loss of power.
            os.fsync(file.fileno())
    except OSError:
        # On a full disk an empty file would be left, which the next start could not use.
        path.unlink(missing_ok=True)
        raise


def replace_file(
    path: Path,
    content: bytes,
    mode: int = 0o600,
    check: Callable[[Path], object] = lambda _fresh: None,
) -> None:
    """Write a file in place of what is there, by default for its user alone.

    Args:
        path: The file; its folder is there.
        content: What it is to be.
        mode: Its permissions, less those that the process takes away by its umask.
        check: Called with the new file before it takes the name; what it raises stops that.

    Raises:
        OSError: It cannot be written; then it is as it was.
    """
    # A name that nobody can have taken before, as another user in a shared folder might.
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        write_new_file(fresh, content, mode)
        check(fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
