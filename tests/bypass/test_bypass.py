"""Each published incident is tried: with its rule, and, so that it proves something, without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from tests.bypass.catalog import INCIDENTS
from tests.bypass.findings import FINDINGS, Finding
from tests.bypass.incident import Incident
from tests.bypass.page import PATH, page
from tests.bypass.place import Place
from tests.patience import PATIENCE
from tests.programs import ROOT

pytestmark = pytest.mark.anyio


def _runs(incidents: list[Incident]) -> list[Any]:
    runs = []
    for each in incidents:
        kinds = ["memory"] if each.hours else ["sockets"] if each.sockets else ["memory", "sockets"]
        runs += [pytest.param(each, kind, id=f"{each.name}-{kind}") for kind in kinds]
    return runs


STOPPED = [each for each in INCIDENTS.values() if each.off is not None]
OPEN = [each for each in INCIDENTS.values() if each.off is None]


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    found: Incident = request.getfixturevalue("incident")
    if found.hours:
        return "trio", {"clock": MockClock(autojump_threshold=0)}
    return "asyncio"


async def unapproved(incident: Incident, place: Place) -> list[str]:
    """Calls that ran without approval."""
    with place.open(), anyio.fail_after(24 * 3600 if incident.hours else PATIENCE):
        await incident.scenario(place)
    return place.unapproved


@pytest.mark.parametrize(("incident", "kind"), _runs(STOPPED))
async def test_it_is_stopped(
    incident: Incident, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Place(kind, monkeypatch, tmp_path)
    incident.given(place)
    assert await unapproved(incident, place) == []


@pytest.mark.parametrize(("incident", "kind"), _runs(STOPPED))
async def test_it_succeeds_without_its_rule(
    incident: Incident, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Place(kind, monkeypatch, tmp_path)
    assert incident.off is not None
    incident.given(place)
    incident.off(place)
    place.patience = PATIENCE
    assert await unapproved(incident, place) != []


@pytest.mark.parametrize(("incident", "kind"), _runs(OPEN))
async def test_what_nothing_stops_is_admitted(
    incident: Incident, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Place(kind, monkeypatch, tmp_path)
    incident.given(place)
    assert await unapproved(incident, place) != []
    assert incident.here.startswith("Nothing stops it")


def test_there_are_enough() -> None:
    assert len(STOPPED) >= 15


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda each: each.test)
def test_a_finding_has_its_test(finding: Finding) -> None:
    file, _, name = finding.test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text("utf-8")


def test_page_is_made_from_these() -> None:
    if PATH.parent.is_dir():  # an installed package has no docs
        assert PATH.read_text("utf-8") == page(), "run: python -m tests.bypass"
