"""The examples of a mounted gateway serve it below their path, as long as they run."""

import runpy

import anyio
import httpx
import pytest
from starlette.applications import Starlette

from tests.no_tls import NO_TLS
from tests.patience import PATIENCE
from tests.programs import ROOT


@pytest.mark.parametrize("file", ["mounted_gateway.py", "mounted_lifespan.py"])
def test_the_gateway_is_below_its_path(file: str) -> None:
    app = runpy.run_path(str(ROOT / "examples" / file))["app"]
    assert isinstance(app, Starlette)

    async def ask() -> tuple[int, str]:
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://test", verify=NO_TLS, timeout=PATIENCE
            ) as client:
                ready = await client.get("/gateway/readyz")
                document = await client.get("/gateway/openapi.json")
                return ready.status_code, document.json()["servers"][0]["url"]

    assert anyio.run(ask) == (200, "/gateway")
