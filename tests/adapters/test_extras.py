"""Each adapter alone with its framework, as its extra installs it."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
# No framework of these brings them; others in this environment do.
sys.modules["mcp"] = sys.modules["mcp_types"] = None
import meup_agent.adapters.{module}
"""


@pytest.mark.parametrize("module", ["pydantic_ai", "approvals", "langchain", "ag_ui"])
def test_an_adapter_needs_no_library_of_mcp(module: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM.format(module=module)], check=True)
