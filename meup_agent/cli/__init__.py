"""The command ``meup``.

``program`` reads the command line, loads the command that it names from ``commands``, and makes one
sentence and an exit code of whatever goes wrong. A command that takes part in a space runs in a
``session``; ``render`` makes what is written on a terminal, where text of strangers is
always escaped; ``doctor``, ``up``, ``guard``, ``cluster`` and ``demo`` are the larger commands' own
parts.
Arguments, the environment and standard input come in; results go to standard output, all else to
standard error. The rest of the package never imports from here, and typer and rich are loaded when
the command runs, not before.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run ``meup`` with the arguments of this process, and exit with its code."""
    try:
        code = _run()
    except BaseException as error:
        from meup_agent.uncaught import was_interrupted

        if not was_interrupted(error):
            raise
        # While it was being loaded: nothing has begun that would have to be reported.
        code = 130
    import signal
    import sys

    # All that is left is to exit with the code; one more Ctrl-C must not replace it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _run() -> int:
    import signal
    import sys

    from meup_agent.cli.failures import Failure, require_extra, sentence_for
    from meup_agent.cli.loading_notice import LOADING
    from meup_agent.uncaught import end_at_interrupt

    LOADING.begin()
    # What is being loaded would make errors of its own of a KeyboardInterrupt.
    before = signal.signal(signal.SIGINT, end_at_interrupt)
    try:
        require_extra("the command line")
        from meup_agent.cli.program import run

        signal.signal(signal.SIGINT, before)
        return run(sys.argv[1:])
    except Failure as failure:
        sys.stderr.write(f"{sentence_for(failure)}\n")
        return failure.code
    finally:
        LOADING.end()
