"""A person who has typed `meup guard`, and says yes to Claude Code's call in a browser."""

import json
import os
import signal
import socket
from pathlib import Path
from subprocess import DEVNULL

import anyio
import pytest
from playwright.async_api import Browser, expect

from meup_agent.doors.model_api import ModelApi
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.cli.guard.homes import Home
from tests.console_browser.conftest import chromium as chromium
from tests.console_browser.conftest import settled
from tests.console_browser.pictures import picture
from tests.doors.hosts.programs import CLAUDE
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio


async def test_one_key_in_the_console_runs_the_call(chromium: Browser, tmp_path: Path) -> None:
    home, mark, work = Home(tmp_path / "home"), tmp_path / "mark", tmp_path / "work"
    work.mkdir()
    home.program("claude", f'exec {CLAUDE} "$@"')
    home.write(".claude/settings.json", "{}")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
    done = home.guard("claude-code", "--port", port)
    assert done.returncode == 0, done
    [lock] = (home.state / "up").glob("*.lock")
    owner = json.loads(lock.read_text())
    token = await anyio.Path(owner["token_files"]["you"]).read_text()
    asked = {"command": f"touch {mark} && echo 'one word' | wc -c", "description": "Leave a mark"}
    page = await chromium.new_page(viewport={"width": 1280, "height": 900})
    try:
        with anyio.fail_after(2 * PATIENCE), ModelApi("Bash", asked) as api:
            env = {
                "PATH": os.environ["PATH"],
                "HOME": str(home.path),
                "ANTHROPIC_BASE_URL": api.url,
                "ANTHROPIC_API_KEY": "none",
                "DISABLE_TELEMETRY": "1",
                "DISABLE_AUTOUPDATER": "1",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            }
            command = [str(CLAUDE), "-p", "go", "--allowedTools", "Bash"]
            async with await anyio.open_process(
                command, env=env, cwd=work, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
            ) as claude:
                await page.goto(f"http://127.0.0.1:{port}/console/sign-in")
                await page.fill("#token", token.strip())
                await page.press("#token", "Enter")
                await page.wait_for_url("**/inbox")
                await expect(page.locator("#call")).to_contain_text(asked["command"])
                await settled(page)
                await picture(page, "guarded-call")
                lead = page.locator(".lead")
                await expect(lead).to_contain_text(f"wants to run this itself, in {work}.")
                await expect(lead).to_contain_text("its session ")
                assert not mark.exists()
                await page.keyboard.press("a")
                await expect(page.locator("main")).to_contain_text("runs Bash itself now")
                await picture(page, "guarded-call-approved")
                assert await claude.wait() == 0
        assert mark.exists()
    finally:
        await page.close()
        os.kill(owner["process"], signal.SIGTERM)
