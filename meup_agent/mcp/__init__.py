"""MCP: servers into a space, a space out to MCP clients, with the official SDK (extra ``mcp``).

Importing this package needs nothing beyond the standard dependencies; its modules need the SDK.
"""
