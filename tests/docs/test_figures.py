"""Limits and settings in the reference are those of the code."""

import ast
import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from runpy import run_path

import meup_agent
from meup_agent.gateway.limits import LIMIT_ROWS
from tests.programs import ROOT

REFERENCE = ROOT / "docs" / "reference"
PACKAGE = Path(meup_agent.__file__).parent

UNITS = {"": 1, "s": 1, "days": 86_400, "KiB": 2**10, "MiB": 2**20}

NO_LIMITS = {
    "template_environment.KEY_CHARS",  # the form of an address
    # Codes and numbers that standards give.
    *(
        "admission.TOO_MANY",
        "admission.IPV6_PREFIX",
        "admission.BAD_REQUEST",
        "admission.UNAUTHORIZED",
        "admission.NOT_FOUND",
        "space_yaml.REFERENCE_PORT",
        "admission.FORBIDDEN",
        "management.KICKED_CODE",
        "members.CROWDED_CODE",
    ),
    *("admission.UNAVAILABLE", "base.ABNORMAL", "base.INVALID", "base.TOO_BIG"),
    *("websocket.NORMAL", "connection.LOST", "websocket.BINARY", "websocket.CONTINUATION"),
    *(
        "websocket.PROTOCOL_ERROR",
        "websocket.TEXT",
        "websocket.CLOSE",
        "websocket.PING",
        "websocket.PONG",
        "server.TAKEN_OVER",
    ),
    *("fanout.TOO_SLOW", "backlog.TOO_SLOW", "runtime.RESTARTING", "script.INTERRUPTED"),
    *("payloads.EXCHANGE_ERROR", "payloads.INTERNAL_ERROR", "payloads.INVALID_PARAMS"),
    *("payloads.INVALID_REQUEST", "payloads.METHOD_NOT_FOUND"),
    *("events.KICKED", "events.NORMAL"),
    *("context.TIMEOUT", "context.CONFLICT", "context.TOO_LARGE", "context.WRONG_TYPE"),
    *("guard.TOO_LARGE",),
    # The looks of plots, and from where on a bar is red.
    *("health.NEAR", "plots.PLOT_WIDTH", "plots.PLOT_HEIGHT"),
    # What is read of the journal at a time, and what is only advice for when to come back.
    *("events.CATCH_UP_PAGE", "space_views.FOLD_PAGE", "space_views.FOLD_TURN"),
    *("timeline.MAX_STRETCH",),
    *("events.RETRY_MILLISECONDS", "context.RETRY_SECONDS"),
    # A default, documented where it is set; and the length of what we make ourselves.
    *("config.DEFAULT_PORT", "config.DEFAULT_HTTP_PORT", "auth.TOKEN_BYTES"),
    # What RFC 6455 leaves room for.
    *("base.MAX_CLOSE_REASON_BYTES",),
    # Turns of a loop and sizes of caches: nobody notices them from outside.
    *(
        "server.LAST_TURNS",
        "listener.READ_BEYOND",
        "listener.READ_BUFFER_BYTES",
        "table.SPARE_TIMERS",
        "schema.MAX_KEPT",
    ),
    *("fanout.PAGE", "journal.ENTRY_BYTES", "indexes.SWEEP_INTERVAL"),
    "compiled_capabilities.MAX_KINDS_REMEMBERED",
    # The form of the journal's file, and how much of it is looked at in a turn.
    *("database.APPLICATION", "database.VERSION", "retention.ROW_BYTES"),
    *("database.PAGE_SIZE_AT", "database.LOCKED_BYTE", "wal.MAGIC", "wal.USUAL_PAGE_SIZE"),
    *("sqlite.MAX_SEQ", "sqlite.A_TURN", "sqlite.RECOVER_PAGE"),
    # Where a short cut ends; what is beyond takes the long way.
    *("compiled_capabilities.MAX_JOINED_KEYS", "compiled_capabilities.MAX_JOINED_LEVELS"),
    # How deep an error is looked into, how much of a reason is logged; the size of a double.
    *(
        "handshake.MAX_CAUSES",
        "server_events.MAX_FIELD_BYTES",
        "pending_calls.MAX_LOGGED_CHARS",
        "numbers.DOUBLE_DIGITS",
        "reconnector.MAX_DOUBLED",
    ),
    # No numbers, but flags for type checkers.
    *("lazy_names.TYPE_CHECKING", "uncaught.TYPE_CHECKING"),
    # Bytes that are copied at once, a code of MCP, the form of a file, the length of a hash.
    *("stderr_tail.CHUNK", "stdio_guard.CHUNK", "pin.VERSION", "naming.SUFFIX_CHARS"),
    # Prices and not budgets.
    *("work.CALL_WORK", "work.NODE_WORK", "work.WORK_PER_BYTE"),
}
"""Public numbers of the package that no reader of the limits looks for."""


