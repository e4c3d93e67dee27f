"""The files that the scenes write, all of them, so that nobody else's file is touched."""

from __future__ import annotations

from typing import Final

from meup_agent.cli.demo.files import INDEX, PARTIAL

NOTE: Final = "meup-demo-note.md"
SETTINGS_FILE: Final = "meup-demo-settings.txt"
OUTSIDE: Final = "../meup-demo-outside.txt"
"""Where a scene tries to write, and must not get to."""

ALL: Final = (NOTE, SETTINGS_FILE, OUTSIDE, INDEX, PARTIAL)
