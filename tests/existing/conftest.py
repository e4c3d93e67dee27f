from collections.abc import Generator

import pytest

from tests.existing.gateways import MEUP_V02, MEW_V04, ExistingGateway
from tests.existing.people import gateway_of
from tests.existing.versions import Version


@pytest.fixture(params=[MEUP_V02, MEW_V04], ids=["meup-v0.2", "mew-v0.4"])
def version(request: pytest.FixtureRequest) -> Version:
    found: Version = request.param
    return found


@pytest.fixture
def gateway(version: Version) -> Generator[ExistingGateway]:
    """Each of the existing gateways in turn."""
    with gateway_of(version).in_thread() as running:
        yield running
