import pytest

from tests.protocol.space.scene import Scene


@pytest.fixture
def scene() -> Scene:
    """A space with its participants present."""
    return Scene()
