"""The first page of the history of a space in which a million proposals are decided.

The gateway runs in a process of its own, with its journal in a file. The table of decisions is
filled as the gateway would fill it, without the entries of which it is made.
"""

import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import httpx

from meup_agent.gateway.config import JournalConfig
from meup_agent.gateway.journal.decisions import WRITE_PROPOSAL
from meup_agent.gateway.journal.rows import sealed
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.space.journal import DecisionRow
from tests.bench.figures import Figure, Program
from tests.bench.processes import gateway, process

SPACE = "demo"
DECIDED = 1_000_000
TIMES = 20
GOAL = 300.0
OVER = tuple(each for each in ProposalState if not each.is_pending)

QUESTIONS = {
    "the latest": "",
    "the latest that expired": "?state=expired",
    "of one proposer": "?proposer=bot-7",
    "that have a text": "?search=tool-13",
    "the longest waits first": "?sort=-waited",
}
"""The pages that are asked for, and their parameters."""


def rows(count: int) -> Iterator[DecisionRow]:
    """So many decided proposals, a second apart, the last one now."""
    first = time.time_ns() // 1_000 - count * 1_000_000
    for number in range(count):
        at, state = first + number * 1_000_000, OVER[number % len(OVER)]
        yield DecisionRow(
            seq=first + number,
            space=SPACE,
            proposer=f"bot-{number % 10}",
            id=f"{number:032x}",
            tool=f"tool-{number % 100}",
            proposed_at=at,
            ends_at=at + 500_000,
            state=str(state),
            decided=first + number,
            by="" if state is ProposalState.EXPIRED else "ann",
        )


def seconds(client: httpx.Client, url: str) -> tuple[float, dict[str, object]]:
    begun = perf_counter()
    answer = client.get(url)
    took = perf_counter() - begun
    assert answer.status_code == 200, answer.text
    page: dict[str, object] = json.loads(answer.text)
    return took, page


def measure(scale: float = 1.0) -> Iterator[Figure]:
    count, times = max(200, round(DECIDED * scale)), max(1, round(TIMES * scale))
    spaces = {SPACE: {"ann": [{"kind": "**"}]}}
    with tempfile.TemporaryDirectory() as folder:
        journal = JournalConfig(path=Path(folder) / "journal.db")
        with process(gateway, spaces, None, journal) as pipe:
            address = pipe.recv()  # it has made the file
        with sqlite3.connect(Path(folder) / "journal.db") as connection:
            connection.executemany(WRITE_PROPOSAL, map(sealed, rows(count)))
        connection.close()
        begun = perf_counter()
        with process(gateway, spaces, address, journal) as pipe:
            pipe.recv()
            started = perf_counter() - begun
            yield Figure(f"the start of its gateway, {count:,} decided", started, "s")
            url = f"http://127.0.0.1:{address.port}/spaces/{SPACE}/history"
            token = {"Authorization": f"Bearer {address.tokens[SPACE, 'ann']}"}
            with httpx.Client(headers=token, timeout=60) as client:
                for words, asked in QUESTIONS.items():
                    first, page = seconds(client, url + asked)
                    assert page["decisions"]
                    later = [seconds(client, url + asked)[0] for _ in range(times)]
                    goal = None if "sort" in asked else GOAL
                    yield Figure(f"a page: {words}, the first time", first * 1e3, "ms", goal)
                    yield Figure(f"a page: {words}", statistics.median(later) * 1e3, "ms", goal)


PROGRAM = Program("decided", "The history of a million decisions, in the journal's file", measure)
