"""The gateway of the examples: that of `examples/space.yaml`."""

from collections.abc import Generator

import pytest

from meup_agent.gateway import Gateway, ThreadedGateway, load_config
from tests.programs import ROOT


@pytest.fixture(scope="module")
def gateway() -> Generator[ThreadedGateway]:
    with Gateway(config=load_config(ROOT / "examples" / "space.yaml")).in_thread() as running:
        yield running
