from collections.abc import Generator

import pytest

from tests.interaction.people import InMemory, Meeting, Notes, OverSockets, gateway_for_everybody
from tests.session.gate import Gate


@pytest.fixture(params=["memory", "sockets"])
def meeting(request: pytest.FixtureRequest) -> Generator[Meeting]:
    """A space to meet in: each test that takes it runs in memory and over real sockets."""
    if request.param == "memory":
        yield InMemory()
    else:
        with gateway_for_everybody().in_thread() as gateway:
            yield OverSockets(gateway)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def gate(anyio_backend: object) -> Gate:
    return Gate()
