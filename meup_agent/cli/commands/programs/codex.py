"""``meup codex``: Codex in its terminal, with its approvals decided in a space."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import anyio

from meup_agent.cli.address import Address, SpaceOptions
from meup_agent.cli.options import To, argument, seconds, ttl_option
from meup_agent.cli.render.logs import log_to_stderr
from meup_agent.cli.signals import ENDING, run_until_signal
from meup_agent.cli.up.autostart import start_if_absent
from meup_agent.errors import CannotConnect, ConfigurationError
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from meup_agent.doors.joining import JoiningDoor

CODEX = "codex"


def codex(
    arguments: Annotated[
        list[str] | None, argument("[-- ARGUMENTS…]", "Arguments for Codex, behind `--`.")
    ] = None,
    *,
    at: SpaceOptions,
    to: To = None,
    ttl: Annotated[float | None, ttl_option("--ttl")] = None,
) -> None:
    """Run Codex in this terminal, and let a space decide what it asks approval for.

    What Codex wants to run outside of its sandbox, the files that it wants changed and the
    permissions that it wants are proposed in the space, and can be answered in the terminal, too:
    the first answer counts. What its own sandbox and rules let it do is not asked about.

    Example: `meup codex`

    Example: `meup codex --ttl 600 -- --sandbox read-only`
    """
    if sys.platform == "win32":
        raise ConfigurationError("meup codex runs on Linux and macOS; here, run it in WSL")
    log_to_stderr("error")  # a terminal is drawn
    where = at.address()
    if shutil.which(CODEX) is None:
        raise CannotConnect("there is no command 'codex'; install it: npm install -g @openai/codex")
    start_if_absent(where.url)
    from meup_agent.doors.joining import JoiningDoor

    door = JoiningDoor(
        "meup-codex", ttl="space" if ttl is None else seconds(ttl, "--ttl"), to=to or ()
    )
    # Ctrl-C is the terminal's: Codex reads it as a key.
    numbers = [each for each in ENDING if each != signal.SIGINT]
    run_until_signal(lambda _: _run(arguments or [], where, door), numbers)


async def _run(arguments: list[str], where: Address, door: JoiningDoor) -> int:
    from meup_agent.doors.codex import CodexClient
    from meup_agent.doors.codex_server import app_server

    # The token is ours: with it the agent could take part by itself.
    environment = {name: value for name, value in os.environ.items() if name != "MEUP_TOKEN"}
    async with app_server(CODEX, environment) as server, background_tasks() as tasks:
        tasks.start_soon(partial(door.stay, where.url, **where.identity))
        client = CodexClient(door.ask, server.send, door.report)
        tasks.start_soon(client.run, server.messages())
        command = (CODEX, "--remote", server.address, *arguments)
        async with await anyio.open_process(
            command, stdin=None, stdout=None, stderr=None, env=environment
        ) as terminal:
            return await terminal.wait()
