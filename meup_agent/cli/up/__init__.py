"""``meup up``: a gateway with the programs and MCP servers beside it, from one file."""
