"""Editing of arguments in the person's own editor, before they are approved."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from meup_agent.cli.arguments import read_json
from meup_agent.errors import system_reason
from meup_agent.protocol.shown_text import Mark, segments

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

MAX_EDITED: Final = 4 << 20
"""Bytes of a file that is read back: as many as a frame has."""


class EditRefused(Exception):
    """An edit that cannot be sent; its words are for the person."""


async def edited_arguments(
    edit: Callable[[str], Awaitable[str]], arguments: dict[str, Any]
) -> dict[str, Any]:
    """The arguments as a person has edited them.

    Raises:
        EditRefused: There is no editor, or what came back is no JSON object.
    """
    try:
        edited = read_json(await edit(as_text(arguments)))
    except ValueError as error:
        raise EditRefused(f"what you wrote is no JSON, so nothing was sent: {error}") from None
    if not isinstance(edited, dict):
        raise EditRefused("what you wrote is no JSON object, so nothing was sent")
    return cast("dict[str, Any]", edited)


def as_text(arguments: dict[str, Any]) -> str:
    """Arguments as JSON with indents; what does not print as itself stands as an escape of JSON."""
    written = json.dumps(arguments, indent=2, ensure_ascii=False)
    hidden = {ord(each): json.dumps(each)[1:-1] for each in set(written) - {"\n"} if _hides(each)}
    return written.translate(hidden) + "\n"


def _hides(character: str) -> bool:
    if not character.isprintable():
        return True
    marks = (each.mark for each in segments(character))
    return any(mark not in (None, Mark.LOOK_ALIKE) for mark in marks)


async def run_editor(text: str, suspended: Callable[[], AbstractContextManager[None]]) -> str:
    """The text after a person has edited it in the editor of their environment.

    The loop goes on meanwhile, so that the space is heard.

    Args:
        text: The text.
        suspended: Leaves the terminal to the editor.

    Raises:
        EditRefused: There is no editor, or it failed.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        command = shlex.split(editor)
    except ValueError as error:
        raise EditRefused(f"{editor!r} cannot be read ({error}); set EDITOR") from None
    # A folder of its own, which no other user reads: an editor leaves copies beside a file.
    with tempfile.TemporaryDirectory(prefix="meup-edit-", ignore_cleanup_errors=True) as folder:
        path = anyio.Path(folder, "arguments.json")
        await path.write_text(text, encoding="utf-8")
        with suspended():
            code = await _run([*command, str(path)], editor)
        if code:
            raise EditRefused(f"{editor} ended with {code}, so nothing was sent")
        try:
            if (await path.stat()).st_size > MAX_EDITED:
                raise EditRefused("what you wrote is too large, so nothing was sent")
            return await path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise EditRefused("what you wrote is no text in UTF-8, so nothing was sent") from None
        except OSError as error:
            raise EditRefused(
                f"what you wrote cannot be read ({system_reason(error)}), so nothing was sent"
            ) from None


async def _run(command: list[str], editor: str) -> int:
    try:
        async with await anyio.open_process(
            command, stdin=None, stdout=None, stderr=None
        ) as process:
            return await process.wait()
    except OSError as error:
        said = f"{editor} cannot be started ({system_reason(error)}); set EDITOR"
        raise EditRefused(said) from None
