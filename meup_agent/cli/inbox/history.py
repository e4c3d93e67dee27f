"""``meup inbox history``: what was decided and what expired, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final
from urllib.parse import quote

import anyio
import typer
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from meup_agent.cli.address import (
    ActingOptions,
    AskHttp,
    HttpAddress,
    find_http_url,
    open_http,
)
from meup_agent.cli.failures import Failure, Misuse
from meup_agent.cli.options import option
from meup_agent.cli.render.formatting import STATE_STYLES, IdPrefixes
from meup_agent.cli.render.output import Output, Stderr
from meup_agent.escape import as_json_line
from meup_agent.protocol.wire.payloads import as_object, objects_in
from meup_agent.wording import describe_reason, duration, shown_name, state_name

MAX_LISTED: Final = 100_000
"""Decisions that one command lists."""

_PAGE: Final = 500  # decisions that are asked for at a time
_ROUNDS: Final = 10_000  # pages, of which each may be empty


class EndState(StrEnum):
    """The states in which a proposal has ended."""

    PERMITTED = "permitted"
    FULFILLED = "fulfilled"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


class SortKey(StrEnum):
    """The columns of the table, by which it is sorted."""

    WHEN = "when"
    TOOL = "tool"
    PROPOSER = "proposer"
    STATE = "state"
    BY = "by"
    RULE = "rule"
    WAITED = "waited"


def history(
    ctx: typer.Context,
    search: Annotated[
        str | None,
        option(
            "TEXT",
            "Only those with this text in the tool, the proposer, the decider, the rule, the"
            " reason or the id.",
        ),
    ] = None,
    state: Annotated[
        list[EndState] | None,
        option(
            "STATE",
            "Only those that were permitted, fulfilled, rejected, withdrawn or expired; may be"
            " given several times.",
        ),
    ] = None,
    tool: Annotated[str | None, option("NAME", "Only calls of this tool.")] = None,
    proposer: Annotated[
        str | None, option("NAME", "Only what this participant proposed.", "--from")
    ] = None,
    by: Annotated[str | None, option("NAME", "Only what this participant decided.")] = None,
    sort: Annotated[
        SortKey,
        option(
            "COLUMN",
            "Sort by when, tool, proposer, state, by, rule or waited; times begin with the latest"
            " and the longest.",
        ),
    ] = SortKey.WHEN,
    limit: Annotated[int, option("N", "How many to list at most.")] = 50,
    *,
    where: ActingOptions,
) -> None:
    """List what was decided and what expired: who decided it, by which rule, and how long it took.

    What expired since you last looked is marked with `*`; it counts as seen once all of it was
    listed, here or in the console. With `--json` nothing is marked as seen. `meup audit --proposal`
    tells one of them from its beginning.

    Example: `meup inbox history --state expired --state rejected`
    """
    outer: ActingOptions | None = ctx.obj
    chosen = where if outer is None else where.beneath(outer)
    if not 1 <= limit <= MAX_LISTED:
        raise Misuse(f"--limit takes a number from 1 to {MAX_LISTED:,}; {limit:,} is not")
    query: dict[str, Any] = {
        "search": search,
        "state": state,
        "tool": tool,
        "proposer": proposer,
        "by": by,
        "sort": f"-{sort}" if sort in (SortKey.WHEN, SortKey.WAITED) else str(sort),
    }
    given = {name: value for name, value in query.items() if value}
    anyio.run(_list, chosen, given, limit)


async def _list(where: ActingOptions, query: dict[str, Any], limit: int) -> None:
    output, stderr = Output(colour=not where.no_colour), Stderr(colour=not where.no_colour)
    async with open_http(_http_address(where)) as (me, ask):
        path = f"/spaces/{quote(str(me.get('space', '')), safe='')}/history"
        found, last = await _read(ask, path, query, limit)
        unseen = _count(last.get("unseen"))
        if where.as_json:
            await output.write(as_json_line({"decisions": found, "unseen": unseen}))
            return
        await _show(output, found)
        if not found:
            stderr.note("nothing like that" if len(query) > 1 else "nothing was decided yet")
        elif last.get("next"):
            stderr.note(f"the first {limit:,}; --limit lists more")
        shown = sum(each.get("seen") is False for each in found)
        if shown and shown >= unseen:
            await ask(f"{path}/seen", method="POST", until=str(last.get("now", "")))
        elif unseen:
            more = "more than " if unseen >= 100 else ""
            count = min(unseen, 99)
            stderr.note(
                f"{more}{count} expired that you have not seen;"
                " meup inbox history --state expired lists them"
            )


def _http_address(where: ActingOptions) -> HttpAddress:
    """The HTTP API of the gateway that the options name."""
    address = where.address()
    # An address on the command line is not another gateway's that the environment names.
    url = find_http_url(None, at=where.url)
    assert url is not None, "an address leads somewhere"
    return HttpAddress(url, address.token, address.space)


async def _read(
    ask: AskHttp, path: str, query: dict[str, Any], limit: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The decisions, page by page, and the last page."""
    found, following, first = list[dict[str, Any]](), dict[str, Any](), dict[str, Any]()
    for _ in range(_ROUNDS):
        size = str(min(_PAGE, limit - len(found)))
        page = await ask(path, **{**query, **following, "limit": size})
        first = first or page
        found += objects_in(page.get("decisions"))
        following = as_object(page.get("next"))
        if not following or len(found) >= limit:
            # What was not seen is told as it was at the first page, before later expiries.
            return found[:limit], {**first, "next": following}
    raise Failure("the gateway names ever more pages of its history, and none is the last")


