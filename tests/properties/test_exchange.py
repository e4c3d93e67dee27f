"""Two to four exchange tables and a gateway that interleaves as it likes.

The examples are always the same, in a quick run the first of a thorough one's. To search for
longer, with new ones at each run::

    MEUP_EXAMPLES=20000 pytest tests/properties -q -o timeout=0
"""

from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from meup_agent import Wait
from tests.effort import run_machine
from tests.properties.participant import Handler, Participant
from tests.properties.world import World
from tests.tables import Key, ProposalEntry, ProposalKey, Role

who = st.integers(0, 3)
pick = st.integers(0, 15)
whom = st.lists(st.integers(0, 3), max_size=2, unique=True)
whose = st.sampled_from([0, 0, 0, 1, 2, 3])
few = st.integers(1, 4)
deadlines = st.sampled_from([5.0, 40.0, 100.0])

T = TypeVar("T")


def chosen(options: list[T], number: int) -> T:
    """One of them; a rule's precondition sees to it that there is one."""
    return options[number % len(options)]


class ExchangeMachine(RuleBasedStateMachine):
    """Actions of participants, connections and the gateway, in any order."""

    @initialize(
        count=st.integers(2, 4),
        handlers=st.sampled_from([64, 1, 2]),
        calm=st.booleans(),
        resumes=st.booleans(),
        forgets=st.booleans(),
    )
    def begin(self, count: int, handlers: int, calm: bool, resumes: bool, forgets: bool) -> None:
        """In a calm world only the order is left to chance; in the other one things break.

        Where the gateway resumes and forgets nothing, nothing is lost although they do.
        """
        self.world = World(count, handlers=handlers, resumes=resumes)
        self.calm = calm
        self.forgets = forgets

    # --- who is there, and what may happen next ---

    def all(self) -> list[Participant]:
        return list(self.world.participants.values())

    def participant(self, number: int) -> Participant:
        return chosen(self.all(), number)

    def names(self, numbers: list[int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(chosen(self.world.names, number) for number in numbers))

    def handlers(self, role: Role | None = None) -> list[tuple[Participant, Key, Handler]]:
        return [
            (participant, key, handler)
            for participant in self.all()
            for key, handler in participant.handlers.items()
            if role is None or handler.work.role is role
        ]

    def waiting(self) -> list[tuple[Participant, Key]]:
        return [(participant, key) for participant in self.all() for key in participant.waiting()]

    def foreign(self) -> list[tuple[Participant, ProposalEntry]]:
        return [
            (participant, record)
            for participant in self.all()
            for record in participant.table.proposal_store.records(self.world.now)
            if record.key.proposer != participant.name
        ]

    def sending(self) -> list[Participant]:
        return [item for item in self.all() if item.online and (item.urgent or item.ordered)]

    def going_up(self) -> list[Participant]:
        return [item for item in self.all() if item.uplink]

    def coming_down(self) -> list[Participant]:
        return [item for item in self.all() if item.downlink]

    def online(self, is_online: bool) -> list[Participant]:
        return [item for item in self.all() if item.online is is_online]

    def arrive(self, at_once: bool) -> None:
        if at_once:
            self.world.drain()

    # --- programs ---

    @rule(
        by=who,
        to=whom,
        wait=st.sampled_from(Wait),
        seconds=deadlines,
        again=st.booleans(),
        at_once=st.booleans(),
    )
    def propose(
        self, by: int, to: list[int], wait: Wait, seconds: float, again: bool, at_once: bool
    ) -> None:
        names = self.names(to)
        self.participant(by).propose(names, seconds=seconds, wait=wait, idempotent=again)
        self.arrive(at_once)

    @rule(by=who, to=whom, seconds=deadlines, again=st.booleans(), at_once=st.booleans())
    def request(self, by: int, to: list[int], seconds: float, again: bool, at_once: bool) -> None:
        self.participant(by).request(self.names(to), seconds=seconds, idempotent=again)
        self.arrive(at_once)

    @precondition(lambda self: self.waiting())
    @rule(which=pick, at_once=st.booleans())
    def give_up(self, which: int, at_once: bool) -> None:
        participant, key = chosen(self.waiting(), which)
        participant.give_up(key)
        self.arrive(at_once)

    @precondition(lambda self: self.foreign())
    @rule(which=pick, executor=whose, edited=st.booleans(), at_once=st.booleans())
    def fulfill_by_hand(self, which: int, executor: int, edited: bool, at_once: bool) -> None:
        """Decide outside of any handler, as a person does."""
        participant, record = chosen(self.foreign(), which)
        participant.fulfill(record, chosen(self.world.names, executor), edited=edited)
        self.arrive(at_once)

    @precondition(lambda self: self.foreign())
    @rule(which=pick, executor=whose, at_once=st.booleans())
    def race_to_fulfill(self, which: int, executor: int, at_once: bool) -> None:
        """Everybody decides for the same proposal at the same moment."""
        _, wanted = chosen(self.foreign(), which)
        for participant, record in self.foreign():
            if record.key == wanted.key:
                participant.fulfill(record, chosen(self.world.names, executor), edited=False)
        self.arrive(at_once)

    @precondition(lambda self: self.foreign())
    @rule(which=pick, at_once=st.booleans())
    def reject_by_hand(self, which: int, at_once: bool) -> None:
        participant, record = chosen(self.foreign(), which)
        participant.reject(record.key)
        self.arrive(at_once)

    # --- handlers ---

    @precondition(lambda self: self.handlers())
    @rule(which=pick, raises=st.booleans(), at_once=st.booleans())
    def end(self, which: int, raises: bool, at_once: bool) -> None:
        """A handler returns or raises; if it was cancelled, that is how it swallows or ends."""
        participant, key, _ = chosen(self.handlers(), which)
        participant.end(key, raises=raises)
        self.arrive(at_once)

    @precondition(lambda self: self.handlers(Role.PROPOSAL))
    @rule(which=pick, executor=whose, edited=st.booleans(), at_once=st.booleans())
    def fulfill(self, which: int, executor: int, edited: bool, at_once: bool) -> None:
        """A handler decides for its proposal, even if it was cancelled meanwhile."""
        participant, key, _ = chosen(self.handlers(Role.PROPOSAL), which)
        record = participant.table.proposal_store.get(
            ProposalKey(key.sender, key.id), self.world.now
        )
        assert record is not None
        name = chosen(self.world.names, executor)
        participant.fulfill(record, name, edited=edited, parent=key)
        self.arrive(at_once)

    @precondition(lambda self: self.handlers(Role.PROPOSAL))
    @rule(which=pick, at_once=st.booleans())
    def reject(self, which: int, at_once: bool) -> None:
        participant, key, _ = chosen(self.handlers(Role.PROPOSAL), which)
        participant.reject(ProposalKey(key.sender, key.id))
        self.arrive(at_once)

    @precondition(lambda self: self.handlers())
    @rule(which=pick, to=whom, seconds=deadlines, proposes=st.booleans(), at_once=st.booleans())
    def call_on(
        self, which: int, to: list[int], seconds: float, proposes: bool, at_once: bool
    ) -> None:
        """A handler begins something of its own and awaits it."""
        participant, key, _ = chosen(self.handlers(), which)
        names = self.names(to)
        if proposes:
            participant.propose(names, seconds=seconds, wait=Wait.ADDRESSED, parent=key)
        else:
            participant.request(names, seconds=seconds, parent=key)
        self.arrive(at_once)

    # --- the wire ---

    @precondition(lambda self: self.sending())
    @rule(which=pick, count=few)
    def transmit(self, which: int, count: int) -> None:
        participant = chosen(self.sending(), which)
        for _ in range(count):
            participant.transmit()

    @precondition(lambda self: self.going_up())
    @rule(which=pick, count=few)
    def route(self, which: int, count: int) -> None:
        participant = chosen(self.going_up(), which)
        for _ in range(count):
            self.world.route(participant.name)

    @precondition(lambda self: self.coming_down())
    @rule(which=pick, count=few, twice=st.booleans())
    def deliver(self, which: int, count: int, twice: bool) -> None:
        participant = chosen(self.coming_down(), which)
        for _ in range(count):
            participant.deliver(twice=twice)

    @precondition(lambda self: self.sending() or self.going_up() or self.coming_down())
    @rule()
    def drain(self) -> None:
        self.world.drain()

    @precondition(lambda self: not self.calm and self.going_up())
    @rule(which=pick)
    def refuse(self, which: int) -> None:
        self.world.refuse(chosen(self.going_up(), which).name)

    # --- connections ---

    @precondition(lambda self: not self.calm and self.online(True))
    @rule(which=pick, arrived=st.integers(0, 3), noticed=st.booleans())
    def drop(self, which: int, arrived: int, noticed: bool) -> None:
        self.world.drop(chosen(self.online(True), which).name, arrived=arrived, noticed=noticed)

    @precondition(lambda self: not self.calm and self.online(False))
    @rule(which=pick, at_once=st.booleans())
    def connect(self, which: int, at_once: bool) -> None:
        self.world.connect(chosen(self.online(False), which).name)
        self.arrive(at_once)

    @precondition(lambda self: not self.calm)
    @rule(remembers=st.booleans())
    def restart(self, remembers: bool) -> None:
        self.world.restart(remembers=remembers or not self.forgets)

    @precondition(lambda self: not self.calm and self.forgets and self.world.history)
    @rule(count=st.integers(1, 20))
    def forget(self, count: int) -> None:
        self.world.forget(count)

    @precondition(lambda self: not self.calm)
    @rule(seconds=st.sampled_from([0.5, 6.0, 31.0, 70.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    # --- the end ---

    @precondition(lambda self: not self.calm and any(not item.shut_down for item in self.all()))
    @rule(which=pick, over=st.booleans())
    def shut_down(self, which: int, over: bool) -> None:
        participant = chosen([item for item in self.all() if not item.shut_down], which)
        participant.shut_down = True
        participant.apply(participant.table.shutdown(self.world.now))
        if over:
            participant.apply(participant.table.shutdown_over(self.world.now))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


@pytest.mark.rule("race.any_order", "6.resume.accepted", "6.resume.sent_again", "6.resume.once")
def test_exchanges_hold_their_invariants_in_any_order() -> None:
    run_machine(ExchangeMachine, 120, steps=50)
