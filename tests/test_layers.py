"""A folder imports only from folders with a lower number, and only what its layer may know.

Within a folder imports point one way, too: no modules import each other. Imports within functions
count as any others.
"""

import ast
import re
from collections.abc import Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import meup_agent

PACKAGE = "meup_agent"
ROOT = Path(meup_agent.__file__).parent

LAYERS = {
    "lazy_names": 0,
    "atomic_file": 1,
    "errors": 1,
    "causes": 1,
    "strict_yaml": 2,
    "events": 2,
    "uncaught": 2,
    "protocol": 2,
    "escape": 3,
    "tracing": 3,
    "wording": 4,
    "transport": 3,
    "session": 4,
    "gateway": 4,
    "client": 5,
    "processes": 5,
    "agent": 6,
    "types": 7,
    "mcp": 7,
    "approval": 7,
    # Coding agents: beside the SDK's own side of MCP, whose words for a model they use.
    "doors": 8,
    "adapters": 9,
    "testing": 7,
    # The page of a gateway, which stands on what decides: a gateway gets it handed in.
    "gateway/console": 8,
    "cli": 9,
}

# Programs that run a gateway; the rest meets one over a connection alone.
RUN_A_GATEWAY = {"testing", "gateway/console", "cli"}

# The names of the package itself gather everything up to the agents.
PUBLIC_NAMES = LAYERS["agent"]

# The protocol has no I/O, clock, tasks or randomness: these are handed to it.
IMPURE = {
    "anyio",
    "asyncio",
    "concurrent",
    "multiprocessing",
    "random",
    "secrets",
    "select",
    "selectors",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
    "trio",
    "uuid",
}

# Libraries that only the named layers may import.
RESERVED = {
    "asyncio": {"gateway"},
    "uvloop": {"gateway"},
    "picows": {"transport", "gateway"},
    "websockets": {"transport", "gateway", "doors"},
}

# What may import one all the same, since anyio's way is a large part of what a request may cost:
# handlers' tasks, the clock, and waiting. These do it in anyio's way on trio, or have a twin there.
EXCEPTED = {
    ("agent/runner.py", "asyncio"),
    ("transport/base.py", "asyncio"),
    ("transport/websocket_asyncio.py", "asyncio"),
}


