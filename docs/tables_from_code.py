"""Writes tables into the reference from the code: limits, metrics, and classes for proposals."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from meup_agent.gateway.edge.http.views import RuntimeCollector
from meup_agent.gateway.limits import LIMIT_ROWS
from meup_agent.protocol.space.allowance import SpaceCounters

PACKAGE = Path(__file__).parent.parent / "meup_agent"

_LIMITS = re.compile(r"^<!-- limits: .* -->$", re.MULTILINE)
_CONSTANTS = re.compile(r"^<!-- constants: .* -->$", re.MULTILINE)
_METRICS = re.compile(r"^<!-- metrics: .* -->$", re.MULTILINE)
_CLASSES = re.compile(r"^<!-- classes of (\w+): .* -->$", re.MULTILINE)

_A_LIMIT = re.compile(
    r"(?:^|_)(?:AFTER|AGE|AHEAD|ATTEMPTS|BACK|BACKLOG|BURST|BYTES|CAPACITY|CHARS|COUNT|DEADLINE|FEW|"
    r"FRAMES|GRACE|IDLE|INTERVAL|KEPT|LAST|LEAST|LONGEST|MAX|MIN|PER|ROUNDS|ROWS|SAMPLES|SECONDS|"
    r"SENDERS?|SHORTEST|SIZE|SPARE|STEPS?|TIMEOUT|TOGETHER|TTL)(?:_|$)"
)
"""The words of a constant's name that say that it limits something."""

_SECONDS = re.compile(r"(?:_|^)(?:AGE|GRACE|IDLE|INTERVAL|PAUSE|SECONDS|TIMEOUT|TTL)$")

_NO_LIMITS = {
    "cli",  # says what it needs in its own words
    "testing",
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text of a page; a hook of MkDocs."""
    rows = [f"| `{row.name}` | {row.shown} | {row.about} |" for row in LIMIT_ROWS]
    markdown = _LIMITS.sub(lambda _: "\n".join(rows), markdown)
    markdown = _METRICS.sub(lambda _: "\n".join(_metrics()), markdown)
    markdown = _CONSTANTS.sub(lambda _: _tables(), markdown)
    return _CLASSES.sub(lambda marker: "\n".join(_classes(marker.group(1))), markdown)


def _classes(word: str) -> Iterator[str]:
    """A table of the classes whose names have a word, by module."""
    yield "| class | what it is | in |\n|---|---|---|"
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and word in node.name and node.name[0] != "_":
                about = (ast.get_docstring(node) or "").partition("\n\n")[0]
                yield f"| `{node.name}` | {' '.join(about.split())} | `{module}` |"


def _metrics() -> Iterator[str]:
    """The rows of the metrics, as a gateway without spaces tells them."""
    backlogs = SimpleNamespace(bytes=0)
    runtime = SimpleNamespace(
        counters=SpaceCounters(), spaces={}, open_connections=0, backlogs=backlogs, node=""
    )
    for each in RuntimeCollector(cast("Any", runtime)).collect():
        name = f"{each.name}_total" if each.type == "counter" else each.name
        labels = ", ".join(f"`{label}`" for label in getattr(each, "_labelnames", ()))
        yield f"| `{name}` | {labels} | {each.documentation} |"


def _tables() -> str:
    """A table for each folder whose modules declare limits."""
    lines: list[str] = []
    for folder in sorted({path.parent for path in PACKAGE.rglob("*.py")}):
        name = ".".join(folder.relative_to(PACKAGE).parts)
        if name.partition(".")[0] in _NO_LIMITS:
            continue
        rows = [
            f"| {about} | {value} | `{constant}` in `{path.stem}` |"
            for path in sorted(folder.glob("*.py"))
            for constant, value, about in constants(path.read_text(encoding="utf-8"))
        ]
        if rows:
            title = f"`{name}`" if name else "The package itself"
            lines += [f"\n## {title}\n", "| what | limit | constant |", "|---|---|---|", *rows]
    return "\n".join(lines)


def constants(source: str) -> Iterator[tuple[str, str, str]]:
    """Name, value and docstring of each documented public number of a module that is a limit."""
    body = ast.parse(source).body
    for node, following in pairwise(body):
        match node, following:
            case (
                ast.Assign(targets=[ast.Name(name)], value=value)
                | ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value),
                ast.Expr(ast.Constant(str(about))),
            ) if name.isupper() and _A_LIMIT.search(name) and not name.startswith("_"):
                number = _number(value)
                if number is not None:
                    text = " ".join(about.split())
                    yield name, _shown(name, number, text), text
            case _:
                pass


def _number(value: ast.expr) -> float | None:
    """The number that an expression of numbers alone stands for."""
    allowed = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    if not all(isinstance(part, allowed) for part in ast.walk(value)):
        return None
    found = eval(compile(ast.Expression(value), "a constant", "eval"), {"__builtins__": {}})
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _shown(name: str, number: float, about: str) -> str:
    if name.endswith("BYTES") and number >= 2**10 and not number % 2**10:
        size, unit = (number // 2**20, "MiB") if not number % 2**20 else (number // 2**10, "KiB")
        return f"{size:,} {unit}"
    if _SECONDS.search(name) or about.startswith("Seconds"):
        is_days = number >= 2 * 86_400 and not number % 86_400
        return f"{number / 86_400:,g} days" if is_days else f"{number:,g} s"
    return f"{number:,}"
