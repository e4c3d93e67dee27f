"""Strangers' words in a terminal: printable, and no wider than it is.

The first line is the terminal's width, each other one a frame.
"""

from datetime import UTC, datetime

from rich.cells import cell_len

from meup_agent.cli.render.formatting import NARROWEST, Glyphs
from meup_agent.cli.render.timeline import Timeline
from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol.dialects import decode
from tests.fuzz.agent import FROM_GATEWAY
from tests.fuzz.frames import EXAMPLES

NAME = "terminal"

SEEDS = [
    width + b"\n" + b"\n".join(EXAMPLES[dialect])
    for width, dialect in zip((b"", b"60", b"80", b"120"), EXAMPLES, strict=True)
] + [b"100\n" + b"\n".join(each[2:] for each in FROM_GATEWAY)]

MAX_STEPS = 60

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)


def run(data: bytes) -> None:
    """Show the frames of an input."""
    first, *lines = data.split(b"\n")
    width = int(first) if first.isdigit() and len(first) < 4 else None
    timeline = Timeline(lambda: width, Glyphs("utf-8"), lambda: MIDNIGHT)
    for number, line in enumerate(lines[:MAX_STEPS]):
        try:
            envelope = decode(line)
        except InvalidEnvelope as error:
            said = str(error)
        else:
            said = timeline.line(timeline.observe(envelope, float(number))).plain
            if width is not None and width >= 5 * NARROWEST:
                assert all(cell_len(row) <= width for row in said.split("\n")), (width, said)
        assert said.replace("\n", "").isprintable(), repr(said)
