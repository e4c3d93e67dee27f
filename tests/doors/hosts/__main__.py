"""Writes docs/explanation/doors.md."""

from tests.doors.hosts.cases import page
from tests.programs import ROOT

(ROOT / "docs" / "explanation" / "doors.md").write_text(page(), encoding="utf-8")
