"""The list of public names, what stands behind it, and what importing it costs."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

import meup_agent
import meup_agent.gateway
import meup_agent.mcp
from meup_agent import Proposal, ProposalHandle, Space, errors, events, types
from meup_agent.types import ProposalRecord

PUBLIC: list[str] = vars(meup_agent)["__all__"]

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"

# Each is needed by some users only, or slow to import: loaded when first used.
LATE = (
    "asyncio",
    "jsonschema",
    "mcp",
    "mcp_types",
    "picows",
    "referencing",
    "rich",
    "trio",
    "typer",
    "uvloop",
    "yaml",
)

IMPORT_AND_REPORT = f"""
import logging, sys, threading
import anyio  # which loads asyncio itself with older versions of what it needs
before = set(sys.modules)
from meup_agent import *
print("late modules:", sorted(set({LATE!r}) & (set(sys.modules) - before)))
print("threads:", threading.active_count())
print("log handlers:", logging.getLogger().handlers)
"""


def undocumented(names: Iterable[str], pages: Iterable[str]) -> set[str]:
    """The names that no page of the reference shows.

    A page shows a name by a mkdocstrings block (`::: meup_agent.Name`) or in the list of members
    of one (`- Name`).
    """
    shown: set[str] = set()
    for page in pages:
        shown.update(re.findall(r"^::: (?:\w+\.)*(\w+)\s*$", page, re.MULTILINE))
        shown.update(re.findall(r"^\s+- (\w+)\s*$", page, re.MULTILINE))
    return set(names) - shown


def defined_in(module: ModuleType) -> set[str]:
    """The classes of a module that users see."""
    classes = {name: it for name, it in vars(module).items() if isinstance(it, type)}
    return {
        name
        for name, it in classes.items()
        if not name.startswith("_") and it.__module__ == module.__name__
    }


def test_listed_names_are_the_reachable_ones() -> None:
    reachable = {
        name
        for name in dir(meup_agent)
        if not name.startswith("_")
        and name != "annotations"  # of the future import
        and not isinstance(getattr(meup_agent, name), ModuleType)
    }
    assert set(PUBLIC) == reachable


@pytest.mark.parametrize("package", [meup_agent, meup_agent.gateway, meup_agent.mcp])
def test_stub_lists_each_name_where_it_is(package: ModuleType) -> None:
    """One line each, sorted, with ``as``: without it a name is not public for type checkers."""
    stub = Path(f"{package.__file__}i").read_text(encoding="utf-8")
    listed = [
        (node.module, alias.name)
        for node in ast.parse(stub).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    ]
    assert sorted(name for _, name in listed) == vars(package)["__all__"]
    assert len(listed) == len(stub.splitlines())
    for module, name in listed:
        assert getattr(package, name) is getattr(sys.modules[str(module)], name)


@pytest.mark.parametrize("name", ["Any", "Callable"])
def test_what_our_modules_import_is_no_name_of_ours(name: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute"):
        getattr(meup_agent, name)


def test_importing_the_package_alone_loads_nothing_of_it() -> None:
    """A program that needs the errors only, or the gateway, loads no agent."""
    loaded = "import sys, meup_agent.errors; print(*sorted(m for m in sys.modules if 'meup' in m))"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["meup_agent", "meup_agent.errors", "meup_agent.lazy_names"]


def test_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'meup_agent' has no attribute 'Agnet'"):
        meup_agent.Agnet  # type: ignore[attr-defined] # noqa: B018 - a typing mistake, as users make them


def test_importing_starts_and_prints_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_AND_REPORT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.stdout) == ("", "late modules: []\nthreads: 1\nlog handlers: []\n")


def test_reference_shows_every_public_name() -> None:
    if not REFERENCE.is_dir():
        return  # an installed package without its docs
    pages = [page.read_text(encoding="utf-8") for page in REFERENCE.rglob("*.md")]
    public = {*PUBLIC, *types.__all__, *defined_in(errors), *defined_in(events)}
    assert undocumented(public, pages) == set()


def test_missing_name_in_the_reference_is_found() -> None:
    pages = [
        "# Agents\n\n::: meup_agent.Agent\n",
        "::: meup_agent\n    members:\n      - Context\n",
    ]
    assert undocumented({"Agent", "Context", "Proposal"}, pages) == {"Proposal"}


def test_what_users_hover_over_has_words_of_its_own() -> None:
    for verb in (Space.call, ProposalHandle.result, Proposal.fulfill):
        words = inspect.getdoc(verb) or ""
        assert "Args:" in words or "Raises:" in words, verb


def test_a_proposals_record_shows_users_attributes_only() -> None:
    shown = {name for name in dir(ProposalRecord) if not name.startswith("_")}
    assert shown == {
        *(
            "id",
            "proposer",
            "to",
            "envelope",
            "method",
            "tool",
            "arguments",
            "cancelled_by",
            "client",
            "target",
        ),
        *("expires_at", "state", "in_progress_by", "rejections", "told", "decided_by", "reason"),
        "has_failed",
        *("seq", "decided_at", "rule", "outlives", "outcome", "report", "fulfilled_arguments"),
    }