def number(text: str) -> float:
    """The number in a cell: `1,000`, `4 MiB`, `0.1 s`."""
    value, _, unit = text.partition(" ")
    return float(value.replace(",", "")) * UNITS[unit]


def rows(page: str) -> list[list[str]]:
    """The rows of a page's tables, as cells."""
    return cells_of((REFERENCE / page).read_text(encoding="utf-8"))


def cells_of(text: str) -> list[list[str]]:
    """The rows of all tables of a text, as cells."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def shown_limits() -> dict[tuple[str, str], str]:
    """Module and constant of each row, and the number that it shows."""
    return {
        (match[2], match[1]): cells[1]
        for cells in rows("limits.md")
        if (match := re.fullmatch(r"`((?:\w+\.)?[A-Z_]+)` in `([\w.]+)`", cells[-1]))
    }


def numbers_in(source: str) -> set[str]:
    """The public constants of a module that are numbers."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        parts = ast.walk(value)
        computed = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
        is_number = all(isinstance(part, computed) for part in parts)
        text = isinstance(value, ast.Constant) and not isinstance(value.value, int | float)
        if name.isupper() and not name.startswith("_") and is_number and not text:
            names.add(name)
    return names


def test_named_limits_are_the_constants() -> None:
    constants = shown_limits()
    assert len(constants) > 50
    wrong: dict[str, tuple[str, object]] = {}
    for (module, constant), shown in constants.items():
        try:
            value = attrgetter(constant)(import_module(f"meup_agent.{module}"))
        except AttributeError:
            value = None
        if value != number(shown):
            wrong[f"{module}.{constant}"] = (shown, value)
    assert wrong == {}


def test_every_limit_is_named() -> None:
    shown = {(module, constant) for module, constant in shown_limits()}
    missing: list[str] = []
    used: set[str] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        *folders, name = path.relative_to(PACKAGE).with_suffix("").parts
        if folders[:1] in (["cli"], ["testing"]):
            continue  # these say what they need themselves
        module = ".".join([*folders, name])
        for constant in numbers_in(path.read_text(encoding="utf-8")):
            if f"{name}.{constant}" in NO_LIMITS:
                used.add(f"{name}.{constant}")
            elif (module, constant) not in shown:
                missing.append(f"`{constant}` in `{module}`")
    told = "docs/reference/limits.md needs a row, or NO_LIMITS an entry, for "
    assert not missing, told + ", ".join(missing)
    assert used == NO_LIMITS


def test_a_number_is_found() -> None:
    source = 'A: Final = 4 * 2**10\nB = -1.5\nC = "text"\nD = {1}\n_E = 1\nf = 2\nG = int("3")\n'
    assert numbers_in(source) == {"A", "B"}


def test_gateway_limits_are_those_of_the_table() -> None:
    text = (REFERENCE / "gateway.md").read_text(encoding="utf-8")
    hook = run_path(str(ROOT / "docs" / "limits_table.py"))["on_page_markdown"]
    names = {row.name for row in LIMIT_ROWS}
    assert not [cells for cells in cells_of(text) if cells[0].strip("`") in names]
    shown = [cells for cells in cells_of(hook(text)) if cells[0].strip("`") in names]
    assert shown == [[f"`{row.name}`", row.shown, row.about] for row in LIMIT_ROWS]
