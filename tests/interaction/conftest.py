from collections.abc import Generator
from dataclasses import replace

import pytest

from meup_agent.testing import MemorySpace
from tests.gateways import one_space_config
from tests.interaction.people import PARTICIPANTS, InMemory, Meeting, Notes, open_meeting
from tests.session.gate import Gate


@pytest.fixture(params=["memory", "sockets"])
def meeting(request: pytest.FixtureRequest) -> Generator[Meeting]:
    """A space to meet in: each test that takes it runs in memory and over real sockets."""
    with open_meeting(request.param) as meeting:
        yield meeting


@pytest.fixture
def forgetful() -> InMemory:
    """A space in memory whose gateway keeps four envelopes."""
    meeting = InMemory()
    config = one_space_config("demo", PARTICIPANTS)
    config = replace(config, journal=replace(config.journal, memory_entries=4))
    meeting.space = MemorySpace(config=config)
    meeting.token, meeting.connector = meeting.space.token, meeting.space.connector
    meeting.drop = meeting.space.drop
    return meeting


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def gate(anyio_backend: object) -> Gate:
    return Gate()
