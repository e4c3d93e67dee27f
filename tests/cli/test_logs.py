"""The log of a command holds strangers' text too."""

import logging
import sys

from meup_agent.cli.logs import FORMAT, SafeFormatter


def test_a_record_is_one_printable_line_and_a_traceback_keeps_its_own() -> None:
    try:
        raise ValueError("bad\x1b[31m")
    except ValueError:
        record = logging.LogRecord(
            "x", logging.ERROR, "f", 1, "from %s", ("a\nb\u202e",), sys.exc_info()
        )
    first, *traceback = SafeFormatter(FORMAT).format(record).splitlines()
    assert first.endswith("ERROR   from a\\nb\\u202e")
    assert traceback[-1] == "ValueError: bad\\e[31m"
    assert all(line.isprintable() for line in traceback)
