import pytest

from tests.protocol.space.room import Room
from tests.protocol.space.scene import Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def room() -> Room:
    return Room()
