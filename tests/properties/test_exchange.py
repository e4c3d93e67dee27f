"""Two to four exchange tables and a gateway that interleaves as it likes.

In the default profile the examples are always the same. To search for longer, with new ones at each
run::

    MEUP_EXAMPLES=20000 pytest tests/properties -q -o timeout=0
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from meup_agent.protocol.exchange import Key, Role, Wait
from tests.properties.world import Handler, Participant, World

EXAMPLES = os.environ.get("MEUP_EXAMPLES")

who = st.integers(0, 3)
pick = st.integers(0, 7)
whom = st.lists(st.integers(0, 3), max_size=2, unique=True)
few = st.integers(1, 4)
deadlines = st.sampled_from([5.0, 40.0, 100.0])


class Exchanges(RuleBasedStateMachine):
    """What participants, connections and the gateway can do, in any order."""

    @initialize(count=st.integers(2, 4), handlers=st.sampled_from([1, 2, 64]))
    def begin(self, count: int, handlers: int) -> None:
        self.world = World(count, handlers=handlers)

    def name(self, number: int) -> str:
        return self.world.names[number % len(self.world.names)]

    def participant(self, number: int) -> Participant:
        return self.world.participants[self.name(number)]

    def names(self, numbers: list[int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.name(number) for number in numbers))

    def handler(self, participant: Participant, number: int) -> tuple[Key, Handler] | None:
        handlers = list(participant.handlers.items())
        return handlers[number % len(handlers)] if handlers else None

    # --- programs ---

    @rule(by=who, to=whom, wait=st.sampled_from(Wait), seconds=deadlines, again=st.booleans())
    def propose(self, by: int, to: list[int], wait: Wait, seconds: float, again: bool) -> None:
        names = self.names(to)
        self.participant(by).propose(names, seconds=seconds, wait=wait, idempotent=again)

    @rule(by=who, to=whom, seconds=deadlines, again=st.booleans())
    def request(self, by: int, to: list[int], seconds: float, again: bool) -> None:
        self.participant(by).request(self.names(to), seconds=seconds, idempotent=again)

    @rule(by=who, which=pick)
    def give_up(self, by: int, which: int) -> None:
        participant = self.participant(by)
        waiting = participant.waiting()
        if waiting:
            participant.give_up(waiting[which % len(waiting)])

    @rule(by=who, which=pick, executor=who, edited=st.booleans())
    def fulfill_by_hand(self, by: int, which: int, executor: int, edited: bool) -> None:
        """Somebody decides outside of any handler, as a person does."""
        participant = self.participant(by)
        records = [
            record
            for record in participant.table.ledger.records(self.world.now)
            if record.key.proposer != participant.name
        ]
        if records:
            record = records[which % len(records)]
            participant.fulfill(record, self.name(executor), edited=edited)

    # --- handlers ---

    @rule(by=who, which=pick, raises=st.booleans())
    def end(self, by: int, which: int, raises: bool) -> None:
        """A handler returns or raises; if it was cancelled, that is how it swallows or ends."""
        participant = self.participant(by)
        found = self.handler(participant, which)
        if found is not None and not found[1].awaited:
            participant.end(found[0], raises=raises)

    @rule(by=who, which=pick, executor=who, edited=st.booleans())
    def fulfill(self, by: int, which: int, executor: int, edited: bool) -> None:
        participant = self.participant(by)
        found = self.handler(participant, which)
        if found is None or found[1].work.role is not Role.PROPOSAL:
            return
        key, handler = found
        for record in participant.table.ledger.records(self.world.now):
            if record.envelope.id == handler.work.envelope.id:
                participant.fulfill(record, self.name(executor), edited=edited, parent=key)
                return

    @rule(by=who, which=pick)
    def reject(self, by: int, which: int) -> None:
        participant = self.participant(by)
        found = self.handler(participant, which)
        if found is not None and found[1].work.role is Role.PROPOSAL:
            key = found[0]
            for record in participant.table.ledger.records(self.world.now):
                if record.key == (key.sender, key.id):
                    participant.reject(record.key)

    @rule(by=who, which=pick, to=whom, seconds=deadlines, proposes=st.booleans())
    def call_on(self, by: int, which: int, to: list[int], seconds: float, proposes: bool) -> None:
        """A handler begins something of its own and awaits it."""
        participant = self.participant(by)
        found = self.handler(participant, which)
        if found is None:
            return
        if proposes:
            participant.propose(
                self.names(to), seconds=seconds, wait=Wait.ADDRESSED, parent=found[0]
            )
        else:
            participant.request(self.names(to), seconds=seconds, parent=found[0])

    # --- the wire ---

    @rule(by=who, count=few)
    def transmit(self, by: int, count: int) -> None:
        for _ in range(count):
            self.participant(by).transmit()

    @rule(by=who, count=few)
    def route(self, by: int, count: int) -> None:
        for _ in range(count):
            self.world.route(self.name(by))

    @rule(to=who, count=few, twice=st.booleans())
    def deliver(self, to: int, count: int, twice: bool) -> None:
        for _ in range(count):
            self.participant(to).deliver(twice=twice)

    @rule()
    def drain(self) -> None:
        self.world.drain()

    @rule(by=who)
    def refuse(self, by: int) -> None:
        self.world.refuse(self.name(by))

    # --- connections ---

    @rule(who=who, arrived=st.integers(0, 3), noticed=st.booleans())
    def drop(self, who: int, arrived: int, noticed: bool) -> None:
        self.world.drop(self.name(who), arrived=arrived, noticed=noticed)

    @rule(who=who)
    def connect(self, who: int) -> None:
        self.world.connect(self.name(who))

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule(seconds=st.sampled_from([0.5, 6.0, 31.0, 70.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    # --- the end ---

    @precondition(lambda self: any(not p.shut_down for p in self.world.participants.values()))
    @rule(who=who, over=st.booleans())
    def shut_down(self, who: int, over: bool) -> None:
        participant = self.participant(who)
        participant.shut_down = True
        participant.apply(participant.table.shutdown(self.world.now))
        if over:
            participant.apply(participant.table.shutdown_over(self.world.now))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


@pytest.mark.rule("race.any_order")
def test_exchanges_hold_their_invariants_in_any_order() -> None:
    run_state_machine_as_test(
        Exchanges,
        settings=settings(
            max_examples=int(EXAMPLES or 100),
            stateful_step_count=50,
            deadline=None,
            derandomize=EXAMPLES is None,
        ),
    )
