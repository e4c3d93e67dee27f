"""``meup run``: run an agent of a user's module, in this process."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated

import typer

from meup_agent.cli.address import SpaceOptions
from meup_agent.cli.agent_loader import load_agent
from meup_agent.cli.failures import Failure, code_for
from meup_agent.cli.logs import log_to_stderr
from meup_agent.errors import MeupError


class Backend(StrEnum):
    """The event loop that an agent runs on."""

    ASYNCIO = "asyncio"
    TRIO = "trio"


class LogLevel(StrEnum):
    """The least level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:AGENT",
            help="The agent: `package.module:agent` or `path/to/file.py:agent`; without"
            " `:agent`, the only one there.",
            show_default=False,
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
    try:
        agent.run(
            where.url,
            space=where.space,
            token=where.token,
            participant=where.participant,
            backend=backend.value,
            log_level=None,
        )
    except SystemExit as ended:
        # The sentence that a script ends with; why it does tells the exit code.
        why = ended.__context__
        if not isinstance(why, MeupError):
            raise
        raise Failure(str(why), code_for(why)) from why
