"""A gateway for every test, in each dialect that the specifications are written for."""

from collections.abc import Generator
from typing import Any

import pytest

from tests.conformance.wire import V02, V04, Site, serving

PARTICIPANTS: dict[str, list[dict[str, Any]]] = {
    "alice": [{"kind": "chat"}, {"kind": "mcp/proposal"}],
    "bob": [{"kind": "mcp/*"}, {"kind": "chat"}],
    "carol": [],
    "root": [{"kind": "*"}],
}
ELSEWHERE: dict[str, dict[str, list[dict[str, Any]]]] = {"other": {"alice": [{"kind": "*"}]}}


@pytest.fixture(params=[V02, V04])
def dialect(request: pytest.FixtureRequest) -> str:
    """The dialect that everybody in a test speaks."""
    found: str = request.param
    return found


@pytest.fixture
def site(dialect: str) -> Generator[Site]:
    """A gateway with two spaces, and how to join it."""
    with serving(PARTICIPANTS, dialect=dialect, more=ELSEWHERE) as gateway:
        yield Site(gateway, dialect)


only_v04 = pytest.mark.parametrize("dialect", [V04])
"""For what only the newer specification asks."""
