"""Programs that take part: ``meup run``, ``reviewer``, and for coding agents ``acp``, ``codex``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Final

import anyio
import typer

from meup_agent.agent.agent import Agent, no_run_on_import
from meup_agent.cli import exit_codes
from meup_agent.cli.address import Address, SpaceOptions
from meup_agent.cli.failures import Failure, Misuse, failing_script, require_extra, run_joined
from meup_agent.cli.options import LogLevel, To, argument, option, seconds, ttl_option
from meup_agent.cli.render.logs import log_to_stderr
from meup_agent.cli.signals import ENDING, run_until_signal
from meup_agent.cli.up.autostart import start_if_absent
from meup_agent.errors import CannotConnect, ConfigurationError
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from meup_agent.doors.joining import JoiningDoor


EXPECTED: Final = "expected module:agent or path/to/file.py:agent"

_NOT_THEIRS: Final = (
    str(Path(__file__).parents[3]) + os.sep,
    str(Path(importlib.__file__).parent) + os.sep,
    "<frozen importlib",
)
"""Beginnings of the paths of frames that tell users nothing about their own code."""


class Backend(StrEnum):
    """The event loop that an agent runs on."""

    ASYNCIO = "asyncio"
    TRIO = "trio"


def run(
    target: Annotated[
        str,
        argument(
            "MODULE:AGENT",
            "The agent: `package.module:agent` or `path/to/file.py:agent`; without"
            " `:agent`, the only one there.",
        ),
    ],
    *,
    at: SpaceOptions,
    backend: Annotated[Backend, typer.Option(help="The event loop.")] = Backend.ASYNCIO,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged.")] = LogLevel.INFO,
) -> None:
    """Run an agent until Ctrl-C or SIGTERM.

    A gateway that is not there yet is waited for. The first Ctrl-C begins nothing new and lets
    running handlers finish for a while; the second cancels them at once.

    Example: `MEUP_TOKEN=… meup run bots/echo.py:agent --url ws://localhost:8420 --space demo`
    """
    agent = load_agent(target)
    where = at.address()
    if backend is Backend.TRIO and find_spec("trio") is None:
        raise Failure("trio is not installed; run: pip install trio")
    log_to_stderr(log_level.value)
    with failing_script():
        agent.run(
            where.url,
            **where.identity,
            backend=backend.value,
            log_level=None,
        )


# --- loading, with a sentence for each way in which it fails ---


def load_agent(target: str) -> Agent:
    """Import the module of a target, and find the agent in it."""
    where, name = _split(target)
    if not where:
        raise Misuse(f"{target!r} names no agent; {EXPECTED}")
    try:
        with no_run_on_import():
            is_path = where.endswith(".py") or "/" in where or os.sep in where
            module = _import_file(Path(where)) if is_path else _import_module(where)
    except Failure:
        raise
    except (Exception, SystemExit) as error:
        raise Failure(
            f"{where} cannot be imported: {_said(error)}", details=_their_traceback(error)
        ) from error
    return _named(module, where, name) if name else _only(module, where)


def _split(target: str) -> tuple[str, str]:
    """Module and agent; the colon behind the letter of a drive separates nothing."""
    where, colon, name = target.rpartition(":")
    if not colon or name.startswith(("\\", "/")):
        return target, ""
    return (where, name) if name else ("", "")


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise Misuse(f"there is no file {path}; {EXPECTED}")
    # As `python path/to/file.py` has it: the file's neighbours can be imported.
    sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem not in sys.modules else f"meup_run_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Misuse(f"{path} is not a Python file; {EXPECTED}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise Misuse(f"{name!r} is not a module's name; {EXPECTED}")
    # A console script has its own folder in the path, and not the one that the user is in.
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # something that the module itself imports
        raise Misuse(
            f"there is no module {error.name!r}, neither in this folder nor among the installed"
            " packages; check its name, or give a path that ends with .py"
        ) from None


def _named(module: ModuleType, where: str, name: str) -> Agent:
    found: object = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Misuse(f"{where} has no {name!r}; {_those_in(module)}") from None
    if not isinstance(found, Agent):
        kind = "a class" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise Misuse(f"{name!r} in {where} is {kind}, not an Agent; {_those_in(module)}")
    return found


def _only(module: ModuleType, where: str) -> Agent:
    agents = _agents(module)
    if len({id(agent) for agent in agents.values()}) != 1:
        raise Misuse(f"{where} does not say which agent to run; {_those_in(module)}")
    return next(iter(agents.values()))


def _agents(module: ModuleType) -> dict[str, Agent]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Agent)}


def _those_in(module: ModuleType) -> str:
    names = ", ".join(_agents(module))
    return f"its agents are: {names}" if names else "there is no agent in it"


def _said(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "it ends the program; let it do that only under if __name__ == '__main__'"
    return traceback.format_exception_only(error)[-1].strip()


def _their_traceback(error: BaseException) -> str | None:
    """The traceback without what lies above and below the user's own code."""
    if isinstance(error, SystemExit):
        return None
    told = traceback.TracebackException.from_exception(error)
    pending: list[traceback.TracebackException | None] = [told]
    while pending:
        each = pending.pop()
        if each is not None:
            theirs = [frame for frame in each.stack if not frame.filename.startswith(_NOT_THEIRS)]
            each.stack = traceback.StackSummary.from_list(theirs)
            pending += (each.__cause__, each.__context__)
    if not told.stack:
        return "".join(told.format_exception_only()).rstrip()
    return "".join(told.format()).rstrip()


# --- meup reviewer ---


def reviewer(
    policy: Annotated[
        Path | None,
        option("FILE", "The policy, in YAML; without one everything is asked about."),
    ] = None,
    *,
    votes: Annotated[
        Path | None,
        option("FILE", "Where votes are kept; by default the policy's path with .votes behind it."),
    ] = None,
    at: SpaceOptions,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged.")] = LogLevel.INFO,
) -> None:
    """Decide proposals by a policy, and by yeses in advance, until Ctrl-C or SIGTERM.

    What the policy allows is fulfilled, what it denies rejected, and the rest left to people, who
    are reminded by chat where a rule says so. Of a quorum it counts the votes, which people give in
    an inbox. What people would be asked about, and have said yes to in advance (`meup inbox yes`),
    is fulfilled as a use of that yes. A file that changes is read again at once, or refused whole
    with the reason, and the policy before it stays.

    Example: `MEUP_TOKEN=… meup reviewer --policy policy.yaml --space demo`
    """
    require_extra("a policy file")
    from meup_agent.approval.reviewer.reviewer import Reviewer
    from meup_agent.session import Settings

    deciding = Reviewer(policy, votes)
    where = at.address()
    log_to_stderr(log_level.value)
    run_joined(
        lambda hurry: deciding.join(
            where.url, **where.identity, settings=Settings(first_welcome=None), hurry=hurry
        )
    )


# --- meup acp ---

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

    What Codex wants to run outside of its sandbox, the files that it wants changed, the calls of
    MCP servers and the permissions that it asks for are proposed in the space, and can be answered
    in the terminal, too: the first answer counts. What its own sandbox and rules let it do is not
    asked about.

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
