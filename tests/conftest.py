"""What every test shares: the loops it runs on."""

import sys
from typing import Any

import pytest
from hypothesis import settings

# No test is judged by time, hypothesis' examples included.
settings.register_profile("meup", deadline=None)
settings.load_profile("meup")


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
