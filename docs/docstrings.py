"""Makes the package's docstrings readable as Markdown, for the reference; run by mkdocstrings."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|attr|exc|data|mod):`~?([\w.]+)`")
_LITERAL_BLOCK = re.compile(r"::$", re.MULTILINE)
_CITATION = re.compile(r"PROTOCOL (\d)(?:\.\d+)?")

_HEADING = re.compile(r"^## (\d)\. (.+)$", re.MULTILINE)
_PROTOCOL = Path(__file__).with_name("protocol.md").read_text(encoding="utf-8")
_ANCHORS = {
    number: f"{number}-{re.sub(r'[^a-z0-9 ]', '', title.lower()).replace(' ', '-')}"
    for number, title in _HEADING.findall(_PROTOCOL)
}

_DECORATED = re.compile(r"^ +fn: .*\n", re.MULTILINE)
"""The line on a decorator's function, which stands below the decorator, and is not given."""

_TAKEN = re.compile(r"\{(\w+): ")
"""The type that a row of the table of handlers injects."""

_SHOWN = {
    name.rpartition(".")[2]: name
    for page in Path(__file__).parent.glob("reference/*.md")
    for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)
}
"""Each name that a page of the reference shows, and where it is."""


class Docstrings(griffe.Extension):
    """Turns roles such as ``:meth:``, and citations of the protocol, into links.

    Options that only an overload declares are shown in place of ``**options``. Decorators of an
    agent become functions that ``templates`` shows as they are written.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of each object that was read."""
        if obj.docstring is not None:
            around = obj if obj.is_class else obj.parent
            scope = around.name if around is not None and around.is_class else ""
            text = _ROLE.sub(lambda role: _link(role[1], scope), obj.docstring.value)
            text = _CITATION.sub(lambda said: f"[{said[0]}][{_ANCHORS[said[1]]}]", text)
            obj.docstring.value = _LITERAL_BLOCK.sub(":", text)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Make the decorators of an agent what is called: its rows, too, which are attributes."""
        if cls.name != "Decorators":
            return
        for name, member in list(cls.members.items()):
            if isinstance(member, griffe.Attribute) and str(member.value).startswith("HandlerRow("):
                cls.members[name] = _decorator(member)
            elif isinstance(member, griffe.Function) and not name.startswith("_"):
                member.labels.add("decorator")
                member.returns = None
                kept = [each for each in member.parameters if each.name not in ("fn", "self")]
                member.parameters = griffe.Parameters(*kept)
                if member.docstring is not None:
                    member.docstring.value = _DECORATED.sub("", member.docstring.value)

    def on_members(self, *, obj: griffe.Object, **_: Any) -> None:
        """Complete the parameters of each function that leaves its options to an overload."""
        for function in obj.functions.values():
            if not function.overloads or "options" not in function.parameters:
                continue
            function.parameters = griffe.Parameters(
                *(each for each in function.parameters if each.name != "options"),
                *(each for each in function.overloads[-1].parameters if each.name != "self"),
            )


def _decorator(row: griffe.Attribute) -> griffe.Function:
    """A row of the table of handlers as the decorator that it is."""
    function = griffe.Function(
        row.name, parent=row.parent, docstring=row.docstring, lineno=row.lineno
    )
    function.labels.add("decorator")
    taken = _TAKEN.search(str(row.value))
    assert taken is not None  # each row injects what its handler is about
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", taken[1]).lower()
    function.extra["decorates"] = {"handler": f"async def react({name}: {taken[1]}) -> None: ..."}
    return function


def _link(target: str, scope: str) -> str:
    """A link to a name that the reference has, or the name alone."""
    name = target.removeprefix("meup_agent.").removeprefix("errors.").removeprefix("events.")
    for path in (name, f"{scope}.{name}"):
        owner, _, member = path.partition(".")
        if (shown := _SHOWN.get(owner)) and (not member or hasattr(resolve_name(shown), member)):
            return f"[`{name}`][{shown.removesuffix(owner)}{path}]"
    return f"`{name}`"
