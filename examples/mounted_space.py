"""A space for MCP clients, in a web application."""

from starlette.applications import Starlette
from starlette.routing import Mount

from meup_agent.mcp import mcp_app

space = mcp_app()  # MEUP_URL, MEUP_SPACE and MEUP_TOKEN say which
app = Starlette(routes=[Mount("/space", space)], lifespan=space.lifespan)
