"""Attacks on what stands between MCP and a space: servers, clients, and participants."""
