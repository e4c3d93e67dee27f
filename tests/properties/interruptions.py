"""Interruptions of any world of processes: time, cuts, crashes, and frames one at a time."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.properties.silence import SilentWorld

NAMES = st.runner().flatmap(lambda machine: st.sampled_from(sorted(machine.world.processes)))
SECONDS = st.sampled_from([0.1, 4.0, 31.0, 59.0, 66.0, 400.0, 4_000.0, 50_000.0])


class Interruptions(RuleBasedStateMachine):
    """The rules that machines over a world of processes share."""

    world: SilentWorld

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
