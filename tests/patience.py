"""The time that a test waits for what should come at once."""

from typing import Final

PATIENCE: Final = 60.0
"""Seconds. A test that passes never waits so long, however slow or busy the machine is; below
pytest's own timeout, so that the one that fails says for what it waited."""
