"""A gateway inside a web application: `uvicorn mounted_gateway:app`."""

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from meup_agent.gateway import asgi_app, load_config

gateway = asgi_app(load_config(Path(__file__).parent / "space.yaml"))


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("Members dial /gateway/ws?space=demo.")


app = Starlette(
    routes=[Route("/", home), Mount("/gateway", gateway)],
    lifespan=gateway.lifespan,
)
