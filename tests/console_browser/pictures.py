"""Pictures of pages for the docs: `make console SCREENSHOTS=docs/img`."""

import os
from pathlib import Path
from typing import Any

KEPT = frozenset(
    {
        "inbox-light", "inbox-dark", "inbox-phone", "edit-light", "timeline-light",
        "proposal-light", "participants-light", "plots-light", "sign-in-light", "envelope-light",
        "offline-light", "history-light",
    }
)  # fmt: skip
"""Those that the docs show; all others are looked at by who changes a page, with `all` set."""


async def picture(page: Any, name: str) -> None:
    """Keep a page as it is now, if pictures are wanted and the docs have it, or all are wanted."""
    folder = os.environ.get("SCREENSHOTS")
    if folder and (name in KEPT or os.environ.get("SCREENSHOTS_ALL")):
        await page.screenshot(path=Path(folder, f"console-{name}.png"))
