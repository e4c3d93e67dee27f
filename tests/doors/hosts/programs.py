"""The coding agents that the suite starts: pinned, installed beside what pip installs."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE = Path(__file__).parent

INSTALLED: Final = Path(sys.prefix) / "doors"

CLAUDE_SDK: Final = "claude-agent-sdk==0.2.189"
"""The wheel that has Claude Code in it."""

CLAUDE_VERSION: Final = "2.1.332"
CODEX_VERSION: Final = "0.169.0"

CLAUDE: Final = INSTALLED / "claude" / "claude_agent_sdk" / "_bundled" / "claude"
CODEX: Final = (
    INSTALLED / "node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"
)


def install() -> None:
    """Install both; some 350 MB come from PyPI and npm."""
    from tests import npm

    target = INSTALLED / "claude"
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*uv, "--target", str(target), CLAUDE_SDK], check=True)
    npm.install(HERE, INSTALLED)


def version(program: Path) -> str:
    """The version that a program says."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"\d+\.\d+\.\d+", said.stdout)
    return found[0] if found else said.stdout


if __name__ == "__main__":
    install()
