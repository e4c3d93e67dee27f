"""``meup acp``: an agent of an editor, behind approval."""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import anyio

from meup_agent.cli import exit_codes
from meup_agent.cli.address import Address, SpaceOptions
from meup_agent.cli.options import To, argument, seconds, ttl_option
from meup_agent.cli.render.logs import log_to_stderr
from meup_agent.cli.signals import ENDING, run_until_signal
from meup_agent.cli.up.autostart import start_if_absent
from meup_agent.errors import CannotConnect, ConfigurationError
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from meup_agent.doors.joining import JoiningDoor

END_SECONDS: Final = 12.0
"""For the agent to end by itself, by SIGTERM, and by SIGKILL."""


def acp(
    command: Annotated[
        list[str],
        argument("-- AGENT ARGUMENTS…", "The agent's command, as the editor would start it."),
    ],
    *,
    at: SpaceOptions,
    to: To = None,
    ttl: Annotated[float | None, ttl_option("--ttl")] = None,
) -> None:
    """Stand between an editor and its agent, and let a space decide what the agent asks for.

    Write it into the editor's settings in place of the agent's command. The agent speaks ACP
    (the Agent Client Protocol) over standard input and output. What it asks permission for, the
    terminals that it wants created and the files that it wants written are proposed in the space;
    everything else passes. What an agent does without asking its editor, it does here, too.

    Example: `meup acp -- npx @zed-industries/claude-code-acp`

    Example: `meup acp --ttl 600 -- gemini --acp`
    """
    if sys.platform == "win32":
        raise ConfigurationError("meup acp runs on Linux and macOS; here, run it in WSL")
    log_to_stderr("warning")
    where = at.address()
    if shutil.which(command[0]) is None:
        raise CannotConnect(f"there is no command {command[0]!r}; give the agent's, behind `--`")
    start_if_absent(where.url)
    from meup_agent.doors.joining import JoiningDoor

    door = JoiningDoor(
        "meup-acp", ttl="space" if ttl is None else seconds(ttl, "--ttl"), to=to or ()
    )
    run_until_signal(lambda _: _serve(command, where, door), ENDING)


async def _serve(command: list[str], where: Address, door: JoiningDoor) -> int:
    from meup_agent.doors.acp import MAX_LINE_BYTES, AcpProxy
    from meup_agent.processes.piped import OwnPipes, PipedProcess, read_lines

    # The token is ours: with it the agent could take part by itself.
    environment = {name: value for name, value in os.environ.items() if name != "MEUP_TOKEN"}
    with OwnPipes() as editor:
        agent = PipedProcess(command, environment)
        try:
            proxy = AcpProxy(
                door.ask, to_editor=editor.write, to_agent=agent.write, report=door.report
            )
            async with background_tasks() as joining:
                joining.start_soon(partial(door.stay, where.url, **where.identity))
                ended = await proxy.run(
                    read_lines(editor.read, MAX_LINE_BYTES), read_lines(agent.read, MAX_LINE_BYTES)
                )
            with anyio.move_on_after(END_SECONDS, shield=True):
                await agent.end()
        finally:
            agent.close()
    if ended == "agent":
        sys.stderr.write(f"meup: the agent {command[0]!r} has ended\n")
        return exit_codes.FAILED if agent.status else exit_codes.OK
    return exit_codes.OK
