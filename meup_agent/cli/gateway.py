"""``meup gateway``: the place where participants meet."""

from __future__ import annotations

import ipaddress
import shlex
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import anyio
import typer

from meup_agent.cli.failures import Failure
from meup_agent.cli.logs import log_to_stderr
from meup_agent.errors import ConfigurationError
from meup_agent.gateway.config import DEFAULT_HOST, DEFAULT_PORT

if TYPE_CHECKING:
    from meup_agent.gateway.config import Config

NEEDED: Final = ("picows", "pydantic_settings", "yaml")
"""What the extra ``gateway`` brings and a gateway cannot do without."""

ROLES: Final = {
    "proposer": "may not call tools, so it proposes",
    "fulfiller": "reviews proposals and carries them out",
    "tools": "has the tools",
    "observer": "sees everything and says nothing",
}


def gateway(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The spaces and participants, as YAML."),
    ] = None,
    dev: Annotated[
        bool,
        typer.Option(
            "--dev",
            help="Without a file: a space with the participants proposer, fulfiller, tools and"
            " observer; their tokens are printed as lines to paste into a shell.",
        ),
    ] = False,
    host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help=f"Where to listen; else the file's, or {DEFAULT_HOST}."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help=f"Where to listen; else the file's, or {DEFAULT_PORT}. 0: any free port.",
        ),
    ] = None,
) -> None:
    """Run a gateway until Ctrl-C or SIGTERM.

    Members are told to dial again (close code 1012), and it exits with 0.

    Example: `meup gateway --dev`

    Example: `meup gateway --config space.yaml --host 127.0.0.1 --port 8420`
    """
    require_extra()
    if (config is None) is not dev:
        raise ConfigurationError("a gateway needs either --config FILE or --dev")
    log_to_stderr("info")
    from meup_agent.gateway.dev import dev_config
    from meup_agent.gateway.files import load_config
    from meup_agent.gateway.settings import environment_over

    tokens: dict[str, str] = {}
    if config is None:
        settings, tokens = dev_config()
        settings = environment_over(settings)
    else:
        settings = load_config(config)
    anyio.run(
        _serve,
        settings,
        host,
        port,
        tokens,
        backend_options={"use_uvloop": find_spec("uvloop") is not None},
    )


def require_extra() -> None:
    """Check that a gateway can be run here.

    Raises:
        Failure: The extra ``gateway`` is not installed.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise Failure(
            f"a gateway needs {', '.join(missing)}, not installed here;"
            " run: pip install 'meup-agent[gateway]'"
        )


async def _serve(
    settings: Config, host: str | None, port: int | None, tokens: dict[str, str]
) -> None:
    from meup_agent.gateway.server import serve

    # Around the gateway, so that a second Ctrl-C does not interrupt its stopping.
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with serve(settings, host, port) as running:
            listens_at = settings.host if host is None else host
            if not _is_loopback(listens_at):
                sys.stderr.write(
                    f"meup: warning: listening at {listens_at} without TLS, so tokens and messages"
                    " can be read on the way; put a proxy with TLS in front\n"
                )
            if tokens:
                sys.stdout.write(_to_paste(running.url, settings.spaces[0].id, tokens))
                sys.stdout.flush()
            async for _ in signals:
                break


def _to_paste(url: str, space: str, tokens: dict[str, str]) -> str:
    """One line of shell for each participant."""
    lines = ["# To be one of these, paste its line into a shell; then try: meup tail"]
    for name, token in tokens.items():
        about = f": {ROLES[name]}" if name in ROLES else ""
        values = {"MEUP_URL": url, "MEUP_SPACE": space, "MEUP_TOKEN": token}
        exports = " ".join(f"{key}={shlex.quote(value)}" for key, value in values.items())
        lines += [f"# {name}{about}", f"export {exports}"]
    return "\n".join(lines) + "\n"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
