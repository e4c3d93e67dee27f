"""Tests wait long enough for a slow machine, or not at all."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.patience import PATIENCE

TESTS = Path(__file__).parent
LIMIT = re.compile(r"\bfail_after\(([0-9]+(?:\.[0-9]+)?)\)")

HTTPX = frozenset({"AsyncClient", "Client", "get", "post", "put", "delete", "stream", "request"})
BENCHES = ("bench", "fuzz", "conformance_mcp")
"""Run by themselves, not by the suite."""


def sources() -> Iterator[tuple[Path, str]]:
    """The files of the tests, and their text."""
    for path in TESTS.rglob("*.py"):
        if path.relative_to(TESTS).parts[0] not in BENCHES:
            yield path.relative_to(TESTS), path.read_text(encoding="utf-8")


def impatient_requests(text: str) -> Iterator[int]:
    """Lines of HTTP requests whose time is httpx's own, five seconds."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("httpx" | "httpx2"), attr=name)):
                given = {each.arg or ast.unparse(each.value) for each in node.keywords}
                # The options of `ALONE` have it.
                if name in HTTPX and given.isdisjoint({"timeout", "ALONE"}):
                    yield node.lineno
            case _:
                pass


def test_waits_are_as_long_as_patience() -> None:
    short = [
        f"{path}: {found[0]}"
        for path, text in sources()
        for found in LIMIT.finditer(text)
        if float(found[1]) < PATIENCE
    ]
    assert short == [], "write PATIENCE of tests.patience"


def test_requests_say_how_long_they_wait() -> None:
    impatient = [
        f"{path}:{line}"
        for path, text in sources()
        if "httpx" in text
        for line in impatient_requests(text)
    ]
    assert impatient == [], "write timeout=PATIENCE"
