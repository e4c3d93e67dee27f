"""The official conformance suite of MCP, against ``meup mcp --http``.

``python -m tests.conformance_mcp`` starts a gateway with the participant ``test``, which offers
what the scenarios ask for, serves it with ``meup mcp --http``, and runs every server scenario that
the revisions 2025-11-25 and 2026-07-28 require; the scenarios of tasks run against ``meup mcp
--http`` of one agent, whose tools keep their names. Of the scenarios of clients those of sign-in
run, with the bridge as the client. Each check must pass: after a failure, a
warning, or another number of scenarios than is known, it exits with 1. The suite is a package of
npm, from ``package-lock.json``.
"""
