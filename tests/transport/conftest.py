from collections.abc import Generator

import pytest

from tests.transport.peers import Server, serving


@pytest.fixture(scope="session")
def server() -> Generator[Server]:
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def tls_server() -> Generator[Server]:
    with serving(tls=True) as running:
        yield running
