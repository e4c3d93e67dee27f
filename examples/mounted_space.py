"""A space for MCP clients, in a web application."""

from starlette.applications import Starlette
from starlette.routing import Mount

from meup_agent.mcp import mcp_app

space = mcp_app()  # of MEUP_URL and MEUP_SPACE; each client sends a token
app = Starlette(routes=[Mount("/space", space)], lifespan=space.lifespan)
