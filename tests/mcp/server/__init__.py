"""A space as an MCP server."""
