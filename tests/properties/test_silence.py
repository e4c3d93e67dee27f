"""Silence is never consent: no timer, crash, reconnect or default turns it into a request."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.effort import run_machine
from tests.properties.silence import SilentWorld

DECIDERS = st.sampled_from(["d1", "d2"])
INDEX = st.integers(0, 5)
NAMES = st.runner().flatmap(lambda machine: st.sampled_from(sorted(machine.world.processes)))
SECONDS = st.sampled_from([0.1, 4.0, 31.0, 59.0, 66.0, 400.0, 4_000.0, 50_000.0])
TTL = st.sampled_from([None, 0.0, 1.0, 45.0, 300.0, 40_000.0])


class Silence(RuleBasedStateMachine):
    """Everything that can happen to proposals, with and without programs that decide."""

    decides = True

    def __init__(self) -> None:
        super().__init__()
        self.world = SilentWorld()

    # --- time, cuts, crashes, and frames one at a time ---

    @rule(seconds=SECONDS)
    def passes(self, seconds: float) -> None:
        self.world.passes(seconds)

    @rule(name=NAMES)
    def cut(self, name: str) -> None:
        self.world.processes[name].cut()

    @rule(name=NAMES)
    def connect(self, name: str) -> None:
        self.world.processes[name].connect()

    @rule(name=NAMES)
    def crash(self, name: str) -> None:
        self.world.crash(name)

    @rule()
    def kill_gateway(self) -> None:
        self.world.kill_gateway()

    @rule(name=NAMES, count=st.integers(1, 8))
    def say(self, name: str, count: int) -> None:
        self.world.processes[name].say(count)

    @rule(name=NAMES, count=st.integers(1, 8))
    def hear(self, name: str, count: int) -> None:
        self.world.processes[name].hear(count)

    @rule()
    def go_round(self) -> None:
        """Let each process say and hear all that waits."""
        for _ in range(3):
            for each in self.world.processes.values():
                each.say(1_000)
                each.hear(1_000)

    # --- what programs do ---

    @rule(ttl=TTL, foreign=st.booleans())
    def propose(self, ttl: float | None, foreign: bool) -> None:
        self.world.propose(ttl, foreign=foreign)

    @rule(index=INDEX, seconds=SECONDS)
    def renew(self, index: int, seconds: float) -> None:
        self.world.renew(index, seconds)

    @rule(index=INDEX)
    def withdraw(self, index: int) -> None:
        self.world.withdraw(index)

    @rule(decider=DECIDERS, index=INDEX)
    def reject(self, decider: str, index: int) -> None:
        self.world.reject(decider, index)

    @rule(decider=DECIDERS, index=INDEX, even_if_gone=st.booleans())
    def decide(self, decider: str, index: int, even_if_gone: bool) -> None:
        if self.decides:
            self.world.decide(decider, index, even_if_gone=even_if_gone)

    @invariant()
    def holds(self) -> None:
        self.world.check()
        if not self.decides:
            assert not self.world.ran


class NobodyDecides(Silence):
    """The same without a program that decides: nothing may run, whatever happens."""

    decides = False


@pytest.mark.rule("4.2.expiry", "4.2.silence", "4.4.before_it_is_sent")
@pytest.mark.parametrize("machine", [Silence, NobodyDecides])
def test_silence_becomes_no_request(machine: type[RuleBasedStateMachine]) -> None:
    run_machine(machine, 100, steps=40)
