"""A gateway for every test: ours in each published dialect, or those that exist, scripted."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from meup_agent.gateway import Config, Gateway
from tests.conformance.gateways import MEUP_V02, MEW_V04, ExistingGateway
from tests.conformance.people import gateway_of
from tests.conformance.versions import Version
from tests.conformance.wire import V02, V04, Dialled, Site, config_of
from tests.gateway.mounted import MountedPlace, mounted
from tests.gateways import first_token

PARTICIPANTS: dict[str, list[dict[str, Any]]] = {
    "alice": [{"kind": "chat"}, {"kind": "mcp/proposal"}],
    "bob": [{"kind": "mcp/*"}, {"kind": "chat"}],
    "carol": [],
    "root": [{"kind": "*"}],
}
ELSEWHERE: dict[str, dict[str, list[dict[str, Any]]]] = {"other": {"alice": [{"kind": "*"}]}}


class Mounted:
    """The part that joining needs of a gateway within another application."""

    def __init__(self, place: MountedPlace, config: Config) -> None:
        self.url = place.url
        self._config = config

    def token(self, participant: str, space: str | None = None) -> str:
        return first_token(self._config, participant, space)


ServeSite = Callable[[Config], AbstractContextManager[Dialled]]
"""Makes a gateway that listens for the length of a block."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test in both dialects, and in the newer one at a mounted gateway as well.

    A dialect makes no difference to how a connection is served, so not all of both are crossed.
    """
    wanted = [name for name in ("dialect", "served") if name in metafunc.fixturenames]
    marks = metafunc.definition.iter_markers("parametrize")
    if not wanted or any("dialect" in mark.args[0] for mark in marks):
        return
    if "served" in wanted:
        metafunc.parametrize(
            ("dialect", "served"),
            [(V02, "port"), (V04, "port"), (V04, "mounted")],
            indirect=["served"],
        )
    else:
        metafunc.parametrize("dialect", [V02, V04])


@pytest.fixture
def served(request: pytest.FixtureRequest) -> ServeSite:
    """A gateway on a port of its own, and one that is mounted in another application."""

    @contextmanager
    def listens(config: Config) -> Generator[Dialled]:
        if request.param == "port":
            with Gateway(config=config).in_thread() as gateway:
                yield gateway
        else:
            with mounted(config) as place:
                yield Mounted(place, config)

    return listens


@pytest.fixture
def site(served: ServeSite, dialect: str, request: pytest.FixtureRequest) -> Generator[Site]:
    """A gateway with the people of the test's file, or else with those of this one."""
    people = getattr(request.module, "PEOPLE", PARTICIPANTS)
    with served(config_of(people, dialect=dialect, more=ELSEWHERE)) as gateway:
        yield Site(gateway, dialect)


@pytest.fixture(params=[MEUP_V02, MEW_V04], ids=["meup-v0.2", "mew-v0.4"])
def version(request: pytest.FixtureRequest) -> Version:
    found: Version = request.param
    return found


@pytest.fixture
def gateway(version: Version) -> Generator[ExistingGateway]:
    with gateway_of(version).in_thread() as running:
        yield running


only_v04 = pytest.mark.parametrize(
    ("dialect", "served"), [(V04, "port"), (V04, "mounted")], indirect=["served"]
)
"""For what only the newer specification asks."""
