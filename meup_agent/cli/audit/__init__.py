"""``meup audit``: what became of the proposals of a space, and who decided it."""
