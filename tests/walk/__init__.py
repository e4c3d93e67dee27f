"""A user's way from nothing to approved calls, walked with real parts; counts seconds and keys.

``python -m tests.walk`` builds the wheel and installs it in an empty environment as a user does,
puts four MCP servers behind approval by ``meup up``, connects four MCP clients, each by command and
by address, and decides their calls as two people in a browser. It prints what each step took as a
table. A part that cannot be had, or does not do what it should, ends it with 1.
"""
