import pytest

from tests.protocol.audit_journal import Journal


@pytest.fixture
def journal() -> Journal:
    return Journal()
