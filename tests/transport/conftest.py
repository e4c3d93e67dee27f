from collections.abc import Generator

import pytest

from tests.transport.http_peers import HttpServer, serving_http
from tests.transport.peers import Server, serving


@pytest.fixture(scope="session")
def server() -> Generator[Server]:
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def tls_server() -> Generator[Server]:
    with serving(tls=True) as running:
        yield running


@pytest.fixture(scope="session")
def http_server() -> Generator[HttpServer]:
    with serving_http() as running:
        yield running
