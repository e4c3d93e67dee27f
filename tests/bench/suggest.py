"""The time of `meup policy suggest` to learn from a journal of 100,000 decisions.

The journal is made as that of `tests.bench.audit`, of proposals that are carried out unchanged,
edited or rejected: three envelopes for a decision, without progress. Forty tools, each with a path
and a text; what is outside of `docs` is rejected half of the time. The seconds are those of a
processor, from the start of the process until it has ended.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from meup_agent.protocol.wire.envelope import Envelope
from tests.bench import audit
from tests.bench.audit import call, said
from tests.bench.figures import Figure, Program

DECISIONS = 100_000
TOOLS = 40


def decision(number: int) -> Iterator[Envelope]:
    """The envelopes about one proposal."""
    proposer = f"proposer-{number % 7}"
    p, r = (f"{each}{number:031x}" for each in "ab")
    folder = "docs" if number % 3 else f"src/{number % 11}"
    wanted = partial(call, f"tool_{number % TOOLS}", f"{folder}/{number % 97}.md")
    yield said("mcp/proposal", wanted(), p, proposer, "reviewer")
    if number % 3 == 0 and number % 2:
        yield said("mcp/reject", {"reason": "unsafe"}, r, "reviewer", proposer, p)
        reason = {"reason": "no_longer_needed"}
        yield said("mcp/withdraw", reason, f"d{p[1:]}", proposer, "reviewer", p)
        return
    edit = {"text": "[masked]"} if number % 600 == 0 else {}
    request = {"jsonrpc": "2.0", "id": r, **wanted(**edit)}
    yield said("mcp/request", request, r, "reviewer", "files", p)
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": r, "result": {"content": []}}
    yield said("mcp/response", answer, f"e{p[1:]}", "files", "reviewer", r)


async def write(path: Path, decisions: int) -> None:
    """Make a journal."""
    await audit.write(path, chain.from_iterable(map(decision, range(decisions))))


def measure(scale: float = 1.0) -> Iterator[Figure]:
    many = max(200, round(DECISIONS * scale))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        asyncio.run(write(path, many))
        done = audit.run("policy", "suggest", "--journal", str(path))
    yield Figure(f"{many:,} decisions", done.cpu, "s", 10)
    yield Figure("rules that are suggested", sum(b"  - " in each for each in done.lines), "")
    yield Figure("its memory at the most", done.memory / 2**20, "MiB")


PROGRAM = Program("suggest", "`meup policy suggest` of a journal in a file", measure)
