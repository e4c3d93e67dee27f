"""The time of `meup policy suggest` to learn from a journal of 100,000 decisions.

Run it from the repository: `python -m tests.bench.suggest`

The journal is made as that of `tests.bench.audit`, of proposals that are carried out unchanged,
edited or rejected: three envelopes for a decision, without progress. Forty tools, each with a path
and a text; what is outside of `docs` is rejected half of the time. The seconds are those of a
processor, from the start of the process until it has ended.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meup_agent.gateway.config import JournalConfig
from meup_agent.gateway.journal.sqlite import SqliteJournal
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.space.journal import Entry
from tests.bench import processes
from tests.bench.audit import BEGIN, OUTSTANDING, SPACE, said
from tests.bench.figures import Figure, Program, main

DECISIONS = 100_000
TOOLS = 40

COMMAND = ("-m", "meup_agent.cli", "policy", "suggest", "--journal")


def call(number: int, **more: Any) -> dict[str, Any]:
    folder = "docs" if number % 3 else f"src/{number % 11}"
    arguments = {"path": f"{folder}/{number % 97}.md", "text": "what is to be written " * 3, **more}
    meta = {"dev.meup/target": "files"}
    name = f"tool_{number % TOOLS}"
    return {
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments, "_meta": meta},
    }


def decision(number: int) -> Iterator[Envelope]:
    """The envelopes about one proposal."""
    proposer = f"proposer-{number % 7}"
    p, r = (f"{each}{number:031x}" for each in "ab")
    yield said("mcp/proposal", call(number), p, proposer, "reviewer")
    if number % 3 == 0 and number % 2:
        yield said("mcp/reject", {"reason": "unsafe"}, r, "reviewer", proposer, p)
        reason = {"reason": "no_longer_needed"}
        yield said("mcp/withdraw", reason, f"d{p[1:]}", proposer, "reviewer", p)
        return
    edit = {"text": "[masked]"} if number % 600 == 0 else {}
    request = {"jsonrpc": "2.0", "id": r, **call(number, **edit)}
    yield said("mcp/request", request, r, "reviewer", "files", p)
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": r, "result": {"content": []}}
    yield said("mcp/response", answer, f"e{p[1:]}", "files", "reviewer", r)


async def write(path: Path, decisions: int) -> None:
    """Make a journal."""
    seen = 0

    def kept(_: Entry) -> None:
        nonlocal seen
        seen += 1

    journal = SqliteJournal(path, JournalConfig(path), lambda: BEGIN)
    try:
        for number in range(decisions):
            for envelope in decision(number):
                journal.append(SPACE, BEGIN + 1_000 * seen, envelope, (), kept)
            if number % OUTSTANDING == 0:
                await journal.flush(60)
        await journal.flush(60)
    finally:
        await journal.aclose()


def measure(scale: float = 1.0) -> Iterator[Figure]:
    many = max(200, round(DECISIONS * scale))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        asyncio.run(write(path, many))
        command = (*processes.PYTHON, *COMMAND, str(path))
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            lines = child.stdout.read().splitlines()
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, child.returncode
    yield Figure(f"{many:,} decisions", used.ru_utime + used.ru_stime, "s", 10)
    yield Figure("rules that are suggested", sum(b"  - " in each for each in lines), "")
    yield Figure("its memory at the most", used.ru_maxrss / 2**10, "MiB")


PROGRAM = Program("suggest", "`meup policy suggest` of a journal in a file", measure)

if __name__ == "__main__":
    main([PROGRAM], sys.argv[1:])
