"""The command ``meup``; typer and rich are loaded when it runs, not before."""

from __future__ import annotations

import signal
import sys

from meup_agent.cli import exit_codes

__all__ = ["main"]


def main() -> None:
    """Run ``meup`` with the arguments of this process, and exit with its code."""
    try:
        from meup_agent.cli.program import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        # While it was being loaded: nothing has begun that somebody would have to be told of.
        code = exit_codes.INTERRUPTED
    # All that is left is to exit with the code; one more Ctrl-C must not replace it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)
