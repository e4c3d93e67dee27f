"""The journal from which ``meup policy`` learns: a file, or a running gateway's over HTTP."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from meup_agent.cli.address import Http, HttpOptions, Space, Token, TokenFile, find_http_url
from meup_agent.cli.audit.journal_readers import Pages, moment, read_file, read_over_http
from meup_agent.cli.options import OptionGroup, Since
from meup_agent.errors import ConfigurationError

JournalFile = Annotated[
    Path | None,
    typer.Option("--journal", metavar="FILE", help="Read this journal of a gateway."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions(OptionGroup):
    """The options that name a journal, and the time from which it is read."""

    journal: JournalFile = None
    http: Http = None
    space: Space = None
    token: Token = None
    token_file: TokenFile = None
    since: Since = None

    def open_pages(self, kinds: tuple[str, ...], *, accept_damage: bool) -> Pages:
        """The entries that the options name, of some kinds at least.

        Raises:
            ConfigurationError: They name no journal, or two.
        """
        begin = None if self.since is None else moment(self.since, "--since", time.time())
        if self.journal is not None and self.http is not None:
            raise ConfigurationError("give --journal or --http, not both")
        if self.journal is not None:
            return read_file(self.journal, self.space, begin, kinds, accept_damage=accept_damage)
        if find_http_url(self.http) is None:
            raise ConfigurationError(
                "what to learn from is missing; give --journal with a gateway's journal, or --http"
                " with the address of one that runs"
            )
        options = HttpOptions(
            http=self.http, space=self.space, token=self.token, token_file=self.token_file
        )
        return read_over_http(options.address(), begin)
