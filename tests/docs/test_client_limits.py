"""The page about MCP clients has the limits that are known."""

from meup_agent.mcp.server.tool_calls import KNOWN_CLIENTS
from tests.programs import ROOT

PAGE = ROOT / "docs" / "how-to" / "use-a-space-from-an-mcp-client.md"


def test_the_page_lists_each_known_client() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    for known in KNOWN_CLIENTS:
        (row,) = (row for row in rows if row.startswith(f"| `{known.name}`"))
        assert row.endswith(f"| {known.about} |")
        assert (known.limit == 600) == ("10 min" in row)
