"""The console of a gateway that a command runs: made where it is served, and the way into it."""

from __future__ import annotations

import webbrowser
from typing import TYPE_CHECKING

import anyio.to_thread

from meup_agent.cli.render.output import warn
from meup_agent.errors import ConfigurationError

if TYPE_CHECKING:
    from meup_agent.gateway.config import Config
    from meup_agent.gateway.console import Console
    from meup_agent.gateway.server import RunningGateway


def make_console(settings: Config) -> Console | None:
    """The console of a gateway; ``None``: it is to have none."""
    from meup_agent.gateway.network import serves_console

    if not serves_console(settings, settings.host):
        return None
    # Loaded only where it is wanted: templates take their time.
    from meup_agent.gateway.console import Console

    return Console()


def sign_in_link(console: Console | None, running: RunningGateway, token: str | None) -> str | None:
    """A one-time link into the console for a token's participant; ``None``: there is none."""
    url = running.console_url
    if console is None or url is None or token is None:
        return None
    return console.sign_in_link(url, token)


async def open_link(link: str | None) -> None:
    """Open a link in the user's browser.

    Raises:
        ConfigurationError: There is no console to open.
    """
    if link is None:
        raise ConfigurationError("--open needs the console, which http.console turns off")
    if not await anyio.to_thread.run_sync(webbrowser.open, link):
        warn("no browser could be opened; open the link yourself")


def link_lines(link: str | None, participant: str) -> list[str]:
    """The lines of a banner that say where to decide in a browser."""
    if link is None:
        return []
    said = f"Decide in a browser, as {participant} (once, within ten minutes):"
    return [said, "", f"  {link}", ""]