async def _show(output: Output, found: Sequence[dict[str, Any]]) -> None:
    if not found:
        return
    heads = ("", "when", "id", "tool", "proposed by", "state", "decided by", "waited", "rule")
    ids = IdPrefixes().of(str(each.get("id", "")) for each in found)
    rows = [list(_cells(each, ids)) for each in found]
    if output.width is None:
        widths = [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]
        for row in (heads, *rows):
            padded = (
                cell + " " * (width - cell_len(cell))
                for cell, width in zip(row, widths, strict=True)
            )
            await output.write("  ".join(padded).rstrip() + "\n")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        # Never cut: what two have in common would be all that is left of a name.
        table.add_column(head, overflow="fold", no_wrap=head in ("id", "state", "waited"))
    for row in rows:
        state = STATE_STYLES.get(row[5], "")
        styles = ("bold yellow", "dim", "cyan", "", "bold", state, "", "", "dim")
        cells = (Text(cell, style=style) for cell, style in zip(row, styles, strict=True))
        table.add_row(*cells)
    await output.show(table)


def _cells(each: dict[str, Any], ids: dict[str, str]) -> Iterator[str]:
    failed, ran_anyway = (each.get(name) is True for name in ("failed", "ran_anyway"))
    state = str(each.get("state", ""))
    by, reason = str(each.get("by", "")), str(each.get("reason", ""))
    waited = each.get("waited")
    yield "*" if each.get("seen") is False else ""
    yield _moment(str(each.get("at", "")))
    yield ids[str(each.get("id", ""))]
    yield shown_name(str(each.get("tool", ""))) or "-"
    yield shown_name(str(each.get("proposer", "")))
    yield shown_name(state_name(state, failed=failed, ran_anyway=ran_anyway))
    why = f": {shown_name(describe_reason(reason))}" if by and reason else ""
    yield (shown_name(by) or "nobody") + why
    yield duration(waited) if isinstance(waited, int | float) else ""
    yield shown_name(str(each.get("rule", "")))


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _moment(said: str) -> str:
    """A time in the user's zone."""
    try:
        return f"{datetime.fromisoformat(said).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return shown_name(said)
