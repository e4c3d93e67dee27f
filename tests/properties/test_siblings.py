"""The same tables, while a person decides beside some of them under their names (PROTOCOL 5)."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from meup_agent import ProposalState
from tests.effort import run_machine
from tests.properties.participant import Participant
from tests.properties.test_exchange import ExchangeMachine, chosen, few, pick, who, whose
from tests.properties.world import World
from tests.tables import Key, ProposalKey
from tests.wire import kinds, payloads

CALL = {"name": "work", "arguments": {"n": 1}}


class SiblingMachine(ExchangeMachine):
    """Actions of a person beside, where the gateway checks who speaks."""

    @initialize(
        count=st.integers(2, 4),
        handlers=st.sampled_from([64, 1, 2]),
        calm=st.booleans(),
        forgets=st.booleans(),
    )
    def begin(self, count: int, handlers: int, calm: bool, forgets: bool) -> None:
        self.world = World(count, handlers=handlers, resumes=True)
        self.calm = calm
        self.forgets = forgets

    def open(self, kind: str) -> list[tuple[Participant, Key]]:
        """ExchangeMachine that are waited for, and that the gateway has taken."""
        taken = {envelope.id for envelope in self.world.log if envelope.kind == kind}
        return [(participant, key) for participant, key in self.waiting() if key.id in taken]

    @precondition(lambda self: self.coming_down())
    @rule(which=pick, count=few)
    def deliver(self, which: int, count: int) -> None:
        """A gateway that numbers what it says repeats nothing."""
        participant = chosen(self.coming_down(), which)
        for _ in range(count):
            participant.deliver()

    @invariant()
    def nobody_waits_for_what_is_withdrawn(self) -> None:
        for participant, key in self.waiting():
            known = participant.table.proposal_store.get(
                ProposalKey(key.sender, key.id), self.world.now
            )
            assert known is None or known.state is not ProposalState.WITHDRAWN

    @precondition(lambda self: self.open(kinds.MCP_PROPOSAL))
    @rule(which=pick, at_once=st.booleans())
    def withdraw_beside(self, which: int, at_once: bool) -> None:
        participant, key = chosen(self.open(kinds.MCP_PROPOSAL), which)
        self.world.beside(
            participant.name, kinds.MCP_WITHDRAW, {"reason": "no_longer_needed"}, about=key.id
        )
        self.arrive(at_once)

    @precondition(lambda self: self.open(kinds.MCP_REQUEST))
    @rule(which=pick, at_once=st.booleans())
    def cancel_beside(self, which: int, at_once: bool) -> None:
        participant, key = chosen(self.open(kinds.MCP_REQUEST), which)
        cancel = payloads.notification(kinds.CANCELLED, {"requestId": key.id})
        to = next(envelope.to for envelope in self.world.log if envelope.id == key.id)
        self.world.beside(participant.name, kinds.MCP_REQUEST, cancel, to=to, about=key.id)
        self.arrive(at_once)

    @precondition(lambda self: self.foreign())
    @rule(which=pick, at_once=st.booleans())
    def reject_beside(self, which: int, at_once: bool) -> None:
        participant, record = chosen(self.foreign(), which)
        self.world.beside(
            participant.name, kinds.MCP_REJECT, {"reason": "unsafe"}, about=record.key.id
        )
        self.arrive(at_once)

    @precondition(lambda self: self.foreign())
    @rule(which=pick, executor=whose, at_once=st.booleans())
    def fulfill_beside(self, which: int, executor: int, at_once: bool) -> None:
        participant, record = chosen(self.foreign(), which)
        name = chosen(self.world.names, executor)
        self.world.beside(
            participant.name, kinds.MCP_REQUEST, CALL, to=(name,), about=record.key.id
        )
        self.arrive(at_once)

    @rule(by=who, to=who, at_once=st.booleans())
    def request_beside(self, by: int, to: int, at_once: bool) -> None:
        names = self.world.names
        self.world.beside(chosen(names, by), kinds.MCP_REQUEST, CALL, to=(chosen(names, to),))
        self.arrive(at_once)


@pytest.mark.rule("race.any_order", "5.who.me.beside")
def test_who_decides_beside_a_participant_disturbs_no_invariant() -> None:
    run_machine(SiblingMachine, 100, steps=50)
