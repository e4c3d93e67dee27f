from collections.abc import Generator

import pytest

from tests.interaction.people import InMemory, Meeting, Notes, OverSockets, gateway_for_everybody


@pytest.fixture(params=["memory", "sockets"])
def meeting(request: pytest.FixtureRequest) -> Generator[Meeting]:
    """A space to meet in: each test that takes it runs in memory and over real sockets."""
    if request.param == "memory":
        yield InMemory()
    else:
        with gateway_for_everybody().in_thread() as gateway:
            yield OverSockets(gateway)


@pytest.fixture
def changes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a changed policy file count as soon as it is looked at."""
    monkeypatch.setattr("meup_agent.approval.watched_policy.STILL_SECONDS", 0.0)


@pytest.fixture
def notes() -> Notes:
    return Notes()
