"""A space as an MCP server, for MCP clients over standard input and output or HTTP.

In: requests of the official SDK. Out: requests and proposals in the space, their answers and
progress as MCP has them.
"""
