"""A gateway that the processes under test meet at."""

from collections.abc import Generator

import pytest

from meup_agent.gateway.embedded import Gateway, ThreadedGateway

PARTICIPANTS = {
    "alice": [{"kind": "*"}],
    "bob": [{"kind": "*"}],
    "tailer": [],
}


@pytest.fixture
def gateway() -> Generator[ThreadedGateway]:
    with Gateway("demo", PARTICIPANTS).in_thread() as running:
        yield running


@pytest.fixture
def tail_settings(gateway: ThreadedGateway) -> dict[str, str]:
    """The environment of somebody who may look on."""
    return {
        "MEUP_URL": gateway.url,
        "MEUP_SPACE": "demo",
        "MEUP_TOKEN": gateway.token("tailer"),
    }
