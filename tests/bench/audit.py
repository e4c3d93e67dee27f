"""Time and memory of `meup audit` over a journal in a file: until it ends, until its first line.

The journal is written by the gateway's own writer, which is not measured. A proposal in it has five
envelopes on average: most are fulfilled, some after an edit or with an error; others are rejected
with an explanation, or withdrawn; one in fifty is never decided.
"""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

from meup_agent.gateway.config import JournalConfig
from meup_agent.gateway.journal.archive import Archive
from meup_agent.gateway.journal.decisions import DecisionQuery
from meup_agent.gateway.journal.sqlite import SqliteJournal
from meup_agent.protocol.audit import Audit
from meup_agent.protocol.dialects import decode
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.state.inflight import TRACKED_KINDS, InFlight
from meup_agent.protocol.wire.envelope import Envelope, encode_json
from tests.bench import processes
from tests.bench.figures import Figure, Program

ENVELOPES = 100_000
FEWER = 10
MOST_FOLDED = 20_000

BEGIN = 1_750_000_000_000_000
"""Microseconds since 1970 of the first envelope; one comes each millisecond."""

SPACE = "demo"
OUTSTANDING = 2_000


def said(kind: str, payload: Any, id: str, sender: str, to: str, about: str = "") -> Envelope:
    """An envelope as a gateway keeps it, with its frame."""
    frame = {
        "protocol": "meup/v0.1",
        "id": id,
        "ts": "2025-06-15T15:06:40.000Z",
        "from": sender,
        "to": [to],
        "kind": kind,
        **({"correlation_id": [about]} if about else {}),
        "payload": payload,
    }
    return decode(encode_json(frame))


def call(name: str, path: str, **more: Any) -> dict[str, Any]:
    arguments = {"path": path, "text": "what is to be written there " * 3, **more}
    params = {"name": name, "arguments": arguments, "_meta": {"dev.meup/target": "files"}}
    return {"method": "tools/call", "params": params}


def story(number: int) -> Iterator[Envelope]:
    """The envelopes about one proposal."""
    proposer = f"proposer-{number % 7}"
    p, r = (f"{each}{number:031x}" for each in "ab")
    wanted = partial(call, "write_file", f"notes/{number}.md")
    yield said("mcp/proposal", wanted(), p, proposer, "reviewer")
    match number % 50:
        case 0:
            return
        case rest if rest < 6:
            yield said("mcp/reject", {"reason": "unsafe"}, r, "reviewer", proposer, p)
            words = {"message": "it leaves the folder"}
            yield said("chat", words, f"c{p[1:]}", "reviewer", proposer, r)
            reason = {"reason": "no_longer_needed"}
            yield said("mcp/withdraw", reason, f"d{p[1:]}", proposer, "reviewer", p)
        case rest if rest < 10:
            yield said("mcp/withdraw", {"reason": "timeout"}, r, proposer, "reviewer", p)
        case rest:
            edit = {"text": "[masked]"} if rest < 15 else {}
            request = {"jsonrpc": "2.0", "id": r, **wanted(**edit)}
            yield said("mcp/request", request, r, "reviewer", "files", p)
            for done in range(3):
                progress = {"progressToken": r, "progress": done, "total": 3}
                note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}
                yield said("mcp/request", note, f"{done}{p[1:]}", "files", "reviewer", r)
            failed = {"isError": True} if rest < 20 else {}
            result = {"content": [{"type": "text", "text": "87 bytes written"}], **failed}
            answer = {"jsonrpc": "2.0", "id": r, "result": result}
            yield said("mcp/response", answer, f"e{p[1:]}", "files", "reviewer", r)


def envelopes(count: int) -> Iterator[Envelope]:
    """So many envelopes, of stories of which four are told at the same time."""
    return islice(_woven(), count)


def _woven() -> Iterator[Envelope]:
    number = 0
    while True:
        stories = [story(number + each) for each in range(4)]
        number += len(stories)
        while stories:
            for each in list(stories):
                envelope = next(each, None)
                if envelope is None:
                    stories.remove(each)
                else:
                    yield envelope


async def write(path: Path, envelopes: Iterable[Envelope]) -> None:
    """Make a journal."""
    journal, space = SqliteJournal(JournalConfig(path), lambda: BEGIN), InFlight()
    try:
        for number, envelope in enumerate(envelopes, start=1):
            at = BEGIN + 1_000 * number
            if envelope.kind in TRACKED_KINDS:
                space.track(envelope, envelope.payload_object, at)
            journal.append(SPACE, at, envelope, (), lambda _: None, space.pop_changes())
            if number % OUTSTANDING == 0:
                await journal.flush(60)
        await journal.flush(60)
    finally:
        await journal.aclose()


class Run(NamedTuple):
    """Figures of a command: seconds until its end, its first line, and of CPU; peak bytes."""

    seconds: float
    first: float
    cpu: float
    memory: int
    lines: list[bytes]


def run(*command: str) -> Run:
    """Run a command of `meup`."""
    begun = perf_counter()
    with subprocess.Popen(
        (*processes.PYTHON, "-m", "meup_agent.cli", *command),
        stdout=subprocess.PIPE,
        env={**os.environ, "TZ": "UTC"},
    ) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline()]
        first = perf_counter() - begun
        lines += child.stdout
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, child.returncode
    cpu = used.ru_utime + used.ru_stime
    return Run(perf_counter() - begun, first, cpu, used.ru_maxrss * 1024, lines)


def folded(many: int) -> float:
    """CPU time of folding an entry."""
    entries = [
        Entry(number, SPACE, BEGIN + 1_000 * number, envelope)
        for number, envelope in enumerate(envelopes(min(many, MOST_FOLDED)), start=1)
    ]
    audit, begun = Audit(), process_time()
    for entry in entries:
        audit.add(entry)
    return (process_time() - begun) / len(entries) * 1e6


def measure(scale: float = 1.0) -> Iterator[Figure]:
    many = max(200, round(ENVELOPES * scale))
    with tempfile.TemporaryDirectory() as folder:
        path, less = Path(folder) / "journal.db", Path(folder) / "less.db"
        asyncio.run(write(path, envelopes(many)))
        asyncio.run(write(less, envelopes(many // FEWER)))
        audit = partial(run, "audit", "--journal", str(path))
        text, as_json, small = audit(), audit("--json"), run("audit", "--journal", str(less))
        # Of the middle of the journal, whose other proposals are told at the same time.
        one = audit("--proposal", f"a{many // 10:031x}")
        pending = audit("--state", "pending")
        with closing(Archive(path, looks_through=False)) as archive:
            begun = process_time()
            archive.find_chains(SPACE, DecisionQuery(f"a{many // 10:031x}"))
            found = process_time() - begun
    assert len(text.lines) == len(as_json.lines)
    yield Figure(f"{many:,} envelopes as text", text.seconds, "s", 10)
    yield Figure("the first line", text.first, "s", 1)
    yield Figure(f"{many:,} envelopes as JSON", as_json.seconds, "s", 10)
    yield Figure("the first line of JSON", as_json.first, "s", 1)
    yield Figure("one proposal of them", one.seconds, "s", 0.3)
    yield Figure("…CPU time of finding and reading what belongs to it", found * 1e3, "ms")
    yield Figure("the pending ones, a 50th", pending.seconds, "s")
    yield Figure("an entry, folded", folded(many), "µs", 12)
    yield Figure("its memory at the most", text.memory / 2**20, "MiB")
    yield Figure(f"…times that of a {FEWER}th", text.memory / small.memory, "×", 1.5)


PROGRAM = Program("audit", "`meup audit` of a journal in a file", measure)
