import pytest

from tests.protocol.audit_journal import Journal


@pytest.fixture
def journal() -> Journal:
    """A journal to audit, without an entry."""
    return Journal()
