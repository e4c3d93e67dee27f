"""Effort of the tests with random input: `quick` in `make test`, `thorough` in CI.

These are hypothesis' profiles, chosen with ``--hypothesis-profile``; `installed` is for a package
that `make test` has tried more often, where only what is installed may differ. Which combinations
of inputs and loops each runs is said in `conftest.py`.
"""

import os
from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

EXAMPLES: Final = {"quick": 10, "thorough": 100, "installed": 20}
"""By profile: the number of examples of a test that does not say how many it needs."""


def register_profiles() -> None:
    """Make the profiles known, and load the first."""
    for name, count in EXAMPLES.items():
        # No test is judged by time, its examples included.
        settings.register_profile(name, deadline=None, max_examples=count)
    settings.load_profile("quick")


def scaled(count: int) -> int:
    """The number of examples in this profile, of a test that needs so many in a thorough one."""
    return max(1, count * settings().max_examples // EXAMPLES["thorough"])


def run_machine(machine: type[RuleBasedStateMachine], count: int, steps: int) -> None:
    """Run a machine's rules in so many orders: always the same, or MEUP_EXAMPLES new ones.

    One of the former that fails is told as it is: to make it shorter takes longer than a test may.
    """
    wanted = os.environ.get("MEUP_EXAMPLES")
    chosen = settings(
        max_examples=int(wanted or scaled(count)),
        stateful_step_count=steps,
        deadline=None,
        derandomize=wanted is None,
        phases=[Phase.reuse, Phase.generate, Phase.shrink] if wanted else [Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    run_state_machine_as_test(machine, settings=chosen)
