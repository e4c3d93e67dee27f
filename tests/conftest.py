"""What every test shares: the loops it runs on."""

import sys
from typing import Any

import pytest
from hypothesis import settings

# No test is judged by time, hypothesis' examples included.
settings.register_profile("meup", deadline=None)
settings.load_profile("meup")


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker that says which rules a test proves; tests/requirements.py lists them."""
    config.addinivalue_line("markers", "rule(*ids): the rules of PROTOCOL.md that the test proves")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(
            ("asyncio", {"use_uvloop": True}),
            id="uvloop",
            marks=pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not on Windows"),
        ),
        pytest.param(("trio", {}), id="trio"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The loop of a test marked `anyio`: each such test runs once on every one."""
    return request.param
