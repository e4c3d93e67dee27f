"""The door suite: coding agents as their makers ship them, and what they do when a door fails.

Each case of :mod:`.cases` starts a real program with a model of our own on loopback, which asks for
one shell command that its settings allow. ``check_doors.py`` tries each; ``python -m
tests.doors.hosts`` writes docs/explanation/doors.md of them, which the suite compares.
"""