@cache
def imported(source: str, package: str) -> list[tuple[int, str]]:
    """Line and absolute dotted name of each import, wherever in the module it stands.

    `from x import y` is one of `x.y`, since y may be a module. `package` is what a relative import
    starts from.
    """
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [(node.lineno, alias.name) for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                parts = package.split(".")
                base = ".".join(parts[: len(parts) - level + 1]) if level else ""
                start = ".".join(part for part in (base, module) if part)
                found += [(node.lineno, f"{start}.{alias.name}") for alias in names]
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                found.append((node.lineno, name))
    return found


def layer_of(parts: Sequence[str]) -> str:
    """The layer of a module, or of a name in it: the folder, or a floor of its own within."""
    within = "/".join(parts[:2])
    return within if within in LAYERS else parts[0]


def violations(source: str, path: Path) -> list[str]:
    """Imports of the module at `path` (relative to the package) that it must not have."""
    layer = layer_of(path.with_suffix("").parts)
    if layer == "__init__":  # gathers the public names, from wherever they are
        return []
    if layer not in LAYERS:
        return [f"{path}: {layer} has no number in the table of layers"]
    found = []
    for line, name in imported(source, ".".join((PACKAGE, *path.parts[:-1]))):
        top, *rest = name.split(".")
        if top == PACKAGE:
            target = layer_of(rest) if rest else PACKAGE
            if target == layer:
                continue
            is_apart = target == "gateway" and layer not in RUN_A_GATEWAY
            if is_apart or LAYERS.get(target, PUBLIC_NAMES) >= LAYERS[layer]:
                found.append(f"{path}:{line}: {layer} imports {name}")
        elif (layer == "protocol" and top in IMPURE) or (
            top in RESERVED
            and path.parts[0] not in RESERVED[top]
            and (path.as_posix(), top) not in EXCEPTED
        ):
            found.append(f"{path}:{line}: {layer} imports {name}")
    return found


def test_package_keeps_its_layers() -> None:
    modules = sorted(ROOT.rglob("*.py"))
    assert modules
    found = [
        line
        for module in modules
        for line in violations(module.read_text(encoding="utf-8"), module.relative_to(ROOT))
    ]
    assert found == []


def test_the_fold_of_proposals_knows_none_of_its_readers() -> None:
    readers = tuple(f"{PACKAGE}.protocol.{each}." for each in ("exchange", "space", "audit"))
    fold = (ROOT / "protocol" / "proposals.py").read_text(encoding="utf-8")
    names = [name for _, name in imported(fold, f"{PACKAGE}.protocol")]
    assert f"{PACKAGE}.causes.Reason" in names
    assert [name for name in names if f"{name}.".startswith(readers)] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("protocol/wire/kinds.py", "from meup_agent.session import link"),
        ("protocol/wire/kinds.py", "import meup_agent.agent.context"),
        ("protocol/space/routing.py", "from ...client import verbs"),
        ("protocol/wire/kinds.py", "from meup_agent import client"),
        ("protocol/wire/kinds.py", "from meup_agent import Agent"),
        ("protocol/wire/kinds.py", "import meup_agent"),
        ("protocol/wire/kinds.py", "import time"),
        ("protocol/wire/kinds.py", "from uuid import uuid4"),
        ("protocol/wire/kinds.py", "def late():\n    import anyio.abc"),
        ("protocol/wire/kinds.py", "if TYPE_CHECKING:\n    from meup_agent.transport import base"),
        ("errors.py", "from meup_agent.protocol import kinds"),
        ("gateway/runtime.py", "from meup_agent.session import session"),
        ("approval/policy/decider.py", "def late():\n    from meup_agent.gateway import runtime"),
        ("session/session.py", "from meup_agent.gateway import runtime"),
        ("gateway/server.py", "from meup_agent.gateway.console import Console"),
        ("gateway/console/desk.py", "from meup_agent.cli.render import escape"),
        ("session/session.py", "import asyncio.events"),
        ("agent/scope.py", "import importlib\nimportlib.import_module('uvloop')"),
        ("client/verbs.py", "from websockets.asyncio.client import connect"),
        ("testing/space.py", "import picows"),
        ("utilities/things.py", "import json"),
    ],
)
def test_violation_is_found(path: str, source: str) -> None:
    assert len(violations(source, Path(path))) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("__init__.py", "from meup_agent.agent.agent import Agent"),
        ("protocol/wire/kinds.py", "import json\nfrom meup_agent.errors import MeupError"),
        ("protocol/space/routing.py", "from ..kinds import KINDS\nfrom . import grants"),
        ("transport/websocket.py", "from websockets.trio.client import connect"),
        ("gateway/edge/picows.py", "import asyncio\nimport picows\nimport uvloop"),
        ("gateway/runtime.py", "from meup_agent.protocol.space import routing"),
        ("gateway/console/desk.py", "from meup_agent.approval.inbox.inbox import Inbox"),
        ("cli/commands/gateway.py", "from meup_agent.gateway.console import Console"),
        ("agent/scope.py", "import anyio\nfrom meup_agent.client import verbs"),
        ("cli/demo.py", "from meup_agent import errors, gateway\nfrom meup_agent.agent import x"),
    ],
)
def test_what_is_allowed_passes(path: str, source: str) -> None:
    assert violations(source, Path(path)) == []


def circle(modules: dict[str, str]) -> list[str]:
    """Modules that import one another all the way round; none: every import points one way.

    Args:
        modules: The source of each, by its dotted name.
    """
    graph = TopologicalSorter[str]()
    for name, source in modules.items():
        for _, found in imported(source, name.rpartition(".")[0]):
            # `x.y` may be the module y, or the name y in the module x.
            module = found if found in modules else found.rpartition(".")[0]
            if module in modules and module != name:
                graph.add(name, module)
    try:
        graph.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_even_late_or_for_types() -> None:
    modules: dict[str, str] = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join((PACKAGE, *path.relative_to(ROOT).with_suffix("").parts))
        modules[name.removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    assert circle(modules) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("from p.b import y", "from p.a import x"),
        ("import p.b", "if TYPE_CHECKING:\n    from p import a"),
        ("from p.b import use", "def use():\n    from p.a import x"),
    ],
)
def test_circle_is_found(first: str, second: str) -> None:
    assert set(circle({"p": "", "p.a": first, "p.b": second})) == {"p.a", "p.b"}


def test_contributing_lists_the_layers() -> None:
    page = (ROOT.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed: dict[str, int] = {}
    for number, names in re.findall(r"^\| (\d) \| (`.+?`) \| ", page, re.MULTILINE):
        for name in re.findall(r"`([\w/]+?)(?:\.py|/)`", names):
            listed[name] = int(number)
    assert listed == LAYERS
