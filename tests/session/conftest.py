import pytest
from trio.testing import MockClock

from tests.session.gate import Gate


@pytest.fixture
def gate(anyio_backend: object) -> Gate:
    return Gate()


@pytest.fixture
def virtual_time() -> tuple[str, dict[str, object]]:
    """The backend of a test whose hours take no time: trio, whose clock jumps when all wait."""
    return "trio", {"clock": MockClock(autojump_threshold=0)}
