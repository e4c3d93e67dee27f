from collections.abc import Generator

import pytest

from tests.interaction.people import Meeting, Notes, open_meeting
from tests.tracing.spans import Traces


@pytest.fixture(params=["memory", "sockets"])
def meeting(request: pytest.FixtureRequest) -> Generator[Meeting]:
    """A space to meet in: each test that takes it runs in memory and over real sockets."""
    with open_meeting(request.param) as meeting:
        yield meeting


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def traces() -> Traces:
    return Traces()
