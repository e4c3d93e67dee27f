"""``meup acp`` and ``codex``: coding agents, whose own requests for approval a space decides."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import anyio

from meup_agent.cli import exit_codes
from meup_agent.cli.address import Address, SpaceOptions
from meup_agent.cli.options import To, argument, seconds, ttl_option
from meup_agent.cli.render.logs import log_to_stderr
from meup_agent.cli.signals import ENDING, run_until_signal
from meup_agent.cli.up.clients import start_if_absent
from meup_agent.errors import CannotConnect, ConfigurationError
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from meup_agent.doors.joining import JoiningDoor

END_SECONDS: Final = 12.0
"""For the agent to end by itself, by SIGTERM, and by SIGKILL."""

ALONE_SECONDS: Final = 3.0
"""For Codex's terminal to end by itself, as its app-server has ended."""


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
    log_to_stderr("warning")
    where, door = _open_door("acp", command[0], "give the agent's, behind `--`", at, to, ttl)
    run_until_signal(lambda _: _serve(command, where, door), ENDING)


async def _serve(command: list[str], where: Address, door: JoiningDoor) -> int:
    from meup_agent.doors.acp import MAX_LINE_BYTES, AcpProxy
    from meup_agent.processes.guarded import OwnPipes, PipedProcess, read_lines

    with OwnPipes() as editor:
        agent = PipedProcess(command, _environment())
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


# --- meup codex ---

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
    log_to_stderr("error")  # a terminal is drawn
    advice = "install it: npm install -g @openai/codex"
    where, door = _open_door("codex", CODEX, advice, at, to, ttl)
    # Ctrl-C is the terminal's: Codex reads it as a key.
    numbers = [each for each in ENDING if each != signal.SIGINT]
    run_until_signal(lambda _: _run_codex(arguments or [], where, door), numbers)


async def _run_codex(arguments: list[str], where: Address, door: JoiningDoor) -> int:
    from meup_agent.doors.codex import CodexClient
    from meup_agent.doors.codex_server import app_server

    environment = _environment()
    async with app_server(CODEX, environment) as server, background_tasks() as tasks:
        tasks.start_soon(partial(door.stay, where.url, **where.identity))
        client = CodexClient(door.ask, server.send, door.report)
        command = (CODEX, "--remote", server.address, *arguments)
        async with await anyio.open_process(
            command, stdin=None, stdout=None, stderr=None, env=environment
        ) as terminal:
            is_lost = False

            async def decide() -> None:
                nonlocal is_lost
                await client.run(server.messages())
                # Its terminal would be asked alone. Where its server has ended, it ends by itself.
                with anyio.move_on_after(ALONE_SECONDS):
                    await terminal.wait()
                    return
                is_lost = True
                terminal.terminate()

            tasks.start_soon(decide)
            status = await terminal.wait()
        if is_lost:
            raise CannotConnect(
                "the connection to the app-server of Codex was lost, so its terminal was ended;"
                " start meup codex again, and go on with: meup codex -- resume"
            )
        return status


# --- what they share ---


def _open_door(
    name: str,
    program: str,
    advice: str,
    at: SpaceOptions,
    to: Sequence[str] | None,
    ttl: float | None,
) -> tuple[Address, JoiningDoor]:
    """The space, and what asks it; ``advice`` says what to do where there is no such program."""
    if sys.platform == "win32":
        raise ConfigurationError(f"meup {name} runs on Linux and macOS; here, run it in WSL")
    where = at.address()
    if shutil.which(program) is None:
        raise CannotConnect(f"there is no command {program!r}; {advice}")
    start_if_absent(where.url)
    from meup_agent.doors.joining import JoiningDoor

    return where, JoiningDoor(
        f"meup-{name}", ttl="space" if ttl is None else seconds(ttl, "--ttl"), to=to or ()
    )


def _environment() -> dict[str, str]:
    """The variables of an agent: without our token, by which it could take part by itself."""
    return {name: value for name, value in os.environ.items() if name != "MEUP_TOKEN"}
