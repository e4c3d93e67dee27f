"""The command ``meup``; typer and rich are loaded when it runs, not before."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run ``meup`` with the arguments of this process, and exit with its code."""
    from meup_agent.cli.program import run

    sys.exit(run(sys.argv[1:]))
