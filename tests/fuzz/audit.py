"""The audit of a journal of strangers' words, and its printed form.

The first line is the terminal's width, each other one a frame, as the gateway accepted it.
"""

from contextlib import suppress

from rich.cells import cell_len
from rich.text import Text

from meup_agent.cli.commands.journal import AuditListing, AuditTimeline
from meup_agent.cli.render.formatting import NARROWEST, Glyphs
from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol.audit import Audit
from meup_agent.protocol.dialects import decode
from meup_agent.protocol.space.journal import Entry
from tests.fuzz.frames import EXAMPLES
from tests.fuzz.terminal import SEEDS as SHOWN

NAME = "audit"

SEEDS = [*SHOWN, b"90\n" + b"\n".join(frame for frames in EXAMPLES.values() for frame in frames)]

MAX_STEPS = 60

START = 1_767_225_600_000_000
"""Microseconds since 1970 of the first entry; one comes a second."""


def run(data: bytes) -> None:
    """Fold the frames of an input, and print what comes of it."""
    first, *lines = data.split(b"\n")
    width = int(first) if first.isdigit() and len(first) < 4 else None
    audit = Audit(limit=50)
    for number, line in enumerate(lines[:MAX_STEPS], 1):
        with suppress(InvalidEnvelope):
            audit.add(Entry(number, "demo", START + number * 1_000_000, decode(line)))
    glyphs = Glyphs("utf-8")
    listing = AuditListing(width, START / 1e6 + 100)
    shown: list[Text] = [
        *listing.proposals(audit.proposals),
        *listing.operations(audit.pop_operations()),
    ]
    for proposal in audit.proposals:
        shown += AuditTimeline(width, glyphs).lines(proposal)
    for text in shown:
        plain = text.plain
        assert plain.replace("\n", "").isprintable(), repr(plain)
        if width is not None and width >= 5 * NARROWEST:
            assert all(cell_len(row) <= width for row in plain.split("\n")), (width, plain)
