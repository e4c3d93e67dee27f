"""A user's home with coding agents in it, whose programs are small scripts."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from tests.cli.processes import meup
from tests.programs import ROOT


class Home:
    """A user's home with some agents, and programs of theirs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / "state"
        (path / "bin").mkdir(parents=True)
        self.variables = {
            "HOME": str(path),
            "MEUP_STATE_DIR": str(self.state),
            "PATH": f"{path / 'bin'}:{os.environ['PATH']}",
            "CLAUDE_CONFIG_DIR": "",
            "CODEX_HOME": "",
            "COPILOT_HOME": "",
            "GEMINI_CLI_HOME": "",
        }
        self.program("claude", "echo '2.1.331 (Claude Code)'")
        main = "from meup_agent.doors.hook_client import main; main()"
        python = f"PYTHONPATH={shlex.quote(str(ROOT))} {sys.executable}"
        self.program("meup-hook", f"{python} -c '{main}' \"$@\"")

    def program(self, name: str, body: str) -> None:
        path = self.path / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o700)

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text())

    def meup(self, *arguments: str, cwd: Path | None = None) -> Any:
        return meup(*arguments, cwd=cwd or self.path, variables=self.variables)

    def guard(self, *arguments: str) -> Any:
        return self.meup("guard", *arguments)
