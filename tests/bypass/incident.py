"""Incident: what was reported, the scenario that repeats it here, and the rule that stops it."""

from __future__ import annotations

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
    """A report, and its scenario.

    Attributes:
        name: Its name in the page and in the tests.
        title: The bypass, in a few words.
        link: The report.
        date: When it was reported.
        said: One sentence, or part of one, of the report.
        there: What happened there.
        here: What stops it here, or why nothing does.
        scenario: Repeats its steps; what was not approved and ran all the same is noted by the
            place.
        given: Sets the place up, before the rule is switched off.
        off: Switches the rule off; ``None``: no rule stops it, and it succeeds.
        hours: It takes hours, so it runs in virtual time alone, in memory.
        sockets: It is about a door of the gateway, so it runs over sockets alone.
        also: More reports of the same.
    """

    name: str
    title: str
    link: str
    date: str
    said: str
    there: str
    here: str
    scenario: Scenario
    off: Change | None
    hours: bool = False
    sockets: bool = False
    also: tuple[str, ...] = ()
    given: Change = _as_it_is


INCIDENTS: Final[dict[str, Incident]] = {}


def incident(
    title: str,
    *,
    link: str,
    date: str,
    said: str,
    there: str,
    here: str,
    off: Change | None,
    hours: bool = False,
    sockets: bool = False,
    also: tuple[str, ...] = (),
    given: Change = _as_it_is,
) -> Callable[[Scenario], Scenario]:
    """Register a scenario as that of an incident, under its function's name."""

    def register(scenario: Scenario) -> Scenario:
        name = scenario.__name__
        assert name not in INCIDENTS
        INCIDENTS[name] = Incident(
            name, title, link, date, said, there, here, scenario, off, hours, sockets, also, given
        )
        return scenario

    return register
