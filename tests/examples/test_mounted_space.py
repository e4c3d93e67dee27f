"""The example of a space in a web application, asked by an MCP client."""

import runpy

import anyio
import pytest

from tests.interaction.cast import adder
from tests.mcp.conftest import ANYTHING, ServedSpace, anyio_backend, serving, staged
from tests.patience import PATIENCE
from tests.programs import ROOT

__all__ = ["anyio_backend"]


async def test_a_mounted_space_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staged(tools=ANYTHING, alice=ANYTHING) as stage:
        await stage.join("tools", adder())
        monkeypatch.setenv("MEUP_URL", stage.gateway.url)
        monkeypatch.setenv("MEUP_SPACE", "demo")
        app = runpy.run_path(str(ROOT / "examples" / "mounted_space.py"))["app"]
        async with serving(app) as port:
            with anyio.fail_after(PATIENCE):
                url = f"http://127.0.0.1:{port}/space/mcp"
                async with ServedSpace(app, url).client(stage.token("alice")) as client:
                    result = await client.call_tool("tools_add", {"a": 1, "b": 2})
    assert result.structured_content == {"result": 3}
