"""Files that a server's calls write, read for who decides about such a call.

In: the call, and the folders that were declared as roots. Out: the difference of the file, as it is
now, from what the call would make of it. Nothing is read outside the roots, and nothing is written.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from difflib import SequenceMatcher
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from meup_agent.client.file_difference import (
    MAX_LINE_CHARS,
    MAX_LINES,
    MAX_PATH_CHARS,
    FileDifference,
    TextEdit,
    WrittenFile,
)
from meup_agent.errors import system_reason

MAX_READ_BYTES: Final = 1_048_576
"""Bytes of a file that is compared, and of what a call makes of it."""

MAX_COMPARED_LINES: Final = 400
"""Lines, before and after, whose places are looked for; of more, between the first and the last
that differ, all are shown as gone, and the new ones below."""

MAX_EDITS: Final = 100
"""Edits of one call that are tried: each looks through the whole file."""

CONTEXT_LINES: Final = 3
"""Lines that are shown beside a difference."""

NO_END: Final = "\\ no line end here"
"""Line below one with which a file ends, and that has no line end."""


class UnreadableFile(Exception):
    """A file is not read; the text says why, to who asks."""


def folder_of(uri: str) -> Path | None:
    """The folder of a root, its links resolved; ``None``: it is none on this machine."""
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    return Path(os.path.realpath(url2pathname(parts.path)))


def difference_of(written: WrittenFile, roots: Sequence[Path]) -> FileDifference:
    """The difference that a call would make; it blocks, and takes a second at most on a local disk.

    Args:
        written: The file and what is written, by the call's arguments.
        roots: The folders below which files may be read, their links resolved.
    """
    if written.doubt:
        return FileDifference(
            said=f"It is not known what this call makes of a file: {written.doubt}."
        )
    read_at = datetime.now(UTC).isoformat(timespec="seconds")
    shown_path = ""
    try:
        root, path = _place(written.path, roots)
        # A link may lead to a name that is no UTF-8.
        shown_path = path.encode(errors="backslashreplace").decode()
        before = _read(root, path)
        after, said = _after(written, before)
    except UnreadableFile as error:
        return FileDifference(shown_path, str(error), read_at=read_at)
    if before is None:
        said = "The file is not there; the call would make it."
    elif after == before:
        said = "The file has this text already."
    lines = list(_lines(before or "", after))
    shown = tuple(
        each[:MAX_LINE_CHARS] + ("…" if len(each) > MAX_LINE_CHARS else "")
        for each in lines[:MAX_LINES]
    )
    return FileDifference(shown_path, said, shown, max(len(lines) - MAX_LINES, 0), read_at)


# --- reading ---


def _place(given: str, roots: Sequence[Path]) -> tuple[Path, str]:
    """The root that a file is below, and the file, its links resolved.

    Raises:
        UnreadableFile: It is below none.
    """
    if "\0" in given or len(given) > MAX_PATH_CHARS:
        raise UnreadableFile("Its path can be no file's.")
    if not os.path.isabs(given):
        raise UnreadableFile("Its path is relative, and it is not known to which folder.")
    path = os.path.realpath(given)
    for root in roots:
        if Path(path).is_relative_to(root) and Path(path) != root:
            return root, path
    raise UnreadableFile("The file is below no folder that was declared with --root.")


def _read(root: Path, path: str) -> str | None:
    """The text of a file below a root; ``None``: it is not there.

    Raises:
        UnreadableFile: It says why.
    """
    try:
        descriptor = _open(root, Path(path).relative_to(root).parts)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UnreadableFile("Its path has changed while it was read; look again.") from None
        raise UnreadableFile(f"It cannot be read: {system_reason(error)}.") from None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise UnreadableFile("It is no regular file.")
        if facts.st_size > MAX_READ_BYTES:
            raise UnreadableFile(
                f"It has {facts.st_size:,} bytes; at most {MAX_READ_BYTES:,} are compared."
            )
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_READ_BYTES + 1)
    except OSError as error:
        raise UnreadableFile(f"It cannot be read: {system_reason(error)}.") from None
    finally:
        os.close(descriptor)
    if len(content) > MAX_READ_BYTES:
        raise UnreadableFile(
            f"It has grown beyond {MAX_READ_BYTES:,} bytes; that many are compared."
        )
    with suppress(UnicodeDecodeError):
        if b"\0" not in content:
            return content.decode()
    raise UnreadableFile(f"It is binary: {len(content):,} bytes that are no text in UTF-8.")


def _open(root: Path, parts: Sequence[str]) -> int:
    """A descriptor of a file below a root, of whose path no part is a link.

    By its parts: the path was resolved before, and another program may put a link there meanwhile.
    """
    # A pipe without a writer would hold an opener up.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    folder = os.open(root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    for part in parts[:-1]:
        try:
            below = os.open(part, flags | os.O_DIRECTORY, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    try:
        return os.open(parts[-1], flags, dir_fd=folder)
    finally:
        os.close(folder)


# --- comparing ---


def _after(written: WrittenFile, before: str | None) -> tuple[str, str]:
    """The text of a file after a call, and what is to be said of it.

    Raises:
        UnreadableFile: It is not known.
    """
    text = written.text
    if text is None:
        if before is None:
            raise UnreadableFile("The file is not there, so there is no text in it to be replaced.")
        if len(written.edits) > MAX_EDITS:
            raise UnreadableFile(f"It makes {len(written.edits):,} edits; {MAX_EDITS} are tried.")
        text = before
        for number, edit in enumerate(written.edits, 1):
            text = _edited(text, edit, number)
    if len(text) > MAX_READ_BYTES:
        raise UnreadableFile(
            f"It would have {len(text):,} characters; at most {MAX_READ_BYTES:,} are compared."
        )
    return text, ""


def _edited(text: str, edit: TextEdit, number: int) -> str:
    found = text.count(edit.old) if edit.old else 0
    if not found:
        raise UnreadableFile(
            f"The text that edit {number} replaces is not in the file; the call may fail, or"
            " replace a text that is like it."
        )
    if found > 1 and not edit.everywhere:
        raise UnreadableFile(
            f"The text that edit {number} replaces stands {found:,} times in the file; which one is"
            " meant is not known."
        )
    if len(text) + found * (len(edit.new) - len(edit.old)) > MAX_READ_BYTES:
        raise UnreadableFile(f"It would have more than {MAX_READ_BYTES:,} characters.")
    return text.replace(edit.old, edit.new)


def _lines(before: str, after: str) -> Iterator[str]:
    """The lines of the difference of two texts, with those beside it."""
    old, new = _split(before), _split(after)
    # What is the same at both ends is not looked through for its place.
    most = min(len(old), len(new))
    head = next((at for at in range(most) if old[at] != new[at]), most)
    tail = next((at for at in range(most - head) if old[-1 - at] != new[-1 - at]), most - head)
    begin = max(head - CONTEXT_LINES, 0)
    end = max(tail - CONTEXT_LINES, 0)
    old, new = old[begin : len(old) - end], new[begin : len(new) - end]
    if old == new:
        return
    if max(len(old), len(new)) > MAX_COMPARED_LINES:
        kept, rest = head - begin, tail - end
        groups = [
            [
                ("equal", 0, kept, 0, kept),
                ("replace", kept, len(old) - rest, kept, len(new) - rest),
                ("equal", len(old) - rest, len(old), len(new) - rest, len(new)),
            ]
        ]
    else:
        matcher = SequenceMatcher(None, old, new, autojunk=False)
        groups = [*matcher.get_grouped_opcodes(CONTEXT_LINES)]
    for group in groups:
        yield f"@ line {begin + group[0][1] + 1}"
        for what, low, high, new_low, new_high in group:
            if what == "equal":
                yield from _marked(" ", old[low:high])
            else:
                yield from _marked("-", old[low:high])
                yield from _marked("+", new[new_low:new_high])


def _split(text: str) -> list[str]:
    """The lines of a text with their ends; nothing else that a terminal may break ends one."""
    *lines, last = text.split("\n")
    return [f"{each}\n" for each in lines] + ([last] if last else [])


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for each in lines:
        yield mark + each.removesuffix("\n")
        if not each.endswith("\n"):
            yield NO_END
