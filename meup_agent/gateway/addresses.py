"""The addresses of a gateway's ports, as text."""

from __future__ import annotations

from typing import Final

_LOCAL: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def local_host(host: str) -> str:
    """The host by which clients on this machine dial a port that listens at a host."""
    return _LOCAL.get(host, host)


def host_and_port(host: str, port: int) -> str:
    """A host and a port as they stand in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
