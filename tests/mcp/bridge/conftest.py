"""The loops of the bridge's tests: MCP is spoken on asyncio."""

from typing import Any

import pytest


@pytest.fixture(
    scope="module", params=[pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio")]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The loop of a test marked `anyio`."""
    return request.param
