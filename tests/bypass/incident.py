"""Incident: the scenario that repeats a report here, and the rule that stops it."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final

from tests.bypass.place import Place

Scenario = Callable[[Place], Coroutine[None, None, None]]
Change = Callable[[Place], None]


def _as_it_is(_: Place) -> None:
    """Set nothing up."""


@dataclass(frozen=True)
class Incident:
    """A scenario of a report.

    Attributes:
        scenario: Repeats its steps; what was not approved and ran all the same is noted by the
            place. The page has the report under its name.
        off: Switches the rule off; ``None``: no rule stops it, and it succeeds.
        hours: It takes hours, so it runs in virtual time alone, in memory.
        sockets: It is about a door of the gateway, so it runs over sockets alone.
        given: Sets the place up, before the rule is switched off.
    """

    scenario: Scenario
    off: Change | None
    hours: bool = False
    sockets: bool = False
    given: Change = _as_it_is


INCIDENTS: Final[dict[str, Incident]] = {}


def incident(
    *, off: Change | None, hours: bool = False, sockets: bool = False, given: Change = _as_it_is
) -> Callable[[Scenario], Scenario]:
    """Register a scenario as that of an incident, under its function's name."""

    def register(scenario: Scenario) -> Scenario:
        assert scenario.__name__ not in INCIDENTS
        INCIDENTS[scenario.__name__] = Incident(scenario, off, hours, sockets, given)
        return scenario

    return register
