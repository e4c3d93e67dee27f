"""The difference of a server's tools from the accepted ones, as rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from meup_agent.cli.inbox.card import name
from meup_agent.cli.inbox.rows import CardRow, Part, row, theirs

if TYPE_CHECKING:
    from meup_agent.client.tool_changes import ToolDifference


def difference_rows(difference: ToolDifference) -> Iterator[CardRow]:
    """Each tool that differs, first by what its calls are, then by what a model reads."""
    if not difference.tools:
        yield row("The tools of ", *name(difference.server, "name"), " are as they were accepted.")
        return
    yield row("The tools of ", *name(difference.server, "name"), " are not as they were accepted:")
    for tool in difference.tools:
        yield CardRow()
        yield row(*name(tool.name, "title"))
        for line in tool.form:
            yield row(Part("! ", "danger"), *theirs(line, "danger"), indent=2)
        for line in tool.texts:
            yield row(Part("its text ", "dim"), *theirs(line), indent=2)
    if difference.omitted:
        yield CardRow()
        said = f"and {difference.omitted} more differences, for which there is no room"
        yield row(Part(said, "danger"))
