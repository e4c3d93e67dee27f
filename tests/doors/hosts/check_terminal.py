"""Claude Code at a terminal of its own: its dialog and the space are asked, the first counts."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import termios
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent.doors.model_api import ModelApi
from meup_agent.doors.terminal_race import ANSWERED_THERE
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.doors.hooked import Hooked, hooked, proposed
from tests.doors.hosts.cases import TERMINAL_CASES, Case
from tests.doors.hosts.check_doors import decided
from tests.doors.hosts.programs import CLAUDE
from tests.interaction.people import until
from tests.patience import PATIENCE, patient

pytestmark = pytest.mark.anyio

KEY = "none-0123456789012345678901234567890"
"""No key of anybody's: the model is ours."""

EXPIRED_SECONDS = 8.0
"""Wait of a call that no participant decides; most often its dialog opens within it."""

PRESS_SECONDS = 0.5
"""Between two presses of a key, as a person would."""

_CONTROLS = re.compile(r"\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b[\]P][^\x07\x1b]*(\x07|\x1b\\)|\s")


class Terminal:
    """A terminal with Claude Code in it."""

    def __init__(self, command: list[str], env: dict[str, str], folder: Path) -> None:
        self._fd, inside = pty.openpty()
        termios.tcsetwinsize(inside, (40, 120))
        self._process = subprocess.Popen(
            command,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            cwd=folder,
            env=env,
            start_new_session=True,
        )
        os.close(inside)
        self._said = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while more := os.read(self._fd, 65_536):
                self._said += more
        except OSError:
            pass  # it has ended

    @property
    def text(self) -> str:
        """The text that it has shown, without blanks."""
        return _CONTROLS.sub("", self._said.decode(errors="replace"))

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def press(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def kill(self) -> None:
        """Kill its program alone."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        # With all of its group: what it has started holds the terminal, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(PATIENCE)
        os.close(self._fd)


async def press(terminal: Terminal, key: bytes, is_taken: Callable[[], bool]) -> None:
    """Press a key until it is taken: a question that has just come takes none."""
    while not is_taken():
        terminal.press(key)
        with anyio.move_on_after(PRESS_SECONDS):
            await until(is_taken)


@asynccontextmanager
async def claude(
    at: Hooked, home: Path, api: str, mode: str, given: dict[str, Any] | None = None, more: str = ""
) -> AsyncGenerator[Terminal]:
    """Claude Code in a terminal, set up as the how-to says, in one of its permission modes."""
    hook = given or {
        "type": "http",
        "url": f"{at.url}/hooks/claude-code?timeout=60&prefer=terminal{more}",
        "headers": {"Authorization": "Bearer $MEUP_TOKEN"},
        "allowedEnvVars": ["MEUP_TOKEN"],
        "timeout": 60,
        "onFailure": "block",
    }
    events = ("PreToolUse", "PermissionRequest", "PostToolUse", "PostToolUseFailure")
    hooks = {each: [{"matcher": "*", "hooks": [hook]}] for each in events}
    hooks |= {each: [{"hooks": [hook]}] for each in ("Stop", "SessionEnd")}
    file, folder, config = home / "settings.json", home / "project", home / "claude"
    file.write_text(json.dumps({"permissions": {"allow": ["Bash"]}, "hooks": hooks}))
    folder.mkdir()
    config.mkdir()
    known = {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
        "projects": {str(folder): {"hasTrustDialogAccepted": True}},
    }
    (config / ".claude.json").write_text(json.dumps(known))
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TERM": "xterm-256color",
        "COLUMNS": "120",
        "LINES": "40",
        "MEUP_TOKEN": at.tokens["coder"],
        "ANTHROPIC_BASE_URL": api,
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CONFIG_DIR": str(config),
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    command = [str(CLAUDE), "--settings", str(file), "--permission-mode", mode, "go"]
    with closing(Terminal(command, env, folder)) as terminal:
        yield terminal


@pytest.mark.parametrize("mode", ["default", "auto"])
@pytest.mark.parametrize("case", TERMINAL_CASES, ids=lambda case: case.what)
async def test_the_first_answer_counts(case: Case, mode: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    asked = {"command": f"touch {mark}", "description": "leave a mark"}
    with (
        patient("meup_agent.doors.terminal_race.UNHEARD_SECONDS"),
        anyio.fail_after(2 * PATIENCE),
        ModelApi("Bash", asked) as api,
    ):
        ttl = f"&ttl={EXPIRED_SECONDS:g}" if case.what == "time-out" else ""
        async with hooked() as at, claude(at, tmp_path, api.url, mode, more=ttl) as terminal:
            await proposed(at.space)
            await until(lambda: "Doyouwanttoproceed" in terminal.text)
            proposal = at.space.proposals.get(at.space.proposals[0])
            match case.what:
                case "allow":
                    await proposal.fulfill()
                case "deny":
                    await proposal.reject("unsafe", explain="not on Fridays")
                case "edit":
                    command = f"touch {mark}.edited"
                    await proposal.fulfill({**proposal.arguments, "command": command})
                case "time-out":
                    assert await decided(at) == case.recorded
                    assert not mark.exists()
                    # It has not been answered: a yes there is one.
                    await press(terminal, b"1", mark.exists)
                    return
                case _:
                    key = b"1" if case.what == "yes at the terminal" else b"\x1b"
                    await press(terminal, key, lambda: not at.space.proposals[0].state.is_pending)
            assert await decided(at) == case.recorded
            if case.told:
                await until(lambda: case.told in " ".join(api.results))
            edited = mark.with_suffix(".edited").exists()
            assert (mark.exists() or edited, edited) == (case.ran, case.what == "edit")
            if case.what == "yes at the terminal":
                assert at.space.proposals[0].reason == ANSWERED_THERE
            assert len(at.space.proposals) == 1
