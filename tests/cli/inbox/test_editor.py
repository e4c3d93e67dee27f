"""The person's own editor: what comes back, and each way in which nothing does."""

import os
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from meup_agent.cli.render.screen import edited_arguments, run_editor
from tests.cli.commands import EditRefused
from tests.patience import PATIENCE, wait_until


class Terminal:
    """The owner of the terminal: the screen or the editor."""

    def __init__(self) -> None:
        self.is_lent = False
        self.times = 0

    @contextmanager
    def lent(self) -> Generator[None]:
        self.is_lent, self.times = True, self.times + 1
        try:
            yield
        finally:
            self.is_lent = False


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, which the editor's must be gone from."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.delenv("VISUAL", raising=False)
    return folder


def editor(tmp_path: Path, script: str) -> str:
    path = tmp_path / "an editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"'{path}' --wait"


def left_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def edit(text: str) -> tuple[str, Terminal]:
    terminal = Terminal()
    with anyio.fail_after(PATIENCE):
        try:
            return await run_editor(text, terminal.lent), terminal
        finally:
            assert not terminal.is_lent


async def test_what_was_written_comes_back(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'test "$1" = --wait && stat -c %a "$(dirname "$2")" > mode && sed -i s/a.md/b.md/ "$2"'
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDITOR", editor(tmp_path, script))
    arguments = await edited_arguments(lambda text: _text(text), {"path": "a.md"})
    assert arguments == {"path": "b.md"}
    # The arguments may be secret: no other user reads the file.
    assert (tmp_path / "mode").read_text() == "700\n"
    assert left_in(files) == []


async def _text(text: str) -> str:
    return (await edit(text))[0]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", "ended with 3, so nothing was sent"),
        ("kill -9 $$", "ended with -9, so nothing was sent"),
        ('printf "\\377" > "$2"', "not text in UTF-8"),
        ('dd if=/dev/zero of="$2" bs=1M count=5 2> /dev/null', "too large"),
        ('rm "$2"', "cannot be read .no such file"),
    ],
    ids=["fails", "killed", "no text", "large", "removed"],
)
async def test_an_editor_that_fails_sends_nothing(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setenv("EDITOR", editor(tmp_path, script))
    with pytest.raises(EditRefused, match=said):
        await edit("{}")
    assert left_in(files) == []


@pytest.mark.parametrize(
    ("command", "said"), [("no-such-editor -w", "cannot be started"), ("vi 'x", "cannot be read")]
)
async def test_an_editor_that_is_not_there_is_told(
    files: Path, monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    monkeypatch.setenv("VISUAL", command)
    monkeypatch.setenv("EDITOR", "true")
    with pytest.raises(EditRefused, match=said):
        await edit("{}")
    assert left_in(files) == []
    assert os.environ["VISUAL"] == command


async def test_giving_up_ends(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", editor(tmp_path, f"echo $$ > '{tmp_path}/pid'; exec sleep 1000"))
    pid = tmp_path / "pid"
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(edit, "{}")
            await wait_until(lambda: pid.exists() and pid.read_text())
            tasks.cancel_scope.cancel()
    assert left_in(files) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
