"""Write docs/explanation/bypasses.md: ``python -m tests.bypass``."""

from tests.bypass.page import PATH, page

PATH.write_text(page(), "utf-8")
