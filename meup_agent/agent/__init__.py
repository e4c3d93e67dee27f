"""Handlers: what a person writes, how it is read and checked, and who runs it."""
