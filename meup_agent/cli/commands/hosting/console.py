"""``meup console``, and the console of a gateway that another command runs: the way into it."""

from __future__ import annotations

import os
import socket
import sys
import webbrowser
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from meup_agent.cli.failures import Failure, require_extra
from meup_agent.cli.options import RunningPort, argument, flag, option
from meup_agent.cli.render.output import warn
from meup_agent.cli.up.state import Owner, find_gateway
from meup_agent.errors import ConfigurationError
from meup_agent.escape import visible

if TYPE_CHECKING:
    import httpx

    from meup_agent.gateway.config import Config
    from meup_agent.gateway.console import Console
    from meup_agent.gateway.server import RunningGateway

DECIDERS: Final = ("you", "fulfiller")
"""The participants that a person is where no name is given, if the gateway has one of them."""

SOMEWHERE: Final = ("192.0.2.1", 9)
"""An address of documents (RFC 5737), to find by which of its own this machine reaches others;
nothing is sent there."""


def console(
    name: Annotated[
        str | None,
        argument("NAME", "The participant to be; else MEUP_PARTICIPANT, `you` or `fulfiller`."),
    ] = None,
    port: RunningPort = None,
    lan: Annotated[
        bool,
        flag("--lan", "A link for another machine of this network, also as a QR code for a phone."),
    ] = False,
    host: Annotated[
        str | None,
        option("HOST", "With `--lan`: this machine's name or address there; else it is looked up."),
    ] = None,
    no_open: Annotated[bool, flag("--no-open", "Print the link, and open no browser.")] = False,
) -> None:
    """Sign in to the console of `meup up` or `meup gateway --dev`: open it in your browser.

    Prints a link that signs in one browser, once, within ten minutes. Whoever has it acts as the
    participant, so give it to no one else. The gateway must run on this machine, under the same
    user.

    With `--lan` the link is for a phone, and is shown as a QR code, too. The gateway must be
    reachable from there, and speak TLS: `meup up --lan --tls-certificate FILE --tls-key FILE`.

    Example: `meup console`

    Example: `meup console ann --no-open`

    Example: `meup console --lan`
    """
    require_extra("a gateway")
    if host is not None and not lan:
        raise ConfigurationError("--host is for --lan")
    gateway = find_gateway(port)
    who = _participant(gateway, name)
    if gateway.http is None:
        raise Failure(f"the gateway at {gateway.url} serves no HTTP, and so no console")
    origin = gateway.http if not lan else _lan_origin(gateway.http, host)
    made = anyio.run(_make_link, gateway, who)
    if lan and made.get("local"):
        raise Failure(
            f"the gateway at {gateway.url} listens on this machine only; start it with --lan"
        )
    link = f"{origin}{made['path']}"
    sys.stdout.write("\n".join(link_lines(link, visible(who, 80))) + "\n")
    if lan:
        _draw(link)
    elif not no_open and not os.environ.get("SSH_CONNECTION"):
        sys.stdout.flush()
        anyio.run(open_link, link)


def _participant(gateway: Owner, name: str | None) -> str:
    known = gateway.token_files
    if name is None:
        usual = (os.environ.get("MEUP_PARTICIPANT", ""), *DECIDERS)
        name = next((each for each in usual if each in known), None)
        if name is None and len(known) == 1:
            return next(iter(known))
    return gateway.check_name(name)


def _lan_origin(http: str, host: str | None) -> str:
    """The address of the gateway for other machines."""
    parts = urlsplit(http)
    if parts.scheme != "https":
        raise Failure(
            "a link that passes a network needs TLS, since whoever reads it is signed in; start the"
            " gateway with --lan --tls-certificate FILE --tls-key FILE"
        )
    if host is None:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect(SOMEWHERE)
                host = str(probe.getsockname()[0])
        except OSError:
            raise Failure("this machine is in no network; give its address by --host") from None
    shown = f"[{host}]" if ":" in host else host
    return f"https://{shown}:{parts.port or 443}"


async def _make_link(gateway: Owner, who: str) -> dict[str, Any]:
    """Ask the gateway for a link, at its socket, where no other user can listen."""
    import httpx

    from meup_agent.transport.http import open_client

    try:
        async with open_client(gateway.socket, f"Bearer {gateway.token(who)}") as client:
            answer = await client.post("/console/links")
    except httpx.HTTPError as error:
        why = type(error).__name__
        raise Failure(f"the gateway at {gateway.url} gives no answer ({why})") from None
    if answer.status_code == 404:
        raise Failure(
            f"the gateway at {gateway.url} serves no console; http.console: true in its"
            " configuration turns it on, as --lan does"
        )
    return _document(answer, gateway)


def _document(answer: httpx.Response, gateway: Owner) -> dict[str, Any]:
    try:
        document: dict[str, Any] = answer.json()
    except ValueError:
        document = {}
    if answer.status_code != 200 or "path" not in document:
        why = visible(str(document.get("message", f"status {answer.status_code}")), 200)
        raise Failure(f"the gateway at {gateway.url} gives no link: {why}")
    return document


def _draw(link: str) -> None:
    """Draw a QR code where a terminal can show it."""
    require_extra("a QR code")
    import segno

    try:
        "█▀▄".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return  # the link says the same
    segno.make(link, error="l").terminal(compact=True)
    sys.stdout.write("\n")


# --- the console of a gateway that a command runs ---
# Made where it is served, and the way into it.


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
