"""Bridges: MCP servers as participants of a space.

In: a server's program or address, requests of the space. Out: the server's tools, resources and
prompts, its answers, questions and news, and changes of tools that were pinned.
"""
