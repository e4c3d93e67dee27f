"""A long journal is read with little memory, and says the same as one that is kept whole."""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import pytest

from meup_agent import Envelope
from meup_agent.protocol.audit import SettledRecords
from tests.bench.audit import envelopes
from tests.spaces import Audit, AuditRecord, Entry, proposal_as_json
from tests.wire import draft, kinds, payloads

PAGE = 20


def entries(said: Iterable[Envelope]) -> Iterator[Entry]:
    return (Entry(seq, "demo", seq * 1_000, each) for seq, each in enumerate(said, 1))


def read(
    said: Iterable[Envelope], audit: Audit, settled: SettledRecords
) -> Iterator[list[AuditRecord]]:
    """The records that are handed over after each page, and at the end."""
    for taken, entry in enumerate(entries(said), 1):
        audit.add(entry)
        if taken % PAGE == 0:
            yield list(settled.pop(taken))
    yield list(audit.proposals)


def as_json(found: Iterable[AuditRecord]) -> list[dict[str, Any]]:
    said = [proposal_as_json(item, timeline=True) for item in found]
    return sorted(said, key=lambda each: each["seq"])


def test_what_is_handed_over_is_what_an_audit_of_everything_has() -> None:
    said = list(envelopes(2_000))
    whole = Audit()
    for entry in entries(said):
        whole.add(entry)
    audit = Audit()
    pages = list(read(said, audit, SettledRecords(audit, look_ahead=100)))
    assert as_json(item for page in pages for item in page) == as_json(whole.proposals)
    assert audit.unknown == whole.unknown == 0


def test_it_is_the_oldest_first_and_the_undecided_last() -> None:
    audit = Audit()
    *pages, rest = read(envelopes(2_000), audit, SettledRecords(audit, look_ahead=100))
    shown = [item.first.seq for page in pages for item in page]
    assert shown == sorted(shown)
    assert pages[3] == []
    assert len(pages[10]) > 0, "it does not wait for the end of the journal"
    open_ones = [item for item in rest if item.state.is_pending]
    assert len(open_ones) >= 2_000 // (5 * 50)
    assert open_ones[0].first.seq < shown[0], "a proposal that nobody decides holds nobody up"


def test_what_is_held_does_not_grow_with_the_journal() -> None:
    audit = Audit()
    held = [
        sum(item.decision is not None for item in audit.proposals)
        for _ in read(envelopes(5_000), audit, SettledRecords(audit, look_ahead=100))
    ]
    assert max(held) < 100


def test_what_is_wanted_is_kept() -> None:
    audit = Audit()
    settled = SettledRecords(audit, look_ahead=0, keep=lambda item: item.id == "p1")
    ids = count()
    call = payloads.proposal("tools/call", {"name": "write"})
    said = [draft("mcp/proposal", call, id=f"p{next(ids)}", sender="ann") for _ in range(3)]
    said += [
        draft("mcp/withdraw", {}, id=f"w{each.id}", sender="ann", correlation=(each.id,))
        for each in said
    ]
    for number, entry in enumerate(entries(said)):
        audit.add(entry)
        list(settled.pop(number))
    list(settled.pop(1_000))
    assert [item.id for item in audit.proposals] == ["p1"]


@pytest.mark.parametrize(("kind", "by"), [(kinds.MCP_WITHDRAW, "ann"), (kinds.MCP_REJECT, "bob")])
def test_what_was_said_again_of_a_released_proposal_is_nothing_new(kind: str, by: str) -> None:
    payload = payloads.proposal("tools/call", {"name": "write", "arguments": {}})
    first = draft(kinds.MCP_PROPOSAL, payload, id="p", sender="ann")
    withdraw = draft(kinds.MCP_WITHDRAW, {}, id="w", sender="ann", correlation=("p",))
    audit = Audit()
    settled = SettledRecords(audit, look_ahead=0)
    again = draft(kind, {}, id="again", sender=by, correlation=("p",))
    *said, last = entries([first, withdraw, again])
    for entry in said:
        audit.add(entry)
    assert [item.id for item in settled.pop(1)] == ["p"]
    audit.add(last)
    assert audit.proposals == []
    assert audit.unknown == 0


def test_an_id_that_is_used_again_is_another_proposal() -> None:
    audit = Audit()
    settled = SettledRecords(audit, look_ahead=0)
    payload = payloads.proposal("tools/call", {"name": "write", "arguments": {}})
    said = [
        draft(kinds.MCP_PROPOSAL, payload, id="p-1", sender="ann"),
        draft(kinds.MCP_WITHDRAW, {}, id="w", sender="ann", correlation=("p-1",)),
        draft(kinds.MCP_PROPOSAL, {**payload, "method": "prompts/get"}, id="p-1", sender="ann"),
    ]
    shown: list[AuditRecord] = []
    for number, entry in enumerate(entries(said)):
        audit.add(entry)
        shown += settled.pop(number)
    assert [item.state for item in shown] == ["withdrawn"]
    assert [item.call.method for item in audit.proposals] == ["prompts/get"]
