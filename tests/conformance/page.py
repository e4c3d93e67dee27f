"""Makes docs/explanation/conformance.md of the requirements and the tests that name them."""

from pathlib import Path
from typing import Final

from tests.conformance.lines import LINES, NOT_HERE, A, C, ConformanceLine, E
from tests.marks import all_marks
from tests.programs import ROOT

PAGE: Final = ROOT / "docs" / "explanation" / "conformance.md"

PARTS: Final = (
    ("meup/v0.2", A, "These hold for `mew/v0.4` as well; every test runs in both dialects."),
    ("mew/v0.4", C, "What the newer version changes or adds."),
    (
        "What neither says",
        E,
        "Learned from what existing participants and gateways do. Some lines are for agents, and"
        " are shown by the tests of [the protocol](../protocol.md)'s rules that they follow from.",
    ),
)


def page() -> str:
    tests = all_marks("rule")
    differing = [line for line in LINES if line.differs]
    kept = sum(not line.differs for line in LINES)
    parts = [
        HEAD.format(kept=kept, all=len(LINES), differing=len(differing)),
        _table(("line", "what is asked", "what ours does, and why"), map(_difference, differing)),
        "## What is not here\n",
        _not_here(),
    ]
    for title, lines, says in PARTS:
        parts += [f"## {title}\n", f"{says}\n"]
        rows = (_row(line, tests) for line in lines)
        parts.append(_table(("line", "level, section", "what is asked", "ours"), rows))
        parts += ["### The tests\n", _table(("line", "test"), _shown(lines, tests))]
    return "\n".join(parts).rstrip() + "\n"


def _not_here() -> str:
    if not NOT_HERE:
        return "Nothing: each line has its place above or below.\n"
    return _table(("line", "what is asked"), ((f"`{id}`", says) for id, says in NOT_HERE.items()))


def _difference(line: ConformanceLine) -> tuple[str, ...]:
    return f"`{line.id}`", line.requires, line.differs


def _row(line: ConformanceLine, tests: dict[str, list[str]]) -> tuple[str, ...]:
    assert any(rule in tests for rule in line.shown_by or (line.id,)), f"{line.id} has no test"
    ours = "**differs**, as said above" if line.differs else f"keeps it{_after(line.note)}"
    where = f"{line.level}, {line.section}" if line.section else line.level
    return f"`{line.id}`", where, line.requires, ours


def _after(note: str) -> str:
    return f"; {note}" if note else ""


def _shown(
    lines: tuple[ConformanceLine, ...], tests: dict[str, list[str]]
) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for line in lines:
        shown = [f"those of `{rule}`" for rule in line.shown_by]
        for test in tests.get(line.id, ()):
            file, _, function = test.partition("::")
            shown.append(f"`{function}` in `{file}`")
        rows.append((f"`{line.id}`", "<br>".join(shown)))
    return rows


def _table(head: tuple[str, ...], rows: object) -> str:
    assert hasattr(rows, "__iter__")
    written = [head, ("---",) * len(head), *rows]
    lines = "".join(f"| {' | '.join(cells)} |\n" for cells in written)
    return f'<div class="meup-tight" markdown>\n\n{lines}\n</div>\n'


HEAD: Final = """\
<!-- Made by `python -m tests.conformance`; a test fails if it was not. -->

# Conformance

The gateway speaks the dialects of two published versions of the protocol, `meup/v0.2` and
`mew/v0.4`. What their specifications ask of a gateway stands here line by line, each with what ours
does about it and the tests that show it: they drive a gateway over a real socket. Of {all} lines it
keeps {kept} and deliberately differs in {differing}. Where a specification contradicts itself, or
the other one, [the protocol](../protocol.md) decides.

A level is the specification's word; *rule* is what it states as a plain fact.

## Where ours differs
"""


def main() -> None:
    Path(PAGE).write_text(page(), encoding="utf-8")
