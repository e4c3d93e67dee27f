"""Marks: findings of a decision that its envelope does not say, kept with the entry alone.

A mark is a fact without a value: none holds afterwards, and a state that is folded from the journal
reads it with the entry. So it takes effect there as it did when it was decided.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.space.journal import Fact

_MARK: Final = "mark/"

BESIDE_MARK: Final = Fact(f"{_MARK}beside", None)
"""Its sender said it beside its connection, as over HTTP: it ends with no process of theirs."""

_CROWDED: Final = f"{_MARK}crowded"
_ANSWERS: Final = f"{_MARK}answers/"


def crowded_mark(gone_until: int | None) -> Fact:
    """The mark of a proposal for which the abandoned ones of its sender made room.

    With the time until which processes of its sender ran that are gone for good, if any: no entry
    tells of a restart, at which everybody leaves.
    """
    return Fact(_CROWDED if gone_until is None else f"{_CROWDED}/{gone_until}", None)


def rooms_made_in(facts: tuple[Fact, ...]) -> Iterator[int | None]:
    """The times of :func:`crowded_mark`, where there is one."""
    for key, _ in facts:
        if key.startswith(_CROWDED):
            _, _, gone_until = key.removeprefix(_CROWDED).partition("/")
            yield int(gone_until) if gone_until else None


def answer_mark(proposal: Envelope) -> Fact:
    """The mark of a response that decided a proposal by itself (PROTOCOL 2)."""
    return Fact(_ANSWERS + json.dumps([proposal.sender, proposal.id]), None)


def answers_in(facts: tuple[Fact, ...]) -> Iterator[tuple[str, str]]:
    """The proposer and id of each proposal that a response decided by itself."""
    for key, _ in facts:
        if key.startswith(_ANSWERS):
            proposer, proposal = json.loads(key.removeprefix(_ANSWERS))
            yield proposer, proposal


def without_marks(facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """The facts that begin or end to hold."""
    return tuple([each for each in facts if not each.key.startswith(_MARK)])
