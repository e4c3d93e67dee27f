"""Every program of this folder works; what it measures is not a condition."""

import multiprocessing
from collections.abc import Iterator

import pytest

from tests.bench import mcp_calls, meup_up, processes, timing
from tests.bench.__main__ import PROGRAMS
from tests.bench.figures import Figure, Program, Summary, cells, main, report, summaries
from tests.forkserver import launched

SMALLEST = 0.002

LOADED = [
    *("httpx2", "mcp.client.stdio", "mcp.client.streamable_http", "mcp.server.mcpserver"),
    *("meup_agent.gateway.server", "meup_agent.mcp.server.http", "nats", "prometheus_client"),
    *("httpcore2", "jsonschema", "truststore", "uvicorn", "uvicorn.protocols.http.h11_impl"),
    "tests.bench.__main__",
]
"""Imports of the processes as they begin, unless that from which they are forked has done them."""


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    """Fork the processes from one that has loaded all that they need: nothing is measured here.

    Not from the tests' own process, whose other threads may hold a lock at that moment.
    """
    multiprocessing.set_forkserver_preload(LOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "START", "forkserver")
        patch.setattr(processes, "PYTHON", launched())
        patch.setattr(meup_up, "SERVERS", 1)
        for module in (timing, mcp_calls):
            patch.setattr(module, "WARM_UP", 1)
        yield


# A dozen processes are started, each with its imports, on a machine that may be busy.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program_measures(program: Program) -> None:
    figures = list(program.measure(SMALLEST))
    names = [figure.name for figure in figures]
    assert names
    assert len(set(names)) == len(names)


def test_each_program_is_listed_once() -> None:
    names = [program.name for program in PROGRAMS]
    assert len(set(names)) == len(names)


def test_a_figure_is_the_median_of_its_rounds() -> None:
    rounds = [
        [Figure("a", value, "µs", 2.0), Figure("b", -value, "s")] for value in (3.0, 1.0, 2.0)
    ]
    a, b = summaries(rounds)
    assert (a.median, b.median) == (2.0, -2.0)
    assert a.met
    assert b.met


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (Figure("a", 2.0, "×", 2.0), True),
        (Figure("a", 2.1, "×", 2.0), False),
        (Figure("a", 1.9, "×", 2.0, at_least=True), False),
        (Figure("a", 2.0, "×", 2.0, at_least=True), True),
    ],
)
def test_a_missed_goal_shows(figure: Figure, met: bool) -> None:
    summary = Summary(figure, (figure.value,))
    assert summary.met is met
    assert ("missed" in cells(summary)[2]) is not met


def test_markdown_is_a_table() -> None:
    program = Program("p", "Title", lambda _: iter(()))
    summary = Summary(Figure("a call", 1.0, "µs", 2.0), (0.5, 1.0, 1234.5))
    assert list(report(program, [summary], markdown=True)) == [
        "## Title",
        "",
        "| what   | goal   | median  | lowest to highest |",
        "|---|---|---|---|",
        "| a call | ≤ 2 µs | 1.00 µs | 0.50 to 1,234     |",
        "",
    ]


def test_unknown_program_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([], ["nothing"])
    assert "no program nothing" in capsys.readouterr().err
