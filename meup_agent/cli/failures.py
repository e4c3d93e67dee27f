"""Failures: one sentence and an exit code for whatever goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from meup_agent.cli import exit_codes
from meup_agent.errors import (
    ConnectionFailed,
    InvalidArguments,
    MeupError,
    OutcomeUnknown,
    ParticipantGone,
    ProposalExpired,
    ProposalRejected,
    Refused,
    RequestError,
    RequestTimeout,
    ToolError,
    UsageError,
)
from meup_agent.escape import visible

if TYPE_CHECKING:
    from anyio import Event

MAX_SENTENCE: Final = 2_000
"""Characters of a failure that are shown; it may quote what a stranger sent."""

_CODES: Final[dict[type[MeupError], int]] = {
    UsageError: exit_codes.USAGE,
    InvalidArguments: exit_codes.USAGE,
    ToolError: exit_codes.TOOL_FAILED,
    RequestError: exit_codes.TOOL_FAILED,
    ProposalRejected: exit_codes.REJECTED,
    ProposalExpired: exit_codes.TIMED_OUT,
    RequestTimeout: exit_codes.TIMED_OUT,
    ParticipantGone: exit_codes.ABSENT,
    Refused: exit_codes.REFUSED,
    OutcomeUnknown: exit_codes.UNKNOWN,
    ConnectionFailed: exit_codes.NO_CONNECTION,
}
"""The exit code by exception; a class stands before those that it is derived from."""

_EXTRAS: Final = {
    "the command line": ("cli", ("httpx", "jsonschema", "rich", "typer")),
    "a gateway": (
        "gateway",
        ("picows", "platformdirs", "prometheus_client", "starlette", "uvicorn", "yaml"),
    ),
    "a journal on NATS": ("nats", ("nats",)),
    "a journal in PostgreSQL": ("postgres", ("psycopg",)),
    "a QR code": ("gateway", ("segno",)),
    "the live inbox": ("tui", ("textual",)),
    "a policy file": ("gateway", ("yaml",)),
    "MCP": ("mcp", ("mcp", "httpx2", "platformdirs")),
    "an MCP server": ("mcp", ("mcp", "starlette", "uvicorn")),
}
"""The extra that something needs, and the modules of it."""


class Failure(Exception):
    """A command cannot go on: what happened, to what, and what to do.

    ``details`` go before the sentence, for example a traceback of the user's own code.
    """

    def __init__(
        self, sentence: str, code: int = exit_codes.FAILED, *, details: str | None = None
    ) -> None:
        super().__init__(sentence)
        self.code = code
        self.details = details


class OutputClosed(Exception):
    """The reader of our output has gone, for example ``head`` after its last line."""


class Misuse(Failure):
    """The command line, or what it names, is wrong."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, exit_codes.USAGE)


def require_extra(what: str) -> None:
    """Check that everything is installed that ``a gateway``, for example, needs."""
    extra, modules = _EXTRAS[what]
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise Failure(_say_missing(what, extra, missing))


def explain_missing(module: str) -> str:
    """The sentence that says which extra has a module; empty: none has."""
    name = module.partition(".")[0]
    for what, (extra, modules) in _EXTRAS.items():
        if name in modules:
            return _say_missing(what, extra, [name])
    return ""


def _say_missing(what: str, extra: str, missing: list[str]) -> str:
    names = ", ".join(missing)
    return f"{what} needs {names}, not installed here; run: pip install 'meup-agent[{extra}]'"


@contextmanager
def failing_script() -> Generator[None]:
    """Make the failure of a command of the sentence that a script ends with."""
    try:
        yield
    except SystemExit as ended:
        # Why it ends tells the exit code.
        why = ended.__context__
        if not isinstance(why, MeupError):
            raise
        raise Failure(str(why), code_for(why)) from why


def run_joined(join: Callable[[Event], AbstractAsyncContextManager[object]]) -> None:
    """Run what joins a space until Ctrl-C or SIGTERM."""
    from meup_agent.agent.agent import GRACE, run_script

    with failing_script():
        run_script(join, grace=GRACE, patience=3 * GRACE, log_level=None)


def code_for(error: Exception) -> int:
    if isinstance(error, Failure):
        return error.code
    codes = (code for kind, code in _CODES.items() if isinstance(error, kind))
    return next(codes, exit_codes.FAILED)


def sentence_for(error: BaseException) -> str:
    """An exception as one line that is safe to print."""
    said = " ".join(str(error).split()) or type(error).__name__
    return f"meup: {visible(said, MAX_SENTENCE)}"
