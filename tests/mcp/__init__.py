"""MCP both ways."""
