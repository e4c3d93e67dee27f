import pytest

from tests.interaction.conftest import meeting, notes

__all__ = ["meeting", "notes"]


@pytest.fixture
def changes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a changed policy file count as soon as it is looked at."""
    monkeypatch.setattr("meup_agent.approval.watched_policy.STILL_SECONDS", 0.0)
