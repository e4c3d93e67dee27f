"""Every cell of the lifecycle tables, and every pair that they do not have (PROTOCOL 4.2, 5)."""

from collections.abc import Mapping
from enum import StrEnum
from itertools import product
from typing import Any

import pytest

from meup_agent import ProposalState
from meup_agent.errors import IllegalStep
from meup_agent.protocol.exchange.effects import (
    OUTBOUND,
    InboundEvent,
    OutboundEvent,
    OutboundState,
)
from meup_agent.protocol.proposals import ProposalEvent, look_up
from tests.wire import INBOUND, PROPOSAL, InboundState

# What the tables must say, written down a second time; the events of a line have the same cell.
PROPOSAL_CELLS = """
    pending      request            -> in_progress
    pending      response           -> fulfilled
    pending      rejection          -> rejected
    pending      withdrawal         -> withdrawn
    pending      expiry             -> expired
    in_progress  request            -> in_progress
    in_progress  request_cancelled  -> pending
    in_progress  response           -> fulfilled
    pending      permit             -> permitted
    in_progress  permit             -> permitted
    permitted    taken              -> permitted
    permitted    report             -> fulfilled
    in_progress  withdrawal         -> withdrawn
    in_progress  expiry             -> expired
"""

INBOUND_CELLS = """
    queued      start         -> running     start
    queued      cancel        -> settled     drop
    queued      shutdown      -> settled     answer_busy
    running     returned      -> settled     respond
    running     raised        -> settled     respond_error
    running     cancel        -> cancelling  cancel_scope
    running     rejected      -> settled     keep
    running     sender_left   -> running     begin_grace
    running     sender_absent -> cancelling  cancel_scope
    running     shutdown_over -> cancelling  cancel_scope_and_answer
    cancelling  returned      -> settled     discard
    cancelling  raised        -> settled     log
    settled     returned      -> settled     discard
    settled     raised        -> settled     log
    settled     cancel        -> settled     count_late
    settled     shutdown_over -> cancelling  cancel_scope
    queued      sender_left sender_absent connection_lost -> queued keep
    running     connection_lost shutdown -> running keep
    cancelling  cancel rejected sender_left sender_absent -> cancelling ignore
    cancelling  connection_lost shutdown shutdown_over -> cancelling ignore
    settled     rejected connection_lost shutdown -> settled keep
    settled     sender_left sender_absent -> settled ignore
"""

OUTBOUND_CELLS = """
    blocked   offered          -> unsent    offer
    blocked   give_up          -> done      drop
    blocked   stopped          -> done      not_sent
    unsent    sent             -> waiting   note_sent
    unsent    deadline         -> done      drop_timeout
    unsent    give_up          -> done      drop
    unsent    stopped          -> done      not_sent
    waiting   sent             -> waiting   note_sent
    waiting   response         -> done      result
    waiting   rejection        -> given_up  rejected_and_end
    waiting   refusal          -> done      refused
    waiting   gone             -> given_up  gone_and_end
    waiting   deadline         -> given_up  expired_and_end
    waiting   give_up          -> given_up  end
    waiting   connection_lost  -> waiting   note_lost
    waiting   welcome          -> waiting   send_again
    waiting   stopped          -> done      unknown
    waiting   ended_by_sibling -> given_up  keep
    given_up  response         -> given_up  late
    blocked     connection_lost welcome -> blocked keep
    unsent      connection_lost welcome -> unsent keep
    given_up    sent rejection refusal connection_lost -> given_up ignore
    given_up    welcome stopped -> given_up ignore
"""

TABLES: list[Any] = [
    (PROPOSAL, PROPOSAL_CELLS, ProposalState, ProposalEvent),
    (INBOUND, INBOUND_CELLS, InboundState, InboundEvent),
    (OUTBOUND, OUTBOUND_CELLS, OutboundState, OutboundEvent),
]
NAMES = ["proposal", "inbound", "outbound"]


def cells(text: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """The cells of a table: state and event -> next state, and action where there is one."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for line in text.strip().splitlines():
        before, _, after = line.partition("->")
        state, *events = before.split()
        for event in events:
            found[state, event] = tuple(after.split())
    return found


@pytest.mark.rule("4.2.one_way")
@pytest.mark.parametrize(("table", "text", "states", "events"), TABLES, ids=NAMES)
def test_each_cell_says_what_it_should_and_any_other_pair_raises(
    table: Mapping[tuple[StrEnum, StrEnum], Any],
    text: str,
    states: type[StrEnum],
    events: type[StrEnum],
) -> None:
    before, expected = dict(table), cells(text)
    assert set(table) == set(expected)
    for state, event in product(states, events):
        cell = expected.get((state, event))
        if cell is not None:
            result = look_up(table, state, event, "it")
            assert (result if isinstance(result, tuple) else (result,)) == cell, (state, event)
            continue
        with pytest.raises(IllegalStep, match=f"{state} has no step for {event}"):
            look_up(table, state, event, "it")
    assert dict(table) == before


@pytest.mark.rule("4.2.one_way")
def test_a_decided_proposal_stays_decided() -> None:
    decided = [state for state in ProposalState if not state.is_pending]
    assert decided == ["permitted", "fulfilled", "rejected", "withdrawn", "expired"]
    steps = [(state, event) for state, event in PROPOSAL if state in decided]
    assert steps == [("permitted", "taken"), ("permitted", "report")]
    assert {PROPOSAL[each] for each in steps} <= set(decided)
