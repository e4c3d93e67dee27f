import pytest

from tests.protocol.space.scene import Scene
from tests.protocol.space.test_replayed import Room


@pytest.fixture
def scene() -> Scene:
    """A space with its participants present."""
    return Scene()


@pytest.fixture
def room() -> Room:
    """A space with participants whose frames a test writes."""
    return Room()
