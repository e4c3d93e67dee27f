"""Claude Code without a terminal, which is sent away while its call waits, and resumed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from meup_agent.doors.model_api import ModelApi
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.doors.hooked import Hooked, hooked, proposed
from tests.doors.hosts.cases import DEFERRED_CASES, Case
from tests.doors.hosts.check_doors import decided
from tests.doors.hosts.check_terminal import claude as claude_at_terminal
from tests.doors.hosts.programs import CLAUDE
from tests.interaction.people import until
from tests.patience import PATIENCE
from tests.programs import ROOT

pytestmark = pytest.mark.anyio


def hook(at: Hooked, after: float, ttl: float = 500) -> dict[str, Any]:
    program = f"{sys.executable} -c 'from meup_agent.doors.hook_client import main; main()'"
    waits = f"--timeout 600 --ttl {ttl:g} --defer-after {after:g}"
    command = f"{program} claude-code --url {at.url} {waits}"
    return {"type": "command", "command": command, "timeout": 600, "onFailure": "block"}


class Runs:
    """Runs of Claude Code in one session."""

    def __init__(self, at: Hooked, home: Path, api: str) -> None:
        self._at = at
        self._home = home
        self.session = ""
        self._env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(home),
            "MEUP_TOKEN": at.tokens["coder"],
            "ANTHROPIC_BASE_URL": api,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CONFIG_DIR": str(home / "claude"),
            "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    async def run(self, after: float) -> dict[str, Any]:
        """Start it, or resume it; its last word."""
        given = hook(self._at, after)
        hooks: dict[str, Any] = {
            each: [{"matcher": "*", "hooks": [given]}] for each in ("PreToolUse", "PostToolUse")
        }
        hooks |= {each: [{"hooks": [given]}] for each in ("Stop", "SessionEnd")}
        file = self._home / "settings.json"
        settings = json.dumps({"permissions": {"allow": ["Bash"]}, "hooks": hooks})
        if not file.exists() or file.read_text() != settings:  # another run may be reading it
            file.write_text(settings)
        words = ["--resume", self.session] if self.session else ["go"]
        command = [str(CLAUDE), "-p", "--settings", str(file), "--output-format", "json", *words]
        # In a group of its own, and to its end.
        done = await to_thread.run_sync(
            lambda: subprocess.run(
                command,
                env=self._env,
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PATIENCE,
                start_new_session=True,
                check=True,
            )
        )
        said: dict[str, Any] = json.loads(done.stdout)
        self.session = said["session_id"]
        return said


LATER = 300.0
"""Seconds after which one that is resumed would be sent away: it hears the decision before."""

DECIDED = {
    "resumed after a yes": "allow",
    "resumed twice at once": "allow",
    "gateway restarted after a yes, then resumed": "allow",
    "never resumed": "allow",
    "resumed after an edit": "edit",
    "resumed after a no": "deny",
}


async def decide(case: Case, at: Hooked, mark: Path) -> None:
    proposal = at.space.proposals.get(at.space.proposals[0])
    match DECIDED.get(case.what):
        case "allow":
            await proposal.fulfill()
        case "edit":
            await proposal.fulfill({**proposal.arguments, "command": f"echo 1 >> {mark}.edited"})
        case "deny":
            await proposal.reject("unsafe", explain="not on Fridays")
        case _:
            pass


def lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.parametrize("case", DEFERRED_CASES, ids=lambda case: case.what)
async def test_it_does_what_the_page_says(case: Case, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    edited = tmp_path / "mark.edited"
    asked = {"command": f"echo 1 >> {mark}", "description": "leave a mark"}
    with anyio.fail_after(3 * PATIENCE), ModelApi("Bash", asked) as api:
        async with hooked(journal=tmp_path / "journal.db") as at:
            if case.what == "at a terminal":
                given = hook(at, 0.01, ttl=2)
                async with claude_at_terminal(at, tmp_path, api.url, "default", given):
                    assert await decided(at) == case.recorded
                    await until(lambda: case.told in " ".join(api.results))
                    assert not mark.exists()
                return
            runs = Runs(at, tmp_path, api.url)
            said = await runs.run(0.01)
            assert said["stop_reason"] == "tool_deferred"
            assert said["deferred_tool_use"]["input"] == asked
            await proposed(at.space)
            await decide(case, at, mark)
            match case.what:
                case "resumed twice at once":
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(runs.run, LATER)
                        tasks.start_soon(runs.run, LATER)
                case "gateway restarted, then resumed":
                    await at.restart()
                    assert (await runs.run(0.01))["stop_reason"] == "tool_deferred"
                    await until(lambda: len(at.space.proposals) > 0)
                case "gateway restarted after a yes, then resumed":
                    await at.restart()
                    assert (await runs.run(LATER))["stop_reason"] == "end_turn"
                case "resumed too early":
                    assert (await runs.run(0.01))["stop_reason"] == "tool_deferred"
                case "never resumed":
                    pass
                case _:
                    assert (await runs.run(LATER))["stop_reason"] == "end_turn"
            assert lines(mark) + lines(edited) == int(case.ran)
            assert edited.exists() is (case.what == "resumed after an edit")
            assert case.told in " ".join(api.results)
            if case.recorded in ("pending", "permitted"):
                await until(lambda: at.space.proposals[0].state == case.recorded)
            else:
                assert await decided(at) == case.recorded
            # Of before a restart the session that decides has seen none.
            assert len(at.space.proposals) == int("restarted after" not in case.what)
