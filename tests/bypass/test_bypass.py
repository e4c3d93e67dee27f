"""Each published incident is tried: with its rule, and, so that it proves something, without."""

import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from tests.bypass.catalog import INCIDENTS
from tests.bypass.incident import Incident
from tests.bypass.place import Place
from tests.patience import PATIENCE
from tests.programs import ROOT

PAGE = ROOT / "docs" / "explanation" / "bypasses.md"


def _runs(incidents: dict[str, Incident]) -> list[Any]:
    runs = []
    for name, each in incidents.items():
        kinds = ["memory"] if each.hours else ["sockets"] if each.sockets else ["memory", "sockets"]
        runs += [pytest.param(each, kind, id=f"{name}-{kind}") for kind in kinds]
    return runs


STOPPED = {name: each for name, each in INCIDENTS.items() if each.off is not None}
OPEN = {name: each for name, each in INCIDENTS.items() if each.off is None}


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    found: Incident = request.getfixturevalue("incident")
    if found.hours:
        return "trio", {"clock": MockClock(autojump_threshold=0)}
    return "asyncio"


@pytest.fixture
def place(incident: Incident, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    made = Place(kind, monkeypatch, tmp_path)
    incident.given(made)
    return made


async def unapproved(incident: Incident, place: Place) -> list[str]:
    """Calls that ran without approval."""
    with place.open(), anyio.fail_after(24 * 3600 if incident.hours else PATIENCE):
        await incident.scenario(place)
    return place.unapproved


@pytest.mark.parametrize(("incident", "kind"), _runs(STOPPED))
async def test_it_is_stopped(incident: Incident, place: Place) -> None:
    assert await unapproved(incident, place) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("incident", "kind"), _runs(STOPPED))
async def test_it_succeeds_without_its_rule(incident: Incident, place: Place) -> None:
    assert incident.off is not None
    incident.off(place)
    place.patience = PATIENCE
    assert await unapproved(incident, place) != []


@pytest.mark.parametrize(("incident", "kind"), _runs(OPEN))
async def test_what_nothing_stops_is_admitted(incident: Incident, place: Place) -> None:
    assert await unapproved(incident, place) != []


REPORTED = re.compile(
    r"### .+\n\n> “.+”\n>\n"
    r"> — \[(?P<repository>\S+)#(?P<number>\d+)\]"
    r"\(https://github\.com/(?P=repository)/(?:issues|pull)/(?P=number)\), \d{4}-\d\d-\d\d.*\n\n"
    r"\*\*There:\*\* .+\n\n\*\*Here:\*\* (?P<here>.+)\n\n\*Test:\* `(?P<name>\w+)`\n"
)
FOUND = re.compile(
    r"### .+\n\n\*\*Then:\*\* .+\n\n\*\*Now:\*\* .+\n\n\*Test:\* `(?P<file>\S+)::(?P<name>\w+)`\n"
)


@pytest.mark.skipif(not PAGE.parent.is_dir(), reason="an installed package has no docs")
def test_the_page_has_each_with_its_test() -> None:
    page = PAGE.read_text("utf-8")
    stopped, rest = page.split("\n## Found here\n")
    found, still_open = rest.split("\n## What nothing here stops\n")
    for shelf, names in ((stopped, STOPPED), (still_open, OPEN)):
        assert sorted(each["name"] for each in REPORTED.finditer(shelf)) == sorted(names)
    assert all(
        each["here"].startswith("Nothing stops it") for each in REPORTED.finditer(still_open)
    )
    findings = [(each["file"], each["name"]) for each in FOUND.finditer(found)]
    for file, name in findings:
        assert f"def {name}(" in (ROOT / file).read_text("utf-8"), name
    assert len(STOPPED) + len(OPEN) + len(findings) == page.count("\n### ")
