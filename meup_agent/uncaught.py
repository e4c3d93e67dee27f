"""The end of a program that Ctrl-C or the connection has ended: one line at most, no traceback.

Only an exception that passes through this package changes how Python reports it, once, and only
where the program has not said itself how exceptions are reported.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing for that takes longer than all the rest
if TYPE_CHECKING:
    from types import TracebackType

DEBUG_VARIABLE = "MEUP_DEBUG"
"""Set to anything but ``0``: tracebacks are shown."""


def wants_tracebacks() -> bool:
    """True if the user wants tracebacks."""
    return os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")


def report_briefly() -> None:
    """Report the next uncaught exception without a traceback, if no program was wrong.

    That is Ctrl-C, of which nothing is said, the connection's end, and an address or a token that
    is missing, which are one sentence each; also in exception groups. Python's own exit codes stay:
    that of SIGINT, and 1.
    """
    import threading

    ours = threading.current_thread() is threading.main_thread()
    if ours and sys.excepthook is sys.__excepthook__ and not wants_tracebacks():
        sys.excepthook = _report


def end_at_interrupt(number: int, frame: object) -> None:
    """Handle SIGINT while nothing has begun yet: leave at once, with its exit code."""
    os._exit(130)


def was_interrupted(error: BaseException | None) -> bool:
    """True if an exception comes of Ctrl-C: Python makes errors of it while it defines a class."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _report(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    from meup_agent.errors import ConfigurationError, ConnectionFailed, leaves_of, printable

    sys.excepthook = sys.__excepthook__
    sentences: dict[str, None] = {}
    for each in leaves_of(error):
        if isinstance(each, (ConfigurationError, ConnectionFailed)):
            sentences[printable(str(each))] = None
        elif not was_interrupted(each):
            sys.__excepthook__(kind, error, traceback)
            return
    for sentence in sentences:
        sys.stderr.write(f"meup: {sentence}\n")
