"""Counterparts of libraries: a module that does what a known library does says why it is there."""

from pathlib import Path

import pytest

import meup_agent

PACKAGE = Path(meup_agent.__file__).parent

COUNTERPARTS = {
    "approval/watched_policy.py": "watchfiles",
    "client/schema_check.py": "jsonschema-rs",
    "client/uri_templates.py": "mcp.shared.uri_template",
    "gateway/line_files.py": "RotatingFileHandler",
    "gateway/strict_yaml.py": "ruamel.yaml",
    "lazy_names.py": "lazy_loader",
    "protocol/capability/glob.py": "wcmatch",
    "protocol/exchange/ttl_map.py": "cachetools",
    "protocol/shown_text.py": "confusable-homoglyphs",
    "protocol/space/rate_limits.py": "limits",
    "transport/server_events.py": "httpx-sse",
}


@pytest.mark.parametrize("module", COUNTERPARTS)
def test_counterpart_names_the_library_that_does_not_serve(module: str) -> None:
    source = (PACKAGE / module).read_text(encoding="utf-8")
    assert f"``{COUNTERPARTS[module]}``" in source
