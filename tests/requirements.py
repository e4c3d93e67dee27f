"""Every rule of the protocol that this package keeps: those of ``requirements.toml``.

A test names the rules that it proves: ``@pytest.mark.rule("4.1.only_the_proposer")``. The numbers
are the sections and rules of PROTOCOL.md; `race` are the races that cross several of them.
``test_requirements.py`` fails if a rule has no test or a test names no rule. To add a rule, write
its line there and its test anywhere under ``tests/``.
"""

import tomllib
from pathlib import Path
from typing import Final

from tests.conformance.lines import REQUIRED as CONFORMANCE

_TABLES: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))

REQUIREMENTS: Final[dict[str, str]] = {
    rule: says for table in _TABLES.values() for rule, says in table.items()
} | CONFORMANCE
"""Rule id -> what it says."""
