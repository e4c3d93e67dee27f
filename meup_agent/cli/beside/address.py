"""Where a gateway's HTTP API is, and whose token we have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import typer

from meup_agent.cli.address import token_from
from meup_agent.errors import ConfigurationError

Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="URL",
        help="The gateway's HTTP address, for example http://localhost:8421; else MEUP_HTTP.",
    ),
]
As = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        help="Act as NAME, whose token you have, over HTTP: the agent that runs under this name"
        " keeps its connection.",
    ),
]


class HttpAddress(NamedTuple):
    """Where the HTTP API is, and who calls.

    Attributes:
        url: The API's address, without a slash at its end.
        token: The token, or what reads it.
        space: The space that the token must be for; ``None``: whichever it is for.
        participant: The participant that the token must belong to; ``None``: whoever.
    """

    url: str
    token: str | Callable[[], str]
    space: str | None = None
    participant: str | None = None


def http_url(given: str | None) -> str | None:
    """The HTTP address from the option or the environment; ``None`` if there is none.

    Raises:
        ConfigurationError: It is no address.
    """
    url = os.environ.get("MEUP_HTTP") if given is None else given
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"the HTTP address {url!r} is none; give one such as http://localhost:8421"
        )
    return url.rstrip("/")


def http_address(
    http: str | None,
    space: str | None,
    token: str | None,
    token_file: Path | None,
    participant: str | None = None,
) -> HttpAddress:
    """The address from options and environment.

    Raises:
        ConfigurationError: Something is missing, said twice, or cannot be read.
    """
    url = http_url(http)
    if url is None:
        raise ConfigurationError(
            "the gateway's HTTP address is missing; give --http or set MEUP_HTTP"
        )
    found = token_from(token, token_file)
    if found is None:
        raise ConfigurationError(
            "the token is missing; set MEUP_TOKEN, or give --token-file or --token"
        )
    space = os.environ.get("MEUP_SPACE") if space is None else space
    return HttpAddress(url, found, space or None, participant)
