"""The journal from which ``meup policy`` learns: a file, or a running gateway's over HTTP."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from meup_agent.cli.address import HttpOptions, find_http_url
from meup_agent.cli.audit.journal_readers import Pages, moment, read_file, read_over_http
from meup_agent.errors import ConfigurationError

JournalFile = Annotated[
    Path | None,
    typer.Option("--journal", metavar="FILE", help="Read this journal of a gateway."),
]


def open_pages(
    journal: Path | None,
    http: str | None,
    space: str | None,
    token: str | None,
    token_file: Path | None,
    since: str | None,
    kinds: tuple[str, ...],
    *,
    accept_damage: bool = False,
) -> Pages:
    """The entries that the options name, of some kinds at least.

    Raises:
        ConfigurationError: They name no journal, or two.
    """
    begin = None if since is None else moment(since, "--since", time.time())
    options = HttpOptions(http=http, space=space, token=token, token_file=token_file)
    if journal is not None and http is not None:
        raise ConfigurationError("give --journal or --http, not both")
    if journal is None and find_http_url(http) is None:
        raise ConfigurationError(
            "what to learn from is missing; give --journal with a gateway's journal, or --http"
            " with the address of one that runs"
        )
    if journal is not None:
        return read_file(journal, space, begin, kinds, accept_damage=accept_damage)
    return read_over_http(options.address(), begin)
