"""Plays the scenes one after the other, and compares what happened with what was expected."""

from __future__ import annotations

from typing import Final

import anyio
from rich import box
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from meup_agent.cli.demo.scenes import SCENES, Expectation, Scene, record_checks
from meup_agent.cli.demo.stage import Stage, set_up
from meup_agent.cli.demo.workspace import Workspace
from meup_agent.cli.render.escape import visible
from meup_agent.cli.render.output import Output
from meup_agent.errors import MeupError

SCENE_SECONDS: Final = 10.0  # longer than any scene takes; one that hangs has failed
Result = tuple[str, list[Expectation]]  # a scene's title, and its checks


async def perform(workspace: Workspace, output: Output) -> bool:
    """Play everything, then show the table; true if everything went as expected."""
    began = anyio.current_time()
    results: list[Result] = []
    async with set_up(workspace, output) as stage:
        for number, scene in enumerate(SCENES, start=1):
            await stage.show(*_heading(number, scene))
            results.append((scene.title, await _played(scene, stage)))
            await stage.rest()
        results.append(("The auditor's record", record_checks(stage)))
    seconds = anyio.current_time() - began
    await output.show(
        "",
        Rule(Text("Expected, and what happened", style="bold"), align="left", style="dim"),
        _table(results, output),
        _verdict(results, seconds),
    )
    return all(check.holds for _, checks in results for check in checks)


async def _played(scene: Scene, stage: Stage) -> list[Expectation]:
    """The checks of a scene; one that fails is a check that does not hold."""
    try:
        with anyio.fail_after(SCENE_SECONDS):
            return await scene.play(stage)
    except (MeupError, OSError) as error:  # a timeout is an OSError
        return [
            Expectation("the scene", "was played", visible(f"{type(error).__name__}: {error}", 300))
        ]


def _heading(number: int, scene: Scene) -> tuple[Text, Rule, Text]:
    title = Text(f"{number}  {scene.title}", style="bold")
    return Text(), Rule(title, align="left", style="dim"), Text(scene.story, style="italic dim")


def _table(results: list[Result], output: Output) -> Table:
    """The table of expectations beside what happened."""
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
    table.add_column(width=max(len(output.glyphs.yes), len(output.glyphs.no)))
    table.add_column(ratio=4, overflow="fold")
    table.add_column("expected", ratio=5, overflow="fold")
    table.add_column("happened", ratio=5, overflow="fold")
    for title, checks in results:
        table.add_row("", Text(title, style="bold"))
        for number, check in enumerate(checks, start=1):
            mark = output.glyphs.yes if check.holds else output.glyphs.no
            table.add_row(
                Text(mark, style="green" if check.holds else "bold red"),
                Text(check.what),
                Text(check.expected, style="dim" if check.holds else ""),
                Text(check.happened, style="" if check.holds else "bold red"),
                end_section=number == len(checks),
            )
    return table


def _verdict(results: list[Result], seconds: float) -> Text:
    checks = [check for _, checks in results for check in checks]
    failed = sum(not check.holds for check in checks)
    if failed:
        said, style = f"{failed} of {len(checks)} did not go as expected", "bold red"
    else:
        said, style = f"All {len(checks)} went as expected", "bold green"
    return Text(f"{said}, in {seconds:.1f} s.", style=style)
