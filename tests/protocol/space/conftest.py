import pytest

from tests.protocol.space.room import Room
from tests.protocol.space.scene import Scene


@pytest.fixture
def scene() -> Scene:
    """A space with its participants present."""
    return Scene()


@pytest.fixture
def room() -> Room:
    """A space with participants whose frames a test writes."""
    return Room()
