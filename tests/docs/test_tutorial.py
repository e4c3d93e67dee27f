"""The tutorial, run in its order: what it shows is what happens."""

import re
import shlex
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from itertools import zip_longest

import pytest

from tests.programs import ROOT, Program, program

TUTORIAL = ROOT / "docs" / "tutorial"
MEUP = ("-m", "meup_agent.cli")

Shells = dict[str, dict[str, str]]
"""The environment of each participant's terminal."""


def shown(name: str) -> list[str]:
    """The lines of an output that the tutorial shows."""
    return (TUTORIAL / name).read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def shells() -> Generator[Shells]:
    with program([*MEUP, "gateway", "--dev", "--port", "0"]) as gateway:
        gateway.wait_for("Their tokens are kept in")
        names = re.findall(r"meup env (\w+)", str(gateway))
        yield {name: variables_of(name) for name in names}
        port = r" --port \d+|(?<=kept in ).*(?=\.$)|(?<=127.0.0.1:)\d+|(?<=code=)\S+"
        said = [re.sub(r" +", " ", re.sub(port, "", line)) for line in gateway.stdout]
        assert said == [re.sub(r" +", " ", re.sub(port, "", line)) for line in shown("dev.txt")]


def variables_of(participant: str) -> dict[str, str]:
    """The variables that the tutorial's command sets in a terminal."""
    with program([*MEUP, "env", participant]) as env:
        assert env.wait() == 0, str(env)
    pairs = [shlex.split(line) for line in env.stdout]
    assert {export for export, _ in pairs} == {"export"}
    return dict(pair.split("=", 1) for _, pair in pairs)


def in_terminal(shells: Shells, participant: str, file: str) -> AbstractContextManager[Program]:
    return program([f"examples/tutorial/{file}"], shells[participant])


def test_programs_do_what_the_tutorial_shows(shells: Shells) -> None:
    with ExitStack() as terminals:
        tail = terminals.enter_context(program([*MEUP, "tail", "--no-color"], shells["observer"]))
        tail.wait_for("connected to")
        printer = terminals.enter_context(in_terminal(shells, "tools", "printer.py"))
        reviewer = terminals.enter_context(in_terminal(shells, "fulfiller", "reviewer.py"))
        tail.wait_for(" join", count=2)

        with in_terminal(shells, "proposer", "proposer.py") as proposer:
            assert proposer.wait() == 0, str(proposer)
        assert proposer.stdout == shown("proposer.txt")
        reviewer.wait_for(shown("reviewer.txt")[-1])
        assert reviewer.stdout == shown("reviewer.txt")

        with in_terminal(shells, "proposer", "without_asking.py") as impatient:
            assert impatient.wait() == 0, str(impatient)
        assert impatient.stdout == shown("without_asking.txt")

        printed_before = len(printer.stdout)
        with in_terminal(shells, "proposer", "change_of_mind.py") as fickle:
            assert fickle.wait() == 0, str(fickle)
        printer.wait_for("the printer is free", count=2)
        reviewer.wait_for("proposer wants 100 pages")
        reviewer.wait_for("has stopped")
        tail.wait_for(" cancel ")

        # A slow machine prints another page before the news arrives.
        assert in_order(shown("change_of_mind.txt"), fickle.stdout)
        assert in_order(shown("printer.txt"), printer.stdout[printed_before:])
        assert reviewer.stdout[len(shown("reviewer.txt")) :] == ["proposer wants 100 pages"]
        assert in_timeline(shown("tail_proposal.txt"), tail.stdout)
        assert in_timeline(shown("tail_withdraw.txt"), tail.stdout)
        for program_, code in ((printer, 0), (reviewer, 0), (tail, 130)):
            assert program_.stop() == code, str(program_)


def in_timeline(expected: list[str], lines: list[str]) -> bool:
    """True where a wide timeline has these lines of a narrow one, in this order.

    Times and ids differ each time, and what a narrow one has no room for stands below.
    """
    rest = iter(lines)
    return all(
        any(_as_pattern(line).fullmatch(each) for each in rest) for line in _joined(expected)
    )


def _joined(lines: list[str]) -> Iterator[str]:
    """Each line of a narrow timeline with what stands below it, as a wide one has it."""
    for line, below in zip_longest(lines, lines[1:], fillvalue=""):
        if below.startswith(" "):
            head, _, state = line.rpartition("  ")
            yield f"{head} {below} {state}"
        elif not line.startswith(" "):
            yield line


def _as_pattern(line: str) -> re.Pattern[str]:
    words = [re.escape(word) for word in line.split()[1:]]
    words[0] = re.sub("[0-9a-f]{4}", "[0-9a-f]{4}", words[0])
    return re.compile(r"\S+ +" + r"\s+".join(words))


def in_order(expected: list[str], lines: list[str]) -> bool:
    """True where all expected lines are there, in this order."""
    rest = iter(lines)
    return all(line in rest for line in expected)
