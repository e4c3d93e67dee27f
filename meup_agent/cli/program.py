"""The program ``meup``: its commands, and what becomes of whatever they raise."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, Final, cast

import typer
from typer.main import get_command

from meup_agent.cli import exit_codes
from meup_agent.cli.commands import CommandGroup, CommandLineError
from meup_agent.cli.failures import (
    Failure,
    OutputClosed,
    code_for,
    explain_missing,
    sentence_for,
)
from meup_agent.cli.options import flag, wants_colour
from meup_agent.cli.render.logs import write_failure
from meup_agent.errors import MeupError
from meup_agent.escape import visible
from meup_agent.uncaught import DEBUG_VARIABLE, wants_tracebacks, was_interrupted

app = typer.Typer(
    name="meup", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]}
)

WIDE_ENOUGH: Final = 60
"""Columns from which on a help is shown in frames; narrower ones would cut the options' names."""


@app.callback(invoke_without_command=True)
def meup(
    context: typer.Context,
    show_version: Annotated[bool, flag("--version", "Show the version and exit.")] = False,
    debug: Annotated[bool, flag("--debug", "Show tracebacks; also by MEUP_DEBUG=1.")] = False,
) -> None:
    """Agents that propose, fulfill, reject, withdraw and cancel, and the gateway they meet at.

    Example: `meup up --servers mcp.json` puts an approval in front of MCP servers.

    Example: `meup demo` shows four agents at work.
    """
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"
    if show_version:
        sys.stdout.write(f"meup-agent {_version()}\n")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # loads much, for this alone

    try:
        return version("meup-agent")
    except PackageNotFoundError:
        return "(not installed: run from its source)"


def run(arguments: Sequence[str]) -> int:
    """Run ``meup`` with these arguments; the exit code.

    Whatever goes wrong becomes one sentence on standard error.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _open_what_is_closed()
    # What the encoding of standard output does not have is escaped: a help in Latin-1 has an `…`.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    try:
        code = _run(arguments)
        code = _flush(code)
    except (BrokenPipeError, OutputClosed):
        _abandon_output()
        return exit_codes.OK
    return code


def _flush(code: int) -> int:
    """Write what is left of the output; the exit code, which a full disk makes one of a failure."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _abandon_output()
        if code == exit_codes.OK:
            return _failed(error, _unexpected(error), exit_codes.FAILED)
    return code


def _abandon_output() -> None:
    """Let what is left of the output not be written at the end either: nothing takes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _open_what_is_closed() -> None:
    """Write into nothing, and read nothing, where a shell's ``>&-`` or ``<&-`` leaves no file."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)
            stream = open(  # noqa: SIM115 - it is used to the end of the program
                nothing, mode, encoding="utf-8", closefd=False
            )
            setattr(sys, name, stream)


def _run(arguments: Sequence[str]) -> int:
    is_wide = shutil.get_terminal_size().columns >= WIDE_ENOUGH
    app.rich_markup_mode = "markdown" if is_wide else None
    if not wants_colour(colour="--no-color" not in arguments):
        # Loaded here alone, since only helps need it.
        from typer import rich_utils

        rich_utils.COLOR_SYSTEM = None
    try:
        result = cast("Any", get_command(app)).main(
            args=list(arguments), prog_name="meup", standalone_mode=False
        )
    except CommandLineError as error:
        said = cast("Any", error).format_message()
        context = getattr(error, "ctx", None)
        command = getattr(context, "command_path", "meup")
        return _failed(error, f"meup: {said.rstrip('.')}; see {command} --help", exit_codes.USAGE)
    except (Failure, MeupError) as error:
        if isinstance(error, Failure) and error.details and not was_interrupted(error):
            sys.stderr.write(f"{error.details}\n")
        return _failed(error, sentence_for(error), code_for(error))
    except (BrokenPipeError, OutputClosed):
        raise
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except Exception as error:
        return _failed(error, _unexpected(error), exit_codes.FAILED)
    return result if isinstance(result, int) else exit_codes.OK


def _unexpected(error: Exception) -> str:
    """The sentence about an exception that no command makes a failure of its own."""
    if isinstance(error, ModuleNotFoundError) and (told := explain_missing(error.name or "")):
        return f"meup: {told}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        where = visible(str(error.filename or "the output"))
        return f"meup: {where} cannot be written, since the disk is full: make room, and try again"
    return f"{sentence_for(error)} ({type(error).__name__}; meup --debug shows more)"


def _failed(error: BaseException, sentence: str, code: int) -> int:
    if was_interrupted(error):
        return exit_codes.INTERRUPTED
    if wants_tracebacks():
        traceback.print_exception(error)
    write_failure(sentence)
    return code
