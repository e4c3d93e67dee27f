"""Writes the limits of the gateway into its reference, from the table that declares them."""

from __future__ import annotations

import re
from typing import Any

from meup_agent.gateway.limits import LIMIT_ROWS

_PLACE = re.compile(r"^<!-- limits: .* -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text of a page; a hook of MkDocs."""
    rows = [f"| `{row.name}` | {row.shown} | {row.about} |" for row in LIMIT_ROWS]
    return _PLACE.sub(lambda _: "\n".join(rows), markdown)
