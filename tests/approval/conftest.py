from pathlib import Path

import pytest

from tests.interaction.conftest import meeting, notes

__all__ = ["meeting", "notes"]


@pytest.fixture
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file with the policy of the module."""
    path = tmp_path / "policy.yaml"
    path.write_text(request.module.POLICY)
    return path


@pytest.fixture
def changes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a changed policy file count as soon as it is looked at."""
    monkeypatch.setattr("meup_agent.approval.policy.file.STILL_SECONDS", 0.0)
