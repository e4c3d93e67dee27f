"""A gateway inside a web application that has a lifespan of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount

from meup_agent.gateway import asgi_app, load_config

gateway = asgi_app(load_config(Path(__file__).parent / "space.yaml"))


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with gateway.lifespan(app):
        # What else the application needs.
        yield


app = Starlette(routes=[Mount("/gateway", gateway)], lifespan=lifespan)
