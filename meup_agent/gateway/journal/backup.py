"""A backup: a consistent copy of a journal's file, while its gateway writes it."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.archive import Archive
from meup_agent.gateway.journal.database import error_text


def back_up(journal: Path, target: Path) -> int:
    """Copy a journal into a new file, readable for its owner alone; the number of its entries.

    The copy is whole when it has its name: it is made beside, looked through, and only then named.

    Raises:
        ConfigurationError: The journal is damaged or cannot be read, or the copy cannot be made
            there.
    """
    with closing(Archive(journal)) as archive:
        try:
            if os.path.lexists(target):
                raise FileExistsError
            descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
            os.close(descriptor)
            try:
                with closing(sqlite3.connect(name, isolation_level=None)) as copy:
                    archive.copy_to(copy)
                    # Without a WAL, so that a reader need not write a second file beside it.
                    copy.execute("PRAGMA journal_mode = DELETE")
                    count = archive.check_copy(copy)
                _name(Path(name), target)
            finally:
                for ending in ("", "-journal"):
                    with suppress(FileNotFoundError):
                        os.unlink(f"{name}{ending}")
        except FileExistsError:
            raise ConfigurationError(f"{target} is there already; give a new name") from None
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(
                f"the journal {journal} cannot be copied to {target}: {error_text(error)}"
            ) from None
    return count


def _name(whole: Path, target: Path) -> None:
    """Give a file its name, which is no other's, for good."""
    try:
        os.link(whole, target)
    except FileExistsError:
        raise
    except OSError:
        # A file system without links.
        if os.path.lexists(target):
            raise FileExistsError from None
        os.rename(whole, target)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
